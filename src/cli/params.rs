//! `memwarden params`: analyzes checkpoints without executing their code.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::output::{Format, Output};
use crate::cli::picture::Format as Drawing;
use crate::cli::report::{Screen, bar};
use crate::files::parameters::compare::Comparison;
use crate::files::parameters::{summary, torch};
use crate::model::units::{Bytes, real};
use crate::recording::checkpoint::Checkpoint;
use crate::recording::checkpoint::compare::compare;
use crate::recording::checkpoint::scan::{Progress, scan_all};
use crate::report::params::{CheckpointReport, Report, SCHEMA_VERSION, picture, tell, text};

/// Threads where none are asked for: more would not read memory faster on most machines.
const THREADS: usize = 4;

/// The exit code where files with values are missing or too short.
const INCOMPLETE: u8 = 2;

/// Report the contents of parameter files: shapes, data types, size by part of the model, NaN, Inf and zeros.
///
/// Reads safetensors (one file, or shards with their index), archives of torch.save, PEFT adapters, .npz and .npy, and
/// folders of Hugging Face, DeepSpeed and torch.distributed.checkpoint; of the last one not the values. No code in a file is executed. Values are read by threads of the lowest
/// priority, without evicting other files from the page cache. If two checkpoints are given, they are compared.
/// Exit codes: 0 success, 1 an error, 2 a file with values of a folder of torch.distributed.checkpoint is missing or too short: the
/// report names it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden params checkpoint-1000/
  memwarden params adapter/ --base meta-llama/Llama-3.1-8B/
  memwarden params step100.safetensors step200.safetensors --difference")]
pub(super) struct Args {
    /// File, index or folder with parameters.
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// Second checkpoint, which is compared with the first.
    #[arg(value_name = "OTHER")]
    other: Option<PathBuf>,
    #[command(flatten)]
    output: Output<Format>,
    /// Draw the size by part of the model and by data type to this file: .svg or .png.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Maximum length of each list in the report.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// List every tensor in the text report; JSON has every tensor.
    #[arg(long)]
    tensors: bool,
    /// Read only the headers; NaN, Inf and zeros are then unknown.
    #[arg(long)]
    no_scan: bool,
    /// Number of threads that read values [default: number of CPU cores, at most 4].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Compare the values too, and report by how much each tensor differs.
    #[arg(long, requires = "other")]
    difference: bool,
    /// Base model of an adapter, to report the share of trainable parameters.
    #[arg(long, value_name = "CHECKPOINT")]
    base: Option<PathBuf>,
    /// Accept .pt files that name functions or classes outside the list of harmless ones; none is called in any case.
    #[arg(long)]
    any_class: bool,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let drawing = self.plot.as_deref().map(Drawing::of).transpose()?;
        let options = torch::Options { any_class: self.any_class };
        let paths: Vec<&Path> = [Some(&self.checkpoint), self.other.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .collect();
        let checkpoints =
            paths.iter().map(|path| Checkpoint::open(path, &options)).collect::<Result<Vec<_>, _>>()?;
        let base_elements = match &self.base {
            Some(path) => Some(Checkpoint::open(path, &options)?.elements()),
            None => None,
        };
        let report = checkpoints
            .iter()
            .map(|checkpoint| self.tell(checkpoint, base_elements))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let names: Vec<Vec<String>> = checkpoints.iter().map(Checkpoint::names).collect();
        let comparison = match (&checkpoints[..], &names[..]) {
            ([before, after], [old, new]) => Some(self.compare([before, after], [old, new])?),
            _ => None,
        };
        self.write(&report, comparison.as_ref())?;
        if let (Some(path), Some(drawing)) = (&self.plot, drawing) {
            drawing.write(&picture::draw(&report), path)?;
        }
        let is_incomplete = checkpoints.iter().any(|checkpoint| checkpoint.is_incomplete);
        Ok(if is_incomplete { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS })
    }

    fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or(cores.min(THREADS), NonZeroUsize::get)
    }

    fn tell<'a>(
        &self,
        checkpoint: &'a Checkpoint,
        base_elements: Option<u64>,
    ) -> anyhow::Result<CheckpointReport<'a>> {
        let scan = |progress: &mut Progress<'_>| scan_all(checkpoint, self.threads(), progress);
        let scanned = if self.no_scan { None } else { Some(shown("scanning", scan)?) };
        let options =
            summary::Options { top: self.top, adapter: checkpoint.adapter.is_some(), base_elements };
        Ok(tell(checkpoint, scanned, &options))
    }

    fn compare<'a>(
        &self,
        both: [&'a Checkpoint; 2],
        names: [&'a [String]; 2],
    ) -> anyhow::Result<Comparison<'a>> {
        if !self.difference {
            return Ok(compare(both, names, None)?);
        }
        shown("comparing", |progress| Ok(compare(both, names, Some((self.threads(), progress)))?))
    }

    fn write(
        &self,
        report: &[CheckpointReport<'_>],
        comparison: Option<&Comparison<'_>>,
    ) -> anyhow::Result<()> {
        if self.output.format() == Format::Json {
            return self.output.value(&Report {
                schema_version: SCHEMA_VERSION,
                checkpoints: report,
                comparison,
            });
        }
        let page = self.output.page();
        let mut text = String::new();
        report.iter().for_each(|report| text::checkpoint(report, self.tensors, page, &mut text));
        if let Some(comparison) = comparison {
            text::comparison(comparison, self.top, page, &mut text);
        }
        self.output.colored(&text)
    }
}

/// Does work that reads values, with a progress bar on a terminal.
fn shown<T>(doing: &str, work: impl FnOnce(&mut Progress<'_>) -> T) -> T {
    let mut screen = Screen::new();
    let done = work(&mut |read, whole| show(&mut screen, doing, read, whole));
    screen.clear();
    done
}

fn show(screen: &mut Screen, doing: &str, read: u64, whole: u64) {
    let share = real(read) / real(whole.max(1));
    let line = format!("{} {doing}: {} of {}", bar(share), Bytes::new(read), Bytes::new(whole));
    screen.show("", &line);
}
