//! Which processes receive the checkpoint signal, which are terminated, and in which order.
//!
//! Ranks receive the checkpoint signal before their launchers, so that a launcher does not end them first. Leaves are
//! terminated before their parents; launchers last.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::ids::ProcessKey;
use crate::model::ids::within;
use crate::model::label::Label;
use crate::model::units::Bytes;
use crate::options::target::Victims;
use crate::types::step::Group;

/// A process that may be signalled for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    pub key: ProcessKey,
    /// Its parent's pid.
    pub parent: u32,
    /// Resident memory, with its memory on GPUs that use the memory of the host.
    pub resident: Bytes,
    /// Its cgroup's path.
    pub group: Option<Label>,
    /// Whether it is known to be a rank: it uses a GPU, or reported to be one.
    pub rank: bool,
}

/// A process that may receive the checkpoint signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub key: ProcessKey,
    /// The index of its nearest ancestor that is signalled before; once that one was signalled, this one is not: a
    /// forked child has its parent's handlers, and no state of its own to save.
    pub above: Option<u16>,
}

/// A target's processes in the orders in which steps need them, prepared beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// The processes that may receive the checkpoint signal, in this order.
    pub ask: Vec<Asked>,
    /// The processes that receive SIGTERM, in this order.
    pub end: Vec<ProcessKey>,
    /// The victims, the largest first.
    pub largest: Arc<[ProcessKey]>,
    /// The cgroup that holds all victims and no other process.
    pub group: Option<Group>,
    /// The resident memory of the victims.
    pub resident: Bytes,
    /// The cgroups of all processes, sorted.
    pub groups: Vec<Label>,
}

/// Maximum number of processes of one target that are signalled one by one; a kill of a tree reaches twice as many, and one of a
/// cgroup all.
pub const MOST: usize = 4096;

impl Roster {
    /// The roster of a target with these processes; `group` is the cgroup that holds only them.
    pub fn new(processes: &[ProcessInfo], victims: Victims, group: Option<Group>) -> Self {
        let family = Family::new(processes);
        let chosen = family.chosen(victims);
        let mut by_depth: Vec<usize> = chosen.clone();
        by_depth.sort_by_key(|place| {
            (family.depth[*place], processes[*place].key.start, processes[*place].key.pid)
        });
        by_depth.truncate(MOST);
        let key = |place: &usize| processes[*place].key;
        let end = by_depth.iter().rev().map(key).collect();
        let mut largest = chosen.clone();
        largest.sort_by_key(|place| (std::cmp::Reverse(processes[*place].resident), processes[*place].key));
        let mut groups: Vec<&Label> = processes.iter().filter_map(|process| process.group.as_ref()).collect();
        // Neighbors are mostly in one cgroup, which keeps what is sorted short.
        groups.dedup();
        groups.sort_unstable();
        groups.dedup();
        Self {
            groups: groups.into_iter().cloned().collect(),
            ask: family.asked(),
            end,
            largest: largest.iter().map(key).collect(),
            group: group.filter(|_| victims == Victims::Whole),
            resident: chosen.iter().map(|place| processes[*place].resident).sum(),
        }
    }
}

/// The family tree of the processes.
pub(super) struct Family<'p> {
    processes: &'p [ProcessInfo],
    /// By index.
    pub(super) parent: Vec<Option<usize>>,
    depth: Vec<usize>,
}

impl<'p> Family<'p> {
    pub(super) fn new(processes: &'p [ProcessInfo]) -> Self {
        let places: HashMap<u32, usize> =
            processes.iter().enumerate().map(|(place, process)| (process.key.pid, place)).collect();
        let parent_of = |process: &ProcessInfo| {
            // A parent is older: a reused pid is not the parent.
            let place = *places.get(&process.parent)?;
            (processes[place].key.start <= process.key.start && processes[place].key != process.key)
                .then_some(place)
        };
        let parent: Vec<_> = processes.iter().map(parent_of).collect();
        let depth = depths(&parent);
        Self { processes, parent, depth }
    }

    fn chosen(&self, victims: Victims) -> Vec<usize> {
        let everybody = 0..self.processes.len();
        let head = match victims {
            Victims::Whole => return everybody.collect(),
            Victims::Largest => everybody.clone().max_by_key(|place| {
                (self.processes[*place].resident, std::cmp::Reverse(self.processes[*place].key))
            }),
            Victims::Newest => everybody
                .clone()
                .max_by_key(|place| (self.processes[*place].key.start, self.processes[*place].key.pid)),
        };
        let Some(head) = head else { return Vec::new() };
        // Parents first, so that each is decided before its children are.
        let mut order: Vec<usize> = everybody.clone().collect();
        order.sort_unstable_by_key(|place| self.depth[*place]);
        let mut chosen = vec![false; self.processes.len()];
        for place in order {
            chosen[place] = place == head || self.parent[place].is_some_and(|above| chosen[above]);
        }
        everybody.filter(|place| chosen[*place]).collect()
    }

    /// Known ranks where there are any; otherwise all processes, the topmost first.
    fn asked(&self) -> Vec<Asked> {
        let ranks = self.processes.iter().any(|process| process.rank);
        let mut order: Vec<usize> =
            (0..self.processes.len()).filter(|place| !ranks || self.processes[*place].rank).collect();
        order.sort_by_key(|place| (self.depth[*place], self.processes[*place].key));
        order.truncate(MOST);
        let placed: HashMap<usize, u16> = order
            .iter()
            .enumerate()
            .filter_map(|(turn, place)| Some((*place, u16::try_from(turn).ok()?)))
            .collect();
        let asked = order.iter().map(|place| Asked {
            key: self.processes[*place].key,
            above: above(&self.parent, *place)
                .filter(|above| above != place)
                .find_map(|above| placed.get(&above).copied()),
        });
        asked.collect()
    }
}

/// The number of ancestors of each process, in a time that grows with the number of processes only: a user can make chains of
/// thousands. In a cycle, which a table that was read while processes ended could have, it is that up to the cycle's end.
fn depths(parent: &[Option<usize>]) -> Vec<usize> {
    let mut depth: Vec<Option<usize>> = vec![None; parent.len()];
    let mut path = Vec::new();
    for first in 0..parent.len() {
        let mut next = Some(first);
        while let Some(place) = next.filter(|place| depth[*place].is_none()) {
            // Decided below; until then it ends a cycle.
            depth[place] = Some(0);
            path.push(place);
            next = parent[place];
        }
        let mut above = next.and_then(|place| depth[place]);
        while let Some(place) = path.pop() {
            depth[place] = Some(above.map_or(0, |above| above + 1));
            above = depth[place];
        }
    }
    depth.into_iter().map(Option::unwrap_or_default).collect()
}

/// The indices of ancestors, the nearest first; bounded, so that a cycle ends.
pub(super) fn above(parent: &[Option<usize>], place: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(parent[place], |above| parent[*above]).take(parent.len())
}

/// The deepest cgroup that holds all members.
pub fn common_group(processes: &[ProcessInfo]) -> Option<&str> {
    let mut paths = processes.iter().map(|process| process.group.as_ref().map(Label::as_str));
    let first = paths.next()??;
    let mut shared = first.trim_end_matches('/').len();
    for path in paths {
        let path = path?;
        while !within(path, &first[..shared]) {
            shared = first[..shared].rfind('/')?;
        }
    }
    Some(&first[..shared]).filter(|group| !group.is_empty())
}

/// The root of the hierarchy, where the processes' cgroups have no other common ancestor: inside a container it has a
/// limit.
pub fn root_group(processes: &[ProcessInfo]) -> Option<&'static str> {
    (!processes.is_empty() && processes.iter().all(|process| process.group.is_some())).then_some("/")
}

/// The deepest cgroup that holds all members, where it holds no other process.
pub fn own_group<'o>(processes: &[ProcessInfo], mut others: impl Iterator<Item = &'o str>) -> Option<Label> {
    let group = common_group(processes)?;
    (!others.any(|other| within(other, group))).then(|| group.into())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[test]
    fn depths_are_those_of_the_ancestors_also_in_long_chains_and_cycles() {
        assert_eq!(depths(&[None, Some(0), Some(1), Some(0), None]), [0, 1, 2, 1, 0]);
        assert_eq!(depths(&[Some(1), Some(2), None]), [2, 1, 0]);
        assert_eq!(depths(&[Some(1), Some(0), Some(1)]).len(), 3);
        let chain: Vec<_> = (0..200_000).map(|place| (place > 0).then(|| place - 1)).collect();
        assert!(depths(&chain).into_iter().eq(0..200_000));
    }

    /// `pid parent start mib [rank]` a line.
    fn processes(text: &str) -> Vec<ProcessInfo> {
        let process = |line: &str| {
            let mut words = line.split_whitespace();
            let mut number = || words.next().unwrap().parse::<u64>().unwrap();
            let (pid, parent, start, mib) = (number(), number(), number(), number());
            let small = |number| u32::try_from(number).unwrap();
            ProcessInfo {
                key: ProcessKey { pid: small(pid), start },
                parent: small(parent),
                resident: Bytes::new(mib << 20),
                group: None,
                rank: words.next().is_some(),
            }
        };
        text.lines().filter(|line| !line.trim().is_empty()).map(process).collect()
    }

    #[track_caller]
    fn check(text: &str, victims: Victims, expected: Expect) {
        let roster = Roster::new(&processes(text), victims, None);
        let pids =
            |keys: &[ProcessKey]| keys.iter().map(|key| key.pid.to_string()).collect::<Vec<_>>().join(" ");
        let asked: Vec<String> = roster
            .ask
            .iter()
            .map(|asked| match asked.above {
                Some(above) => format!("{} unless {}", asked.key.pid, roster.ask[usize::from(above)].key.pid),
                None => asked.key.pid.to_string(),
            })
            .collect();
        expected.assert_eq(&format!(
            "ask: {}\nend: {}\nlargest: {}\nresident: {}\n",
            asked.join(", "),
            pids(&roster.end),
            pids(&roster.largest),
            roster.resident
        ));
    }

    /// A shell, torchrun, two ranks, a data loader's worker each.
    const JOB: &str = "
        10 1 100 2
        11 10 101 90
        12 11 102 4000
        13 11 102 4100
        14 12 103 500
        15 13 104 500";

    #[test]
    fn leaves_end_first_and_the_launcher_last() {
        check(
            JOB,
            Victims::Whole,
            expect![[r#"
            ask: 10, 11 unless 10, 12 unless 11, 13 unless 11, 14 unless 12, 15 unless 13
            end: 15 14 13 12 11 10
            largest: 13 12 14 15 11 10
            resident: 9.0 GiB
        "#]],
        );
    }

    #[test]
    fn known_ranks_are_the_only_ones_asked() {
        check(
            &JOB.replace("4000", "4000 rank").replace("4100", "4100 rank"),
            Victims::Whole,
            expect![[r#"
            ask: 12, 13
            end: 15 14 13 12 11 10
            largest: 13 12 14 15 11 10
            resident: 9.0 GiB
        "#]],
        );
    }

    #[test]
    fn the_largest_ends_with_its_children() {
        check(
            JOB,
            Victims::Largest,
            expect![[r#"
            ask: 10, 11 unless 10, 12 unless 11, 13 unless 11, 14 unless 12, 15 unless 13
            end: 15 13
            largest: 13 15
            resident: 4.5 GiB
        "#]],
        );
    }

    #[test]
    fn the_newest_ends_alone() {
        check(
            JOB,
            Victims::Newest,
            expect![[r#"
            ask: 10, 11 unless 10, 12 unless 11, 13 unless 11, 14 unless 12, 15 unless 13
            end: 15
            largest: 15
            resident: 500.0 MiB
        "#]],
        );
    }

    #[test]
    fn a_circle_and_a_pid_used_again_end() {
        check(
            "7 8 5 1\n8 7 5 1\n9 9 5 1\n20 21 3 1\n21 1 9 1",
            Victims::Whole,
            expect![[r#"
            ask: 9, 20, 21, 8 unless 7, 7 unless 8
            end: 7 8 21 9 20
            largest: 7 8 9 20 21
            resident: 5.0 MiB
        "#]],
        );
        check(
            "",
            Victims::Largest,
            expect![[r#"
            ask: 
            end: 
            largest: 
            resident: 0 B
        "#]],
        );
    }

    #[test]
    fn a_group_belongs_to_a_target_where_it_holds_no_other_process() {
        let member = |path: &str| ProcessInfo { group: Some(path.into()), ..processes("5 1 5 5").remove(0) };
        let own = |paths: &[&str], others: &[&str]| {
            let members: Vec<_> = paths.iter().map(|path| member(path)).collect();
            own_group(&members, others.iter().copied()).map(|group| group.to_string())
        };
        assert_eq!(own(&["/a/b/1", "/a/b/2"], &["/a/c", "/"]).as_deref(), Some("/a/b"));
        assert_eq!(own(&["/a/b", "/a/b/2"], &["/a/bc"]).as_deref(), Some("/a/b"));
        assert_eq!(own(&["/a/b/1", "/a/b/2"], &["/a/b/3"]), None);
        assert_eq!(own(&["/a", "/b"], &[]), None);
        assert_eq!(own(&["/"], &[]), None);
        assert_eq!(own(&[], &[]), None);
    }

    proptest::proptest! {
        #[test]
        fn everybody_ends_once_and_no_parent_before_its_child(
            drawn in proptest::collection::vec((1_u32..40, 0_u64..5, 0_u64..9, proptest::bool::ANY), 0..30),
            whole: bool,
        ) {
            let processes: Vec<ProcessInfo> = drawn.iter().zip(2_u32..).map(|((parent, start, size, rank), pid)| ProcessInfo {
                key: ProcessKey { pid, start: *start }, parent: *parent, resident: Bytes::new(*size), group: None, rank: *rank,
            }).collect();
            let roster = Roster::new(&processes, if whole { Victims::Whole } else { Victims::Largest }, None);
            let mut ends: Vec<_> = roster.end.clone();
            ends.sort_unstable();
            ends.dedup();
            proptest::prop_assert_eq!(ends.len(), roster.end.len());
            proptest::prop_assert_eq!(roster.largest.len(), roster.end.len());
            proptest::prop_assert!(!whole || roster.end.len() == processes.len());
            for (turn, asked) in roster.ask.iter().enumerate() {
                proptest::prop_assert!(asked.above.is_none_or(|above| usize::from(above) != turn));
            }
            for key in &roster.end {
                proptest::prop_assert!(processes.iter().any(|process| process.key == *key), "nobody from outside");
            }
        }
    }
}
