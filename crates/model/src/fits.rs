//! What the analyzer `fit` concludes of a prediction: whether the phase fits the memory that is there.

use serde::{Deserialize, Serialize};

use super::finding::Subject;
use super::fit::{Certainty, Phase, Verdict};
use super::health::Health;
use super::label::Label;

/// Whether one phase of a rank fits one resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The name of the workload; empty where the process belongs to none.
    pub workload: Label,
    pub rank: Label,
    /// The name of the run; empty where it is not known.
    pub run: Label,
    /// The process of the rank; empty where it is not known.
    pub pid: Label,
    /// What takes the memory.
    pub phase: Phase,
    /// What the memory is taken from: a GPU, the host, a cgroup, `/dev/shm` or the disk of the checkpoints.
    pub resource: Subject,
    /// How the prediction was made.
    pub certainty: Certainty,
    pub verdict: Verdict,
    /// The highest memory of the phase, what the rank holds already included, in bytes: the median and the value that is
    /// exceeded with a probability of 10 %. Absent where it cannot be predicted. In a cgroup without the files that the process
    /// maps, which need not be charged to it, and which the kernel can reclaim.
    pub peak_bytes: Option<[f64; 2]>,
    /// What the rank holds now and what is free for it, without what other ranks of its run take in the same phase, in
    /// bytes; absent where that is not known. In a cgroup without mapped files, as the peak.
    pub capacity_bytes: Option<f64>,
    /// Probability, 0 to 1, that the phase needs more than there is.
    pub exhaustion_probability: Option<f64>,
    /// The step at which the phase is expected; absent where that is unknown.
    pub due_step: Option<u64>,
    /// The phase in words, with its size where that is known.
    pub title: String,
    /// Whether the phase can take more than the peak.
    #[serde(default)]
    pub least: bool,
    /// What the prediction was computed from, or why there is none; text of the job.
    pub basis: Label,
    /// Who stands in the way, and which size fits; empty where nothing is known.
    pub advice: String,
    /// What is to be said of the last runs of the command; empty where there is nothing to say.
    #[serde(default)]
    pub past: String,
}

impl Fit {
    /// What is left at the predicted peak, in bytes; negative where memory is missing.
    pub fn headroom_bytes(&self) -> Option<f64> {
        Some(self.capacity_bytes? - self.peak_bytes?[0])
    }
}

/// The health of a phase that is still to come. A phase that fits within the uncertainty of its prediction is no problem: many
/// jobs use nearly all of a GPU on purpose.
impl From<Verdict> for Health {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Fits | Verdict::Tight => Self::Ok,
            Verdict::Unknown => Self::Unknown,
            Verdict::WillNotFit => Self::Critical,
        }
    }
}
