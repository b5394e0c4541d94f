//! The messages, as far as they are understood here. What a sender left out is absent.

use super::fields::{Amounts, Detail, Nested, Numbered, fields};
use super::scalar::{
    Measure, Measured, OneOf, Positive, Real, Recompute, SaveState, Text, Truth, Turn, Whole,
};

/// The longest name of a phase, an event, a data type or a group, in bytes.
pub(super) const NAME: usize = 64;
/// The longest text that says what something is, in bytes.
const WORDS: usize = 256;
/// The longest path, in bytes (`PATH_MAX`).
const PATH: usize = 4_096;

/// What a line says, by its `type`.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Who speaks; once, first.
    Hello(Box<Hello>),
    /// After each optimizer step.
    Step(Step),
    /// The allocator's figures.
    Mem(Mem),
    /// A phase begins or ends.
    Phase(Phase),
    /// A point on the timeline.
    Event(Event),
    /// The allocator gave up.
    Oom(Oom),
    /// A checkpoint is being saved, is saved, or failed.
    Checkpoint(Checkpoint),
    /// What the model is made of.
    Params(Box<Params>),
    /// A clean end.
    Bye(Bye),
    /// Of a type that is not known here.
    Unknown,
}

impl Body {
    /// Every type, so that their counters start at zero.
    pub const TYPES: [&'static str; 10] =
        ["hello", "step", "mem", "phase", "event", "oom", "checkpoint", "params", "bye", "unknown"];

    /// The type as the protocol writes it, `unknown` for any other.
    pub const fn kind(&self) -> &'static str {
        Self::TYPES[self.place()]
    }

    /// Its place in [`Body::TYPES`].
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
    /// Who speaks.
    Hello {
        /// The version of the protocol.
        v: u64 = Whole,
        /// The client's name and version.
        client: String = Text(WORDS),
        /// The global rank; 0 where it is left out.
        rank: u64 = Whole,
        /// The rank on this host; 0 where it is left out.
        local_rank: u64 = Whole,
        /// Ranks of the whole job; 1 where it is left out.
        world: u64 = Whole,
        /// The user's name for the run.
        job: String = Text(WORDS),
        /// The framework's name.
        framework: String = Text(WORDS),
        /// The framework's version.
        framework_version: String = Text(WORDS),
        /// Data-parallel replicas.
        data_parallel: u64 = Whole,
        /// Tokens of one sequence.
        sequence_length: u64 = Whole,
        /// Sequences of all ranks together in one step.
        global_batch: u64 = Whole,
        /// The precision, such as `bf16`.
        precision: String = Text(WORDS),
        /// What is computed a second time.
        recompute: Recompute = OneOf::new(),
        /// The GPUs, by the ordinal the process counts them with.
        devices: Vec<(u16, DeviceName)> = Numbered::new(),
        /// The model's shape.
        model: Model = Nested::new(),
    }
    required [v]
}

fields! {
    /// What a GPU is called.
    DeviceName {
        /// The driver's UUID.
        uuid: String = Text(WORDS),
        /// The product's name.
        name: String = Text(WORDS),
    }
    required []
}

fields! {
    /// The shape of a model, as the FLOPS formulas need it.
    Model {
        /// The family, such as `llama` or `gpt`.
        kind: String = Text(NAME),
        /// Transformer layers.
        layers: u64 = Whole,
        /// Hidden size.
        hidden: u64 = Whole,
        /// Inner size of a dense feed-forward layer.
        ffn: u64 = Whole,
        /// Attention heads.
        heads: u64 = Whole,
        /// Heads of keys and values.
        kv_heads: u64 = Whole,
        /// Size of one head.
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
    /// One optimizer step.
    Step {
        /// Its number.
        step: u64 = Whole,
        /// How long it took, in seconds.
        seconds: f64 = Positive,
        /// Tokens of this rank, in all.
        tokens: u64 = Whole,
        /// Samples of this rank, in all.
        samples: u64 = Whole,
        /// The loss.
        loss: Measure = Measured,
        /// The learning rate.
        learning_rate: f64 = Real,
        /// The norm of the gradients.
        grad_norm: Measure = Measured,
        /// Steps that an overflow skipped, in all.
        skipped: u64 = Whole,
        /// Steps whose loss or gradients were not finite, in all.
        nan: u64 = Whole,
    }
    required [step]
}

fields! {
    /// The allocator's figures.
    Mem {
        /// By the ordinal the process counts them with.
        devices: Vec<(u16, DeviceMemory)> = Numbered::new(),
        /// Page-locked host memory, in bytes.
        pinned: u64 = Whole,
    }
    required []
}

fields! {
    /// The allocator's figures of one device, in bytes but for the counters. Names are those of PyTorch's `memory_stats`.
    DeviceMemory {
        /// Memory of live tensors.
        allocated: u64 = Whole,
        /// The most of it since the process began or the peak was reset.
        allocated_peak: u64 = Whole,
        /// Memory of live tensors and of those that wait for a stream.
        active: u64 = Whole,
        /// Memory taken from the device.
        reserved: u64 = Whole,
        /// The most of it.
        reserved_peak: u64 = Whole,
        /// What the program asked for, before rounding.
        requested: u64 = Whole,
        /// Free parts of segments that are in use: they cannot be given back.
        inactive_split: u64 = Whole,
        /// Free segments, which can be given back.
        releasable: u64 = Whole,
        /// The largest free block inside reserved segments.
        largest_free: u64 = Whole,
        /// Times the allocator freed its cache and tried again, in all.
        retries: u64 = Whole,
        /// Times it gave up, in all.
        ooms: u64 = Whole,
        /// Memory free on the device.
        free: u64 = Whole,
        /// Memory of the device.
        total: u64 = Whole,
    }
    required []
}

fields! {
    /// A phase of a step begins or ends.
    Phase {
        /// `forward`, `backward`, `optimizer`, `loader`, or the user's own.
        name: String = Text(NAME),
        /// Which of the two.
        state: Turn = OneOf::new(),
        /// Time spent in it, in all.
        seconds: f64 = Positive,
        /// Times it ended, in all.
        count: u64 = Whole,
        /// The highest allocation ever seen in it, in bytes.
        allocated_peak: u64 = Whole,
    }
    required [name, state]
}

fields! {
    /// A point on the timeline.
    Event {
        /// What happened.
        name: String = Text(WORDS),
        /// At which step.
        step: u64 = Whole,
        /// Any JSON object, as written.
        detail: String = Detail,
    }
    required [name]
}

fields! {
    /// The allocator gave up. Sizes in bytes.
    Oom {
        /// The device's ordinal.
        device: String = Text(NAME),
        /// What was asked for.
        requested: u64 = Whole,
        /// Memory of live tensors.
        allocated: u64 = Whole,
        /// Memory taken from the device.
        reserved: u64 = Whole,
        /// Memory free on the device.
        free: u64 = Whole,
        /// Memory of the device.
        total: u64 = Whole,
        /// Where the allocator's snapshot is.
        snapshot: String = Text(PATH),
    }
    required []
}

fields! {
    /// What became of a checkpoint.
    Checkpoint {
        /// Saving, saved or failed.
        state: SaveState = OneOf::new(),
        /// Of which step.
        step: u64 = Whole,
        /// Where it is.
        path: String = Text(PATH),
    }
    required [state]
}

fields! {
    /// What the model is made of.
    Params {
        /// Elements of all parameters.
        parameters: u64 = Whole,
        /// Elements of those that are trained.
        trainable: u64 = Whole,
        /// Bytes of the parameters.
        parameter_bytes: u64 = Whole,
        /// Bytes of the gradients.
        gradient_bytes: u64 = Whole,
        /// Bytes of the optimizer's state.
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
        /// Why.
        reason: String = Text(WORDS),
    }
    required []
}
