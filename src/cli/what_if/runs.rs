//! The runs that are played: the series of files for whose memory a limit is given.

use std::rc::Rc;

use anyhow::bail;
use serde::Serialize;

use super::Args;
use crate::cli::replay::input;
use crate::files::run_records::RunRecord;
use crate::model::ends::EndCause;
use crate::model::format;
use crate::model::names::named;
use crate::model::series::Series;
use crate::model::steps::Steps;
use crate::simulate::what_if::{Assumed, Fate, Outcome};

/// A recorded series to play.
pub(super) struct Run {
    pub(super) series: Series,
    /// The steps of the file that the series is from.
    pub(super) steps: Rc<Steps>,
    /// The memory in bytes of the GPU that was full when the run really ended; absent where it did not end so, or that is unknown.
    pub(super) ended_full: Option<f64>,
}

/// What no limit was given for.
#[derive(Debug, Default, Serialize)]
pub(super) struct NotPlayed {
    host_series: usize,
    gpu_series: usize,
    /// Files of which nothing is played.
    files: Vec<String>,
}

named! {
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) enum Memory {
        Host = "host",
        Gpu = "GPU",
    }
}

impl Memory {
    pub(super) const fn of(run: &Run) -> Self {
        if run.series.gpu { Self::Gpu } else { Self::Host }
    }
}

impl Args {
    /// The series for whose memory a limit is given, and what is left out.
    pub(super) fn read(&self) -> anyhow::Result<(Vec<Run>, NotPlayed)> {
        let (mut runs, mut left) = (Vec::new(), NotPlayed::default());
        for path in &self.files {
            let mut record = input::file(path)?;
            record.series.iter_mut().for_each(|series| series.gpu |= self.gpu);
            let steps = Rc::new(std::mem::take(&mut record.steps));
            let full = full_at_its_end(&record);
            let before = runs.len();
            for (place, series) in record.series.into_iter().enumerate() {
                let (limits, left) = match series.gpu {
                    true => (&self.gpu_limit, &mut left.gpu_series),
                    false => (&self.limit, &mut left.host_series),
                };
                if series.rows.is_empty() {
                } else if limits.is_empty() {
                    *left += 1;
                } else {
                    let ended_full = full.filter(|(full, _)| *full == place).map(|(_, memory)| memory);
                    runs.push(Run { series, steps: Rc::clone(&steps), ended_full });
                }
            }
            if runs.len() == before {
                left.files.push(path.display().to_string());
            }
        }
        if runs.is_empty() {
            bail!("{}: {}", left.files.join(", "), left.why());
        }
        Ok((runs, left))
    }
}

impl Run {
    /// The outcome, where the run survived with at most the memory of the GPU that was full when it really ended.
    pub(super) fn as_it_ended(&self, outcome: Outcome, limit: f64, assumed: Assumed) -> Outcome {
        let full = self.ended_full.is_some_and(|memory| limit <= memory);
        if full && outcome.fate == Fate::Survived {
            return outcome.lost(Fate::OutOfGpuMemory, assumed);
        }
        outcome
    }

    pub(super) fn lost_steps(&self, outcome: &Outcome) -> Option<u64> {
        let lost = outcome.lost_seconds?;
        let end = self.series.rows.first()?.at + outcome.ended_seconds;
        self.steps.between(end - lost, end)
    }
}

/// Smallest part of the memory of the fullest GPU that the GPU of a failed allocation uses; one that uses less has another number
/// on the node than in the process.
const ALIKE: f64 = 0.5;

/// The series of the GPU on which an allocation failed that ended the run, by its place, and the memory of the GPU. It is the GPU
/// that the message names, or the fullest one where that GPU has little in use, because processes count only GPUs that they see.
fn full_at_its_end(record: &RunRecord) -> Option<(usize, f64)> {
    let end = record.ends.iter().find(|end| {
        matches!(end.cause, EndCause::GpuMemory | EndCause::GpuFragmentation | EndCause::GpuNeighbor)
    })?;
    let peak = |series: &Series| series.rows.iter().map(|row| row.used).fold(0.0, f64::max);
    let gpus = || record.series.iter().enumerate().filter(|(_, series)| series.gpu);
    let fullest = gpus().max_by(|(_, one), (_, other)| peak(one).total_cmp(&peak(other)))?;
    let named = end.gpu.map(|gpu| format!(" GPU {gpu}"));
    let named = gpus().find(|(_, series)| named.as_ref().is_some_and(|name| series.name.ends_with(name)));
    let (place, series) =
        named.filter(|(_, series)| peak(series) >= ALIKE * peak(fullest.1)).unwrap_or(fullest);
    Some((place, series.rows.last()?.limit?))
}

impl NotPlayed {
    fn why(&self) -> &'static str {
        match (self.gpu_series > 0, self.host_series > 0) {
            (true, _) => "all series are memory of GPUs, which --gpu-limit plays",
            (false, true) => "all series are memory of the host, which --limit plays",
            (false, false) => "there is no series of memory",
        }
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let left =
            [(self.gpu_series, "of GPUs", "--gpu-limit"), (self.host_series, "of the host", "--limit")];
        let left = left.into_iter().filter(|(count, ..)| *count > 0).map(|(count, whose, option)| {
            let verb = if count == 1 { "is" } else { "are" };
            format!("{count} series of memory {whose} {verb} not played, because {option} is not given.")
        });
        let files = (!self.files.is_empty()).then(|| {
            let count = format::counted(self.files.len(), "file");
            format!("{count} without a series to play: {}", self.files.join(", "))
        });
        left.chain(files).collect()
    }
}
