//! `memwarden incidents`: lists and prints recorded incidents.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::app::{self, serve};
use crate::cli::output::{Format, Output};
use crate::cli::picture;
use crate::model::health::Health;
use crate::model::printable;
use crate::node_view::ends::sentence;
use crate::node_view::table::{Cell, Row};
use crate::protection::record::{self, store::Store};
use crate::protection::types::incident::{Cause, Incident};
use crate::protection::types::incidents::{self, Entry, Incidents, RECORD};
use crate::report::Page;
use crate::report::incident::{Rendered, report};
use crate::report::text::rows;

/// The state folder of the systemd unit.
const STATE: &str = "/var/lib/memwarden";

/// Maximum number of characters of the answers of other nodes in the list; the report of an incident has all.
const ANSWERS: usize = 300;

/// List recorded incidents, or print the report of one.
///
/// An incident is recorded when protection acts on a target, or would act in observe mode, and when the kernel's OOM
/// killer kills a process.
/// The folder of an incident contains all values as JSON, the last minutes as CSV, and the list of processes. Needs no running
/// daemon.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Example:\n  memwarden incidents\n  memwarden incidents 20260101T120000.000Z-train \
                             --output ticket.md"
)]
pub(super) struct Args {
    /// ID of the incident to print; without it, all incidents are listed, newest first.
    id: Option<String>,
    /// Folder of the incidents [default: the one in the configuration].
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Configuration file of the daemon; without it, the default configuration.
    #[arg(long = "config.file", value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Picture of the incident's memory to write, .svg or .png.
    #[arg(long, value_name = "FILE", requires = "id", value_parser = picture::drawable)]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: Output<Format>,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let store = Rendered(self.store()?);
        let output = &self.output;
        if let Some((id, plot)) = self.id.as_ref().zip(self.plot.as_ref()) {
            picture::chart(&store.chart(id)?, plot)?;
        }
        match (&self.id, output.format()) {
            (None, Format::Json) => output.json(&String::from_utf8_lossy(&incidents::json(Some(&store))?))?,
            (None, Format::Text) => output.colored(&list(&store, output.page())?)?,
            (Some(id), Format::Json) => output.json(&String::from_utf8_lossy(&read(&store, id)?))?,
            (Some(id), Format::Text) => {
                let record: Incident = serde_json::from_slice(&read(&store, id)?)
                    .with_context(|| format!("the record of {id} is damaged"))?;
                let folder = printable::path(&store.folder().join(id));
                output.text(&format!("{}\nFolder: {folder}\n", report(&record)))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn store(&self) -> anyhow::Result<Store> {
        if let Some(folder) = &self.folder {
            if !folder.is_dir() {
                anyhow::bail!("there is no folder {}", printable::path(folder));
            }
            return Ok(Store::new(folder.clone()));
        }
        let options = serve::Options { file: self.config_file.clone(), overrides: Vec::new() };
        let config = app::serve::load(&options).context("the configuration cannot be read")?;
        Ok(record::store(&record::folder(&config).unwrap_or_else(|| PathBuf::from(STATE))))
    }
}

fn read(store: &dyn Incidents, id: &str) -> anyhow::Result<Vec<u8>> {
    store
        .file(id, RECORD)
        .with_context(|| format!("there is no incident {id} in {}", store.folder().display()))
}

fn list(store: &dyn Incidents, page: Page) -> anyhow::Result<String> {
    let mut out = String::new();
    let entries = incidents::entries(store)?;
    if entries.is_empty() {
        writeln!(out, "No incidents in {}.", printable::path(store.folder()))?;
    }
    rows(&mut out, entries.iter().map(row), page);
    Ok(out)
}

fn row(entry: &Entry) -> Row {
    let cause = entry.cause.map_or("damaged", |cause| cause.label());
    let summary = entry.end.as_deref().map(sentence).or_else(|| entry.summary.clone());
    let mut summary = summary.unwrap_or_else(|| "the record cannot be read".to_owned());
    let known = entry.circumstances.words();
    if !known.is_empty() {
        let known: Vec<String> = known.into_iter().map(|(name, text)| format!("{name} {text}")).collect();
        summary.push_str(&format!(" When it began: {}.", known.join("; ")));
    }
    summary.push_str(&requests(entry));
    Row::new(&*entry.id, level(entry))
        .text("incident", 0, &entry.id)
        .text("cause", 0, Cell::text(cause).of(level(entry)))
        .text("mode", 1, entry.mode.as_deref().unwrap_or_default())
        .number("steps", 2, entry.steps.map_or_else(String::new, |steps| steps.to_string()))
        .prose("summary", summary)
}

/// How severe an incident was, as far as its record tells.
fn level(entry: &Entry) -> Health {
    match entry.cause {
        None => Health::Unknown,
        Some(Cause::KernelOom | Cause::Killed) => Health::Critical,
        Some(Cause::Policy) => Health::Warning,
    }
}

/// Which node asked which for a checkpoint of the run, and what came back, as sentences.
fn requests(entry: &Entry) -> String {
    let Some(id) = &entry.run_incident else { return String::new() };
    let mut text = format!(" On all nodes of the run: incident {id}.");
    if let Some(node) = &entry.asked_by {
        // Writing to a text cannot fail.
        let _ = write!(text, " Asked by {node}.");
    }
    if let Some(run) = &entry.asked_run {
        let _ = match &entry.answers {
            Some(answers) if answers.chars().count() > ANSWERS => {
                let start: String = answers.chars().take(ANSWERS).collect();
                write!(text, " Asked the other nodes of {run}: {start}...")
            }
            Some(answers) => write!(text, " Asked the other nodes of {run}: {answers}."),
            None => write!(text, " Asked the other nodes of {run}; no answer is recorded."),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::label::Label;
    use crate::protection::types::incident::{Circumstances, StepRecord};
    use crate::protection::types::run_request::{RunQuery, RunRequest};
    use crate::protection::types::rung::State;
    use crate::protection::types::step::{Step, TargetId, Work};
    use crate::report::Paint;
    use serde_json::json;

    #[test]
    fn a_list_shows_who_asked_whom_and_what_came_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        let text = || list(&store, Page::default()).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        let step = |work, output: &str| StepRecord {
            output: output.to_owned(),
            ..StepRecord::new(1, 0.0, Step { target: TargetId(1), stage: State::Checkpoint, work })
        };
        let write = |steps: Vec<StepRecord>| {
            let record = Incident { summary: "It saved.".to_owned(), steps, ..Incident::default() };
            store.write(
                "20260101T120000.000Z-job",
                &[(RECORD.to_owned(), serde_json::to_vec(&record).unwrap())],
            )
        };
        let [incident, from] = ["i@n1", "n1"].map(str::to_owned);
        let request = RunRequest { incident, from, ..RunRequest::default() };
        let query =
            RunQuery { run: "alpha".into(), slurm_job_id: Label::default(), request: request.clone() };
        let ask = Work::AskRun(query.into());
        write(vec![step(ask.clone(), "2 nodes, asked 1, no_answer 1; n2: no_answer")]).unwrap();
        let asked = "It saved. On all nodes of the run: incident i@n1. Asked the other nodes of alpha: 2 nodes, asked 1, \
                     no_answer 1; n2: no_answer.";
        assert!(text().contains(asked), "{}", text());
        write(vec![step(ask.clone(), "")]).unwrap();
        assert!(text().contains("Asked the other nodes of alpha; no answer is recorded."), "{}", text());
        write(vec![step(ask, &"x".repeat(5000))]).unwrap();
        assert!(text().contains("xxx...") && text().len() < 1000, "{}", text());
        write(vec![step(Work::RunRequested { request: request.into() }, "")]).unwrap();
        assert!(text().contains("incident i@n1. Asked by n1."), "{}", text());
    }

    #[test]
    fn a_list_tells_the_limit_the_growth_and_what_can_be_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        let circumstances = Circumstances {
            resource: Some("cgroup".to_owned()),
            limit_bytes: Some(67_108_864.0),
            growth_bytes_per_second: Some(5_242_880.0),
            run: Some("alpha".to_owned()),
            step: Some(42.0),
            checkpoint_path: Some("/ckpt/40".to_owned()),
            checkpoint_age_seconds: Some(90.0),
            ..Circumstances::default()
        };
        let record = Incident { summary: "It ended.".to_owned(), circumstances, ..Incident::default() };
        let record = serde_json::to_vec(&record).unwrap();
        store.write("20260101T120000.000Z-job", &[(RECORD.to_owned(), record)]).unwrap();
        let text = list(&store, Page::default()).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = "It ended. When it began: resource cgroup; limit 64.0 MiB; growth +5.0 MiB/s; run alpha; step 42; \
                        last checkpoint /ckpt/40, 2 min old.";
        assert!(text.contains(expected), "{text}");
        let listed = incidents::entries(&store).unwrap();
        let json = serde_json::to_value(&listed[0]).unwrap();
        assert_eq!((&json["limit_bytes"], &json["run"]), (&json!(67_108_864.0), &json!("alpha")));
        assert_eq!(json.get("used_bytes"), None, "unknown is absent");
        assert_eq!(json.get("checkpoint_step"), None);
    }

    #[test]
    fn a_list_has_one_line_for_each_incident() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        let text = || list(&store, Page::default()).unwrap().replace(folder.path().to_str().unwrap(), "DIR");
        assert_eq!(text(), "No incidents in DIR.\n");
        let record =
            Incident { mode: "enforce".to_owned(), summary: "It ended.".to_owned(), ..Incident::default() };
        store
            .write("20260101T120000.000Z-job", &[(RECORD.to_owned(), serde_json::to_vec(&record).unwrap())])
            .unwrap();
        store.write("20260102T120000.000Z-job", &[(RECORD.to_owned(), b"{".to_vec())]).unwrap();
        assert_eq!(
            text(),
            "  incident                  cause    mode     steps  summary\n  \
             20260102T120000.000Z-job  damaged  –            –  the record cannot be read\n  \
             20260101T120000.000Z-job  policy   enforce      0  It ended.\n"
        );
        let page = Page { columns: Some(80), paint: Paint::Colors };
        let shown = list(&store, page).unwrap();
        let (unknown, policy) = ("\x1b[35m? damaged\x1b[0m  –", "\x1b[33m! policy\x1b[0m   enforce");
        assert!(shown.contains(unknown) && shown.contains(policy), "{shown:?}");
        let plain = list(&store, Page { paint: Paint::Plain, ..page }).unwrap();
        assert!(plain.contains("? damaged") && !plain.contains('\x1b'), "{plain:?}");
    }
}
