//! The faults a scenario names by function: hangs, latencies, return codes.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crate::abi::{Answer, Code};
use crate::scenario::{Device, Scenario};

const HANG_POLL: Duration = Duration::from_millis(50);

/// The faults of one GPU, or of the calls that take none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults<'a> {
    returns: &'a BTreeMap<String, Code>,
    latency_ms: &'a BTreeMap<String, f64>,
    hang: &'a [String],
}

impl<'a> From<&'a Device> for Faults<'a> {
    fn from(device: &'a Device) -> Self {
        Self { returns: &device.returns, latency_ms: &device.latency_ms, hang: &device.hang }
    }
}

impl<'a> From<&'a Scenario> for Faults<'a> {
    fn from(scenario: &'a Scenario) -> Self {
        Self { returns: &scenario.returns, latency_ms: &scenario.latency_ms, hang: &scenario.hang }
    }
}

impl Faults<'_> {
    /// Whether the function is not to return now.
    pub(crate) fn hangs(self, name: &str) -> bool {
        self.hang.iter().any(|hang| hang == "*" || hang == name)
    }

    /// Duration of the function, if the file sets it.
    pub(crate) fn latency(self, name: &str) -> Option<Duration> {
        let milliseconds = *rule(self.latency_ms, name)?;
        Duration::try_from_secs_f64(milliseconds / 1e3).ok()
    }

    /// The return code of the function, if the file sets it; a rule with success lets the call proceed.
    pub(crate) fn refuse(self, name: &str) -> Answer {
        rule(self.returns, name).map_or(Ok(()), |code| code.check())
    }
}

/// The rule of a name takes precedence over that of `*`.
fn rule<'a, T>(rules: &'a BTreeMap<String, T>, name: &str) -> Option<&'a T> {
    rules.get(name).or_else(|| rules.get("*"))
}

/// Sleeps while `hangs` returns true, without holding a lock.
pub(crate) fn hang_while(mut hangs: impl FnMut() -> bool) {
    while hangs() {
        thread::sleep(HANG_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_precedence_over_the_star() {
        let text = r#"{
            "returns": {"*": 3, "nvmlA": "success", "nvmlB": 27},
            "latency_ms": {"*": 5, "nvmlA": 50},
            "hang": ["nvmlC"]
        }"#;
        let scenario = Scenario::parse(text).unwrap();
        let faults = Faults::from(&scenario);
        assert_eq!(faults.refuse("nvmlA"), Ok(()));
        assert_eq!(faults.refuse("nvmlB"), Err(Code::NOT_READY));
        assert_eq!(faults.refuse("nvmlC"), Err(Code::NOT_SUPPORTED));
        assert_eq!(faults.latency("nvmlA"), Some(Duration::from_millis(50)));
        assert_eq!(faults.latency("nvmlB"), Some(Duration::from_millis(5)));
        assert!(faults.hangs("nvmlC") && !faults.hangs("nvmlA"));
    }
}
