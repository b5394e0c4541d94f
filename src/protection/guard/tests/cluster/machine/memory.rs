//! The memory of a simulated host: what it has, who holds it, and the files that show it.
//!
//! A part of a host is in pools of huge pages, in the ARC of ZFS, or held by nobody whom a target names, and some hosts have swap.
//! The processes of a job share half of its memory, on hosts whose analyzers say what a job holds.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use super::super::Defect;
use super::{Cluster, Random};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What files that are written in KiB can be off.
const PAGE: u64 = 4096;
/// `MemTotal`.
const TOTAL: u64 = 16 * GIB;
/// The default soft level of a host, as a part of its memory.
const SOFT_OF_HOST: u64 = 20;
/// The default soft level of a cgroup, as a part of its limit.
const SOFT_OF_GROUP: u64 = 10;
/// The resident memory of a process of no job.
const GUEST: u64 = 40 * MIB;
/// Time for which an amount can count: a sample can be 3.5 s old, and it takes a while.
const COUNTS: Duration = Duration::from_secs(6);

/// The memory of a host.
#[derive(Debug)]
pub(in super::super) struct Memory {
    /// In pools of huge pages.
    pools: u64,
    /// The ARC, and the size below which it is not shrunk.
    arc: [u64; 2],
    swap: u64,
    /// What nobody holds whom a target names: at a time, and its growth in bytes per second.
    others: (Duration, u64, i64),
    /// Whether analyzers say what workloads hold.
    pub(in super::super) has_outlook: bool,
    meminfo: File,
    arcstats: Option<File>,
    /// When it was last at or below the soft level.
    short: Option<Duration>,
    /// What was lacking to the soft level, with the time.
    lacking: Vec<(Duration, u64)>,
}

impl Memory {
    pub(super) fn new(folder: &Path, random: &mut Random, defect: Option<Defect>) -> Self {
        let pools = if random.percent(30) { (8 + random.below(5)) * GIB } else { 0 };
        let arc = if random.percent(30) { [GIB + random.below(2 * GIB), GIB / 4] } else { [0; 2] };
        let swap = if random.percent(30) { (20 + random.below(20)) * 50 * MIB } else { 0 };
        let create = |name: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            File::create(path).unwrap()
        };
        let has_arc = arc[0] > 0 && defect != Some(Defect::Arc);
        Self {
            pools,
            arc,
            swap,
            others: (Duration::ZERO, GIB / 2, 0),
            has_outlook: random.percent(50),
            meminfo: create("proc/meminfo"),
            arcstats: has_arc.then(|| create("proc/spl/kstat/zfs/arcstats")),
            short: None,
            lacking: Vec::new(),
        }
    }

    /// The memory of the host that is in no pool.
    const fn size(&self) -> u64 {
        TOTAL - self.pools
    }

    fn write(&self, room: u64, free_swap: u64, defect: Option<Defect>) {
        let [arc, least] = self.arc;
        let reclaimable = (arc - least).min(room);
        let line = |name: &str, bytes: u64| format!("{name}: {:>12} kB\n", bytes / 1024);
        let mut text = line("MemTotal", TOTAL) + &line("MemAvailable", room - reclaimable);
        if defect != Some(Defect::HugePages) {
            text += &line("Hugetlb", self.pools);
        }
        if defect != Some(Defect::Swap) {
            text += &(line("SwapTotal", self.swap) + &line("SwapFree", free_swap));
        }
        self.meminfo.write_all_at(text.as_bytes(), 0).unwrap();
        if let Some(file) = &self.arcstats {
            let text = format!("size 4 {:>12}\nc_min 4 {least:>12}\n", least + reclaimable);
            file.write_all_at(text.as_bytes(), 0).unwrap();
        }
    }
}

impl Cluster {
    /// Sets how the memory that no job holds continues, in percent of what is in no pool and percent per second.
    pub(in super::super) fn grow_others(&mut self, percent: u64, rate: i64) {
        let now = self.now;
        let memory = &mut self.host().memory;
        let hundredth = memory.size() / 100;
        memory.others = (now, hundredth * percent, rate * i64::try_from(hundredth).unwrap());
    }

    /// The memory of the current node at this time; the kernel kills a job that reaches its limit.
    pub(in super::super) fn settle_memory(&mut self) {
        let now = self.now;
        let swap = self.hosts[self.node].memory.swap;
        let (mut held, mut free_swap) = (0, swap);
        for place in 0..self.hosts[self.node].jobs.len() {
            let empty = self.alive(place) == 0;
            let job = &mut self.host().jobs[place];
            let (since, base, rate) = job.level;
            let grown = i64::try_from((now - since).as_millis()).unwrap() * (rate / 1000);
            let grown = if job.frozen || empty { 0 } else { grown };
            let most = job.limit + free_swap;
            let used = base.saturating_add_signed(grown).min(most);
            let resident = used.min(job.limit);
            free_swap -= used - resident;
            held += resident;
            job.held.retain(|(at, _)| now - *at <= COUNTS);
            job.held.push((now, resident));
            if job.frozen {
                job.level.0 = now;
            }
            self.show(place, resident);
            if used == most && !empty {
                self.host().jobs[place].level = (now, base, 0);
                self.note(|| "the kernel kills a job at its limit".to_owned());
                let members = self.members(place);
                members.into_iter().for_each(|member| self.end_process(member));
            }
        }
        for job in &mut self.host().jobs {
            let resident = job.held.last().map_or(0, |(_, bytes)| *bytes);
            let is_low = job.limit - resident <= job.limit / SOFT_OF_GROUP;
            if is_low && (job.has_own_limit || free_swap <= swap / SOFT_OF_GROUP + PAGE) {
                job.short = Some(now);
            }
        }
        self.settle_host(held, free_swap);
    }

    fn settle_host(&mut self, held: u64, free_swap: u64) {
        let (now, defect) = (self.now, self.defect);
        let memory = &mut self.host().memory;
        let (since, base, rate) = memory.others;
        let grown = i64::try_from((now - since).as_millis()).unwrap() * (rate / 1000);
        // The kernel does not let it become less.
        let others = base.saturating_add_signed(grown).min(memory.size() - 64 * MIB);
        let room = memory.size().saturating_sub(memory.arc[1] + others + held);
        let soft = memory.size() / SOFT_OF_HOST;
        let swap_soft = memory.swap / SOFT_OF_HOST;
        let is_short = room <= soft + PAGE && free_swap <= swap_soft + PAGE;
        memory.short = if is_short { Some(now) } else { memory.short };
        let of_swap = if memory.swap > 0 { swap_soft.saturating_sub(free_swap) } else { u64::MAX };
        memory.lacking.retain(|(at, _)| now - *at <= COUNTS);
        memory.lacking.push((now, if is_short { soft.saturating_sub(room).min(of_swap) } else { 0 }));
        memory.write(room, free_swap, defect);
    }

    /// Writes what the files of a job and its processes show.
    fn show(&mut self, place: usize, resident: u64) {
        let defect = self.defect;
        let members = self.members(place);
        let count = u64::try_from(members.len()).unwrap().max(1);
        let host = self.host();
        let job = &mut host.jobs[place];
        let usage = if job.lies { job.limit / 100 * 95 } else { resident };
        // What files in tmpfs hold counts as if it came back with the processes that map them.
        let anon = if defect == Some(Defect::Storm) { TOTAL } else { resident };
        job.usage.write_all_at(super::usage(usage).as_bytes(), 0).unwrap();
        job.stat.write_all_at(format!("anon {anon:012}\ninactive_file 0\n").as_bytes(), 0).unwrap();
        // Where no analyzer knows what a workload holds, only resident memory is known.
        let shared = if host.memory.has_outlook { resident / 2 } else { 0 };
        let own = (resident - shared) / count;
        job.shown = if defect == Some(Defect::Storm) { TOTAL } else { resident };
        job.resident = if defect == Some(Defect::Storm) { TOTAL } else { shared + own };
        if !job.has_own_limit {
            return;
        }
        let part = if defect == Some(Defect::SharedPages) { shared + own } else { shared / count + own };
        for member in members {
            let pid = host.processes[member].key.pid;
            let folder = host.folder.join(format!("proc/{pid}"));
            let statm = format!("{pid} {} 0 0 0 0 0\n", (shared + own) / crate::host::process::page_size());
            std::fs::write(folder.join("statm"), statm).unwrap();
            let rollup = format!(
                "00-ff ---p 00 00:00 0 [rollup]\nPss_Anon: {} kB\nPss_File: 0 kB\nPss_Shmem: 0 kB\n",
                part / 1024
            );
            std::fs::write(folder.join("smaps_rollup"), rollup).unwrap();
        }
    }

    /// What is wrong with ending a job of the current node now, after a time `limit` in which a shortage counts.
    pub(in super::super) fn wrong_end(&mut self, place: usize, limit: Duration) -> Option<String> {
        let now = self.now;
        let recent = |at: Option<Duration>| at.is_some_and(|at| now - at <= limit);
        let host = &self.hosts[self.node];
        let job = &host.jobs[place];
        if recent(job.short) {
            return None;
        }
        if !recent(host.memory.short) {
            return Some("without a shortage".to_owned());
        }
        let lacking = host.memory.lacking.iter().map(|(_, bytes)| *bytes).min().unwrap_or(0);
        let most = |job: &super::Job| job.held.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let enforced = host.jobs.iter().filter(|job| job.enforced);
        let (count, all) = enforced.fold((0, 0), |(count, all), job| (count + 1, all + most(job)));
        // Processes of other users of the target that came into the cgroup of a job are jobs of their own.
        let guests = host.processes.iter().filter(|process| {
            process.job.is_none() && !process.ended && host.jobs.iter().any(|job| job.path == process.group)
        });
        let guests = u64::try_from(guests.count()).unwrap();
        let (count, all) = (count + guests, all + guests * GUEST);
        let helps = most(job) >= lacking || (all >= lacking && most(job) * count >= lacking);
        let own = most(job);
        (!helps).then(|| format!("although its {own} bytes of {all} cannot give back {lacking}"))
    }
}
