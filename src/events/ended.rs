//! Which ends were logged.

use std::collections::HashSet;

use crate::model::ends::End;
use crate::model::time::Timestamp;

/// Ends that are remembered, beside those of the frame: several times what an analyzer keeps.
const MOST_KNOWN: usize = 2_048;

/// The time of an end, as bits, and its pid. Numbers do not identify an end: they begin again with the analyzer.
type EndKey = (u64, u32);

/// The ends of the frames so far, and the Unix time of the first frame.
#[derive(Debug, Default)]
pub(super) struct Known {
    began: Option<f64>,
    ends: HashSet<EndKey>,
}

impl Known {
    /// The ends of the frame of `at` that no frame before had; those from before the first frame were logged before a restart.
    pub(super) fn add<'a>(&mut self, at: Timestamp, ends: impl Iterator<Item = &'a End>) -> Vec<&'a End> {
        let now = at.unix().as_secs_f64();
        // The clock can be set back.
        let began = self.began.map_or(now, |began| began.min(now));
        self.began = Some(began);
        let ends: Vec<&End> = ends.collect();
        let key = |end: &End| (end.unix_seconds.to_bits(), end.pid);
        // Those of an analyzer that was built anew can be absent from some frames.
        if self.ends.len() > MOST_KNOWN {
            self.ends = ends.iter().map(|end| key(end)).filter(|key| self.ends.contains(key)).collect();
        }
        ends.into_iter().filter(|end| self.ends.insert(key(end)) && end.unix_seconds >= began).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_new_once() {
        let end = |pid: u32, unix_seconds: f64| End { pid, unix_seconds, ..End::default() };
        let (old, one, two) = (end(1, 50.0), end(2, 101.0), end(3, 102.0));
        let mut known = Known::default();
        let mut new = |second, ends: &[&End]| {
            let found = known.add(Timestamp::from_secs(second), ends.iter().copied());
            found.iter().map(|end| end.pid.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(new(100, &[&old]), "", "from before the first frame");
        assert_eq!(new(101, &[&old, &one]), "2");
        assert_eq!(new(102, &[]), "", "a frame without ends");
        assert_eq!(new(103, &[&old, &one, &two]), "3", "those before come back");
        // The clock is set back by a minute.
        assert_eq!(
            new(43, &[&one, &two, &end(4, 42.5)]),
            "",
            "no later than the first frame with this clock"
        );
        assert_eq!(new(44, &[&one, &two, &end(5, 43.5)]), "5");
    }
}
