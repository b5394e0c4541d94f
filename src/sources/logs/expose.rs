//! Converts values from logs to points.

use std::collections::{BTreeMap, HashSet};

use super::metrics;
use super::watch::{LogState, View};
use crate::formats::log_lines::PHASES;
use crate::formats::log_lines::oom::Cause;
use crate::model::desc::{Desc, Metric};
use crate::model::facts::{Allocator, Facts};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag, Number, PerSecond, Ratio, Seconds};
use crate::sources::logs::file::Refusal;
use crate::sources::training::metrics as training;

/// Puts the state of following one path.
pub(super) fn put_state(log: &Label, put_state: &LogState, now: Timestamp, out: &mut Batch) {
    let of = std::slice::from_ref(log);
    let Some(passed) = put_state.passed else { return };
    let totals = &put_state.totals;
    out.put(&metrics::PASS_AGE, of, now.since(passed).into());
    out.put(&metrics::FILES, of, Count(put_state.followed as u64));
    out.put(&metrics::LINES, of, Count(totals.lines));
    out.put(&metrics::RECOGNIZED, of, Count(totals.recognized));
    out.put(&metrics::CUT, of, Count(totals.cut));
    out.put(&metrics::READ, of, Bytes::new(totals.file.bytes));
    out.put(&metrics::SKIPPED_BYTES, of, Bytes::new(totals.file.skipped));
    out.put(&metrics::ROTATIONS, of, Count(totals.file.rotations));
    for (count, kind) in totals.refused.iter().zip(Refusal::LABELS) {
        out.put(&metrics::ERRORS, &[log.clone(), kind.into()], Count(*count));
    }
    let known: HashSet<(&Label, &str)> =
        put_state.views.iter().filter_map(|view| Some((&view.workload, view.framework?.label()))).collect();
    for (workload, framework) in known {
        out.put(&metrics::INFO, &[log.clone(), workload.clone(), framework.into()], Flag(true));
    }
}

/// Puts out-of-memory messages, summed over all paths.
pub(super) fn ooms(all: &[LogState], out: &mut Batch) {
    let mut counts: BTreeMap<&Label, [u64; Cause::ALL.len()]> = BTreeMap::new();
    for put_state in all {
        let current = put_state.views.iter().map(|view| (&view.workload, &view.counts.ooms));
        for (workload, ooms) in current.chain(put_state.gone.iter().map(|(workload, ooms)| (workload, ooms)))
        {
            counts.entry(workload).or_default().iter_mut().zip(ooms).for_each(|(count, more)| *count += more);
        }
    }
    for (workload, ooms) in counts {
        for (count, cause) in ooms.into_iter().zip(Cause::ALL) {
            out.put(&metrics::OOMS, &[workload.clone(), cause.label().into()], Count(count));
        }
    }
}

/// Puts the values read from the logs of all jobs. Of several logs with the same labels, the one with the newest value
/// counts. For a workload whose ranks report over the job socket, only metrics that no rank reports are added.
pub(super) fn figures(all: &[LogState], now: Timestamp, out: &mut Batch) {
    let reported = ReportedByJobs::by_jobs(all, out);
    let mut views: Vec<&View> =
        all.iter().flat_map(|put_state| &put_state.views).filter(|view| view.last_value.is_some()).collect();
    views.sort_by_key(|view| std::cmp::Reverse(view.last_value));
    let mut ranks = HashSet::new();
    let mut jobs = HashSet::new();
    for view in views {
        if ranks.insert((&view.workload, &view.rank)) {
            rank(view, &reported, now, out);
            report_allocator(view, &mut out.facts);
        }
        if jobs.insert(&view.workload) {
            job(view, out);
        }
    }
}

/// The metrics that jobs report themselves, with the workload.
struct ReportedByJobs(HashSet<(&'static str, Label)>);

impl ReportedByJobs {
    fn by_jobs(all: &[LogState], out: &Batch) -> Self {
        let logged: HashSet<&Label> =
            all.iter().flat_map(|put_state| &put_state.views).map(|view| &view.workload).collect();
        let by_job = |desc: &Desc| training::METRICS.iter().any(|own| std::ptr::eq(*own, desc));
        let families = out.families().iter().filter(|family| by_job(family.desc));
        let points = families.flat_map(|family| family.points.iter().map(|point| (family.desc, point)));
        let named = points.filter_map(|(desc, point)| Some((desc.name, point.labels.first()?)));
        Self(
            named
                .filter(|(_, workload)| logged.contains(workload))
                .map(|(name, workload)| (name, workload.clone()))
                .collect(),
        )
    }

    /// Puts a value unless a rank of the workload, the first label, reports the metric.
    fn add<M: Metric>(&self, metric: &'static M, labels: &[Label], value: Option<M::Unit>, out: &mut Batch) {
        let known =
            labels.first().is_some_and(|workload| self.0.contains(&(metric.desc().name, workload.clone())));
        if !known {
            out.put_some(metric, labels, value);
        }
    }
}

/// Puts the values of the rank whose log it is.
fn rank(view: &View, reported: &ReportedByJobs, now: Timestamp, out: &mut Batch) {
    let View { reading, counts, .. } = view;
    let of = [view.workload.clone(), view.rank.clone()];
    let silent = view.last_value.map(|last_value| now.monotonic().saturating_sub(last_value));
    out.put_some(&metrics::AGE, &of, silent.map(Seconds::from));
    out.put_some(&metrics::LOSS_SCALE, &of, reading.loss_scale.and_then(Number::new));
    for (phase, seconds) in PHASES.iter().zip(reading.phases) {
        let [workload, rank] = of.clone();
        out.put_some(
            &metrics::PHASE_LAST,
            &[workload, rank, (*phase).into()],
            seconds.and_then(Seconds::new),
        );
    }
    reported.add(&training::STEP, &of, reading.step.map(Count), out);
    reported.add(&training::STEP_LAST, &of, reading.step_seconds.and_then(Seconds::new), out);
    reported.add(&training::LOSS, &of, reading.loss.and_then(Number::new), out);
    reported.add(&training::LEARNING_RATE, &of, reading.learning_rate.and_then(Number::new), out);
    reported.add(&training::GRAD_NORM, &of, reading.grad_norm.and_then(Number::new), out);
    reported.add(&training::SKIPPED, &of, reading.skipped.or(counts.skipped).map(Count), out);
    reported.add(&training::NAN, &of, counts.nan.map(Count), out);
    // Frameworks print the memory of the device that the rank runs on, without naming the device.
    let [workload, rank] = of;
    let device = [workload, rank, Label::default(), Label::default()];
    let bytes = |amount: Option<u64>| amount.map(Bytes::new);
    reported.add(&training::ALLOCATED, &device, bytes(reading.allocated), out);
    reported.add(&training::ALLOCATED_PEAK, &device, bytes(reading.allocated_peak), out);
    reported.add(&training::RESERVED, &device, bytes(reading.reserved), out);
    reported.add(&training::RESERVED_PEAK, &device, bytes(reading.reserved_peak), out);
    reported.add(&training::RETRIES, &device, reading.retries.map(Count), out);
    reported.add(&training::ALLOCATOR_OOMS, &device, reading.ooms.map(Count), out);
}

/// Passes the allocator statistics in a log to the analyzers; they are not attributed to a process.
fn report_allocator(view: &View, facts: &mut Facts) {
    let Some(allocated) = view.reading.allocated else { return };
    let of = facts.workload_of.iter().find(|member| member.workload.name == view.workload);
    let Some(workload) = of.map(|member| member.workload.key.clone()) else { return };
    facts.allocators.push(Allocator {
        process: None,
        workload: Some(workload),
        allocated: Bytes::new(allocated),
        reserved: view.reading.reserved.map(Bytes::new),
        free: None,
        age: None,
    });
}

/// Puts the values of the whole job.
fn job(view: &View, out: &mut Batch) {
    let View { reading, .. } = view;
    let of = std::slice::from_ref(&view.workload);
    let rate = |rate: Option<f64>| rate.and_then(PerSecond::new);
    out.put_some(&metrics::STEPS_PLANNED, of, reading.steps_planned.map(Count));
    out.put_some(&metrics::JOB_TOKENS, of, reading.tokens.map(Count));
    out.put_some(&metrics::JOB_SAMPLES, of, reading.samples.map(Count));
    out.put_some(&metrics::GLOBAL_BATCH, of, reading.global_batch.map(Count));
    out.put_some(&metrics::JOB_TOKEN_RATE, of, rate(reading.tokens_per_second));
    out.put_some(&metrics::JOB_SAMPLE_RATE, of, rate(reading.samples_per_second));
    out.put_some(&metrics::GPU_TOKEN_RATE, of, rate(reading.tokens_per_second_per_gpu));
    out.put_some(&metrics::GPU_SAMPLE_RATE, of, rate(reading.samples_per_second_per_gpu));
    out.put_some(&metrics::REPORTED_FLOPS, of, rate(reading.flops_per_gpu));
    out.put_some(&metrics::REPORTED_MFU, of, reading.mfu.and_then(Ratio::new));
}
