//! Reads the command line and environment of processes for the matchers.
//!
//! Both reads can hang, so the threads of [`readers`](crate::host::process::readers) do them, and the comparison. The
//! texts can have any length and change at any time: after a few comparisons, a process is compared at most every ten
//! seconds, and the number of bytes read per user is limited.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::matcher::{self, Matcher, Verdict};
use super::seen::Seen;
use super::users::Users;
use crate::host::process::readers::{Pool, ReadRequests, ReadTarget};
use crate::host::process::{self, ProcRoot};
use crate::model::facts::{ProcessRow, ProcessTable};
use crate::model::lock::lock;
use crate::model::subordinate::payer;
use crate::model::time::Timestamp;

/// Bytes read of each text: more than the environment of a pod with hundreds of services has.
pub(super) const LONGEST: usize = 256 * 1024;
/// Most bytes read of one user's processes at once, and per second.
const MOST_AT_ONCE: u64 = 8 << 20;
const MOST_A_SECOND: u64 = 1 << 20;

/// Bytes read for matchers, by user.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Bytes read, minus the allowance for the time that has passed.
    spent: Mutex<BTreeMap<u32, u64>>,
    /// Bytes read in total.
    pub(super) total: AtomicU64,
}

impl Budget {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        lock(&self.spent)
    }

    /// Whether more may be read of this user's processes.
    pub(super) fn allows(&self, uid: u32) -> bool {
        self.lock().get(&payer(uid)).is_none_or(|spent| *spent < MOST_AT_ONCE)
    }

    /// Records that this much was read.
    pub(super) fn spend(&self, uid: u32, bytes: usize) {
        let bytes = bytes as u64;
        self.total.fetch_add(bytes, Ordering::Relaxed);
        *self.lock().entry(payer(uid)).or_default() += bytes;
    }

    /// Reads the environment of a process within the share of its user; nothing if it cannot be read now.
    pub(super) fn environment<'b>(
        &self,
        root: &ProcRoot,
        (pid, uid): (u32, u32),
        buffer: &'b mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        // The read takes the lock of the process's memory, so a process with a pending signal is not read.
        let signalled = root.read(pid, "status", buffer).is_ok_and(|text| process::status(text).signalled);
        if signalled || !self.allows(uid) {
            return None;
        }
        let text = root.read_memory(pid, "environ", buffer, LONGEST).ok()?;
        self.spend(uid, text.len());
        Some(text)
    }

    fn turn(&self, passed: Duration) {
        let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let back = (MOST_A_SECOND / 1000).saturating_mul(millis);
        self.lock().retain(|_, spent| {
            *spent = spent.saturating_sub(back);
            *spent > 0
        });
    }
}

/// The result of one comparison.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TextAnswer {
    /// Index of the first matcher that holds, and whether one could not be evaluated.
    Read { found: Option<usize>, unreadable: bool },
    /// The user's share is used up.
    Deferred,
    /// A signal is pending, or the kernel interrupted the read: the process's memory is not read now.
    Busy,
}

/// The requested comparisons, and counts of those without a result.
pub(super) struct Texts {
    requests: ReadRequests<TextAnswer>,
    matchers: Arc<[Matcher]>,
    pub(super) budget: Arc<Budget>,
    turned: Option<Timestamp>,
    pub(super) unreadable: u64,
    pub(super) deferred: u64,
}

impl Texts {
    pub(super) fn new(matchers: &[Matcher], pool: Arc<Pool>) -> Self {
        Self {
            requests: ReadRequests::new(pool),
            matchers: matchers.into(),
            budget: Arc::default(),
            turned: None,
            unreadable: 0,
            deferred: 0,
        }
    }

    /// The threads that read.
    pub(super) const fn pool(&self) -> &Arc<Pool> {
        self.requests.pool()
    }

    /// Finds the matchers of the processes that must be compared.
    pub(super) fn turn(
        &mut self,
        seen: &mut [Seen],
        table: &ProcessTable,
        root: &Arc<ProcRoot>,
        users: &mut Users,
        at: Timestamp,
    ) {
        self.budget.turn(self.turned.map_or(Duration::ZERO, |before| at.since(before)));
        self.turned = Some(at);
        if self.matchers.is_empty() {
            return;
        }
        let place_of = |seen: &[Seen], key| seen.binary_search_by_key(&key, |seen| seen.key).ok();
        self.requests.keep(|key| place_of(seen, key).is_some());
        // If the user's share does not suffice for all, processes that were never compared come first.
        for never in [true, false] {
            for (seen, row) in seen.iter_mut().zip(&table.rows) {
                if row.kernel || seen.never_compared() != never || !seen.to_match {
                    continue;
                }
                if !self.budget.allows(row.uid) {
                    self.deferred += 1;
                } else if !self.requests.waits_for(row.key) && seen.is_due(at) {
                    self.request(seen, row, root, users);
                }
            }
        }
        for (key, answer) in self.requests.answers() {
            let Some(place) = place_of(seen, key) else { continue };
            let seen = &mut seen[place];
            match answer {
                Some(TextAnswer::Read { found, unreadable }) => {
                    self.unreadable += u64::from(unreadable);
                    if let Some(found) = found {
                        seen.meet(found, &table.rows[place], root);
                    }
                }
                Some(TextAnswer::Deferred) => {
                    self.deferred += 1;
                    seen.defer();
                }
                // It counts as a comparison, so that a process with a permanently pending signal is tried
                // about every ten seconds.
                Some(TextAnswer::Busy) => {
                    self.deferred += 1;
                    seen.to_match = true;
                    assign_otherwise(seen, &table.rows[place], root);
                }
                None => seen.to_match = true,
            }
        }
        // A process whose reads hang is assigned without its texts.
        for hanging in self.requests.pool().look().hanging {
            if let Some(place) = place_of(seen, hanging.target.key) {
                assign_otherwise(&mut seen[place], &table.rows[place], root);
            }
        }
    }

    fn request(&mut self, seen: &mut Seen, row: &ProcessRow, root: &Arc<ProcRoot>, users: &mut Users) {
        let (verdict, unreadable) = matcher::quick(&self.matchers, row, root, users);
        let places = match verdict {
            Verdict::Known(found) => {
                self.unreadable += u64::from(unreadable);
                if let Some(found) = found {
                    seen.meet(found, row, root);
                }
                return;
            }
            Verdict::Compare(places) => places,
        };
        seen.otherwise = places.last().copied().filter(|place| !self.matchers[*place].reads_memory());
        let target = ReadTarget::of(row, "cmdline or environ");
        let (matchers, root) = (Arc::clone(&self.matchers), Arc::clone(root));
        let (budget, user) = (Arc::clone(&self.budget), (row.key.pid, row.uid));
        self.requests
            .request(target, move || matcher::compare(&matchers, &places, &root, user, unreadable, &budget));
    }
}

/// Assigns a process whose texts are not known to the workload that it has without them.
fn assign_otherwise(seen: &mut Seen, row: &ProcessRow, root: &ProcRoot) {
    if let Some(otherwise) = seen.otherwise.filter(|_| seen.matched.is_none()) {
        seen.meet(otherwise, row, root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_share_that_is_released() {
        let budget = Budget::default();
        budget.spend(1, usize::try_from(MOST_AT_ONCE).unwrap() - 1);
        assert!(budget.allows(1));
        budget.spend(1, 10);
        assert!(!budget.allows(1) && budget.allows(2));
        budget.turn(Duration::from_millis(1));
        assert!(budget.allows(1));
        budget.turn(Duration::from_secs(3600));
        assert!(budget.lock().is_empty());
    }
}
