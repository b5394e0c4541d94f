//! The state of each process that is kept between samples.

use std::sync::Arc;
use std::time::Duration;

use super::identity::Named;
use super::member::Member;
use super::settle::Assignment;
use crate::host::process::ProcRoot;
use crate::model::facts::{ProcessRow, ProcessTable};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// A process is compared with the matchers this often without delay when there is a reason, and then at this interval.
const COMPARED_AT_ONCE: u32 = 4;
const COMPARE_EVERY: Duration = Duration::from_secs(10);

/// One process at the previous sample.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) key: ProcessKey,
    comm: Label,
    naming: Option<Arc<str>>,
    age: u32,
    /// Whether it existed before the daemon's first sample.
    elder: bool,
    /// Whether it must be compared with the matchers.
    pub(super) to_match: bool,
    /// How often it was compared, and when last.
    compared: u32,
    compared_at: Option<Timestamp>,
    /// Whether the workload of its cgroup must be determined at this sample.
    pub(super) to_name: bool,
    /// Index of its matcher.
    pub(super) matched: Option<usize>,
    /// Index of the matcher that it meets regardless of its command line and environment.
    pub(super) otherwise: Option<usize>,
    /// The user who started it, if it met the matcher with root privileges.
    pub(super) user: u32,
    pub(super) named: Option<Named>,
    /// Whether the owners of its cgroup's folders could not be determined.
    pub(super) unresolved: bool,
    /// The assignment by matcher or cgroup.
    pub(super) direct: Option<Assignment>,
    pub(super) assignment: Option<Assignment>,
    pub(super) cpu_ticks: Option<u64>,
    /// Whether it was exposed individually.
    pub(super) shown: bool,
    pub(super) member: Option<Box<Member>>,
}

/// One entry for each row of the table, and the entries of processes that ended.
pub(super) fn merge(before: Vec<Seen>, table: &ProcessTable, started: bool) -> (Vec<Seen>, Vec<Seen>) {
    let mut gone = Vec::new();
    let mut now = Vec::with_capacity(table.rows.len());
    let mut known = before.into_iter().peekable();
    for row in &table.rows {
        while let Some(other) = known.next_if(|seen| seen.key < row.key) {
            gone.push(other);
        }
        now.push(match known.next_if(|seen| seen.key == row.key) {
            Some(seen) => seen.again(row),
            None => Seen::new(row, !started),
        });
    }
    gone.extend(known);
    (now, gone)
}

impl Seen {
    fn new(row: &ProcessRow, elder: bool) -> Self {
        Self {
            key: row.key,
            comm: row.comm.clone(),
            naming: row.naming_cgroup.clone(),
            elder,
            to_match: true,
            to_name: true,
            ..Self::default()
        }
    }

    /// Whether it calls itself a process of memwarden, which nothing but counts may depend on.
    pub(super) fn is_memwarden(&self) -> bool {
        ["memwarden", "memwarden-lab"].contains(&self.comm.as_str())
    }

    /// Resident memory, the same in every metric of one sample: exact for members, an estimate for others.
    pub(super) fn rss(&self, row: &ProcessRow) -> Bytes {
        self.member.as_ref().map_or(row.rss, |member| member.rss(row))
    }

    fn again(mut self, row: &ProcessRow) -> Self {
        self.age = self.age.saturating_add(1);
        let same_path = match (&self.naming, &row.naming_cgroup) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now) || before == now,
            (None, None) => true,
            _ => false,
        };
        if !same_path {
            self.naming.clone_from(&row.naming_cgroup);
        }
        let renamed = self.comm != row.comm;
        if renamed {
            self.comm = row.comm.clone();
        }
        // A new process may have been seen between fork and exec, with its parent's name and arguments.
        self.to_match |= renamed || !same_path || (self.age == 1 && !self.elder);
        self.to_name = !same_path || self.unresolved;
        self
    }

    /// Records that it met the matcher with this index.
    pub(super) fn meet(&mut self, place: usize, row: &ProcessRow, root: &ProcRoot) {
        (self.matched, self.direct) = (Some(place), None);
        // A process that belonged to a user stays that user's after it becomes root.
        if row.uid != 0 {
            self.user = row.uid;
        } else if self.user == 0 {
            let mut buffer = Vec::new();
            self.user = root.users(row.key.pid, 0, &mut buffer).map_or(0, |[real, _]| real);
        }
    }

    /// Whether it is compared now: a process may change its name at each sample, which must not cause as many reads.
    pub(super) fn is_due(&mut self, at: Timestamp) -> bool {
        let seldom = self.compared >= COMPARED_AT_ONCE;
        let early = self.compared_at.is_some_and(|before| at.since(before) < COMPARE_EVERY);
        if !self.to_match || (seldom && early) {
            return false;
        }
        self.to_match = false;
        self.compared = self.compared.saturating_add(1);
        self.compared_at = Some(at);
        true
    }

    pub(super) const fn never_compared(&self) -> bool {
        self.compared == 0
    }

    /// Does not count a comparison that was postponed.
    pub(super) const fn defer(&mut self) {
        self.to_match = true;
        self.compared = self.compared.saturating_sub(1);
    }
}
