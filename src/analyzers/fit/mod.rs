//! Says whether the phases that a job predicts fit the memory that is there.
//!
//! # What it says
//! For each prediction of a connected rank ([`crate::model::fit`]): whether the phase fits the GPU, or the host and the
//! cgroup with the least room; how much is left or missing, with which probability; who stands in the way, and which
//! size fits. A finding for the worst rank of each run and phase that will not fit.
//!
//! # Method
//! A rank can hold what it holds now and what is free: for a GPU, what its allocator has reserved and the free memory of
//! the device, both of the same message of the rank, which is at most `FRESH` old; for the host, the resident memory of
//! the process and the available memory of the host, or the room of the cgroup with the least of it on the path. A cgroup on the
//! path that limits the memory of the GPU (`dmem.max`) counts as well. For
//! `/dev/shm` and the disk, it is what the rank states to be free there. Other
//! ranks of the same run take memory in the same phase, which is subtracted. The peak is compared as a normal
//! distribution through both quantiles of the prediction. A phase will not fit where the probability that it exceeds
//! the memory is at least `SURE`; it is tight where that probability is above `UNLIKELY` with `UNUSABLE` of a GPU
//! lost to fragmentation, or beside what other workloads predict.
//!
//! # When it stays silent
//! Where a prediction is a least amount, nothing is said to fit. Without predictions, and for ranks beyond `MOST_RANKS`, which `memwarden_limit_left_out` names. What cannot be predicted, and a resource whose free memory is not known, is unknown. The first
//! step of the optimizer is not assessed after it has been measured.
//!
//! # False alarms
//! A prediction that is wrong is not corrected. A job can only be wrong about itself: what another workload predicts
//! makes a phase tight, never more.

mod free;
pub mod metrics;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, HashSet};

use forecast::stats::normal;

use self::free::{Free, Place};
use super::Registration;
use super::latch::Latch;
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::fair;
use crate::model::finding::{Evidence, Finding, Subject};
use crate::model::fit::{Answer, Certainty, Medium, Peak, Phase, Prediction, RankPredictions, Verdict};
use crate::model::fits::Fit;
use crate::model::health::Health;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::shortage::Shortage;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Flag, Ratio, real};

/// The probability of exhaustion from which a phase counts as one that will not fit.
const SURE: f64 = 0.9;
/// The probability of exhaustion from which a phase is tight.
const UNLIKELY: f64 = 0.1;
/// Share of a GPU's memory that its allocator may have reserved and cannot use: when real jobs ran out of memory, 2.3 to
/// 3.0 of 79.1 GiB were reserved and not allocated (public runs of stanford_alpaca, 8 GPUs of 80 GB).
const UNUSABLE: f64 = 0.04;
/// Most ranks that are assessed in one tick, divided between the users: each is compared with each other.
const MOST_RANKS: usize = 64;
/// Standard deviations between the median and the quantile of 90 % of a normal distribution.
const TO_P90: f64 = 1.281_551_6;

/// Registration of the `fit` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "fit",
    about: "Says whether the phases that a job predicts (optimizer, longest batch, evaluation, save) fit the memory that is there.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_| Box::new(Fits::default()))
};

#[derive(Debug, Default)]
struct Fits {
    /// Whether a phase of a rank will not fit.
    failing: Latch<bool>,
    /// The phases that did not fit in the previous tick.
    failed: HashSet<Failed>,
    recent: free::Recent,
}

/// A phase of a process that does not fit a resource.
type Failed = (ProcessKey, Phase, Medium, Option<u16>);

/// One prediction with its rank.
#[derive(Clone, Copy, Debug)]
struct Asked<'v> {
    rank: &'v RankPredictions,
    prediction: &'v Prediction,
}

impl Asked<'_> {
    fn failed(&self) -> Option<Failed> {
        let Prediction { phase, medium, device, .. } = *self.prediction;
        Some((self.rank.process?, phase, medium, device))
    }
}

impl Analyzer for Fits {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        self.failing.begin(now);
        let failed = std::mem::take(&mut self.failed);
        let ranks = view.facts().map_or(&[][..], |facts| &facts.predictions);
        if ranks.is_empty() {
            self.recent.clear();
            return;
        }
        // All ranks whose process is not known have one share.
        let user = |rank: &&RankPredictions| free::row(view.facts(), rank).map_or(u32::MAX, |row| row.uid);
        let (ranks, beyond) = fair::split(ranks.iter().collect(), MOST_RANKS, user);
        let mut left_out = BTreeMap::<u32, u64>::new();
        beyond.iter().for_each(|rank| *left_out.entry(user(rank)).or_default() += 1);
        out.shortages.extend(Shortage::of_users("fit_ranks", MOST_RANKS, &left_out));
        let mut free = Free::of(view, &ranks);
        free.steady(&ranks, &mut self.recent);
        let asked = ranks.iter().copied().flat_map(|rank| {
            rank.predictions
                .iter()
                .filter(|own| is_to_come(own))
                .map(move |prediction| Asked { rank, prediction })
        });
        let asked: Vec<Asked<'_>> = asked.collect();
        let fits: Vec<Fit> = asked.iter().map(|own| judge(own, &asked, &free)).collect();
        for fit in &fits {
            put(fit, out);
        }
        self.findings(&fits, now, out);
        let fails = asked.iter().zip(&fits).filter(|(_, fit)| fit.verdict == Verdict::WillNotFit);
        self.failed = fails.filter_map(|(own, _)| own.failed()).collect();
        let confirmed: HashSet<ProcessKey> = self.failed.intersection(&failed).map(|own| own.0).collect();
        out.answers.extend(ranks.iter().filter_map(|rank| answer(rank, &fits, &confirmed)));
        out.outlook.fits = fits;
    }
}

/// Whether the phase can still take memory. The state of an optimizer is allocated once.
fn is_to_come(prediction: &Prediction) -> bool {
    prediction.phase != Phase::Optimizer || prediction.measured.is_none()
}

/// What a rank will take of a place beyond what it holds now, for the median.
fn still_to_take(asked: &Asked<'_>, free: &Free<'_>) -> f64 {
    let Some(Peak { p50, .. }) = asked.prediction.peak else { return 0.0 };
    let holds = free
        .holds(asked.rank, asked.prediction)
        .unwrap_or_else(|| real(asked.prediction.held.unwrap_or(p50).get()));
    (real(p50.get()) - holds).max(0.0)
}

/// What others take from the same place: ranks of the same run in the same phase, and the largest phase of each rank of
/// other runs.
fn others(own: &Asked<'_>, all: &[Asked<'_>], place: &Place, free: &Free<'_>) -> (f64, f64) {
    let mut together = 0.0;
    let mut foreign: BTreeMap<[&Label; 2], f64> = BTreeMap::new();
    for other in all.iter().filter(|other| !std::ptr::eq(other.rank, own.rank)) {
        if other.prediction.medium != own.prediction.medium || !free.takes_from(other, place) {
            continue;
        }
        let takes = still_to_take(other, free);
        let is_own =
            other.rank.key.is_some() && other.rank.key == own.rank.key && other.rank.run == own.rank.run;
        if is_own {
            together += if other.prediction.phase == own.prediction.phase { takes } else { 0.0 };
        } else {
            let largest = foreign.entry([&other.rank.workload, &other.rank.rank]).or_default();
            *largest = largest.max(takes);
        }
    }
    (together, foreign.values().sum())
}

/// The probability that the peak exceeds `capacity` bytes.
fn exceeds(peak: Peak, capacity: f64) -> f64 {
    let (p50, p90) = (real(peak.p50.get()), real(peak.p90.get()));
    let deviation = (p90 - p50).max(0.0) / TO_P90;
    if deviation > 0.0 {
        normal::cdf((p50 - capacity) / deviation)
    } else {
        f64::from(u8::from(p50 > capacity))
    }
}

/// The verdict of one prediction, on the place that has the least room for it.
fn judge(own: &Asked<'_>, all: &[Asked<'_>], free: &Free<'_>) -> Fit {
    let Asked { rank, prediction } = *own;
    let assess = |place: Place| {
        let (together, foreign) = others(own, all, &place, free);
        (place.capacity.map(|capacity| capacity - together), foreign, place)
    };
    let mut assessed: Vec<_> = free.places(rank, prediction).into_iter().map(assess).collect();
    // A place of unknown room could have the least.
    assessed.sort_by(|(one, ..), (other, ..)| {
        one.unwrap_or(f64::NEG_INFINITY).total_cmp(&other.unwrap_or(f64::NEG_INFINITY))
    });
    let mut assessed = assessed.into_iter();
    let least = assessed.next();
    // A cgroup with the same limit, as that of a pod with one container or of a step of a job, is raised with it.
    let limit = least.as_ref().and_then(|(.., place)| place.limit);
    let elsewhere =
        assessed.find(|(.., place)| limit.is_none() || place.limit != limit).and_then(|(room, ..)| room);
    let mut fit = Fit {
        workload: rank.workload.clone(),
        rank: rank.rank.clone(),
        run: rank.run.clone(),
        pid: rank.process.map_or_else(Label::default, |process| process.pid.into()),
        phase: prediction.phase,
        resource: Subject::place(match prediction.medium {
            Medium::Device => "gpu",
            medium => medium.label(),
        }),
        certainty: prediction.certainty,
        verdict: Verdict::Unknown,
        peak_bytes: prediction.peak.map(|peak| [real(peak.p50.get()), real(peak.p90.get())]),
        capacity_bytes: None,
        exhaustion_probability: None,
        due_step: prediction.due_step,
        title: words::title(prediction),
        least: prediction.least,
        basis: prediction.basis.clone(),
        advice: String::new(),
        past: rank.past.clone(),
    };
    let Some((capacity, foreign, mut place)) = least else { return fit };
    fit.resource = place.subject.clone();
    fit.capacity_bytes = capacity;
    let (Some(capacity), Some(peak)) =
        (capacity, prediction.peak.filter(|_| prediction.certainty != Certainty::Unknown))
    else {
        return fit;
    };
    let probability = exceeds(peak, capacity);
    let unusable = if prediction.medium == Medium::Device { UNUSABLE * capacity } else { 0.0 };
    fit.exhaustion_probability = Some(probability);
    fit.verdict = match probability {
        sure if sure >= SURE => Verdict::WillNotFit,
        _ if exceeds(peak, capacity - unusable - foreign) >= UNLIKELY => Verdict::Tight,
        _ if prediction.least => Verdict::Unknown,
        _ => Verdict::Fits,
    };
    if fit.verdict == Verdict::WillNotFit && place.subject == Subject::host() {
        place.neighbour = free.neighbour_on_host(rank);
    }
    fit.advice = words::advice(&fit, prediction, &place, foreign, elsewhere);
    if let Some(mapped) = prediction.mapped.filter(|_| place.subject.resource.as_str() == "cgroup") {
        let mapped = real(mapped.get()).min(real(peak.p50.get())).min(capacity.max(0.0));
        fit.peak_bytes = fit.peak_bytes.map(|peak| peak.map(|bytes| bytes - mapped));
        fit.capacity_bytes = Some(capacity - mapped);
    }
    fit
}

fn put(fit: &Fit, out: &mut Analysis) {
    let [resource, cgroup, gpu, uuid, ..] = fit.resource.labels();
    let labels =
        [fit.workload.clone(), fit.rank.clone(), fit.phase.label().into(), resource, cgroup, gpu, uuid];
    let batch = &mut out.batch;
    // Where other ranks of the run take more than there is, nothing is left for this one.
    batch.put_some(&metrics::CAPACITY, &labels, fit.capacity_bytes.map(Bytes::of));
    if let Some(headroom) = fit.headroom_bytes() {
        let metric = if headroom < 0.0 { &metrics::MISSING } else { &metrics::HEADROOM };
        batch.put(metric, &labels, Bytes::of(headroom.abs()));
    }
    batch.put_some(&metrics::PROBABILITY, &labels, fit.exhaustion_probability.and_then(Ratio::new));
    let [workload, rank, phase, resource, cgroup, gpu, uuid] = labels;
    let verdict = fit.verdict.label().into();
    batch.put(&metrics::VERDICT, &[workload, rank, phase, resource, cgroup, gpu, uuid, verdict], Flag(true));
}

impl Fits {
    /// One finding for each run and phase that will not fit: that of the rank with the least room.
    fn findings(&mut self, fits: &[Fit], now: Timestamp, out: &mut Analysis) {
        let mut worst: BTreeMap<(&Label, &Label, &Label, Phase), &Fit> = BTreeMap::new();
        for fit in fits {
            // Processes of different users may belong to no workload.
            let alone = if fit.workload.is_empty() { &fit.pid } else { &fit.workload };
            let held = worst.entry((&fit.workload, &fit.run, alone, fit.phase)).or_insert(fit);
            let order = |fit: &Fit| (fit.verdict, fit.headroom_bytes().map_or(0.0, |headroom| -headroom));
            if order(fit).partial_cmp(&order(held)).is_some_and(std::cmp::Ordering::is_gt) {
                *held = fit;
            }
        }
        for fit in worst.into_values() {
            let subject =
                Subject { phase: fit.phase.label().into(), ..Subject::rank(&fit.workload, &fit.pid) };
            let (fails, since) = self.failing.update(&subject, fit.verdict == Verdict::WillNotFit, now);
            if fails && fit.verdict == Verdict::WillNotFit {
                out.findings.push(finding(fit, subject, since));
            }
        }
    }
}

fn finding(fit: &Fit, subject: Subject, since_unix_seconds: f64) -> Finding {
    let values = [
        ("peak_p50_bytes", fit.peak_bytes.map(|peak| peak[0])),
        ("peak_p90_bytes", fit.peak_bytes.map(|peak| peak[1])),
        ("capacity_bytes", fit.capacity_bytes),
        ("missing_bytes", fit.headroom_bytes().map(|headroom| -headroom)),
        ("exhaustion_probability_ratio", fit.exhaustion_probability),
    ];
    let evidence = values.into_iter().filter_map(|(what, value)| Some(Evidence { what, value: value? }));
    Finding {
        analyzer: REGISTRATION.name,
        subject,
        state: Verdict::WillNotFit.label(),
        severity: Health::from(fit.verdict).into(),
        since_unix_seconds,
        summary: words::summary(fit),
        evidence: evidence.collect(),
        advice: words::way_out(fit),
    }
}

/// What a rank is told; absent where its process is not known, or it predicts nothing that is still to come. That a phase
/// will not fit is told in the second tick in a row, since a job may end itself then; before it, nothing is told.
fn answer(rank: &RankPredictions, fits: &[Fit], confirmed: &HashSet<ProcessKey>) -> Option<Answer> {
    let own = || fits.iter().filter(|fit| fit.workload == rank.workload && fit.rank == rank.rank);
    let (verdict, process) = (own().map(|fit| fit.verdict).max()?, rank.process?);
    let is_told = verdict != Verdict::WillNotFit || confirmed.contains(&process);
    is_told.then(|| Answer {
        process,
        verdict,
        text: words::line(own()),
        sequence: rank.predictions.iter().filter_map(|own| own.sequence).max(),
    })
}
