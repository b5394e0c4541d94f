//! The list of all processes, merged with their known state, with bounded work and descriptors.

use std::io;
use std::time::Duration;

use super::entry::{Entry, Reading};
use crate::host::clock;
use crate::host::process::{self, Listed, Population, ProcRoot, has_exited};
use crate::model::attention;
use crate::model::facts::ProcessRow;

/// Most new processes added in one sample: 4,000 take about 0.1 s, once.
pub(super) const MOST_NEW: usize = 4_000;

/// How long before the daemon a process can have started whose launcher may still change it.
const YOUNG: Duration = Duration::from_secs(60);
/// Samples after which the processes are listed in any case: thread ids wrap around, and listing is cheap.
const LIST_EVERY: u32 = 8;
/// Samples after which a process that could not be read is tried again.
const REFUSED_EVERY: u32 = 64;

/// Every process that could be read, sorted by pid.
pub(super) struct Census {
    pub(super) root: ProcRoot,
    pub(super) reading: Reading,
    listed: Vec<Listed>,
    /// The kernel's process counters before `listed` was read.
    population: Option<Population>,
    entries: Vec<Entry>,
    /// The list of the previous sample, kept to reuse its memory.
    spare: Vec<Entry>,
    /// Processes that the kernel lists but does not allow to be read (hidepid=1), sorted by pid.
    refused: Vec<Listed>,
    turn: u32,
    most_new: usize,
    /// Processes that started from here on, in ticks, are young; all from the second sample on.
    recent: u64,
    pub(super) races: u64,
    pub(super) deferred: u64,
    /// The first process in this sample that could not be read for a reason other than a refusal or its end.
    pub(super) trouble: Option<(u32, io::Error)>,
}

impl Census {
    /// An empty list; at most `descriptors` are kept open.
    pub(super) fn new(root: ProcRoot, descriptors: usize, most_new: usize) -> Self {
        let reading = Reading::new(descriptors);
        let (listed, entries, spare) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            root,
            reading,
            listed,
            population: None,
            entries,
            spare,
            refused: Vec::new(),
            turn: 0,
            most_new,
            recent: process::ticks(clock::now().monotonic().saturating_sub(YOUNG)),
            races: 0,
            deferred: 0,
            trouble: None,
        }
    }

    pub(super) fn take(&mut self) -> io::Result<()> {
        self.take_by(Entry::discover)
    }

    /// Lists the processes, unless none was created or reaped since the last list.
    fn list(&mut self) -> io::Result<()> {
        let population = self.root.population(&mut self.reading.buffer);
        let same = population.is_some() && population == self.population;
        if !same || self.turn.is_multiple_of(LIST_EVERY) {
            self.population = None;
            self.root.list(&mut self.listed)?;
            self.population = population;
        }
        Ok(())
    }

    fn take_by(
        &mut self,
        mut discover: impl FnMut(Listed, u64, &ProcRoot, &mut Reading) -> io::Result<Entry>,
    ) -> io::Result<()> {
        self.turn = self.turn.wrapping_add(1);
        self.list()?;
        self.root.begin_sample();
        let mut refused = std::mem::take(&mut self.refused).into_iter().peekable();
        let mut before = std::mem::replace(&mut self.entries, std::mem::take(&mut self.spare));
        let mut known = before.drain(..).peekable();
        let mut new = 0;
        self.trouble = None;
        for listed in &self.listed {
            attention::attend(listed.pid);
            while let Some(gone) = known.next_if(|entry| entry.pid() < listed.pid) {
                self.reading.release(gone);
            }
            if let Some(mut entry) = known.next_if(|entry| entry.pid() == listed.pid) {
                if entry.refresh(*listed, &self.root, &mut self.reading) {
                    self.entries.push(entry);
                    continue;
                }
                // The pid was listed, so another process may have it now.
                self.reading.release(entry);
            }
            // Spread by pid; a different inode is a different process.
            while refused.next_if(|before| before.pid < listed.pid).is_some() {}
            let due = self.turn.wrapping_add(listed.pid).is_multiple_of(REFUSED_EVERY);
            if refused.next_if_eq(listed).is_some() && !due {
                self.refused.push(*listed);
                continue;
            }
            if new == self.most_new {
                self.deferred += 1;
                continue;
            }
            new += 1;
            match discover(*listed, self.recent, &self.root, &mut self.reading) {
                Ok(entry) => self.entries.push(entry),
                Err(error) if has_exited(&error) => self.races += 1,
                // A refusal costs one call; the limit is for processes that can be read.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    new -= 1;
                    self.refused.push(*listed);
                }
                Err(error) => {
                    self.trouble.get_or_insert((listed.pid, error));
                }
            }
        }
        attention::rest();
        known.for_each(|gone| self.reading.release(gone));
        self.spare = before;
        // What is found later has started since, or was not visible.
        self.recent = 0;
        self.reading.forget_unused_cgroups(self.entries.len());
        Ok(())
    }

    pub(super) fn rows(&self) -> Vec<ProcessRow> {
        self.entries.iter().map(|entry| entry.row.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process;
    use crate::host::process::testing::{Process, Tree};

    fn census(tree: &Tree, descriptors: usize, most_new: usize) -> Census {
        Census::new(ProcRoot::new(tree.proc()), descriptors, most_new)
    }

    fn seen(census: &mut Census) -> Vec<(u32, u64, String)> {
        census.take().unwrap();
        census.rows().iter().map(|row| (row.key.pid, row.key.start, row.comm.to_string())).collect()
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        for descriptors in [0, 10] {
            let tree = Tree::new();
            tree.add(&Process::new(1, "init"));
            tree.add(&Process::new(9, "old"));
            let mut census = census(&tree, descriptors, 10);
            assert_eq!(seen(&mut census)[1], (9, 9, "old".to_owned()));
            tree.end(9);
            tree.add(&Process::new(9, "new").start(500).cgroup("/other"));
            assert_eq!(seen(&mut census)[1], (9, 500, "new".to_owned()));
            assert_eq!(census.rows()[1].cgroup.as_ref().unwrap().as_str(), "/other");
            // In place: the open descriptor returns another start time.
            tree.add(&Process::new(9, "newer").start(900));
            assert_eq!(seen(&mut census)[1], (9, 900, "newer".to_owned()));
            assert_eq!(census.races, 0);
        }
    }

    /// Samples until process 9 is seen to have gained a tick, after `rest` samples without activity.
    fn samples_until_seen(rest: u32, pages: u64) -> u32 {
        let tree = Tree::new();
        tree.add(&Process::new(9, "p").pages(pages));
        let mut census = census(&tree, 10, 10);
        for _ in 0..=rest {
            census.take().unwrap();
        }
        tree.add(&Process::new(9, "p").pages(pages).cpu(1));
        let seen = (1..10).find(|_| {
            census.take().unwrap();
            census.rows()[0].cpu_ticks == 1
        });
        seen.unwrap()
    }

    #[test]
    fn only_small_idle_processes_are_read_seldom() {
        const LARGE: u64 = (64 << 20) / 4096;
        assert!((0..8).all(|rest| samples_until_seen(rest, 10) == 1));
        let waits: std::collections::BTreeSet<_> = (8..16).map(|rest| samples_until_seen(rest, 10)).collect();
        assert_eq!(waits, (1..=4).collect());
        assert!((8..16).all(|rest| samples_until_seen(rest, LARGE) == 1));
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_lives_and_has_memory() {
        let tree = Tree::new();
        let mut process = Process::new(9, "p").pages(0);
        (process.state, process.threads) = ('Z', 2);
        tree.add(&process.clone().thread(9, 'Z', 0).thread(12, 'R', 500));
        let mut census = census(&tree, 10, 10);
        let mut seen = |tree: &Tree, process: &Process| {
            tree.add(process);
            census.take().unwrap();
            (census.rows()[0].state, census.rows()[0].rss.get() / process::page_size())
        };
        assert_eq!(seen(&tree, &process.clone().thread(12, 'R', 500)), (b'R', 500));
        assert_eq!(seen(&tree, &process.clone().thread(12, 'S', 700).cpu(1)), (b'S', 700));
        // No living thread is found: nothing is known, and it is not dead.
        std::fs::remove_dir_all(tree.proc().join("9/task")).unwrap();
        assert_eq!(seen(&tree, &process.clone().cpu(2)), (b'?', 700));
        process.threads = 1;
        assert_eq!(seen(&tree, &process.clone().cpu(3)), (b'Z', 0));
    }

    #[test]
    fn exited_processes_and_their_descriptors_are_removed() {
        let tree = Tree::new();
        for pid in 1..=20 {
            tree.add(&Process::new(pid, "p"));
        }
        let mut census = census(&tree, 12, 100);
        assert_eq!(seen(&mut census).len(), 20);
        assert_eq!(census.reading.kept, 12);
        for pid in 2..=19 {
            tree.end(pid);
        }
        assert_eq!(seen(&mut census).iter().map(|row| row.0).collect::<Vec<_>>(), [1, 20]);
        assert_eq!(census.reading.kept, 1);
        assert_eq!(seen(&mut census).len(), 2);
    }

    #[test]
    fn a_process_that_exits_between_listing_and_reading_is_not_an_error() {
        let tree = Tree::new();
        tree.add(&Process::new(1, "init"));
        std::fs::create_dir(tree.proc().join("2")).unwrap();
        std::fs::create_dir(tree.proc().join("3")).unwrap();
        std::fs::write(tree.proc().join("3/stat"), "3 (cut) S 1 3").unwrap();
        let mut census = census(&tree, 10, 10);
        assert_eq!(seen(&mut census).len(), 1);
        assert_eq!(census.races, 1);
        assert_eq!(census.trouble.unwrap().0, 3);
    }

    #[test]
    fn many_new_processes_are_added_in_portions() {
        let tree = Tree::new();
        for pid in 1..=25 {
            tree.add(&Process::new(pid, "p"));
        }
        let mut census = census(&tree, 100, 10);
        let sizes: Vec<_> = (0..3).map(|_| seen(&mut census).len()).collect();
        assert_eq!(sizes, [10, 20, 25]);
        assert_eq!(census.deferred, 20);
    }

    /// Reads all processes, where those below `own` belong to others; returns which were tried and how many are known.
    fn tried(census: &mut Census, own: u32) -> (Vec<u32>, usize) {
        let mut tried = Vec::new();
        let discover = |listed: Listed, recent, root: &ProcRoot, reading: &mut Reading| {
            tried.push(listed.pid);
            if listed.pid < own {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            Entry::discover(listed, recent, root, reading)
        };
        census.take_by(discover).unwrap();
        (tried, census.rows().len())
    }

    #[test]
    fn unreadable_processes_take_no_place_and_are_seldom_retried() {
        let tree = Tree::new();
        for pid in 1..=23 {
            tree.add(&Process::new(pid, "p"));
        }
        let mut census = census(&tree, 100, 2);
        assert_eq!(tried(&mut census, 21), ((1..=22).collect(), 2));
        assert_eq!(census.deferred, 1);
        assert!(census.trouble.is_none());
        // Each is tried once more within 64 samples, and another process with the same pid at once.
        let mut again: Vec<_> = (0..64).flat_map(|_| tried(&mut census, 21).0).collect();
        again.sort_unstable();
        assert_eq!(again, (1..=20).chain([23]).collect::<Vec<_>>());
        census.refused[6].inode += 1;
        assert!(tried(&mut census, 21).0.contains(&7));
        tree.end(7);
        tried(&mut census, 21);
        assert_eq!(census.refused.len(), 19);
        // A process that was refused and is permitted now is added.
        for _ in 0..64 {
            tried(&mut census, 15);
        }
        assert_eq!(census.rows().len(), 9);
        assert_eq!(census.refused.len(), 13);
    }

    #[test]
    fn exec_and_a_recent_start_cause_another_read_of_the_cgroup() {
        let tree = Tree::new();
        tree.add(&Process::new(1, "init"));
        let mut census = census(&tree, 10, 10);
        census.take().unwrap();
        let mut place = |tree: &Tree, process: &Process| {
            tree.add(process);
            census.take().unwrap();
            census.rows()[1].cgroup.as_ref().unwrap().to_string()
        };
        let of = |comm: &str, path: &str| Process::new(2, comm).cgroup(path);
        assert_eq!(place(&tree, &of("a", "/0")), "/0");
        assert_eq!(place(&tree, &of("a", "/1")), "/1");
        assert_eq!(place(&tree, &of("a", "/2")), "/2");
        assert_eq!(place(&tree, &of("a", "/3")), "/2");
        assert_eq!(place(&tree, &of("b", "/3")), "/3");
        assert_eq!(place(&tree, &of("b", "/5")), "/3");
    }
}
