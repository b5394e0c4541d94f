//! `memwarden metrics`: the reference of every metric, from the catalog.

use std::process::ExitCode;

use crate::catalog;
use crate::cli::output::{self, Output};
use crate::model::desc::{Desc, Kind};

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
            Format::Json => self.output.json(&json()?)?,
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
            kind(desc),
            labels.join(", "),
            desc.help().replace('|', "\\|"),
        ));
    }
    out
}

fn json() -> serde_json::Result<String> {
    #[derive(serde::Serialize)]
    struct MetricLine<'a> {
        #[serde(flatten)]
        desc: &'a Desc,
        help: &'a str,
        otlp_name: String,
    }
    let rows: Vec<MetricLine<'_>> = sorted()
        .into_iter()
        .map(|desc| MetricLine { desc, help: desc.help(), otlp_name: desc.otlp_name() })
        .collect();
    output::pretty(&rows)
}

fn kind(desc: &Desc) -> &'static str {
    match desc.kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
        Kind::Histogram => "histogram",
    }
}
