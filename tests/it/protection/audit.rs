//! The audit log, as a test asks it.

use std::path::Path;

use serde_json::Value;

/// Every line so far.
pub(crate) struct Audit(pub(crate) Vec<Value>);

impl Audit {
    /// Reads what is there; a line that is being written is left for later.
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        Self(whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    fn entries(&self, entry: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |line| line["entry"] == entry)
    }

    /// Where a target's ladder went, in order.
    pub(crate) fn moves(&self, target: &str) -> Vec<&str> {
        let own = self.entries("transition").filter(|line| line["target"] == target);
        own.map(|line| line["to"].as_str().unwrap()).collect()
    }

    /// Whether a target's ladder was in a state.
    pub(crate) fn went(&self, target: &str, to: &str) -> bool {
        self.moves(target).contains(&to)
    }

    /// What was to be done, in order: the kind of each step, with the number of a signal.
    pub(crate) fn steps(&self) -> Vec<String> {
        let word = |line: &Value| {
            let step = &line["step"];
            let kind = step["do"].as_str().unwrap();
            step["signal"].as_u64().map_or_else(|| kind.to_owned(), |number| format!("{kind} {number}"))
        };
        self.entries("before").map(word).collect()
    }

    /// The `before` lines of one kind of step.
    pub(crate) fn begun<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.entries("before").filter(move |line| line["step"]["do"] == kind)
    }

    /// The last word on a step: of its end where it went on, of the call otherwise.
    pub(crate) fn end(&self, before: &Value) -> &Value {
        let of_it = |entry| self.entries(entry).filter(|line| line["number"] == before["number"]).last();
        of_it("ended").or_else(|| of_it("after")).unwrap()
    }

    /// Whether a step that lasts has ended.
    pub(crate) fn has_ended(&self, before: &Value) -> bool {
        self.entries("ended").any(|line| line["number"] == before["number"])
    }

    /// The pids that were signalled or killed by steps that count.
    pub(crate) fn reached(&self) -> Vec<u64> {
        let all = self.entries("reached").flat_map(|line| line["processes"].as_array().unwrap());
        let mut pids: Vec<u64> = all.map(|process| process["pid"].as_u64().unwrap()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whether each step that began has its line of the end.
    pub(crate) fn has_all_ends(&self) -> bool {
        self.entries("before").count() == self.entries("after").count()
    }

    /// Each step has its line before and its line after, and no line was lost.
    #[track_caller]
    pub(crate) fn is_paired(&self) {
        let numbers = |entry| -> Vec<u64> {
            let mut all: Vec<u64> =
                self.entries(entry).map(|line| line["number"].as_u64().unwrap()).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(numbers("before"), numbers("after"));
        assert_eq!(self.entries("lost").count(), 0);
    }

    /// When the first line that fits was written, in seconds since the boot.
    #[track_caller]
    pub(crate) fn when(&self, what: &str, fits: impl Fn(&Value) -> bool) -> f64 {
        let found = self.0.iter().find(|line| fits(line));
        found.unwrap_or_else(|| panic!("no line of {what}"))["boot_seconds"].as_f64().unwrap()
    }
}
