//! `memwarden metrics`: the reference of every metric, from the catalog.

use std::process::ExitCode;

use crate::catalog;
use crate::cli::output::Output;
use crate::model::desc::Desc;

/// List every metric that memwarden can expose.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  memwarden metrics --format json | jq -r '.[].name'")]
pub(super) struct Args {
    #[command(flatten)]
    output: Output<Format>,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Format {
    /// A Markdown table.
    #[default]
    Markdown,
    /// A JSON array with one object for each metric.
    Json,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self.output.format() {
            Format::Markdown => self.output.text(&markdown())?,
            Format::Json => self.output.value(&lines())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn sorted() -> Vec<&'static Desc> {
    let mut all: Vec<&'static Desc> = catalog::all().collect();
    all.sort_by_key(|desc| desc.name);
    all
}

fn markdown() -> String {
    let mut out = String::from("| metric | kind | labels | what | OTLP |\n| --- | --- | --- | --- | --- |\n");
    for desc in sorted() {
        let labels: Vec<String> = desc.labels.iter().map(|label| format!("`{label}`")).collect();
        let mut otlp = format!("`{}` {}", desc.otlp_name(), desc.ucum);
        if let Some(semconv) = &desc.semconv {
            otlp.push_str(&format!(", `{}`", semconv.name));
        }
        out.push_str(&format!(
            "| `{}` | {} | {} | {} | {otlp} |\n",
            desc.name,
            desc.kind.label(),
            labels.join(", "),
            desc.help().replace('|', "\\|"),
        ));
    }
    out
}

#[derive(serde::Serialize)]
struct MetricLine {
    #[serde(flatten)]
    desc: &'static Desc,
    help: &'static str,
    otlp_name: String,
}

fn lines() -> Vec<MetricLine> {
    let line = |desc: &'static Desc| MetricLine { desc, help: desc.help(), otlp_name: desc.otlp_name() };
    sorted().into_iter().map(line).collect()
}
