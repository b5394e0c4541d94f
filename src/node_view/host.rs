//! The host, and the sources of samples.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::forecast::{Forecast, Forecasts};
use super::lookup::{Lookup, MetricRow};
use crate::catalog::{buddyinfo, cgroup, huge_pages, memory, numa, process, vmstat};
use crate::model::finding::Subject;
use crate::model::format;
use crate::model::frame::Frame;
use crate::model::health::Health;
use crate::model::source::Status;

/// The host's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name; empty where it is not known.
    pub name: String,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution.
    pub os: String,
    pub health: Health,
    /// Memory that is not available, in bytes.
    pub used: Option<f64>,
    /// All memory in bytes.
    pub total: Option<f64>,
    /// Anonymous memory in bytes.
    pub anonymous: Option<f64>,
    /// Page cache in bytes.
    pub cached: Option<f64>,
    /// Shared memory and tmpfs in bytes.
    pub shared: Option<f64>,
    /// Memory of GPUs that are NUMA nodes in bytes, which is not part of the memory of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_gpus: Option<f64>,
    /// Swap in use in bytes.
    pub swap_used: Option<f64>,
    /// All swap in bytes.
    pub swap_total: Option<f64>,
    /// Processes that the kernel's OOM killer killed since boot.
    pub oom_kills: Option<f64>,
    /// Whether processes of other users are hidden from memwarden.
    pub limited: bool,
    /// What is predicted of its memory.
    pub forecast: Option<Forecast>,
    /// The largest processes in no workload.
    pub processes: Vec<super::Process>,
    /// The cgroups with the most memory, without those whose memory is mostly that of one below them.
    #[serde(default)]
    pub cgroups: Vec<Cgroup>,
    /// Free memory by NUMA node and zone.
    #[serde(default)]
    pub zones: Vec<Zone>,
    /// Memory by NUMA node.
    #[serde(default)]
    pub nodes: Vec<NumaNode>,
    /// Pools of huge pages.
    #[serde(default)]
    pub pools: Vec<Pool>,
}

/// Maximum number of cgroups.
const MOST_CGROUPS: usize = 10;

/// The memory of a cgroup in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cgroup {
    pub path: String,
    /// Charged memory, with file cache.
    pub used: f64,
    /// Its own limit; absent where it has none.
    pub limit: Option<f64>,
}

/// The largest of the cgroups that are measured.
fn cgroups(lookup: &Lookup<'_>) -> Vec<Cgroup> {
    let limits: BTreeMap<&str, f64> =
        lookup.rows(&cgroup::LIMIT.desc).map(|row| (row.label("cgroup"), row.value())).collect();
    let mut all: Vec<(&str, f64)> =
        lookup.rows(&cgroup::USAGE.desc).map(|row| (row.label("cgroup"), row.value())).collect();
    all.sort_by(|one, next| next.1.total_cmp(&one.1).then_with(|| one.0.cmp(next.0)));
    let is_below = |path: &str, above: &str| {
        path.strip_prefix(above.trim_end_matches('/'))
            .is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
    };
    let says_more = |(path, used): &&(&str, f64)| {
        !all.iter().any(|(below, part)| is_below(below, path) && *part > used / 2.0)
    };
    let shown = all.iter().filter(says_more).take(MOST_CGROUPS);
    shown
        .map(|(path, used)| Cgroup {
            path: (*path).to_owned(),
            used: *used,
            limit: limits.get(path).copied(),
        })
        .collect()
}

/// The memory of a NUMA node in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub node: String,
    /// Without pools of huge pages.
    pub total: f64,
    /// Free memory, page cache and reclaimable slab caches.
    pub available: f64,
}

/// A pool of huge pages in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    /// The size of its pages, such as `2MB`.
    pub size: String,
    pub total: f64,
    pub free: Option<f64>,
}

/// Free memory of a zone of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Zone {
    /// The NUMA node.
    pub node: String,
    /// Its name, such as `Normal`.
    pub zone: String,
    /// Free memory in bytes.
    pub free: Option<f64>,
    /// By order: the share of the free memory that is in blocks too small for 2^order pages, 0 to 1.
    pub unusable: Vec<(u32, f64)>,
}

impl Host {
    /// The used share; absent where it is not known.
    pub fn share(&self) -> Option<f64> {
        format::share(self.used, self.total)
    }
}

/// A source of samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceRow {
    pub name: String,
    /// How it is; ok where it is not available, because the host lacks what it measures.
    pub health: Health,
    /// `ok`, `unavailable` or `failed`.
    pub status: String,
    /// Why it is not ok; empty where it is.
    pub why: String,
    /// Seconds since its last complete sample; absent before the first.
    pub age_seconds: Option<f64>,
}

impl SourceRow {
    /// Whether it fails, although the host has what it measures.
    pub fn fails(&self) -> bool {
        self.health > Health::Unknown
    }

    /// How what it measures is: unknown where it is not available, although that is no defect of the node.
    pub fn measured(&self) -> Health {
        if self.status == Status::Unavailable.label() { Health::Unknown } else { self.health }
    }
}

pub(super) fn host(lookup: &Lookup<'_>, forecasts: &Forecasts<'_>) -> Host {
    let info = lookup.rows(&memory::HOST_INFO.desc).next();
    let text = |name| info.map_or_else(String::new, |row| row.label(name).to_owned());
    let total = lookup.value(&memory::TOTAL.desc);
    let available = lookup.value(&memory::AVAILABLE.desc);
    let used = lookup.value(&memory::USED.desc).or_else(|| Some(total? - available?));
    // lxcfs can tell more available memory than there is: what is used is not known then.
    let used = used.filter(|used| *used >= 0.0);
    let forecast = forecasts.forecast(&Subject::host());
    let known = forecast.as_ref().filter(|_| used.is_some() && total.is_some());
    let health = known.map_or(Health::Unknown, Forecast::health);
    Host {
        name: text("hostname"),
        kernel: text("kernel"),
        os: text("os"),
        health,
        used,
        total,
        anonymous: lookup.value(&memory::ANON.desc),
        cached: lookup.value(&memory::CACHED.desc),
        shared: lookup.value(&memory::SHMEM.desc),
        swap_used: lookup.value(&memory::SWAP_USED.desc),
        swap_total: lookup.value(&memory::SWAP_TOTAL.desc),
        of_gpus: lookup.rows(&memory::OF_GPUS.desc).map(|row| row.value()).reduce(|one, other| one + other),
        oom_kills: lookup.value(&vmstat::OOM_KILLS.desc),
        cgroups: cgroups(lookup),
        limited: lookup.value(&process::LIMITED.desc).is_some_and(|limited| limited > 0.0),
        forecast,
        processes: super::workload::processes_of(lookup, ""),
        zones: zones(lookup),
        nodes: nodes(lookup),
        pools: pools(lookup),
    }
}

fn pools(lookup: &Lookup<'_>) -> Vec<Pool> {
    let free: BTreeMap<&str, f64> =
        lookup.rows(&huge_pages::FREE.desc).map(|row| (row.label("size"), row.value())).collect();
    let pool = |row: MetricRow<'_>| Pool {
        size: row.label("size").to_owned(),
        total: row.value(),
        free: free.get(row.label("size")).copied(),
    };
    lookup.rows(&huge_pages::TOTAL.desc).map(pool).collect()
}

fn nodes(lookup: &Lookup<'_>) -> Vec<NumaNode> {
    let available: BTreeMap<&str, f64> =
        lookup.rows(&numa::AVAILABLE.desc).map(|row| (row.label("node"), row.value())).collect();
    let mut pools: BTreeMap<&str, f64> = BTreeMap::new();
    for row in lookup.rows(&huge_pages::OF_NODE.desc) {
        *pools.entry(row.label("node")).or_default() += row.value();
    }
    let node = |row: MetricRow<'_>| {
        let (node, available) = (row.label("node"), *available.get(row.label("node"))?);
        let total = row.value() - pools.get(node).unwrap_or(&0.0);
        Some(NumaNode { node: node.to_owned(), total, available })
    };
    lookup.rows(&numa::TOTAL.desc).filter_map(node).collect()
}

fn zones(lookup: &Lookup<'_>) -> Vec<Zone> {
    let mut all = BTreeMap::<(&str, &str), Zone>::new();
    let key = |row: &MetricRow<'_>| Zone {
        node: row.label("node").to_owned(),
        zone: row.label("zone").to_owned(),
        ..Zone::default()
    };
    for row in lookup.rows(&buddyinfo::FREE.desc) {
        let own = all.entry((row.label("node"), row.label("zone"))).or_insert_with(|| key(&row));
        own.free = Some(row.value());
    }
    for row in lookup.rows(&buddyinfo::UNUSABLE.desc) {
        let own = all.entry((row.label("node"), row.label("zone"))).or_insert_with(|| key(&row));
        own.unusable.extend(row.label("order").parse().ok().map(|order| (order, row.value())));
    }
    all.into_values().collect()
}

pub(super) fn sources(frame: &Frame) -> Vec<SourceRow> {
    let row = |report: &crate::model::frame::SourceReport| SourceRow {
        name: report.source.to_owned(),
        health: match report.status {
            Status::Ok | Status::Unavailable => Health::Ok,
            Status::Failed => Health::Warning,
        },
        status: report.status.label().to_owned(),
        why: report.why.clone().unwrap_or_default(),
        age_seconds: report.age_seconds,
    };
    frame.sources.iter().map(row).collect()
}
