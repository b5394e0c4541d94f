//! What is remembered of each process from sample to sample.

use std::sync::Arc;

use super::identity::Named;
use super::matcher::Match;
use super::member::Member;
use super::settle::Claim;
use crate::model::facts::{ProcessRow, ProcessTable};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::units::Bytes;

/// One process, as it was in the last sample.
pub(super) struct Seen {
    pub(super) key: ProcessKey,
    comm: Label,
    naming: Option<Arc<str>>,
    age: u32,
    /// Whether it was there when the daemon started to look.
    elder: bool,
    /// Whether matchers have to be asked, and the cgroup's name read, in this sample.
    pub(super) to_match: bool,
    pub(super) to_name: bool,
    /// The matcher it met.
    pub(super) matched: Option<Match>,
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
            to_name: true,
            matched: None,
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
        self.to_match = renamed || !same_path || (self.age == 1 && !self.elder);
        self.to_name = !same_path || self.unresolved;
        self
    }
}
