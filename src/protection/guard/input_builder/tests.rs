//! What the guard sees of samples.

use super::*;
use crate::model::facts::GpuProcess;
use crate::model::node_set::NodeSet;
use crate::model::room::{GroupSwap, SwapRoom};
use crate::model::units::Bytes;
use crate::protection::options::Protection;

/// A host whose jobs are in groups below `cgroup`.
struct World {
    folder: tempfile::TempDir,
    input_builder: InputBuilder,
    at: Timestamp,
    /// The user and the workload of each pid.
    who: fn(u32) -> (u32, String),
    /// Bytes that processes hold on a GPU that uses the memory of the host.
    pool: &'static [(u32, u64)],
}

impl World {
    fn new(selector: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("cgroup")).unwrap();
        std::fs::write(folder.path().join("cgroup/cgroup.controllers"), "memory\n").unwrap();
        let text = format!(
            "protection: {{mode: enforce, targets: [{{name: t, {selector}, allow_users: ['7', '8']}}]}}"
        );
        let config = crate::config::parse_str(&text, "f".as_ref(), &crate::app::schema(), &[]).unwrap();
        let targets = Protection::new(&config.modules["protection"], config.sampling.interval).targets.into();
        let exempt = Some(Exempt { own: 1000, pids: vec![1000], groups: Vec::new() });
        let input_builder = InputBuilder::new(targets, &Roots::under(folder.path()), exempt);
        Self { folder, input_builder, at: Timestamp::from_secs(10), who: |_| (7, "w".to_owned()), pool: &[] }
    }

    /// Makes a group with this much left, in MiB.
    fn group(&self, path: &str, left: u64) {
        let folder = self.folder.path().join("cgroup").join(path);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("memory.max"), format!("{}\n", 100 << 20)).unwrap();
        std::fs::write(folder.join("memory.current"), format!("{}\n", (100 - left) << 20)).unwrap();
        std::fs::write(folder.join("memory.stat"), "inactive_file 0\n").unwrap();
    }

    /// Makes NUMA nodes of 1 MiB with this much free, in KiB, and a process that may use some of them.
    fn nodes(&self, free: &[u64], (pid, allowed): (u32, &str)) {
        let write = |path: String, text: String| {
            let path = self.folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let nodes = "sys/devices/system/node";
        write(format!("{nodes}/has_memory"), format!("0-{}\n", free.len() - 1));
        for (node, free) in free.iter().enumerate() {
            let amounts =
                [("MemTotal", 1024), ("MemFree", *free), ("Active(file)", 0), ("Inactive(file)", 0)];
            let lines = amounts.into_iter().chain([("SReclaimable", 0)]);
            let text = lines.map(|(name, kib)| format!("Node {node} {name}: {kib} kB\n")).collect();
            write(format!("{nodes}/node{node}/meminfo"), text);
        }
        write(format!("proc/{pid}/status"), format!("Mems_allowed_list:\t{allowed}\n"));
        let zeros = "0 ".repeat(17);
        write(format!("proc/{pid}/stat"), format!("{pid} (p) S 1 {zeros}1 {}\n", "0 ".repeat(30)));
    }

    fn look(&mut self, rows: &[(u32, u32, &str)]) -> JobInput {
        self.sample(Some(rows)).unwrap().slots.into_iter().flatten().next().unwrap()
    }

    fn sample(&mut self, rows: Option<&[(u32, u32, &str)]>) -> Option<GuardInput> {
        let row = |(pid, parent, cgroup): &(u32, u32, &str)| ProcessRow {
            parent: *parent,
            uid: (self.who)(*pid).0,
            rss: Bytes::new(1),
            cgroup: Some((*cgroup).into()),
            ..ProcessRow::new(ProcessKey { pid: *pid, start: 1 }, "python".into())
        };
        let table = rows.map(|rows| ProcessTable { rows: rows.iter().map(row).collect(), boot: None });
        let all = table.iter().flat_map(|table| &table.rows);
        let named = |row: &ProcessRow| match (self.who)(row.key.pid).1 {
            job if job.starts_with("slurm") => Membership::in_group(row.key, &job),
            other => Membership::named(row.key, &other),
        };
        let workload_of = all.map(named).collect();
        let gpu_process = |(pid, bytes): &(u32, u64)| GpuProcess {
            pid: *pid,
            gpu: "0".into(),
            uuid: "GPU-a".into(),
            memory: Some(Bytes::new(*bytes)),
        };
        let facts = Facts {
            processes: table.map(Arc::new),
            workload_of,
            gpu_processes: self.pool.iter().map(gpu_process).collect(),
            gpus_of_host_memory: if self.pool.is_empty() { Vec::new() } else { vec!["GPU-a".into()] },
            host_memory_is_pool: !self.pool.is_empty(),
            memory_nodes: NodeSet::of_list(b"0-1").unwrap(),
            ..Facts::default()
        };
        self.at = self.at.plus(std::time::Duration::from_secs(1));
        self.input_builder.look(self.at, &Outlook::default(), &facts, &Alerts::default(), &Report::default())
    }
}

fn left(meter: Option<Option<crate::protection::enforce::levels::GroupMeter>>) -> Option<u64> {
    meter
        .flatten()?
        .read(Timestamp::from_secs(0), Bytes::new(1 << 40), GroupSwap::default())
        .unwrap()
        .max
        .map(|(room, _)| room.left().get() >> 20)
}

#[test]
fn a_group_made_anew_at_the_same_path_is_read_again() {
    for selector in ["cgroup: /jobs/a", "workload: w"] {
        let mut world = World::new(selector);
        world.group("jobs/a", 60);
        assert_eq!(left(world.look(&[(10, 1, "/jobs/a")]).meter), Some(60));
        assert!(world.look(&[(10, 1, "/jobs/a")]).meter.is_none(), "the same as before");
        std::fs::rename(world.folder.path().join("cgroup/jobs/a"), world.folder.path().join("old")).unwrap();
        world.group("jobs/a", 20);
        assert_eq!(left(world.look(&[(20, 1, "/jobs/a")]).meter), Some(20), "{selector}");
        std::fs::rename(world.folder.path().join("cgroup/jobs/a"), world.folder.path().join("gone")).unwrap();
        assert!(matches!(world.look(&[]).meter, Some(None)), "{selector}");
    }
}

#[test]
fn memory_on_a_gpu_that_uses_the_memory_of_the_host_makes_a_process_larger() {
    let mut world = World::new("workload: w");
    let rows = [(10, 1, "/a"), (11, 1, "/a")];
    let largest = |input: &GuardInput| {
        let roster = &input.slots.iter().flatten().next().unwrap().roster;
        (Vec::from_iter(roster.largest.iter().map(|key| key.pid)), roster.resident.get())
    };
    let before = world.sample(Some(&rows)).unwrap();
    assert_eq!((largest(&before), before.is_pool), ((vec![10, 11], 2), false));
    // Each has a byte of resident memory. On two GPUs, both count.
    world.pool = &[(11, 60), (11, 5)];
    let pool = world.sample(Some(&rows)).unwrap();
    assert_eq!((largest(&pool), pool.is_pool), ((vec![11, 10], 67), true));
    world.pool = &[];
    assert!(world.sample(Some(&rows)).unwrap().is_pool, "also while the GPU does not answer");
}

#[test]
fn the_meter_of_the_host_is_exchanged_when_the_driver_adds_the_memory_of_a_gpu() {
    let mut world = World::new("workload: w");
    let write = |path: &str, text: &str| {
        let path = world.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 8 kB\n");
    write("sys/devices/system/node/has_cpu", "0\n");
    write("sys/devices/system/node/has_memory", "0-1\n");
    let node =
        "MemTotal: 4 kB\nMemFree: 2 kB\nActive(file): 1 kB\nInactive(file): 0 kB\nSReclaimable: 0 kB\n";
    write("sys/devices/system/node/node1/meminfo", node);
    let left = |input: GuardInput| {
        input.host.map(|meter| meter.read().unwrap()).map(|left| (left.memory.get(), left.limit.get()))
    };
    assert_eq!(left(world.sample(Some(&[])).unwrap()), None);
    std::fs::create_dir_all(world.folder.path().join("proc/driver/nvidia/gpus/a/numa_status")).unwrap();
    assert_eq!(left(world.sample(Some(&[])).unwrap()), Some((5 << 10, 5 << 10)));
    assert_eq!(left(world.sample(Some(&[])).unwrap()), None, "as before");
}

#[test]
fn a_target_whose_processes_are_unknown_is_disarmed() {
    let mut world = World::new("workload: w");
    let facts = world.sample(None).unwrap().slots.into_iter().flatten().next().unwrap();
    assert_eq!((facts.sampled.unfit, facts.sampled.members), (Some(Unfit::Unknown), None));
    assert_eq!(world.look(&[(10, 1, "/jobs/a")]).sampled.unfit, None);
    assert!(world.sample(None).is_none(), "what was known is better than nothing");
}

#[test]
fn whom_we_may_not_signal_is_left_out() {
    let mut world = World::new("workload: w");
    world.input_builder.only = Some(7);
    let facts = world.look(&[(10, 1, "/jobs/a")]);
    assert_eq!((facts.sampled.unfit, facts.sampled.members.unwrap().count), (None, 1));
    world.input_builder.only = Some(8);
    let facts = world.look(&[(10, 1, "/jobs/a")]);
    assert_eq!((facts.sampled.unfit, facts.sampled.members.unwrap().count), (Some(Unfit::NoPermission), 0));
    assert!(facts.roster.end.is_empty() && facts.scope.is_none());
    let whys: Vec<_> = world.input_builder.whys.values().flatten().collect();
    assert_eq!(whys, [(&"of users whose processes memwarden has no permission to signal", &1)]);
}

#[test]
fn the_limit_of_a_container_is_read_from_inside() {
    let mut world = World::new("workload: w");
    world.group(".", 30);
    assert_eq!(left(world.look(&[(10, 1, "/")]).meter), Some(30));
}

#[test]
fn a_target_that_names_a_group_reaches_nobody_outside_it() {
    let mut world = World::new("cgroup: /jobs/*");
    world.group("jobs/a", 60);
    let scope = world.look(&[(10, 1, "/jobs/a"), (11, 10, "/elsewhere")]).scope.unwrap();
    let [Member::Group(group)] = &*scope.members else { panic!("{scope:?}") };
    assert_eq!(group.path.as_str(), "/jobs/a");
}

/// The names, users, members and left-out processes of all slots.
fn occupied(world: &World) -> Vec<(String, Option<u32>, u32, u32)> {
    let names = world.input_builder.names.slots.iter().flatten();
    names.map(|name| (name.workload.to_string(), name.user, name.members, name.left_out)).collect()
}

#[test]
fn users_who_are_not_allowed_take_no_slot() {
    let mut world = World::new("workload: \"job-*\"");
    // Pids from 100 on are Mallory's: 70 workloads of its own, and a process that goes by the name of the real job.
    world.who = |pid| match pid {
        10 | 170 => (if pid == 10 { 7 } else { 9 }, "job-real".to_owned()),
        _ => (9, format!("job-{pid}")),
    };
    let fakes: Vec<(u32, u32, &str)> = (100..171).map(|pid| (pid, 1, "/u/9")).collect();
    let alone = world.sample(Some(&fakes)).unwrap().slots;
    assert_eq!(alone.iter().flatten().count(), 1, "the target names nobody");
    assert_eq!(occupied(&world), [(String::new(), None, 0, 71)]);
    let all: Vec<_> = std::iter::once((10, 1, "/u/7")).chain(fakes).collect();
    world.sample(Some(&all)).unwrap();
    world.sample(Some(&all)).unwrap();
    assert_eq!(occupied(&world), [("job-real".to_owned(), Some(7), 1, 1)]);
    assert!(world.input_builder.names.without_slot.is_empty());
}

#[test]
fn two_users_with_one_name_have_a_job_each() {
    let mut world = World::new("workload: w");
    world.who = |pid| (if pid < 20 { 7 } else { 8 }, "w".to_owned());
    let facts = world.sample(Some(&[(10, 1, "/a"), (11, 10, "/a"), (20, 1, "/a")])).unwrap();
    assert_eq!(
        occupied(&world),
        [("w (uid 7)".to_owned(), Some(7), 2, 0), ("w (uid 8)".to_owned(), Some(8), 1, 0)]
    );
    let victims: Vec<Vec<u32>> = facts
        .slots
        .iter()
        .flatten()
        .map(|slot| slot.roster.largest.iter().map(|key| key.pid).collect())
        .collect();
    assert_eq!(victims, [vec![10, 11], vec![20]], "nobody ends for the other");
}

#[test]
fn a_scheduler_job_is_one_job_whoever_owns_its_processes() {
    let mut world = World::new("workload: slurm-*");
    world.who = |pid| (if pid < 20 { 7 } else { 8 }, "slurm-1".to_owned());
    world.sample(Some(&[(10, 1, "/a"), (20, 10, "/a"), (21, 10, "/a")])).unwrap();
    assert_eq!(occupied(&world), [("slurm-1".to_owned(), Some(7), 3, 0)]);
    let serial = world.input_builder.slots.all.iter().flatten().next().unwrap().serial;
    world.sample(Some(&[(20, 1, "/a"), (21, 1, "/a")])).unwrap();
    assert_eq!(occupied(&world), [("slurm-1".to_owned(), Some(7), 2, 0)], "the launcher ended");
    assert_eq!(world.input_builder.slots.all.iter().flatten().next().unwrap().serial, serial);
}

#[test]
fn where_another_daemon_protects_no_process_is_signalled() {
    let mut world = World::new("workload: w");
    world.input_builder.other_daemon = true;
    assert_eq!(world.look(&[(10, 1, "/a")]).sampled.unfit, Some(Unfit::OtherDaemon));
}

#[test]
fn a_job_whose_cpuset_allows_some_numa_nodes_has_what_is_left_of_them() {
    let mut world = World::new("cgroup: /jobs/*");
    world.group("jobs/a", 60);
    let rows = [(10, 1, "/jobs/a")];
    let left = |input: JobInput| {
        input.nodes.map(|meter| meter.map(|meter| meter.read(SwapRoom::default()).unwrap().left()))
    };
    assert_eq!(left(world.look(&rows)), None, "what it may use is not known");
    world.nodes(&[900, 20], (10, "1"));
    assert_eq!(left(world.look(&rows)), Some(Some(Bytes::new(20 << 10))));
    assert_eq!(left(world.look(&rows)), None, "the same as before");
    world.nodes(&[900, 20], (10, "0-1"));
    assert_eq!(left(world.look(&rows)), Some(None), "all nodes");
}
