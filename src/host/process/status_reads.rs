//! Bounds the time that one sample spends on reading `/proc/PID/status`.
//!
//! The kernel writes the whole file at each read, and a process can make it large: with 65,536 supplementary groups, which a
//! user may set in a user namespace, it takes up to 40 ms. Nothing tells the size before. So one user's processes cost each
//! sample at most one large file, all users' together a few, and a process with one is not read again for a long time.

use std::collections::{BTreeMap, HashMap};

use crate::model::subordinate::payer;

/// From this size on a file is large; 1.5 KiB are usual, and 2,000 groups fill it.
pub(super) const LARGE: usize = 16 * 1024;
/// Maximum number of large files in one sample, of processes of users whose files were large before.
pub(super) const MOST: usize = 4;
/// Number of samples for which a process with a large file is not read, and for which its user's other processes are read
/// only until the next large file.
const SAMPLES: u64 = 256;

/// What is known of large files.
#[derive(Debug, Default)]
pub(super) struct StatusReads {
    sample: u64,
    /// Large files in this sample.
    large: usize,
    /// The last sample with a large file, by user.
    users: HashMap<u32, u64, foldhash::fast::RandomState>,
    /// The sample of the large file, by process and user.
    processes: HashMap<(u32, u32), u64, foldhash::fast::RandomState>,
    /// Number of reads left out in this sample, by user.
    left_out: BTreeMap<u32, u64>,
}

impl StatusReads {
    /// Begins a sample.
    pub(super) fn begin(&mut self) {
        self.sample += 1;
        (self.large, self.left_out) = (0, BTreeMap::new());
        let sample = self.sample;
        self.users.retain(|_, last| sample - *last < SAMPLES);
        self.processes.retain(|_, last| sample - *last < SAMPLES);
    }

    /// Whether `status` of this process may be read now.
    pub(super) fn allows(&mut self, pid: u32, user: u32) -> bool {
        let user = payer(user);
        let spent = self.users.get(&user).is_some_and(|last| *last == self.sample || self.large >= MOST);
        let allowed = !spent && !self.processes.contains_key(&(pid, user));
        if !allowed {
            *self.left_out.entry(user).or_default() += 1;
        }
        allowed
    }

    /// Records the size of a file that was read.
    pub(super) fn read(&mut self, pid: u32, user: u32, bytes: usize) {
        let user = payer(user);
        if bytes >= LARGE {
            self.large += 1;
            self.users.insert(user, self.sample);
            self.processes.insert((pid, user), self.sample);
        }
    }

    /// The number of reads left out in this sample, by user.
    pub(super) fn left_out(&self) -> Vec<(u32, u64)> {
        self.left_out.iter().map(|(user, count)| (*user, *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the files of some processes of each user, of which all are large or small; returns how many were read.
    fn sample(reads: &mut StatusReads, users: &[(u32, usize)]) -> Vec<usize> {
        reads.begin();
        let mut read = |user: u32, bytes| {
            let pids = (0..100).filter(|pid| {
                let allowed = reads.allows(user * 1_000 + pid, user);
                if allowed {
                    reads.read(user * 1_000 + pid, user, bytes);
                }
                allowed
            });
            pids.count()
        };
        users.iter().map(|(user, bytes)| read(*user, *bytes)).collect()
    }

    #[test]
    fn a_user_costs_a_sample_one_large_file_and_others_are_read() {
        let mut reads = StatusReads::default();
        for _ in 0..100 {
            assert_eq!(sample(&mut reads, &[(1, LARGE), (2, LARGE - 1)]), [1, 100]);
            assert!(matches!(reads.left_out()[..], [(1, 99)]));
        }
        // All are known: none costs anything any more.
        assert_eq!(sample(&mut reads, &[(1, LARGE), (2, LARGE - 1)]), [0, 100]);
        assert!(matches!(reads.left_out()[..], [(1, 100)]));
    }

    #[test]
    fn many_users_cost_a_sample_a_few_large_files() {
        let mut reads = StatusReads::default();
        let users: Vec<(u32, usize)> = (1..=20).map(|user| (user, LARGE)).collect();
        assert_eq!(sample(&mut reads, &users).iter().sum::<usize>(), 20, "nobody is known yet");
        assert_eq!(sample(&mut reads, &users).iter().sum::<usize>(), MOST);
    }

    #[test]
    fn a_user_without_large_files_for_long_is_read_again() {
        let mut reads = StatusReads::default();
        sample(&mut reads, &[(1, LARGE)]);
        for _ in 0..SAMPLES {
            reads.begin();
        }
        assert_eq!(sample(&mut reads, &[(1, 100)]), [100]);
    }
}
