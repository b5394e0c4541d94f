//! What experiment trackers, schedulers and GPU tools recorded of runs: series of memory, and how the runs ended.
//!
//! W&B run files (`wandb`), TensorBoard event files (`tensorboard`), the CSV of nvidia-smi (`gpus`) and the output of sacct
//! (`slurm`). The first bytes tell which one it is.
//! The first two are read piece by piece, because they also contain media and metrics and can have any size. Each error has
//! the offset, or the line, at which it is.

use std::collections::BTreeMap;
use std::io::{self, Read};

use serde::Serialize;

use memwarden::formats::stamp;
use memwarden::model::ends::{EndCause, FailedAllocation};
use memwarden::model::names::named;
use memwarden::model::series::{Row, Series};
use memwarden::model::steps::Steps;

pub(crate) mod console;
pub(crate) mod gpus;
mod protobuf;
pub(crate) mod quantity;
pub(crate) mod slurm;
pub(crate) mod tensorboard;
#[cfg(test)]
mod tests;
pub(crate) mod wandb;
mod wandb_keys;

/// Maximum number of series of a file; a node has fewer GPUs and processes.
const MOST_SERIES: usize = 1024;
/// Maximum number of samples of a file: a week of eight GPUs at one per second has 4.8 million.
const MOST_SAMPLES: usize = 1 << 23;

/// Maximum size in bytes of a file that is not read piece by piece.
pub const LARGEST_TEXT: u64 = 1 << 30;

/// What a file says of one run, or of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunRecord {
    /// The tool that wrote it.
    pub tool: &'static str,
    pub series: Vec<Series>,
    /// The steps of the training, in the times of the series; none where the file has none.
    pub steps: Steps,
    /// How runs ended, in the order of the file.
    pub ends: Vec<RunEnd>,
    /// What was left out, and why.
    pub remarks: Vec<String>,
}

named! {
    /// What a program did when it failed.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Phase {
        Forward = "forward",
        Backward = "backward",
        Optimizer = "optimizer",
        Evaluation = "evaluation",
        Save = "save",
    }
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunEnd {
    /// The name or number of the run; empty where the file has none.
    pub run: String,
    pub cause: EndCause,
    /// The exit code; absent where none was recorded.
    pub exit_code: Option<i32>,
    /// The last optimizer step that the console showed, and how many were planned.
    pub step: Option<u64>,
    pub steps_planned: Option<u64>,
    /// What the traceback says that it did.
    pub phase: Option<Phase>,
    /// The allocation that failed.
    pub allocation: Option<FailedAllocation>,
    /// The GPU on which it failed, as the process counts it.
    pub gpu: Option<u32>,
    /// The largest memory of a node that the scheduler recorded, and the memory that the job was given there, in bytes.
    pub used_bytes: Option<u64>,
    pub limit_bytes: Option<u64>,
}

impl RunEnd {
    fn new(run: String, cause: EndCause) -> Self {
        Self { run, cause, ..Self::default() }
    }
}

/// Why a file has no record of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunRecordError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes at this offset are not what the format has there.
    #[error("at offset {offset}: {problem}")]
    At { offset: u64, problem: &'static str },
    #[error("line {line}: {problem}")]
    Line { line: usize, problem: String },
    /// A valid file without what is asked of it.
    #[error("{0}")]
    Nothing(&'static str),
    #[error("more than {MOST_SAMPLES} samples, or {MOST_SERIES} series, of memory")]
    TooMany,
}

/// The formats by the first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Wandb,
    TensorBoard,
    NvidiaSmi,
    Sacct,
}

/// The number of bytes that [`Format::of`] needs.
pub const FRONT: usize = 4096;

impl Format {
    pub const ALL: [Self; 4] = [Self::Wandb, Self::TensorBoard, Self::NvidiaSmi, Self::Sacct];

    /// The format of a file that begins with these bytes; absent where it is none of these.
    pub fn of(front: &[u8]) -> Option<Self> {
        if front.starts_with(wandb::MAGIC) {
            return Some(Self::Wandb);
        }
        if tensorboard::begins(front) {
            return Some(Self::TensorBoard);
        }
        let wide = front.starts_with(b"\xff\xfe") || front.starts_with(b"\xfe\xff");
        let text =
            if wide { gpus::decoded(front).unwrap_or_default() } else { String::from_utf8_lossy(front) };
        let line = text.trim_start_matches('\u{feff}').trim_start().lines().next().unwrap_or_default();
        let cell = |name: &str| line.contains(name);
        // A row without its header begins with a time.
        let bare = cell(" MiB,") || line.ends_with(" MiB");
        let csv = ["memory.used", "used_gpu_memory", "used_memory ["].iter().any(|name| cell(name));
        let columns = line.strip_prefix('#').unwrap_or_default().trim_start();
        let table = ["gpu ", "Date ", "Time "].iter().any(|name| columns.starts_with(name));
        if csv || table || (bare && stamp::cell(line).is_some()) {
            Some(Self::NvidiaSmi)
        } else if cell("JobID") && cell("State") {
            Some(Self::Sacct)
        } else {
            None
        }
    }

    /// Reads a file of this format.
    ///
    /// # Errors
    /// [`RunRecordError`].
    pub fn read(self, input: impl Read) -> Result<RunRecord, RunRecordError> {
        match self {
            Self::Wandb => wandb::read(input),
            Self::TensorBoard => tensorboard::read(input),
            _ => {
                let mut bytes = Vec::new();
                input.take(LARGEST_TEXT + 1).read_to_end(&mut bytes)?;
                if bytes.len() as u64 > LARGEST_TEXT {
                    return Err(RunRecordError::Nothing("larger than 1 GiB"));
                }
                match self {
                    Self::NvidiaSmi => gpus::nvidia_smi(&bytes),
                    _ => slurm::sacct(&bytes),
                }
            }
        }
    }
}

/// Collects samples by the name of their series, within the bounds.
#[derive(Debug, Default)]
struct Samples {
    series: Vec<Series>,
    /// By the names of the series.
    limits: BTreeMap<String, f64>,
    count: usize,
    /// Samples that are not amounts, or out of order.
    left_out: usize,
}

impl Samples {
    /// Adds a sample: seconds since 1970, bytes.
    fn push(&mut self, name: &str, gpu: bool, at: f64, used: f64) -> Result<(), RunRecordError> {
        let place = match self.series.iter().position(|series| series.name == name) {
            Some(place) => place,
            None if self.series.len() == MOST_SERIES => return Err(RunRecordError::TooMany),
            None => {
                self.series.push(Series { name: name.to_owned(), gpu, ..Series::default() });
                self.series.len() - 1
            }
        };
        let rows = &mut self.series[place].rows;
        let follows = rows.last().is_none_or(|before| before.at < at);
        if !(at.is_finite() && (0.0..=quantity::LARGEST).contains(&used) && follows) {
            self.left_out += 1;
            return Ok(());
        }
        if self.count == MOST_SAMPLES {
            return Err(RunRecordError::TooMany);
        }
        self.count += 1;
        rows.push(Row { at, used, ..Row::default() });
        Ok(())
    }

    /// Sets the limit of a series, of which the first one counts.
    fn limit(&mut self, name: &str, limit: f64) {
        let is_limit = limit.is_finite() && limit > 0.0 && !self.limits.contains_key(name);
        if is_limit && self.series.iter().any(|series| series.name == name) {
            self.limits.insert(name.to_owned(), limit);
        }
    }

    /// The series, those of GPUs first, each group in the order of the file; what was left out is remarked.
    fn finish(mut self, remarks: &mut Vec<String>) -> Vec<Series> {
        if self.left_out > 0 {
            remarks.push(format!(
                "{} samples that are not amounts, or out of order, were ignored",
                self.left_out
            ));
        }
        self.series.retain(|series| !series.rows.is_empty());
        for series in &mut self.series {
            let limit = self.limits.get(&series.name).copied();
            series.rows.iter_mut().for_each(|row| row.limit = limit);
        }
        self.series.sort_by_key(|series| !series.gpu);
        self.series
    }
}
