//! Faults: lost GPUs, growing process tables, XIDs.

use serde::Deserialize;

/// Whether the GPU is on the bus.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// It answers.
    #[default]
    Ok,
    /// Every call answers GPU_IS_LOST.
    Lost,
    /// Lost after this many calls, counted from the load of the file.
    LostAfterCalls(u64),
    /// Lost between two seconds after the epoch; null means permanently.
    LostBetweenS(f64, Option<f64>),
}

impl State {
    /// Whether a call is refused, as the `calls`-th since the state was set and `t` seconds after
    /// the epoch.
    pub(crate) fn is_lost(&self, calls: u64, t: f64) -> bool {
        match self {
            Self::Ok => false,
            Self::Lost => true,
            Self::LostAfterCalls(limit) => calls > *limit,
            Self::LostBetweenS(from, to) => t >= *from && to.is_none_or(|to| t < to),
        }
    }
}

/// Growth of the process table between a client's count call and its fetch call.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Churn {
    pub(crate) grow_between_calls: u32,
    /// The most processes that appear so; four times the growth if absent.
    limit: Option<u32>,
}

impl Churn {
    /// The processes that have appeared after this many count calls.
    pub(crate) fn extra(self, probes: u32) -> u32 {
        let limit = self.limit.unwrap_or_else(|| self.grow_between_calls.saturating_mul(4));
        self.grow_between_calls.saturating_mul(probes).min(limit)
    }
}

/// A critical error, or another event.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Xid {
    pub(crate) xid: u64,
    pub(crate) gi: Option<u32>,
    pub(crate) ci: Option<u32>,
    /// Identity within the GPU, so that lists may be cut; the position in the list if absent.
    pub(crate) seq: Option<u64>,
    /// Seconds after the epoch before which it has not happened.
    #[serde(default)]
    pub(crate) at_s: f64,
    /// An nvmlEventType bit.
    #[serde(default = "critical_error")]
    pub(crate) event_type: u64,
}

fn critical_error() -> u64 {
    8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(json: &str) -> State {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn gpus_are_lost_when_the_file_says() {
        assert!(!state(r#""ok""#).is_lost(9, 9.0));
        assert!(state(r#""lost""#).is_lost(0, 0.0));
        let after = state(r#"{"lost_after_calls": 2}"#);
        assert!(!after.is_lost(2, 0.0) && after.is_lost(3, 0.0));
        let between = state(r#"{"lost_between_s": [1, 2.5]}"#);
        assert!(!between.is_lost(1, 0.5) && between.is_lost(1, 1.0) && !between.is_lost(1, 2.5));
        assert!(state(r#"{"lost_between_s": [1, null]}"#).is_lost(1, 1e9));
    }

    #[test]
    fn churn_ends_at_its_limit() {
        let churn = |json: &str| serde_json::from_str::<Churn>(json).unwrap();
        let default = churn(r#"{"grow_between_calls": 3}"#);
        assert_eq!([0, 1, 2, 9].map(|probes| default.extra(probes)), [0, 3, 6, 12]);
        let limited = churn(r#"{"grow_between_calls": 3, "limit": 4}"#);
        assert_eq!([1, 2, 9].map(|probes| limited.extra(probes)), [3, 4, 4]);
        assert_eq!(Churn::default().extra(9), 0);
    }
}
