//! The guard's own readers on the files of a node, and what a target with default levels makes of them.

use std::path::Path;
use std::time::Duration;

use memwarden::host::cgroup::memory_hierarchy;
use memwarden::host::huge_pages;
use memwarden::host::numa::{gpu_nodes, host_nodes};
use memwarden::host::roots::Roots;
use memwarden::model::node_set::NodeSet;
use memwarden::model::room::Room;
use memwarden::model::time::Timestamp;
use memwarden::model::units::Bytes;
use memwarden::protection::enforce::levels::{GroupMeter, HostMeter, NodesMeter};
use memwarden::protection::options::Protection;
use memwarden::protection::policy::judge::judge;
use memwarden::protection::policy::{Aged, Condition, Gate, Limits, Observed, Reading, Resource};
use memwarden::{app, config};

use super::folder::Node;

/// What is wrong with what the guard reads of a node, and does about it.
pub(crate) fn mistakes(node: &Node, root: &Path) -> Vec<String> {
    let roots = Roots::under(root);
    let meter = HostMeter::open(&roots.proc, &gpu_nodes(&roots)).unwrap();
    let host = meter.read().ok();
    let mut wrong = Vec::new();
    let mut same = |what: String, found: Option<u64>, right: Option<u64>| {
        if found != right {
            wrong.push(format!("the guard reads {what} {found:?}, right is {right:?}"));
        }
    };
    let of_host = |amount: &str| node.truth.host.get(amount).copied();
    if let Some(available) = of_host("available") {
        same("available memory".to_owned(), host.map(|room| room.memory.get()), available);
    }
    if let Some((room, total)) = host.zip(of_host("total")) {
        same("total memory".to_owned(), Some(room.limit.get()), total);
    }
    if let Some((room, free)) = host.zip(of_host("swap_free")) {
        // Swap that is not known does not count.
        same("free swap".to_owned(), Some(room.swap.get()), free.or(Some(0)));
    }
    let rooms = |path: &str| {
        let hierarchy = memory_hierarchy(&roots.cgroup).unwrap().unwrap();
        let swap = host.map(|room| meter.swap_of_groups(room)).unwrap_or_default();
        let largest = host.map_or(Bytes::new(u64::MAX), |room| room.limit);
        GroupMeter::open(&hierarchy, path).unwrap().read(Timestamp::from_secs(0), largest, swap).ok()
    };
    let group = |path: &str| rooms(path).and_then(|rooms| rooms.max).map(|(room, _)| room);
    for (path, amounts) in &node.truth.groups {
        if let Some(right) = amounts.get("room") {
            same(format!("room of {path}"), group(path).map(|room| room.left().get()), *right);
        }
    }
    let limits = default_limits();
    let nodes = |list: &str| {
        let wanted = NodeSet::of_list(list.as_bytes()).unwrap();
        let nodes: Vec<_> =
            host_nodes(&roots).into_iter().filter(|(number, _)| wanted.contains(*number)).collect();
        let pools = nodes.iter().map(|(_, folder)| huge_pages::in_pools(&roots, folder));
        let pools = pools.fold(Bytes::ZERO, Bytes::saturating_add);
        NodesMeter::open(&nodes, pools).unwrap().read(host.unwrap().swap()).ok()
    };
    for (of, right) in &node.truth.guard {
        let (resource, room) = match of.split_once(':') {
            Some(("high", path)) => (Resource::High, rooms(path).unwrap().high),
            Some(("nodes", list)) => (Resource::Nodes, nodes(list)),
            _ if of == "host" => (Resource::Host, host),
            _ => (Resource::Cgroup, group(of)),
        };
        let found = level(&limits, resource, room);
        if found != right {
            wrong.push(format!("the default level of {of} is {found}, not {right}: {room:?}"));
        }
    }
    wrong
}

/// The limits of a target whose configuration has no level.
fn default_limits() -> Limits {
    let text = "protection: {mode: enforce, targets: [{name: t, workload: t, allow_users: ['1000']}]}";
    let config = config::parse_str(text, Path::new("zoo.yaml"), &app::schema(), &[]).unwrap();
    let protection = Protection::new(&config.modules["protection"], Duration::from_secs(1));
    protection.targets.into_iter().next().unwrap().limits
}

/// The level that a reading crosses.
fn level(limits: &Limits, resource: Resource, room: Option<Room>) -> &'static str {
    let mut observed = Observed::default();
    observed.readings[resource.place()] = room.map(|room| Aged::now(Reading::of(room)));
    let conditions = judge(limits, &observed, Gate::OPEN).conditions;
    let (soft, hard) = Condition::levels(resource);
    match (conditions.get(soft).met(), hard.is_some_and(|hard| conditions.get(hard).met())) {
        (_, true) => "hard",
        (true, false) => "soft",
        (false, false) => "none",
    }
}
