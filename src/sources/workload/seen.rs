//! What is remembered of each process from sample to sample.

use std::sync::Arc;
use std::time::Duration;

use super::identity::Named;
use super::member::Member;
use super::settle::Claim;
use crate::host::process::{ProcRoot, users};
use crate::model::facts::{ProcessRow, ProcessTable};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// So often a process is compared with the matchers as soon as there is a reason, and then only so often.
const ASKED_AT_ONCE: u32 = 4;
const ASKED_EVERY: Duration = Duration::from_secs(10);

/// One process, as it was in the last sample.
pub(super) struct Seen {
    pub(super) key: ProcessKey,
    comm: Label,
    naming: Option<Arc<str>>,
    age: u32,
    /// Whether it was there when the daemon started to look.
    elder: bool,
    /// Whether matchers have to be asked.
    pub(super) to_match: bool,
    /// How often they were, and when last.
    asked: u32,
    asked_at: Option<Timestamp>,
    /// Whether the cgroup's name has to be read in this sample.
    pub(super) to_name: bool,
    /// The place of the matcher it met.
    pub(super) matched: Option<usize>,
    /// The place of the matcher that it meets whatever its command line and environment are.
    pub(super) otherwise: Option<usize>,
    /// Who started it, where it met the matcher with the rights of root.
    pub(super) user: u32,
    pub(super) named: Option<Named>,
    /// Whether nobody could say who made the folders of its cgroup.
    pub(super) unresolved: bool,
    /// What it is by these two.
    pub(super) direct: Option<Claim>,
    pub(super) claim: Option<Claim>,
    pub(super) cpu_ticks: Option<u64>,
    /// Whether it was among the largest that are shown.
    pub(super) shown: bool,
    pub(super) member: Option<Box<Member>>,
}

/// One entry for each row of the table, and the entries of those who are gone.
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
            age: 0,
            elder,
            to_match: true,
            asked: 0,
            asked_at: None,
            to_name: true,
            matched: None,
            otherwise: None,
            user: 0,
            named: None,
            unresolved: false,
            direct: None,
            claim: None,
            cpu_ticks: None,
            shown: false,
            member: None,
        }
    }

    /// Resident memory, the same in every metric of one sample: exact for members, an estimate for the others.
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
        // A new process may have been caught between fork and exec, with its parent's name and arguments.
        self.to_match |= renamed || !same_path || (self.age == 1 && !self.elder);
        self.to_name = !same_path || self.unresolved;
        self
    }

    /// It met the matcher at this place.
    pub(super) fn meet(&mut self, place: usize, row: &ProcessRow, root: &ProcRoot) {
        (self.matched, self.direct) = (Some(place), None);
        // Whoever was a user's stays that user's where it has become root.
        if row.uid != 0 {
            self.user = row.uid;
        } else if self.user == 0 {
            let mut buffer = Vec::new();
            let status = root.read(row.key.pid, "status", &mut buffer);
            self.user = status.ok().and_then(users).map_or(0, |[real, _]| real);
        }
    }

    /// Whether matchers are asked now: a process may change its name each sample, which is no reason to read it as often.
    pub(super) fn asks(&mut self, at: Timestamp) -> bool {
        let seldom = self.asked >= ASKED_AT_ONCE;
        let early = self.asked_at.is_some_and(|before| at.since(before) < ASKED_EVERY);
        if !self.to_match || (seldom && early) {
            return false;
        }
        self.to_match = false;
        self.asked = self.asked.saturating_add(1);
        self.asked_at = Some(at);
        true
    }

    /// Whether matchers were never asked.
    pub(super) const fn never_asked(&self) -> bool {
        self.asked == 0
    }

    /// The question was not answered because there were too many: it does not count.
    pub(super) const fn defer(&mut self) {
        self.to_match = true;
        self.asked = self.asked.saturating_sub(1);
    }
}
