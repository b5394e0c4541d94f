//! The runs that are played: the series of files for whose memory a limit is given.

use std::rc::Rc;

use anyhow::bail;
use serde::Serialize;

use super::Args;
use crate::cli::replay::input::{self, Files, Unreadable};
use crate::files::run_records::RunRecord;
use crate::what_if::{Assumed, Fate, Outcome, Unrecorded};
use memwarden::model::ends::EndCause;
use memwarden::model::format;
use memwarden::model::names::named;
use memwarden::model::series::Series;
use memwarden::model::steps::Steps;

/// A recorded series to play.
pub(super) struct Run {
    pub(super) series: Series,
    /// The steps of the file that the series is from.
    pub(super) steps: Rc<Steps>,
    /// Absent where the run did not really end because memory of its GPU was lacking.
    pub(super) ended_full: Option<FullGpu>,
}

/// The GPU on which an allocation failed, which ended the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct FullGpu {
    /// Its memory in bytes; absent where that was not recorded.
    memory: Option<f64>,
}

/// What no limit was given for.
#[derive(Debug, Default, Serialize)]
pub(super) struct NotPlayed {
    host_series: usize,
    gpu_series: usize,
    /// Files of which nothing is played.
    files: Vec<String>,
    pub(super) unreadable: Vec<Unreadable>,
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
        let Files { records, unreadable } = input::files(&self.files)?;
        let (mut runs, mut left) = (Vec::new(), NotPlayed { unreadable, ..NotPlayed::default() });
        for (name, mut record) in records {
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
                    let ended_full = full.filter(|(full, _)| *full == place).map(|(_, gpu)| gpu);
                    runs.push(Run { series, steps: Rc::clone(&steps), ended_full });
                }
            }
            if runs.len() == before {
                left.files.push(name);
            }
        }
        if runs.is_empty() {
            bail!("{}: {}", left.files.join(", "), left.why());
        }
        Ok((runs, left))
    }
}

impl Run {
    /// The outcome of a run that really ended out of GPU memory, where it reached the end of its recording: it ends so with at
    /// most the memory of that GPU too, and whether more would have sufficed is not known.
    pub(super) fn as_it_ended(&self, outcome: Outcome, limit: f64, assumed: Assumed) -> Outcome {
        let Some(gpu) = self.ended_full.filter(|_| outcome.fate == Fate::Survived) else { return outcome };
        if gpu.memory.is_some_and(|memory| limit <= memory) {
            outcome.lost(Fate::OutOfGpuMemory, assumed)
        } else {
            outcome.undecided(Unrecorded::SufficientGpuMemory)
        }
    }

    pub(super) fn lost_steps(&self, outcome: &Outcome) -> Option<u64> {
        let lost = outcome.lost_seconds?;
        let end = self.series.rows.first()?.at + outcome.ended_seconds?;
        self.steps.between(end - lost, end)
    }
}

/// Smallest part of the memory of the fullest GPU that the GPU of a failed allocation uses; one that uses less has another number
/// on the node than in the process.
const ALIKE: f64 = 0.5;

/// The series of the GPU on which an allocation failed that ended the run, by its place. It is the GPU that the message names, or the
/// fullest one where that GPU has little in use, because processes count only GPUs that they see.
fn full_at_its_end(record: &RunRecord) -> Option<(usize, FullGpu)> {
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
    Some((place, FullGpu { memory: series.rows.last().and_then(|row| row.limit) }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::run_records::RunEnd;
    use crate::what_if::{Policy, play};
    use memwarden::model::units::GIB;

    /// A run that used 50 GiB of a GPU with this memory, and ended for this cause.
    fn ended(cause: EndCause, memory: Option<f64>) -> Run {
        let points = [(0.0, Some(40.0 * GIB)), (60.0, Some(50.0 * GIB))];
        let series = Series::of_points("memory of GPU 0".to_owned(), memory, points);
        let series = Series { gpu: true, ..series };
        let end = RunEnd {
            run: String::new(),
            cause,
            exit_code: Some(1),
            step: None,
            steps_planned: None,
            phase: None,
            allocation: None,
            gpu: Some(0),
            used_bytes: None,
            limit_bytes: None,
        };
        let record = RunRecord { series: vec![series.clone()], ends: vec![end], ..RunRecord::default() };
        let ended_full = full_at_its_end(&record).map(|(_, gpu)| gpu);
        Run { series, steps: Rc::default(), ended_full }
    }

    #[test]
    fn more_memory_than_the_gpu_had_is_undecided() {
        let check = |cause, memory: Option<f64>, limit: f64, expected: Fate| {
            let run = ended(cause, memory.map(|gib| gib * GIB));
            let played = play(&[&run.series], limit * GIB, &Policy::Kernel, Assumed::default());
            let outcome = run.as_it_ended(played[0], limit * GIB, Assumed::default());
            assert_eq!(outcome.fate, expected, "{cause:?} of {memory:?} with {limit}");
            assert_eq!(outcome.unrecorded.is_some(), expected == Fate::Undecided);
            assert_eq!(outcome.lost_seconds.is_some(), expected == Fate::OutOfGpuMemory);
        };
        for cause in [EndCause::GpuMemory, EndCause::GpuFragmentation, EndCause::GpuNeighbor] {
            check(cause, Some(80.0), 45.0, Fate::OutOfGpuMemory);
            check(cause, Some(80.0), 80.0, Fate::OutOfGpuMemory);
            check(cause, Some(80.0), 80.1, Fate::Undecided);
            check(cause, None, 45.0, Fate::OutOfGpuMemory);
            check(cause, None, 60.0, Fate::Undecided);
        }
        check(EndCause::Failed, Some(80.0), 60.0, Fate::Survived);
        check(EndCause::Failed, None, 60.0, Fate::Survived);
        assert!(ended(EndCause::GpuMemory, None).ended_full.is_some(), "its peak is not the least limit");
    }
}
