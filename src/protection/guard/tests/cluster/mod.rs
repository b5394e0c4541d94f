//! One seed, a whole cluster: the guards of up to 64 nodes on simulated clocks, networks, disks and kernels.
//!
//! A node has the real [`Guard::prepare`] and [`round`], with the real records, executor, threads and receiver of requests.
//! Simulated are what they call: `host::testing::Edges`, and here the network, the processes that a sampler finds, and time.
//! Each act and transition is checked ([`observe`] and [`machine`]); a seed plays the same events each time.
//!
//! Real: policy, plan, the guard's loop, input and readings of memory, requests and their signatures, audit log, state file, executor with its checks,
//! and the work of its threads. Modelled: the kernel's processes, signals and OOM killer; what the sources find; HTTP, whose
//! requests reach the receiver as bytes. Not played: hooks, webhooks, helper processes of files, incident folders, GPUs,
//! forecasts of analyzers, cgroup v1, a reload, and what ranks do with a request, which
//! `clients/python/tests/test_agreement_simulated.py` plays.

mod machine;
mod observe;
mod world;

pub(in crate::protection::guard) use observe::{network, observed};

use std::sync::atomic::{AtomicU64, Ordering};

/// A defect that the edges have for a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// The nonces of requests are not checked: they are forgotten before each request.
    Nonce,
    /// The start time of a process is not checked: its file shows that of the process before it.
    StartTime,
    /// A line of the audit log is lost.
    AuditLine,
    /// A restarted daemon does not know what it requested before.
    Restart,
    /// The end of victims is not seen.
    DeadVictim,
    /// A cgroup is not thawed.
    Thaw,
    /// A request of another node is decided on like a shortage of the own one.
    Beyond,
    /// Pools of huge pages are not seen.
    HugePages,
    /// The ARC of ZFS is not seen.
    Arc,
    /// Swap is not seen.
    Swap,
    /// Pages that processes share count for each.
    SharedPages,
    /// What files in tmpfs hold counts as if the end of a job gave it back.
    Storm,
}

/// Plays each of so many on all processors, until one gives something, which is returned.
fn first_of<T: Send>(count: u64, play: impl Fn(u64) -> Option<T> + Sync) -> Option<T> {
    let (next, found) = (AtomicU64::new(0), std::sync::Mutex::new(None::<T>));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= count || found.lock().unwrap().is_some() {
                        return;
                    }
                    if let Some(one) = play(place) {
                        found.lock().unwrap().get_or_insert(one);
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// The seed and what is wrong, where something is.
fn broken(seed: u64, defect: Option<Defect>) -> Option<(u64, String)> {
    world::play(seed, defect, false).map(|(what, _)| (seed, what))
}

/// The trace of a seed, of which the last events are shown.
fn trace(seed: u64, defect: Option<Defect>) -> String {
    const SHOWN: usize = 200;
    let Some((what, events)) = world::play(seed, defect, true) else {
        return "it does not fail again".to_owned();
    };
    let end =
        events.iter().position(|event| event.contains("VIOLATION")).map_or(events.len(), |place| place + 1);
    format!("{}\nseed {seed}: {what}", events[end.saturating_sub(SHOWN)..end].join("\n"))
}

/// The number in an environment variable.
fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: `{text}` is no number")))
}

/// `MEMWARDEN_SEEDS` and `MEMWARDEN_FIRST_SEED` play other seeds than those that fit into the time of all tests.
#[test]
fn no_seed_breaks_an_invariant() {
    const SEEDS: u64 = 8;
    let (count, first) =
        (number("MEMWARDEN_SEEDS").unwrap_or(SEEDS), number("MEMWARDEN_FIRST_SEED").unwrap_or(0));
    if let Some((seed, _)) = first_of(count, |place| broken(first + place, None)) {
        panic!("{}\nagain: MEMWARDEN_FIRST_SEED={seed} MEMWARDEN_SEEDS=1", trace(seed, None));
    }
}

/// 23: the kernel killed the victims before, and others came into the cgroup. 52: others came while the wait was repeated.
/// 1000141: the disk failed before the line of a freeze was written, and the daemon was killed before it thawed the cgroup.
#[test]
fn seeds_that_broke_an_invariant_before_do_not_any_more() {
    const SEEDS: [u64; 3] = [23, 52, 1_000_141];
    let found = first_of(3, |place| broken(SEEDS[usize::try_from(place).unwrap()], None));
    assert!(found.is_none(), "{}", trace(found.unwrap().0, None));
}

#[test]
fn a_seed_plays_the_same_events_each_time() {
    // Inodes are the real ones of the files.
    let plain = |event: String| if event.contains("inode") { String::new() } else { event };
    let events = || world::record(7).into_iter().map(plain).collect::<Vec<_>>();
    assert_eq!(events(), events());
}

/// Each defect, the seed that finds it at present and from which it is searched, and what is found.
const DEFECTS: [(Defect, u64, &str); 12] = [
    (Defect::Nonce, 4, "received twice"),
    (Defect::StartTime, 5, "audit log|outside of every scope"),
    (Defect::AuditLine, 2, "the audit log has no"),
    (Defect::Restart, 6, "two checkpoint requests"),
    (Defect::DeadVictim, 9, "waits"),
    (Defect::Thaw, 8, "is frozen"),
    (Defect::Beyond, 2, "without a shortage|waits"),
    (Defect::HugePages, 2, "without a shortage"),
    (Defect::Arc, 13, "without a shortage"),
    (Defect::Swap, 0, "without a shortage"),
    (Defect::SharedPages, 2, "without a shortage"),
    (Defect::Storm, 7, "cannot give back"),
];

#[test]
fn each_planted_defect_is_found() {
    let count = number("MEMWARDEN_SEEDS").unwrap_or(1000);
    let missed = first_of(12, |place| {
        let (defect, first, expected) = DEFECTS[usize::try_from(place).unwrap()];
        println!("{defect:?} begins");
        match (first..first + count).find_map(|seed| broken(seed, Some(defect))) {
            Some((seed, what)) if expected.split('|').any(|part| what.contains(part)) => {
                println!("{defect:?}: seed {seed}: {what}");
                None
            }
            other => Some(format!("{defect:?}: {other:?}")),
        }
    });
    assert_eq!(missed, None);
}
