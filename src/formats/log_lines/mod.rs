//! The log lines of training frameworks, and the out-of-memory messages of PyTorch.
//!
//! One file per framework, which names the source of its line format. Lines of unknown formats are ignored.

use crate::model::names::named;

mod cells;
mod clean;
mod deepspeed;
pub mod flagscale;
mod hugging_face;
mod lightning;
mod llama_factory;
mod megatron;
mod mind_spore;
mod nanogpt;
pub mod oom;
mod progress_bar;
mod reading;
mod scan;
#[cfg(test)]
mod tests;
mod torchtitan;
mod tracker;

pub use clean::{LONGEST, Line, Splitter, clean};
pub use reading::{PHASES, Reading};
pub use tracker::{Counts, Tracker};

named! {
    /// The framework that wrote a line.
    pub enum Framework {
        /// Megatron-LM, Megatron-DeepSpeed, AMD Primus.
        Megatron = "megatron",
        Torchtitan = "torchtitan",
        DeepSpeed = "deepspeed",
        /// LLaMA-Factory's `trainer_log.jsonl`.
        LlamaFactory = "llama_factory",
        /// PyTorch Lightning and NVIDIA NeMo.
        Lightning = "lightning",
        NanoGpt = "nanogpt",
        MindFormers = "mindformers",
        MindRlhf = "mindrlhf",
        /// FlagScale's performance logs.
        FlagScale = "flagscale",
        /// Hugging Face's Trainer, and frameworks built on it.
        HuggingFace = "hugging_face",
    }
}

impl Framework {
    /// Parses a line without decoration in this framework's format.
    pub fn read(self, line: &str) -> Option<Reading> {
        match self {
            Self::Megatron => megatron::read(line),
            Self::Torchtitan => torchtitan::read(line),
            Self::DeepSpeed => deepspeed::read(line),
            Self::LlamaFactory => llama_factory::read(line),
            Self::Lightning => lightning::read(line),
            Self::NanoGpt => nanogpt::read(line),
            Self::MindFormers => mind_spore::formers(line),
            Self::MindRlhf => mind_spore::rlhf(line),
            Self::FlagScale => flagscale::read(line),
            Self::HuggingFace => hugging_face::read(line),
        }
    }
}

/// Parses a line in the first framework's format that it matches.
pub fn read(line: &str) -> Option<(Framework, Reading)> {
    Framework::ALL.into_iter().find_map(|framework| Some((framework, framework.read(line)?)))
}
