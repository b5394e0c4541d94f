//! Assigns processes to workloads. Pure: the result depends on the table, the direct assignments and the previous ones.
//!
//! A process is in one workload. Of its own assignment, its previous one and that of its
//! parent, the one with the highest precedence counts; among equals, its own comes
//! before the previous one, and that before the parent's. So a child of a member is a
//! member, and an orphan stays in its workload when init becomes its parent. In a
//! workload of one user, a process of another user gets the corresponding workload of its own user.

use super::identity::WorkloadKind;
use crate::model::facts::{ProcessRow, ProcessTable};

/// A workload that a process may be assigned to: its number, with the precedence of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Assignment {
    pub(super) kind: WorkloadKind,
    pub(super) id: u32,
    /// If set, the only user whose processes it takes, besides root's.
    pub(super) user: Option<u32>,
}

impl Assignment {
    /// Whether a process of this user cannot belong to it; a root process started for a user counts as the user's.
    const fn bars(self, uid: u32) -> bool {
        matches!(self.user, Some(user) if user != uid && uid != 0)
    }
}

/// Processes that start trees for others: the root of a tree is always below them.
const SUPERVISORS: [&str; 16] = [
    "sshd",
    "screen",
    "systemd",
    "(sd-pam)",
    "slurmstepd",
    "slurmd",
    "dockerd",
    "containerd",
    "conmon",
    "cron",
    "crond",
    "sudo",
    "su",
    "login",
    "supervisord",
    "init",
];
const SUPERVISOR_FAMILIES: [&str; 6] =
    ["tmux: server", "containerd-shim", "jupyter", "code-server", "sshd-", "SCREEN"];

/// Index of the parent of each row; a parent must not have started later, because a pid may have been reused.
pub(super) fn parents(table: &ProcessTable) -> Vec<Option<usize>> {
    let place = |row: &ProcessRow| {
        let parent = table.rows.binary_search_by_key(&row.parent, |other| other.key.pid).ok()?;
        (table.rows[parent].key.start <= row.key.start && row.parent != row.key.pid).then_some(parent)
    };
    table.rows.iter().map(place).collect()
}

/// The workload of each row, in the order of the rows. `counterpart` returns the corresponding assignment for another user.
pub(super) fn settle(
    table: &ProcessTable,
    parents: &[Option<usize>],
    direct: &[Option<Assignment>],
    remembered: &[Option<Assignment>],
    mut counterpart: impl FnMut(Assignment, u32) -> Assignment,
) -> Vec<Option<Assignment>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        Open,
        Visited,
        Settled,
    }
    let mut marks = vec![Mark::Open; table.rows.len()];
    let mut settled: Vec<Option<Assignment>> = vec![None; table.rows.len()];
    let mut path = Vec::new();
    for start in 0..table.rows.len() {
        // Climbs to an ancestor that is settled; a cycle, which only an inconsistent read has, ends at a visited one.
        let mut next = Some(start);
        while let Some(place) = next.filter(|place| marks[*place] == Mark::Open) {
            marks[place] = Mark::Visited;
            path.push(place);
            next = parents[place];
        }
        while let Some(place) = path.pop() {
            let inherited =
                parents[place].filter(|up| marks[*up] == Mark::Settled).and_then(|up| settled[up]);
            marks[place] = Mark::Settled;
            if !table.rows[place].kernel {
                let assignments = [direct[place], remembered[place], inherited];
                // Among equals the first is kept.
                let assignment = assignments.into_iter().flatten().min_by_key(|assignment| assignment.kind);
                let uid = table.rows[place].uid;
                settled[place] = assignment.map(|assignment| {
                    if assignment.bars(uid) { counterpart(assignment, uid) } else { assignment }
                });
            }
        }
    }
    settled
}

/// The root of the tree that a process belongs to: the highest ancestor of the same user in the same cgroup, below
/// shells and supervisors. A session without a terminal is a tree of its own, except the session of the process itself:
/// launchers start each rank in one.
pub(super) fn root_of(table: &ProcessTable, parents: &[Option<usize>], process: usize) -> usize {
    let mut root = process;
    // The number of rows limits the climb if the parents form a cycle.
    for _ in 0..table.rows.len() {
        let Some(up) = parents[root] else { break };
        let (row, parent) = (&table.rows[root], &table.rows[up]);
        let shell = parent.session == parent.key.pid && parent.terminal != 0;
        let same = parent.uid == row.uid && parent.naming_cgroup == row.naming_cgroup;
        let begun = root != process && row.session == row.key.pid && row.terminal == 0;
        if parent.key.pid <= 1 || parent.kernel || !same || shell || begun {
            break;
        }
        if is_supervisor(parent.comm.as_str()) {
            break;
        }
        root = up;
    }
    root
}

fn is_supervisor(comm: &str) -> bool {
    SUPERVISORS.contains(&comm) || SUPERVISOR_FAMILIES.iter().any(|family| comm.starts_with(family))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessKey;

    fn row(pid: u32, parent: u32, comm: &str) -> ProcessRow {
        ProcessRow {
            parent,
            session: pid,
            uid: 1000,
            ..ProcessRow::new(ProcessKey { pid, start: u64::from(pid) }, comm.into())
        }
    }

    fn table(rows: &[(u32, u32, &str)]) -> ProcessTable {
        ProcessTable {
            rows: rows.iter().map(|(pid, parent, comm)| row(*pid, *parent, comm)).collect(),
            boot: None,
        }
    }

    fn assignment(kind: WorkloadKind, id: u32) -> Option<Assignment> {
        Some(Assignment { kind, id, user: None })
    }

    /// The resulting workload numbers, with `-` for none; assignments are given by row.
    fn check(
        rows: &[(u32, u32, &str)],
        direct: &[Option<Assignment>],
        remembered: &[Option<Assignment>],
        expected: &str,
    ) {
        let table = table(rows);
        let settled = settle(&table, &parents(&table), direct, remembered, |assignment, _| assignment);
        let ids = settled
            .iter()
            .map(|assignment| assignment.map_or("-".to_owned(), |assignment| assignment.id.to_string()));
        assert_eq!(ids.collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn children_follow_and_orphans_stay() {
        let rows =
            [(1, 0, "init"), (10, 1, "a"), (11, 10, "b"), (12, 11, "c"), (13, 1, "orphan"), (14, 13, "d")];
        let slurm = assignment(WorkloadKind::Slurm, 7);
        check(&rows, &[None, slurm, None, None, None, None], &[None; 6], "- 7 7 7 - -");
        check(&rows, &[None; 6], &[None, None, None, None, slurm, None], "- - - - 7 7");
    }

    #[test]
    fn precedence_then_own_then_remembered_then_inherited() {
        let rows = [(1, 0, "init"), (10, 1, "a"), (11, 10, "b")];
        let (matcher, other) = (assignment(WorkloadKind::Matcher, 1), assignment(WorkloadKind::Matcher, 2));
        let (slurm, gpu) = (assignment(WorkloadKind::Slurm, 3), assignment(WorkloadKind::Gpu, 4));
        check(&rows, &[None, matcher, slurm], &[None; 3], "- 1 1");
        check(&rows, &[None, slurm, matcher], &[None; 3], "- 3 1");
        check(&rows, &[None, matcher, other], &[None, None, matcher], "- 1 2");
        check(&rows, &[None, matcher, None], &[None, None, other], "- 1 2");
        check(&rows, &[None, slurm, None], &[None, gpu, gpu], "- 3 3");
    }

    #[test]
    fn a_process_of_another_user_belongs_to_that_users_workload_and_roots_stays() {
        let rows = [(1, 0, "init"), (10, 1, "hub"), (11, 10, "one"), (12, 10, "two"), (13, 12, "su")];
        let mut table = table(&rows);
        for (place, uid) in [(0, 0), (1, 0), (2, 1001), (3, 1002), (4, 0)] {
            table.rows[place].uid = uid;
        }
        let of = |user: u32| Some(Assignment { kind: WorkloadKind::Matcher, id: user, user: Some(user) });
        let counterpart = |assignment: Assignment, uid| Assignment { id: uid, user: Some(uid), ..assignment };
        let parents = parents(&table);
        let settled = settle(&table, &parents, &[None, of(0), None, None, None], &[None; 5], counterpart);
        assert_eq!(settled, [None, of(0), of(1001), of(1002), of(1002)]);
        // Also the assignment that it had before, as root, before it dropped its privileges.
        let settled = settle(&table, &parents, &[None; 5], &[None, None, of(0), of(1001), None], counterpart);
        assert_eq!(settled, [None, None, of(1001), of(1002), of(1002)]);
    }

    #[test]
    fn cyclic_and_younger_parents_are_ignored() {
        let slurm = assignment(WorkloadKind::Slurm, 7);
        let mut circle = table(&[(10, 11, "a"), (11, 10, "b")]);
        circle.rows[1].key.start = 10;
        circle.rows.iter_mut().for_each(|row| row.session = 10);
        let settled =
            settle(&circle, &parents(&circle), &[slurm, None], &[None, None], |assignment, _| assignment);
        assert_eq!(settled[0], slurm);
        assert_eq!(root_of(&circle, &parents(&circle), 0), 0);
        check(&[(10, 20, "a"), (20, 1, "reused")], &[None, slurm], &[None; 2], "- 7");
    }

    /// The root of each row, as pids.
    fn roots(table: &ProcessTable) -> Vec<u32> {
        let parents = parents(table);
        (0..table.rows.len()).map(|place| table.rows[root_of(table, &parents, place)].key.pid).collect()
    }

    #[test]
    fn a_tree_ends_below_shells_and_supervisors() {
        let mut tree = table(&[
            (1, 0, "systemd"),
            (5, 1, "sshd"),
            (6, 5, "bash"),
            (7, 6, "run.sh"),
            (8, 7, "torchrun"),
            (9, 8, "python"),
            (20, 1, "containerd-shim-runc-v2"),
            (21, 20, "tini"),
            (22, 21, "python"),
            (30, 1, "jupyter-lab"),
            (31, 30, "python"),
        ]);
        tree.rows[2].terminal = 34816;
        tree.rows[4].session = 7;
        tree.rows[8].session = 21;
        // A new session, in which torchrun starts its workers, changes nothing.
        assert_eq!(roots(&tree), [1, 5, 6, 7, 7, 7, 20, 21, 21, 30, 31]);
        tree.rows[5].uid = 0;
        tree.rows[8].naming_cgroup = Some("/x".into());
        assert_eq!(roots(&tree), [1, 5, 6, 7, 7, 9, 20, 21, 22, 30, 31]);
    }

    #[test]
    fn without_a_terminal_a_tree_ends_with_its_session() {
        let mut tree = table(&[
            (1, 0, "init"),
            (5, 1, "agent"),
            (6, 5, "bash"),
            (7, 6, "train.sh"),
            (8, 7, "nc"),
            (9, 7, "torchrun"),
            (10, 9, "python"),
        ]);
        for place in 3..6 {
            tree.rows[place].session = 6;
        }
        assert_eq!(roots(&tree), [1, 5, 5, 6, 6, 6, 6]);
    }

    proptest::proptest! {
        #[test]
        fn any_parents_terminate(links in proptest::collection::vec(0_u32..12, 12), assigned in 0_usize..12) {
            let rows: Vec<_> = links.iter().zip(1..).map(|(parent, pid)| {
                let mut row = row(pid, *parent, "p");
                row.key.start = 5;
                row
            }).collect();
            let table = ProcessTable { rows, boot: None };
            let parents = parents(&table);
            let mut direct = vec![None; 12];
            direct[assigned] = assignment(WorkloadKind::Slurm, 1);
            let settled = settle(&table, &parents, &direct, &[None; 12], |assignment, _| assignment);
            proptest::prop_assert_eq!(settled[assigned], direct[assigned]);
            for place in 0..12 {
                let _ = root_of(&table, &parents, place);
            }
        }
    }
}
