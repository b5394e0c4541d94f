//! The message types. Keys that a sender left out are absent.

use super::fields::{Amounts, Detail, Nested, Numbered, fields};
use super::scalar::{
    Measure, Measured, OneOf, Positive, Real, Recompute, SaveState, Text, Truth, Turn, Whole,
};

/// Maximum length of the name of a phase, an event, a data type or a group, in bytes.
pub(super) const NAME: usize = 64;
/// Maximum length of other texts, in bytes.
const WORDS: usize = 256;
/// Maximum length of a path, in bytes (`PATH_MAX`).
const PATH: usize = 4_096;

/// The content of a message, by its `type`.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// The identity of the sender; the first message, once.
    Hello(Box<Hello>),
    /// After each optimizer step.
    Step(Step),
    /// The allocator's statistics.
    Mem(Mem),
    /// A phase begins or ends.
    Phase(Phase),
    /// A point on the timeline.
    Event(Event),
    /// An allocation failed.
    Oom(Oom),
    /// A checkpoint is being saved, is saved, or failed.
    Checkpoint(Checkpoint),
    /// The parameters of the model.
    Params(Box<Params>),
    /// A clean end.
    Bye(Bye),
    Unknown,
}

impl Body {
    /// Every type, so that their counters start at zero.
    pub const TYPES: [&'static str; 10] =
        ["hello", "step", "mem", "phase", "event", "oom", "checkpoint", "params", "bye", "unknown"];

    /// The name of the type in the protocol, `unknown` for any other.
    pub const fn kind(&self) -> &'static str {
        Self::TYPES[self.place()]
    }

    /// Its index in [`Body::TYPES`].
    pub const fn place(&self) -> usize {
        match self {
            Self::Hello(_) => 0,
            Self::Step(_) => 1,
            Self::Mem(_) => 2,
            Self::Phase(_) => 3,
            Self::Event(_) => 4,
            Self::Oom(_) => 5,
            Self::Checkpoint(_) => 6,
            Self::Params(_) => 7,
            Self::Bye(_) => 8,
            Self::Unknown => 9,
        }
    }
}

fields! {
    /// Identity of the sender.
    Hello {
        /// The version of the protocol.
        v: u64 = Whole,
        /// The client's name and version.
        client: String = Text(WORDS),
        /// The global rank; 0 where it is left out.
        rank: u64 = Whole,
        /// The rank on this host; 0 where it is left out.
        local_rank: u64 = Whole,
        /// Ranks of the run; 1 where it is left out.
        world: u64 = Whole,
        /// The name of the training run.
        run: String = Text(WORDS),
        framework: String = Text(WORDS),
        framework_version: String = Text(WORDS),
        /// Data-parallel replicas.
        data_parallel: u64 = Whole,
        /// Tokens of one sequence.
        sequence_length: u64 = Whole,
        /// Sequences of all ranks together in one step.
        global_batch: u64 = Whole,
        /// The precision, such as `bf16`.
        precision: String = Text(WORDS),
        /// Activation recomputation.
        recompute: Recompute = OneOf::new(),
        /// The GPUs, by the ordinal the process counts them with.
        devices: Vec<(u16, DeviceName)> = Numbered::new(),
        model: Model = Nested::new(),
    }
    required [v]
}

fields! {
    DeviceName {
        uuid: String = Text(WORDS),
        name: String = Text(WORDS),
    }
    required []
}

fields! {
    /// The shape of a model, as the FLOPS formulas need it.
    Model {
        /// The family, such as `llama` or `gpt`.
        kind: String = Text(NAME),
        layers: u64 = Whole,
        hidden: u64 = Whole,
        /// Inner size of a dense feed-forward layer.
        ffn: u64 = Whole,
        heads: u64 = Whole,
        kv_heads: u64 = Whole,
        head_dim: u64 = Whole,
        /// Size of the vocabulary.
        vocab: u64 = Whole,
        /// Whether the feed-forward layer has a gate.
        gated: bool = Truth,
        /// Experts of a mixture layer; 0 for a dense model.
        experts: u64 = Whole,
        /// Experts a token goes through.
        experts_per_token: u64 = Whole,
        /// Inner size of one expert.
        expert_ffn: u64 = Whole,
        /// Inner size of the shared experts together.
        shared_expert_ffn: u64 = Whole,
        /// Layers that are mixtures.
        moe_layers: u64 = Whole,
        /// Elements of all parameters.
        parameters: u64 = Whole,
        /// Elements of those that are trained.
        trainable: u64 = Whole,
    }
    required []
}

fields! {
    Step {
        step: u64 = Whole,
        /// Its duration in seconds.
        seconds: f64 = Positive,
        /// Tokens of this rank, in total.
        tokens: u64 = Whole,
        /// Samples of this rank, in total.
        samples: u64 = Whole,
        loss: Measure = Measured,
        learning_rate: f64 = Real,
        /// The norm of the gradients.
        grad_norm: Measure = Measured,
        /// Steps that an overflow skipped, in total.
        skipped: u64 = Whole,
        /// Steps whose loss or gradients were not finite, in total.
        nan: u64 = Whole,
    }
    required [step]
}

fields! {
    /// The allocator's statistics.
    Mem {
        /// By the ordinal the process counts them with.
        devices: Vec<(u16, DeviceMemory)> = Numbered::new(),
        /// Page-locked host memory, in bytes.
        pinned: u64 = Whole,
    }
    required []
}

fields! {
    /// The allocator's statistics of one device, in bytes except for the counters. Names are those of PyTorch's `memory_stats`.
    DeviceMemory {
        allocated: u64 = Whole,
        /// Its peak since the process began or the peak was reset.
        allocated_peak: u64 = Whole,
        /// Active memory: allocated, or waiting for a stream.
        active: u64 = Whole,
        reserved: u64 = Whole,
        reserved_peak: u64 = Whole,
        /// Requested memory, before rounding.
        requested: u64 = Whole,
        /// Free parts of segments that are in use, which cannot be released.
        inactive_split: u64 = Whole,
        /// Free segments, which can be released.
        releasable: u64 = Whole,
        /// The largest free block inside reserved segments.
        largest_free: u64 = Whole,
        /// Total number of retries after the allocator freed its cache.
        retries: u64 = Whole,
        /// Total number of failed allocations.
        ooms: u64 = Whole,
        free: u64 = Whole,
        total: u64 = Whole,
    }
    required []
}

fields! {
    /// A phase of a step begins or ends.
    Phase {
        /// `forward`, `backward`, `optimizer`, `loader`, or the user's own.
        name: String = Text(NAME),
        /// Begin or end.
        state: Turn = OneOf::new(),
        /// Time spent in it, in total.
        seconds: f64 = Positive,
        /// Times it ended, in total.
        count: u64 = Whole,
        /// The highest allocated memory in it so far, in bytes.
        allocated_peak: u64 = Whole,
    }
    required [name, state]
}

fields! {
    /// A point on the timeline.
    Event {
        name: String = Text(WORDS),
        step: u64 = Whole,
        /// Any JSON object, as written.
        detail: String = Detail,
    }
    required [name]
}

fields! {
    /// An allocation failed. Sizes in bytes.
    Oom {
        /// The device's ordinal.
        device: String = Text(NAME),
        /// The requested size.
        requested: u64 = Whole,
        allocated: u64 = Whole,
        reserved: u64 = Whole,
        free: u64 = Whole,
        total: u64 = Whole,
        /// Path of the allocator's snapshot.
        snapshot: String = Text(PATH),
    }
    required []
}

fields! {
    Checkpoint {
        /// Saving, saved or failed.
        state: SaveState = OneOf::new(),
        step: u64 = Whole,
        path: String = Text(PATH),
        /// Why it failed.
        reason: String = Text(WORDS),
    }
    required [state]
}

fields! {
    /// The parameters of the model.
    Params {
        /// Elements of all parameters.
        parameters: u64 = Whole,
        /// Elements of those that are trained.
        trainable: u64 = Whole,
        /// Bytes of the parameters.
        parameter_bytes: u64 = Whole,
        gradient_bytes: u64 = Whole,
        optimizer_bytes: u64 = Whole,
        /// Bytes by data type.
        by_dtype: Vec<(String, u64)> = Amounts,
        /// Bytes by group of layers.
        by_group: Vec<(String, u64)> = Amounts,
        /// Elements of low-rank adapters.
        lora: u64 = Whole,
        /// Tensors with a NaN.
        nan: u64 = Whole,
        /// Tensors with an infinity.
        inf: u64 = Whole,
    }
    required []
}

fields! {
    /// A clean end.
    Bye {
        reason: String = Text(WORDS),
    }
    required []
}
