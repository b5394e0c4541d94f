//! The `leak` analyzer: assesses every workload, its largest processes, every process on a GPU, every rank's
//! allocator, and the GPU memory of ranks outside of it, each tick.

use std::collections::BTreeMap;

use forecast::tracker::{Sample, Watched};

use super::metrics;
use super::outside::outside;
use super::owners::Owners;
use super::pace::Paces;
use crate::analyzers::Registration;
use crate::analyzers::conclusions;
use crate::analyzers::identities::Identities;
use crate::analyzers::latch::Latch;
use crate::analyzers::ranks;
use crate::analyzers::subjects::{self, DatedAssessment, SubjectSample, Subjects};
use crate::model::analyzer::{Analysis, Analyzer, SavedState, View};
use crate::model::finding::Subject;
use crate::model::label::Label;
use crate::model::outlook::{Conclusion, GrowingMemory, Growth, GrowthEvidence, LeakState, StatedGrowth};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count};
use crate::sources::{training, workload};

/// Registration of the `leak` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "leak",
    about: "Detects memory leaks of workloads, of their processes, and of processes on GPUs.",
    options: subjects::Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings| {
        Box::new(Leak { subjects: Subjects::new(settings), ..Leak::default() })
    })
};

#[derive(Default)]
struct Leak {
    subjects: Subjects,
    /// The memory of each subject by type, from when it last did not grow.
    calm: BTreeMap<Subject, Parts>,
    /// The type of memory that each subject grew by last, with the largest rise of any type in bytes, until its growth is
    /// no longer stated.
    grew: BTreeMap<Subject, (GrowingMemory, f64)>,
    paces: Paces,
    owners: Owners,
    latches: Latch<LeakState>,
}

/// Memory of a subject by type, in bytes; absent where it is not reported.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    used: f64,
    anon: Option<f64>,
    shmem: Option<f64>,
    /// Memory allocated by the process' allocator, as the process reports it.
    allocated: Option<f64>,
    /// Pinned host memory of the job.
    pinned: Option<f64>,
    /// When its oldest process started, in seconds since 1970; 0 for a process.
    life: f64,
    sharing: subjects::Sharing,
}

impl Parts {
    /// The memory that is evaluated, in bytes.
    fn evaluated(&self) -> f64 {
        self.allocated.or_else(|| Some(self.anon? + self.shmem?)).unwrap_or(self.used)
    }

    fn fed(self, subject: &Subject) -> SubjectSample<'_> {
        let unreclaimable = self.anon.zip(self.shmem).map(|(anon, shmem)| anon + shmem);
        let sample = Sample { used: self.used, unreclaimable, allocated: self.allocated, peak: None };
        SubjectSample { subject, sample, limit: None, life: self.life, phase: None, sharing: self.sharing }
    }
}

impl Analyzer for Leak {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        self.latches.begin(now);
        self.paces.record(view, now);
        let mut subjects = subjects(view);
        for own in outside(view) {
            let [workload, _, gpu, uuid] = &own.labels;
            let subject = Subject::outside_allocator(workload, own.pid, (gpu, uuid));
            subjects.insert(subject, Parts { used: own.bytes, ..Parts::default() });
            out.batch.put(&metrics::OUTSIDE, &own.labels, Bytes::of(own.bytes));
        }
        self.subjects.begin(subjects.keys(), view, now);
        self.owners.learn(view, subjects.keys());
        self.calm.retain(|subject, _| subjects.contains_key(subject));
        self.grew.retain(|subject, _| subjects.contains_key(subject));
        let identities = Identities::of(view);
        let unix = now.unix().as_secs_f64();
        for (subject, parts) in subjects {
            let Some(followed) = self.subjects.feed(parts.fed(&subject), &[], now) else {
                continue;
            };
            if followed.is_new() {
                self.latches.forget(&subject);
                self.calm.remove(&subject);
                self.grew.remove(&subject);
            }
            let Some(dated) = &followed.latest else { continue };
            let of_data = view.facts().is_some_and(|facts| facts.growing_data.contains(&subject.workload));
            let state = state(&subject, dated, of_data);
            if !matches!(state, LeakState::Growing | LeakState::Leaking) {
                self.calm.insert(subject.clone(), parts);
            } else if let Some((memory, rise)) =
                growing(&subject, dated, parts, self.calm.get(&subject).copied())
            {
                let (grew, largest) = self.grew.entry(subject.clone()).or_insert((memory, rise));
                if rise >= NOTICEABLE_RISE * *largest {
                    (*grew, *largest) = (memory, rise.max(*largest));
                }
            }
            let named = self.owners.named(&subject);
            let pace = self.paces.of(&named.workload, &named.pid);
            let rate = conclusions::finite(dated.assessment.growth);
            // States below growing are not distinguished in findings.
            let (latched, since) = self.latches.update(&subject, state.max(LeakState::Warming), now);
            if latched < LeakState::Growing {
                self.grew.remove(&subject);
            }
            let stated = (latched >= LeakState::Growing).then(|| StatedGrowth {
                state: latched,
                since_unix_seconds: dated.since_unix.unwrap_or(since),
                memory: self.grew.get(&subject).map_or(GrowingMemory::AnonymousOrShared, |(grew, _)| *grew),
            });
            let conclusion = Conclusion {
                identity: identities.resource(&subject),
                growth: Some(Growth {
                    state,
                    evaluated_bytes: parts.evaluated(),
                    rate,
                    bytes_per_step: rate.zip(pace).map(|(rate, pace)| rate.bytes_per_second / pace),
                    since_unix_seconds: dated.since_unix,
                    confidence: dated.assessment.confidence,
                    evidence: dated.assessment.evidence.as_ref().map(|seen| GrowthEvidence {
                        rise_bytes: seen.rise_bytes,
                        window_seconds: seen.window_seconds,
                        floor_standard_errors: conclusions::standard_errors(seen.floor_z),
                        center_standard_errors: conclusions::standard_errors(seen.center_z),
                        peak_standard_errors: conclusions::standard_errors(seen.peak_z),
                    }),
                    stated,
                }),
                subject: named,
                forecast: None,
            };
            conclusions::write(&conclusion, unix, out);
            out.outlook.conclusions.push(conclusion);
        }
        out.batch.put(&metrics::FOLLOWED, &[], Count(self.subjects.len() as u64));
        out.batch.put(&metrics::OMITTED, &[], Count(self.subjects.omitted()));
        out.shortages.extend(self.subjects.shortages("leak_subjects"));
        out.outlook.has_leaks = true;
    }

    fn save(&self) -> Option<SavedState> {
        Some(self.subjects.save())
    }

    fn restore(&mut self, saved: &str) -> Result<(), serde_json::Error> {
        self.subjects.restore(saved)
    }
}

/// Seconds for which a subject must be tracked before a leak of it is stated: samples may be taken several times a
/// second, and a program that imports its libraries grows without a pause for ten seconds or more.
const LEAST_TIME: f64 = 20.0;

/// Share of the largest rise that memory must still have risen by for its type to be taken: while processes exit, the
/// type that grew may be freed before another that has hardly changed.
const NOTICEABLE_RISE: f64 = 0.1;

/// The state to report. The driver reports the memory that a process' allocator reserved, which the allocator keeps:
/// alone it is never a leak. Growth while batches become larger, or in the first pass over the data, is none either.
fn state(subject: &Subject, dated: &DatedAssessment, of_data: bool) -> LeakState {
    let assessment = &dated.assessment;
    let reserved = subject.resource.as_str() == "gpu_process" && assessment.watched != Watched::Allocated;
    if reserved || of_data || dated.tracked < LEAST_TIME {
        assessment.leak.min(LeakState::Growing)
    } else {
        assessment.leak
    }
}

/// Every subject that may leak, with its memory by type.
fn subjects(view: &View<'_>) -> BTreeMap<Subject, Parts> {
    use workload::metrics::{ANON, PROCESS_ANON, PROCESS_RSS, PROCESS_SHMEM, RSS, SHMEM, START};
    let mut found: BTreeMap<Subject, Parts> = BTreeMap::new();
    let workload = |labels: &[Label]| labels.first().map(Subject::workload);
    let process = |labels: &[Label]| match labels {
        // For a process without a workload only an RSS estimate is known, which includes file cache.
        [workload, pid, _] if !workload.is_empty() => Some(Subject::process(workload, pid)),
        _ => None,
    };
    let mut fill = |points: &[crate::model::point::Point],
                    subject: &dyn Fn(&[Label]) -> Option<Subject>,
                    set: fn(&mut Parts, f64)| {
        for point in points {
            if let Some(subject) = subject(&point.labels) {
                set(found.entry(subject).or_default(), point.value);
            }
        }
    };
    fill(view.points(&RSS), &workload, |parts, value| parts.used = value);
    fill(view.points(&ANON), &workload, |parts, value| parts.anon = Some(value));
    fill(view.points(&SHMEM), &workload, |parts, value| parts.shmem = Some(value));
    fill(view.points(&START), &workload, |parts, value| parts.life = value);
    fill(view.points(&PROCESS_RSS), &process, |parts, value| parts.used = value);
    fill(view.points(&PROCESS_ANON), &process, |parts, value| parts.anon = Some(value));
    fill(view.points(&PROCESS_SHMEM), &process, |parts, value| parts.shmem = Some(value));
    fill(
        view.points(&crate::sources::gpu::metrics::PROCESS_MEMORY),
        &|labels| match labels {
            [gpu, uuid, pid] => Some(Subject::gpu_process(gpu, uuid, pid)),
            _ => None,
        },
        |parts, value| parts.used = value,
    );
    ranks_of(view, &mut found);
    let turnovers = subjects::turnovers(view);
    for (subject, parts) in found.iter_mut().filter(|(subject, _)| subject.gpu.is_empty()) {
        if let Some(turnover) = turnovers.get(&subject.workload) {
            parts.sharing = subjects::Sharing::Workload(*turnover);
        }
    }
    found
}

/// Adds what ranks report: the memory that their allocators allocated, and their pinned host memory.
fn ranks_of(view: &View<'_>, found: &mut BTreeMap<Subject, Parts>) {
    let pids = ranks::pids(view);
    for point in view.points(&training::metrics::ALLOCATED) {
        let [workload, rank, _, gpu] = &*point.labels else { continue };
        let Some(pid) = pids.get(&[workload, rank]) else { continue };
        // The series of the driver has the UUID of the GPU, that of the job does not; they are matched by GPU index
        // and process.
        let on_gpu = |subject: &Subject| {
            subject.resource.as_str() == "gpu_process" && subject.pid == **pid && subject.gpu == *gpu
        };
        let driver = found.iter_mut().find(|(subject, _)| !gpu.is_empty() && on_gpu(subject));
        match driver {
            Some((_, parts)) => parts.allocated = Some(point.value),
            // Of several devices with the same labels, only the first is tracked.
            None => {
                let parts = Parts { used: point.value, ..Parts::default() };
                found.entry(Subject::allocator(workload, pid, gpu)).or_insert(parts);
            }
        }
    }
    for point in view.points(&training::metrics::PINNED) {
        let [workload, rank] = &*point.labels else { continue };
        let Some(pid) = pids.get(&[workload, rank]) else { continue };
        if let Some(parts) = found.get_mut(&Subject::process(workload, pid)) {
            parts.pinned = Some(point.value);
        }
    }
}

/// The type of memory that most likely grows, with its rise in bytes, which is 0 where it is not compared; absent where the
/// types do not tell.
fn growing(
    subject: &Subject,
    dated: &DatedAssessment,
    now: Parts,
    calm: Option<Parts>,
) -> Option<(GrowingMemory, f64)> {
    match subject.resource.as_str() {
        "allocator" => return Some((GrowingMemory::GpuAllocated, 0.0)),
        "outside_allocator" => return Some((GrowingMemory::OutsideAllocator, 0.0)),
        "gpu_process" if dated.assessment.watched == Watched::Allocated => {
            return Some((GrowingMemory::GpuAllocated, 0.0));
        }
        "gpu_process" => return Some((GrowingMemory::GpuReserved, 0.0)),
        _ => {}
    }
    if dated.assessment.watched == Watched::Used {
        return Some((GrowingMemory::Resident, 0.0));
    }
    // Without a level to compare with, it has grown since it was first seen.
    let calm = calm?;
    let rise = |now: Option<f64>, calm: Option<f64>| now.unwrap_or(0.0) - calm.unwrap_or(0.0);
    let (anon, shmem) = (rise(now.anon, calm.anon), rise(now.shmem, calm.shmem));
    // No kind is above its level before the growth: processes are exiting, or memory is being freed.
    let largest = anon.max(shmem);
    if largest <= 0.0 {
        return None;
    }
    // Pinned memory is part of anonymous or shared memory, depending on how it was allocated.
    if now.pinned.is_some() && rise(now.pinned, calm.pinned) > 0.5 * largest {
        return Some((GrowingMemory::Pinned, largest));
    }
    Some((if shmem > anon { GrowingMemory::Shared } else { GrowingMemory::Anonymous }, largest))
}
