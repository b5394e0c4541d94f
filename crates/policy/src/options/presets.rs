//! How the checkpoint of each framework is requested and recognized, one row a framework.
//!
//! The rows state what the frameworks do by default. Whatever the configuration gives beside a preset replaces the
//! preset's value.

use crate::model::names::named;
use crate::types::step::{MarkerKind, SignalNumber};

named! {
    /// The ranks that must receive the checkpoint signal.
    pub enum AskedRanks {
        /// One rank of the run: the framework tells the others.
        Any = "any",
        /// The global rank 0, which decides for all; the others ignore the signal.
        First = "first",
        /// Every rank.
        All = "all",
    }
}

/// What a framework does at a checkpoint request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// The name in the configuration.
    pub name: &'static str,
    pub signal: SignalNumber,
    /// The ranks that must receive it.
    pub ranks: AskedRanks,
    /// The marker of a complete checkpoint, below the folder of checkpoints; absent where the job reports it over the
    /// job socket.
    pub marker: Option<(MarkerKind, &'static str)>,
    /// Whether the job ends by itself after it has saved.
    pub exits: bool,
}

/// Every preset.
pub const PRESETS: [Preset; 8] = [
    row("megatron", SignalNumber::TERM, AskedRanks::Any, WRITTEN, "latest_checkpointed_iteration.txt", true),
    row(
        "megatron-bridge",
        SignalNumber::TERM,
        AskedRanks::Any,
        WRITTEN,
        "latest_checkpointed_iteration.txt",
        true,
    ),
    row("automodel", SignalNumber::TERM, AskedRanks::Any, MarkerKind::Link, "LATEST", true),
    row("orbax", SignalNumber::TERM, AskedRanks::Any, REMOVED, "*.orbax-checkpoint-tmp*", true),
    row("nemo2", SignalNumber::TERM, AskedRanks::First, REMOVED, "*-unfinished", true),
    row("lightning", SignalNumber::USR1, AskedRanks::All, WRITTEN, "hpc_ckpt_*.ckpt", false),
    row(
        "huggingface",
        SignalNumber::TERM,
        AskedRanks::All,
        REMOVED,
        "checkpoint-*/checkpoint-is-incomplete.txt",
        true,
    ),
    Preset {
        name: "memwarden",
        signal: SignalNumber::USR1,
        ranks: AskedRanks::All,
        marker: None,
        exits: false,
    },
];

const WRITTEN: MarkerKind = MarkerKind::Written;
const REMOVED: MarkerKind = MarkerKind::Removed;

const fn row(
    name: &'static str,
    signal: SignalNumber,
    ranks: AskedRanks,
    kind: MarkerKind,
    marker: &'static str,
    exits: bool,
) -> Preset {
    Preset { name, signal, ranks, marker: Some((kind, marker)), exits }
}

/// The names in the configuration.
pub const NAMES: [&str; PRESETS.len()] = {
    let (mut names, mut place) = ([""; PRESETS.len()], 0);
    while place < PRESETS.len() {
        names[place] = PRESETS[place].name;
        place += 1;
    }
    names
};

pub fn named(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_below_the_folder() {
        for preset in PRESETS {
            assert!(preset.marker.is_none_or(|(_, pattern)| !pattern.starts_with('/')), "{}", preset.name);
        }
    }
}
