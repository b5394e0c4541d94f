//! What a job predicts of the memory of its next phases, and what the daemon answers.
//!
//! A prediction comes from the job itself: it may be wrong, and a hostile job may state anything. It concerns only the
//! rank that made it. The analyzers compare it with what is free.

use std::time::Duration;

use super::ids::{ProcessKey, WorkloadKey};
use super::label::Label;

use super::names::named;
use super::time::Timestamp;
use super::units::{Bytes, real};

/// Maximum number of predictions of one rank: every phase on a few resources. A prediction replaces the earlier one of
/// the same phase and resource.
pub const MOST_PREDICTIONS: usize = 32;

named! {
    /// A part of a run that takes memory which it has not taken before.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Phase {
        /// The first step of the optimizer: gradients that are still to come, its state, and its temporary tensors.
        Optimizer = "optimizer",
        /// The largest step that is still to come, with the optimizer's state.
        Step = "step",
        /// An evaluation.
        Evaluation = "evaluation",
        /// Generation of text.
        Generation = "generation",
        /// The save of a checkpoint.
        Save = "save",
    }

    /// The kind of a resource that a prediction concerns.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Medium {
        /// Memory of a GPU, as its allocator has allocated it; see [`Prediction::device`].
        Device = "device",
        /// Resident memory of the process.
        Host = "host",
        /// Files in `/dev/shm`.
        Shm = "shm",
        /// Disk space of the folder of checkpoints.
        Disk = "disk",
    }

    /// How a prediction was made.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Certainty {
        /// It follows from shapes and types, or from a step of the same shape.
        Exact = "exact",
        /// It is a model of measurements.
        Estimated = "estimated",
        /// It cannot be predicted; it has no bytes, and the basis says why.
        Unknown = "unknown",
    }

    /// What the size of a phase is counted in.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum SizeUnit {
        /// Tokens of one micro-batch, padding included.
        Tokens = "tokens",
        /// Samples of one micro-batch.
        Samples = "samples",
        /// Batches of an evaluation whose outputs are kept at the same time.
        Batches = "batches",
    }

    /// How a process says that it ends.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ByeEnd {
        /// As intended.
        Finished = "finished",
        /// By an exception that the program did not catch.
        Exception = "exception",
        /// By a failed allocation.
        OutOfMemory = "out_of_memory",
        /// By a file system that was full.
        OutOfSpace = "out_of_space",
        /// By itself, since a phase would not fit.
        Aborted = "aborted",
        /// By the user, with Ctrl-C.
        Interrupted = "interrupted",
        /// With another exit status than 0.
        Failed = "failed",
    }

    /// Whether a prediction fits what is free, from the mildest to the most severe.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Verdict {
        Fits = "fits",
        /// It is not known whether it fits.
        Unknown = "unknown",
        /// It fits only within the uncertainty of the prediction.
        Tight = "tight",
        WillNotFit = "will_not_fit",
    }

    /// Activation recomputation in the backward pass, which saves memory.
    pub enum Recompute {
        /// No recomputation.
        None = "none",
        /// The core of attention.
        Selective = "selective",
        /// The forward pass of every layer.
        Full = "full",
    }
}

/// The highest memory of a phase, as quantiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The median.
    pub p50: Bytes,
    /// It is exceeded with a probability of 10 %; never below the median.
    pub p90: Bytes,
}

/// How the peak depends on the size of the phase: `fixed + per_unit × units + per_square × units × length` bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// What the size is counted in.
    pub unit: SizeUnit,
    /// The size that the prediction is made for.
    pub units: u64,
    /// The samples of that size; absent where they are unknown.
    pub samples: Option<u64>,
    /// The length of each of its samples, in tokens; absent where it is unknown.
    pub length: Option<u64>,
    /// Bytes that do not depend on the size.
    pub fixed: f64,
    /// Bytes for each unit.
    pub per_unit: f64,
    /// Bytes for each unit and token of length, as attention that keeps its scores needs; 0 where the peak is linear.
    pub per_square: f64,
}

impl Size {
    /// The peak of the median for another size, in bytes.
    pub fn peak(&self, units: u64, length: u64) -> Bytes {
        Bytes::of(self.fixed + real(units) * (self.per_unit + self.per_square * real(length)))
    }
}

/// What a rank predicts of one phase on one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub phase: Phase,
    /// The kind of the resource.
    pub medium: Medium,
    /// The ordinal of the GPU in the process; present where the medium is a device, and only there.
    pub device: Option<u16>,
    /// The UUID of that GPU; absent where the driver does not confirm it. Filled in by the `training` source.
    pub uuid: Option<Label>,
    /// The index of that GPU on the node; absent as the UUID is.
    pub gpu: Option<Label>,
    /// Time since the rank last reported the memory of that GPU; absent where it never did. Filled in by the `training`
    /// source.
    pub memory_age: Option<Duration>,
    pub certainty: Certainty,
    /// The highest memory that the rank holds on the resource in the phase, in the terms of [`Medium`]: with everything
    /// that it holds before. Absent where it is unknown. For `shm` and `disk`: what the phase adds.
    pub peak: Option<Peak>,
    /// What it held in the same terms when it made the prediction; the rest of the peak must be free. 0 for `shm` and
    /// `disk`.
    pub held: Option<Bytes>,
    /// Of the peak and of what it held, pages of mapped files such as libraries, which the kernel can reclaim; absent where the
    /// job does not state them.
    pub mapped: Option<Bytes>,
    /// The highest memory that was measured in this phase so far, in the same terms; absent before the phase has
    /// occurred. For `optimizer`, the state is allocated then, and does not come again.
    pub measured: Option<Bytes>,
    /// What is free on the file system of `/dev/shm` or of the folder of checkpoints, as the process sees it; absent for
    /// the other media, and where the process does not know it.
    pub free: Option<Bytes>,
    /// The last optimizer step when it was made; 0 before the first one has ended.
    pub step: u64,
    /// The step at which the phase is expected; absent where that is unknown.
    pub due_step: Option<u64>,
    /// How the peak depends on the size of the phase; absent where it does not, or where that is unknown.
    pub size: Option<Size>,
    /// Whether the phase can take more than the job knows: it never fits for certain.
    pub least: bool,
    /// Whether it is a step of the largest batch so far, and a larger one can come.
    pub so_far: bool,
    /// What it was computed from, for people: one sentence part of at most [`super::label::LONGEST`] bytes without control
    /// characters.
    pub basis: Label,
    /// Its number among the predictions of the process, as the job counts them; absent where it does not.
    pub sequence: Option<u64>,
    pub received: Timestamp,
}

impl Prediction {
    /// A prediction of a phase that holds nothing yet, exact where both quantiles are equal.
    #[cfg(any(test, feature = "testing"))]
    pub fn of(phase: Phase, medium: Medium, peak: Peak) -> Self {
        let device = (medium == Medium::Device).then_some(0);
        Self {
            phase,
            medium,
            device,
            uuid: device.map(|_| "GPU-a".into()),
            gpu: device.map(|_| "0".into()),
            memory_age: device.map(|_| Duration::ZERO),
            certainty: if peak.p50 < peak.p90 { Certainty::Estimated } else { Certainty::Exact },
            peak: Some(peak),
            held: Some(Bytes::ZERO),
            measured: None,
            free: None,
            step: 0,
            due_step: None,
            size: None,
            least: false,
            so_far: false,
            basis: Label::default(),
            mapped: None,
            sequence: None,
            received: Timestamp::from_secs(0),
        }
    }

    /// What must be free on the resource for the phase, for a peak of the prediction.
    pub fn additional(&self, peak: Bytes) -> Bytes {
        peak.saturating_sub(self.held.unwrap_or(Bytes::ZERO))
    }
}

/// The predictions of one connected rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPredictions {
    /// Its process; absent where it could not be identified.
    pub process: Option<ProcessKey>,
    /// The workload of that process; absent where it belongs to none.
    pub key: Option<WorkloadKey>,
    /// The labels `workload` and `rank` of its series.
    pub workload: Label,
    pub rank: Label,
    /// The name of the run; empty where it is unknown.
    pub run: Label,
    /// What is to be said of the last runs of its command: a sentence part; empty where there is nothing to say.
    pub past: String,
    /// At most [`MOST_PREDICTIONS`], by phase, medium and device.
    pub predictions: Vec<Prediction>,
}

/// What the daemon tells the client of a rank, which shows it to the user of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The process of the rank.
    pub process: ProcessKey,
    /// The worst verdict of its predictions.
    pub verdict: Verdict,
    /// One line for people, without the name of the program, at most 1,024 bytes.
    pub text: String,
    /// The number of the last prediction that it knows; absent where the job does not count them.
    pub sequence: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_follows_the_size() {
        let size = Size {
            unit: SizeUnit::Tokens,
            units: 4_096,
            samples: Some(2),
            length: Some(2_048),
            fixed: 1_000.0,
            per_unit: 10.0,
            per_square: 0.5,
        };
        assert_eq!(size.peak(0, 0), Bytes::new(1_000));
        assert_eq!(size.peak(100, 10), Bytes::new(1_000 + 1_000 + 500));
    }

    #[test]
    fn verdicts_are_ordered_by_severity() {
        let worst = [Verdict::Tight, Verdict::Fits, Verdict::WillNotFit, Verdict::Unknown].into_iter().max();
        assert_eq!(worst, Some(Verdict::WillNotFit));
        let words: Vec<&str> = Phase::ALL.iter().map(|phase| phase.label()).collect();
        assert_eq!(words, ["optimizer", "step", "evaluation", "generation", "save"]);
    }
}
