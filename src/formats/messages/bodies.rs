//! The message types. Keys that a sender left out are absent.

use super::Problem;
use super::values::{
    Measure, Turn, amounts, by_device, detail, grown, measure, name, object, ordinal, own, path, plain,
    positive, real, whole, word, words,
};
use crate::model::checkpoint::CheckpointState;
use crate::model::ends::ProcessLimit;
use crate::model::fit::{ByeEnd, Certainty, Medium, Phase as FitPhase, Recompute, SizeUnit};

/// Declares the types of messages: each with what it contains and its name in the protocol.
macro_rules! types {
    ($($(#[$doc:meta])* $variant:ident($body:ty) = $name:literal),+ $(,)?) => {
        /// The content of a message, by its `type`.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Body {
            $($(#[$doc])* $variant($body),)+
            Unknown,
        }

        impl Body {
            /// Every type, so that their counters start at zero.
            pub const TYPES: &'static [&'static str] = &[$($name,)+ "unknown"];

            /// The name of the type in the protocol, `unknown` for any other.
            pub const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                    Self::Unknown => "unknown",
                }
            }

            /// Reads a message of the type of this name.
            pub(super) fn read(kind: &str, text: &str) -> Result<Self, Problem> {
                Ok(match kind {
                    $($name => Self::$variant(super::read(text)?),)+
                    _ => Self::Unknown,
                })
            }
        }
    };
}

types! {
    /// The identity of the sender; the first message, once.
    Hello(Box<Hello>) = "hello",
    /// After each optimizer step.
    Step(Step) = "step",
    /// The allocator's statistics.
    Mem(Mem) = "mem",
    /// A phase begins or ends.
    Phase(Phase) = "phase",
    /// A point on the timeline.
    Event(Event) = "event",
    /// An allocation failed.
    Oom(Oom) = "oom",
    /// A checkpoint is being saved, is saved, or failed.
    Checkpoint(Checkpoint) = "checkpoint",
    /// The parameters of the model.
    Params(Box<Params>) = "params",
    /// The memory that a phase will take.
    Prediction(Box<Prediction>) = "prediction",
    /// What grows inside the process.
    Evidence(Evidence) = "evidence",
    /// A clean end.
    Bye(Bye) = "bye",
}

/// Declares a message or a part of one: each key with the function that reads its value, which also says who sees a text:
/// `own`, `path` and `detail` are read by the owner of the process and by root, `name` and `words` by all users of the node.
macro_rules! body {
    ($(#[$doc:meta])* $name:ident {$($(#[$each:meta])* $key:ident: $type:ty = $read:literal),+ $(,)?}) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$each])* #[serde(deserialize_with = $read)] pub $key: Option<$type>),+
        }

        #[cfg(test)]
        impl $name {
            /// The keys, each with the function that reads it.
            pub const KEYS: &'static [(&'static str, &'static str)] = &[$((stringify!($key), $read)),+];
        }
    };
}

body! {
    /// Identity of the sender.
    Hello {
        /// The version of the protocol.
        v: u64 = "whole",
        /// The client's name and version.
        client: String = "words",
        /// The global rank; 0 where it is left out.
        rank: u64 = "whole",
        /// The rank on this host; 0 where it is left out.
        local_rank: u64 = "whole",
        /// Ranks of the run; 1 where it is left out.
        world: u64 = "whole",
        /// The name of the training run.
        run: String = "words",
        framework: String = "words",
        framework_version: String = "words",
        /// Data-parallel replicas.
        data_parallel: u64 = "whole",
        /// Tokens of one sequence.
        sequence_length: u64 = "whole",
        /// Sequences of all ranks together in one step.
        global_batch: u64 = "whole",
        /// The precision, such as `bf16`.
        precision: String = "words",
        /// Activation recomputation.
        recompute: Recompute = "word",
        /// Whether the sender reads the verdicts of its predictions.
        verdicts: bool = "plain",
        /// The GPUs, by the ordinal the process counts them with.
        devices: Vec<(u16, DeviceName)> = "by_device",
        model: Model = "object",
        /// Whether a checkpoint signal leads to a checkpoint; absent where that is unknown.
        saves: bool = "plain",
        /// Why it does not.
        saves_reason: String = "words",
    }
}

body! {
    DeviceName {
        uuid: String = "words",
        name: String = "words",
    }
}

body! {
    /// The shape of a model, as the FLOPS formulas need it.
    Model {
        /// The family, such as `llama` or `gpt`.
        kind: String = "name",
        layers: u64 = "whole",
        hidden: u64 = "whole",
        /// Inner size of a dense feed-forward layer.
        ffn: u64 = "whole",
        heads: u64 = "whole",
        kv_heads: u64 = "whole",
        head_dim: u64 = "whole",
        /// Size of the vocabulary.
        vocab: u64 = "whole",
        /// Whether the feed-forward layer has a gate.
        gated: bool = "plain",
        /// Experts of a mixture layer; 0 for a dense model.
        experts: u64 = "whole",
        /// Experts a token goes through.
        experts_per_token: u64 = "whole",
        /// Inner size of one expert.
        expert_ffn: u64 = "whole",
        /// Inner size of the shared experts together.
        shared_expert_ffn: u64 = "whole",
        /// Layers that are mixtures.
        moe_layers: u64 = "whole",
        /// Elements of all parameters.
        parameters: u64 = "whole",
        /// Elements of those that are trained.
        trainable: u64 = "whole",
    }
}

body! {
    Step {
        step: u64 = "whole",
        /// Its duration in seconds.
        seconds: f64 = "positive",
        /// Tokens of this rank, in total.
        tokens: u64 = "whole",
        /// Samples of this rank, in total.
        samples: u64 = "whole",
        /// Tokens, or else samples, of its largest micro-batch so far.
        largest_batch: u64 = "whole",
        /// Batches that the first pass over its data has still to give; absent after it, and where it is not known.
        first_pass_left: u64 = "whole",
        loss: Measure = "measure",
        learning_rate: f64 = "real",
        grad_norm: Measure = "measure",
        /// Steps that an overflow skipped, in total.
        skipped: u64 = "whole",
        /// Steps whose loss or gradients were not finite, in total.
        nan: u64 = "whole",
    }
}

body! {
    /// The allocator's statistics.
    Mem {
        /// By the ordinal the process counts them with.
        devices: Vec<(u16, DeviceMemory)> = "by_device",
        /// Page-locked host memory, in bytes.
        pinned: u64 = "whole",
        /// The highest resident memory of the process since its start, in bytes.
        resident_peak: u64 = "whole",
    }
}

body! {
    /// The allocator's statistics of one device, in bytes except for the counters. Names are those of PyTorch's `memory_stats`.
    DeviceMemory {
        allocated: u64 = "whole",
        /// Its peak since the process began or the peak was reset.
        allocated_peak: u64 = "whole",
        /// Active memory: allocated, or waiting for a stream.
        active: u64 = "whole",
        reserved: u64 = "whole",
        reserved_peak: u64 = "whole",
        /// Requested memory, before rounding.
        requested: u64 = "whole",
        /// Free parts of segments that are in use, which cannot be released.
        inactive_split: u64 = "whole",
        /// Free segments, which can be released.
        releasable: u64 = "whole",
        /// The largest free block inside reserved segments.
        largest_free: u64 = "whole",
        /// Total number of retries after the allocator freed its cache.
        retries: u64 = "whole",
        /// Total number of failed allocations.
        ooms: u64 = "whole",
        free: u64 = "whole",
        total: u64 = "whole",
    }
}

body! {
    /// A phase of a step begins or ends.
    Phase {
        /// `forward`, `backward`, `optimizer`, `loader`, or the user's own.
        name: String = "name",
        /// Begin or end.
        state: Turn = "word",
        /// Time spent in it, in total.
        seconds: f64 = "positive",
        /// Times it ended, in total.
        count: u64 = "whole",
        /// The highest allocated memory in it so far, in bytes.
        allocated_peak: u64 = "whole",
    }
}

body! {
    /// A point on the timeline.
    Event {
        name: String = "own",
        step: u64 = "whole",
        /// Any JSON object, as written.
        detail: String = "detail",
    }
}

body! {
    /// An allocation failed. Sizes in bytes.
    Oom {
        /// The device's ordinal.
        device: String = "name",
        /// The requested size.
        requested: u64 = "whole",
        allocated: u64 = "whole",
        reserved: u64 = "whole",
        free: u64 = "whole",
        total: u64 = "whole",
        /// Path of the allocator's snapshot.
        snapshot: String = "path",
        /// Whether the allocator uses expandable segments.
        expandable_segments: bool = "plain",
    }
}

body! {
    Checkpoint {
        /// Saving, saved or failed.
        state: CheckpointState = "word",
        step: u64 = "whole",
        path: String = "path",
        /// Why it failed.
        reason: String = "own",
    }
}

body! {
    /// The parameters of the model.
    Params {
        /// Elements of all parameters.
        parameters: u64 = "whole",
        /// Elements of those that are trained.
        trainable: u64 = "whole",
        /// Bytes of the parameters.
        parameter_bytes: u64 = "whole",
        gradient_bytes: u64 = "whole",
        optimizer_bytes: u64 = "whole",
        /// Bytes by data type.
        by_dtype: Vec<(String, u64)> = "amounts",
        /// Bytes by group of layers.
        by_group: Vec<(String, u64)> = "amounts",
        /// Elements of low-rank adapters.
        lora: u64 = "whole",
        /// Tensors with a NaN.
        nan: u64 = "whole",
        /// Tensors with an infinity.
        inf: u64 = "whole",
    }
}

body! {
    /// The memory that a phase will take on one resource.
    Prediction {
        phase: FitPhase = "word",
        resource: Medium = "word",
        /// The ordinal of the GPU, where the resource is one.
        device: u16 = "ordinal",
        certainty: Certainty = "word",
        /// The highest memory that the process holds in the phase, in bytes; for shm and disk, what the phase adds.
        peak: u64 = "whole",
        /// The same, exceeded with a probability of 10 %; the median where it is left out.
        peak_p90: u64 = "whole",
        /// What the process holds when it predicts, in the same terms.
        held: u64 = "whole",
        /// The highest memory in the phase so far, in the same terms.
        measured: u64 = "whole",
        /// Of `peak` and `held`, pages of mapped files; only for the host.
        mapped: u64 = "whole",
        /// What is free on the file system, as the process sees it; only for shm and disk.
        free: u64 = "whole",
        /// The last optimizer step; 0 where it is left out.
        step: u64 = "whole",
        /// The step at which the phase is expected.
        due_step: u64 = "whole",
        /// What the peak depends on.
        size: Size = "object",
        /// Whether the phase can take more than is known.
        least: bool = "plain",
        /// Whether it is a step of the largest batch so far, and a larger one can come.
        so_far: bool = "plain",
        /// What the prediction was computed from.
        basis: String = "own",
        /// Counts the predictions of the process; the verdict names the last one that it knows.
        sequence: u64 = "whole",
    }
}

impl Prediction {
    /// The key that is missing, or that contradicts another.
    pub(super) fn defect(&self) -> Option<Problem> {
        const MISSING: &str = "is missing";
        let is_of_device = self.resource == Some(Medium::Device);
        let is_of_memory = is_of_device || self.resource == Some(Medium::Host);
        let is_unknown = self.certainty == Some(Certainty::Unknown);
        let size = self.size.as_ref();
        let defects = [
            ("phase", MISSING, self.phase.is_none()),
            ("resource", MISSING, self.resource.is_none()),
            ("device", MISSING, is_of_device && self.device.is_none()),
            ("device", "is not the resource", !is_of_device && self.device.is_some()),
            ("certainty", MISSING, self.certainty.is_none()),
            ("peak", "is stated although it is unknown", is_unknown && self.peak.is_some()),
            ("peak", MISSING, !is_unknown && self.peak.is_none()),
            ("peak_p90", "is below `peak`", self.peak_p90 < self.peak && self.peak_p90.is_some()),
            ("peak", MISSING, self.peak.is_none() && self.peak_p90.is_some()),
            ("free", "is not the job's to state for this resource", is_of_memory && self.free.is_some()),
            ("size.unit", MISSING, size.is_some_and(|size| size.unit.is_none())),
            ("size.units", MISSING, size.is_some_and(|size| size.units.is_none())),
        ];
        let (key, why, _) = defects.into_iter().find(|(.., is_so)| *is_so)?;
        Some(Problem::Key { key: key.to_owned(), why: why.to_owned() })
    }
}

body! {
    /// What has grown inside the process since the count before.
    Evidence {
        /// Seconds between the two counts.
        seconds: f64 = "positive",
        items: Vec<Grown> = "grown",
    }
}

body! {
    /// What a peak depends on: fixed + `per_unit` × units + `per_square` × units × length, in bytes.
    Size {
        unit: SizeUnit = "word",
        /// The size that the prediction is made for.
        units: u64 = "whole",
        samples: u64 = "whole",
        /// Tokens of each sample.
        length: u64 = "whole",
        fixed: f64 = "positive",
        per_unit: f64 = "positive",
        per_square: f64 = "positive",
    }
}

body! {
    /// One kind of thing that has grown.
    Grown {
        /// What is counted, such as `type` or `line`.
        what: String = "own",
        /// Its name in the program.
        name: String = "own",
        /// How many there are, or bytes of a line.
        now: u64 = "whole",
        /// How many more than at the count before.
        more: u64 = "whole",
        /// Bytes of all of them, where they are known.
        bytes: u64 = "whole",
        /// Bytes more than at the count before.
        more_bytes: u64 = "whole",
    }
}

body! {
    /// The process ends.
    Bye {
        /// The type of the exception that ends it, or a text of the program.
        reason: String = "own",
        /// How it ends; unknown where it is left out.
        end: ByeEnd = "word",
        /// The memory that ran out.
        resource: Medium = "word",
        /// The limit of the process that was reached.
        limit: ProcessLimit = "word",
        /// Its value, in bytes or as a number.
        limit_value: u64 = "whole",
        /// The phase in which it ends.
        phase: String = "name",
    }
}
