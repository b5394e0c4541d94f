//! A world with a clock of its own, scenarios played in it, and properties that hold in any history.

mod histories;
mod scenarios;
mod world;

use std::time::Duration;

use super::{Levels, Limits, Mode, Rung, SwapCounts, Trigger};
use crate::model::units::{Amount, Bytes};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;

pub(super) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A policy for a cgroup of 8 GiB: soft at 2 GiB, hard at 512 MiB.
pub(super) fn limits() -> Limits {
    let levels = |soft: u64, hard: u64| Levels {
        soft: Amount::Bytes(Bytes::new(soft)),
        hard: Some(Amount::Bytes(Bytes::new(hard))),
        max_age: secs(3),
    };
    Limits {
        mode: Mode::Enforce,
        max_state: Some(Rung::Kill),
        levels: [None, Some(levels(2 * GIB, 512 * MIB)), None, None, None, None],
        of_pool: None,
        swap: SwapCounts::Count,
        hysteresis: Amount::Bytes(Bytes::new(512 * MIB)),
        for_time: secs(2),
        clear_for: secs(30),
        forecast: Trigger { max_state: Some(Rung::Checkpoint), max_age: secs(10) },
        warn_within: secs(300),
        soft_within: secs(60),
        leak: Trigger { max_state: Some(Rung::Warn), max_age: secs(60) },
        alert: Trigger { max_state: Some(Rung::Checkpoint), max_age: secs(600) },
        hook_wait: Duration::ZERO,
        raises: false,
        grace: secs(30),
        longest_grace: secs(600),
        request_interval: secs(300),
        exit_saves: false,
        kill_margin: secs(2),
        term_grace: secs(10),
        verify_timeout: secs(10),
        cooldown: secs(15),
        max_kills_per_hour: 3,
        hard_ignores_rate: false,
    }
}
