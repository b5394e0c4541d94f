//! Events of the daemon itself: one call writes the log line and counts the event.
//!
//! A log line and its counter cannot diverge, because nothing else writes either. Each frame exposes every counter,
//! from zero on.

mod ended;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub use memwarden_exporter::connection::HttpLimit;

use crate::model::attention;
use crate::model::ends::{End, EndCause};
use crate::model::finding::{Finding, Severity, Subject};
use crate::model::lock::lock;
use crate::model::names::named;
use crate::model::point::Batch;
use crate::model::source::{Failure, SourceError, Status};
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag, Seconds};

crate::metrics! {
    /// Sampling ticks that were skipped because the previous one took too long.
    pub TICKS_SKIPPED: Counter<Count> = "memwarden_ticks_skipped_total" {}.counting("{tick}");
    /// Times that one step of the sampler (a source, or a step after the sources) took more than 5 seconds; absent before the first time. /-/healthy names the step that hangs now.
    pub STALLS: Counter<Count> = "memwarden_sampler_stalls_total" {step}.counting("{stall}");
    /// Whether the last attempt to load the configuration succeeded.
    pub RELOAD_SUCCESSFUL: Gauge<Flag> = "memwarden_config_last_reload_successful" {};
    /// Unix time of the last successful load of the configuration.
    pub RELOAD_TIME: Gauge<Seconds> = "memwarden_config_last_reload_success_timestamp_seconds" {};
    /// Failed samples of the source, by kind of error; a source that is unavailable on this host is not counted.
    pub SOURCE_ERRORS: Counter<Count> = "memwarden_source_errors_total" {source, kind}.counting("{error}");
    /// HTTP requests answered, by status code class.
    pub HTTP_REQUESTS: Counter<Count> = "memwarden_http_requests_total" {code}.counting("{request}");
    /// HTTP connections closed or requests refused because of a limit, by reason: connections, requests, time, size, frames (HTTP/2), handshake (TLS) or rate.
    pub HTTP_LIMITED: Counter<Count> = "memwarden_http_limited_total" {reason}.counting("{connection}");
    /// Series of the newest sample for which no recent past is kept, because the limit of the live page's history is reached; its charts do not show them.
    pub HISTORY_OMITTED: Gauge<Count> = "memwarden_history_series_omitted" {}.counting("{series}");
    /// OTLP exports that the collector accepted.
    pub OTLP_EXPORTS: Counter<Count> = "memwarden_otlp_exports_total" {}.counting("{export}");
    /// OTLP exports that failed.
    pub OTLP_FAILURES: Counter<Count> = "memwarden_otlp_export_failures_total" {}.counting("{export}");
    /// Log records for OTLP, by what became of them: exported, failed (refused by the collector, or not sent), or dropped (the queue was full).
    pub OTLP_LOGS: Counter<Count> = "memwarden_otlp_log_records_total" {outcome}.counting("{record}");
    /// Unix time of the last OTLP export that the collector accepted; absent before the first one.
    pub OTLP_LAST_SUCCESS: Gauge<Seconds> = "memwarden_otlp_last_success_timestamp_seconds" {};
    /// Whether a facility that protection uses is available: the capabilities cap_kill, cap_ipc_lock, cap_sys_ptrace and cap_sys_resource, pressure stall information (psi), and a cgroup file system that is not mounted read-only (cgroup_writable); absent where this cannot be read.
    pub PROTECTION_NEED: Gauge<Flag> = "memwarden_protection_prerequisite_met" {need};
    /// Whether the last write of a protection record succeeded, by record: audit or incidents; absent where records are kept in memory only.
    pub RECORDS_WRITABLE: Gauge<Flag> = "memwarden_records_writable" {record};
    /// Protection records that could not be written or kept, by record: audit (lines of the audit log) or incidents (changes of incidents).
    pub RECORDS_LOST: Counter<Count> = "memwarden_records_lost_total" {record}.counting("{record}");
    /// Incidents that were recorded completely.
    pub INCIDENTS: Counter<Count> = "memwarden_incidents_recorded_total" {}.counting("{incident}");
}

named! {
    /// What became of log records for OTLP.
    pub enum LogRecords {
        Exported = "exported",
        Failed = "failed",
        Dropped = "dropped",
    }
}

/// Ends of one user that are logged of one frame: a user can start and end any number of processes.
const MOST_ENDS: u64 = 8;
/// The daemon's own counters and health states.
#[derive(Debug, Default)]
pub struct Events {
    ticks_skipped: AtomicU64,
    step: Mutex<Option<Step>>,
    stalls: Mutex<BTreeMap<&'static str, u64>>,
    reload_failed: AtomicU64,
    /// Milliseconds since 1970.
    reload_success: AtomicU64,
    http: [AtomicU64; 4],
    limited: [AtomicU64; HttpLimit::ALL.len()],
    history_omitted: AtomicU64,
    otlp: Mutex<OtlpState>,
    otlp_logs: [AtomicU64; LogRecords::ALL.len()],
    otlp_logs_failing: AtomicBool,
    ends: Mutex<ended::Known>,
    sources: Mutex<HashMap<&'static str, SourceState>>,
    needs: Mutex<Vec<(&'static str, bool)>>,
    records: Mutex<Option<RecordsState>>,
    /// The state of each finding of the last frame, by analyzer and subject.
    findings: Mutex<HashMap<(&'static str, Subject), &'static str>>,
}

/// Duration above which a step of the sampler counts as stalled.
pub const STALL: Duration = Duration::from_secs(5);

/// The current step of the sampler.
#[derive(Clone, Copy, Debug)]
struct Step {
    name: &'static str,
    since: Timestamp,
    /// Whether the stall was logged.
    logged: bool,
}

/// The step at which the sampler has stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// The source, or a step after the sources.
    pub step: &'static str,
    /// The process that is being read, if any.
    pub pid: Option<u32>,
    /// Duration of the step so far.
    pub lasts: Duration,
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the step {} has lasted {:.0} s", self.step, self.lasts.as_secs_f64())?;
        match self.pid {
            Some(pid) => write!(f, ", at process {pid}"),
            None => Ok(()),
        }
    }
}

/// State of the protection records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsState {
    /// Whether they are written to disk at all.
    pub on_disk: bool,
    /// Whether the last write of the audit log succeeded.
    pub audit_writable: bool,
    /// Whether the last write of an incident succeeded.
    pub incidents_writable: bool,
    /// Lines of the audit log that could not be written.
    pub audit_lost: u64,
    /// Changes of incidents that could not be kept.
    pub incidents_lost: u64,
    /// Incidents that were recorded completely.
    pub incidents: u64,
}

#[derive(Debug, Default)]
struct OtlpState {
    on: bool,
    exports: u64,
    failures: u64,
    last_success: Option<Timestamp>,
    failing: bool,
}

#[derive(Debug, Default)]
struct SourceState {
    status: Option<Status>,
    kind: Option<Failure>,
    errors: HashMap<Failure, u64>,
}

impl Events {
    /// Creates counters at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that `count` ticks were skipped because sampling took `took`.
    pub fn ticks_skipped(&self, count: u64, took: Duration) {
        let before = self.ticks_skipped.fetch_add(count, Ordering::Relaxed);
        if before == 0 {
            tracing::warn!(
                count,
                took_seconds = took.as_secs_f64(),
                "Sampling took longer than its interval; ticks were skipped."
            );
        } else {
            tracing::debug!(count, took_seconds = took.as_secs_f64(), "Ticks were skipped.");
        }
    }

    /// Records that the sampler begins this step.
    pub fn step(&self, name: &'static str, now: Timestamp) {
        self.end_step(Some(Step { name, since: now, logged: false }), now);
    }

    /// Records that the sampler ended its tick.
    pub fn steps_end(&self, now: Timestamp) {
        self.end_step(None, now);
    }

    fn end_step(&self, next: Option<Step>, now: Timestamp) {
        attention::rest();
        let before = std::mem::replace(&mut *lock(&self.step), next);
        if let Some(step) = before.filter(|step| step.logged) {
            let lasted_seconds = now.since(step.since).as_secs_f64();
            tracing::info!(
                step = step.name,
                lasted_seconds,
                "The sampler finished the step that had stalled."
            );
        }
    }

    /// The step at which the sampler has stalled, if it has.
    pub fn stalled(&self, now: Timestamp) -> Option<Stalled> {
        let step = (*lock(&self.step))?;
        let lasts = now.since(step.since);
        (lasts >= STALL).then(|| Stalled { step: step.name, pid: attention::attended(), lasts })
    }

    /// Logs a stalled step once. To be called about once a second, by another thread.
    pub fn watch_sampler(&self, now: Timestamp) {
        let Some(Stalled { step: name, pid, lasts }) = self.stalled(now) else { return };
        let mut current = lock(&self.step);
        let Some(step) = current.as_mut().filter(|step| !step.logged && step.name == name) else { return };
        step.logged = true;
        drop(current);
        *lock(&self.stalls).entry(name).or_default() += 1;
        let lasts_seconds = lasts.as_secs_f64();
        tracing::error!(
            step = name,
            pid,
            lasts_seconds,
            "The sampler has stalled: no new samples until this step finishes."
        );
    }

    /// Records that a configuration was loaded, at start or on reload.
    pub fn config_loaded(&self, at: Timestamp, file: &str) {
        self.reload_failed.store(0, Ordering::Relaxed);
        let ms = u64::try_from(at.unix().as_millis()).unwrap_or(u64::MAX);
        self.reload_success.store(ms, Ordering::Relaxed);
        tracing::info!(name: "memwarden.config.loaded", file, "Configuration loaded.");
    }

    /// Records that a reload was rejected; the current configuration remains.
    pub fn config_refused(&self, error: &str) {
        self.reload_failed.store(1, Ordering::Relaxed);
        tracing::error!(
            name: "memwarden.config.rejected",
            error,
            "Configuration rejected; the previous one remains active."
        );
    }

    /// Records the result of a sample; logged once per change of state.
    pub fn source_sampled(&self, source: &'static str, outcome: &Result<(), SourceError>) {
        let (status, kind) = match outcome {
            Ok(()) => (Status::Ok, None),
            Err(SourceError::Unavailable { .. }) => (Status::Unavailable, None),
            Err(SourceError::Failed { kind, .. }) => (Status::Failed, Some(*kind)),
        };
        let mut sources = lock(&self.sources);
        let state = sources.entry(source).or_default();
        if let Some(kind) = kind {
            *state.errors.entry(kind).or_default() += 1;
        }
        if (state.status, state.kind) == (Some(status), kind) {
            return;
        }
        let first = state.status.is_none();
        (state.status, state.kind) = (Some(status), kind);
        match outcome {
            Ok(()) if first => tracing::debug!(source, "Source is available."),
            Ok(()) => tracing::info!(source, "Source is available again."),
            Err(SourceError::Unavailable { why }) => {
                tracing::info!(source, why, "Source is unavailable.")
            }
            Err(SourceError::Failed { kind, why }) => {
                tracing::warn!(source, kind = kind.label(), why, "Source failed.");
            }
        }
    }

    /// Records the active findings; each is logged once per change of its state.
    pub fn found(&self, findings: &[Finding]) {
        let mut known = lock(&self.findings);
        let mut before = std::mem::take(&mut *known);
        for finding in findings {
            let Finding { analyzer, subject, state, severity, summary, advice, .. } = finding;
            let key = (*analyzer, subject.clone());
            if before.remove(&key) != Some(*state) {
                let (subject, severity) = (subject.to_string(), severity.label());
                macro_rules! log {
                    ($level:ident) => {
                        tracing::$level!(
                            name: "memwarden.finding",
                            analyzer,
                            subject,
                            state,
                            severity,
                            advice,
                            "{summary}"
                        )
                    };
                }
                match finding.severity {
                    Severity::Info => log!(info),
                    _ => log!(warn),
                }
            }
            known.insert(key, state);
        }
        for ((analyzer, subject), state) in before {
            tracing::info!(
                name: "memwarden.finding.resolved",
                analyzer,
                subject = subject.to_string(),
                state,
                "A finding was resolved."
            );
        }
    }

    /// Logs the ends of the frame of `at` that are new, each with its sentence.
    pub fn ended<'a>(
        &self,
        at: Timestamp,
        ends: impl Iterator<Item = &'a End>,
        sentence: impl Fn(&End) -> String,
    ) {
        let mut of_user: BTreeMap<u32, u64> = BTreeMap::new();
        for end in lock(&self.ends).add(at, ends) {
            let count = of_user.entry(end.user_id).or_default();
            *count += 1;
            if *count > MOST_ENDS {
                continue;
            }
            let (workload, run, rank) = (end.workload.as_str(), end.run.as_str(), end.rank.as_str());
            let (cause, pid, user, probability) = (end.cause.label(), end.pid, end.user_id, end.probability);
            macro_rules! log {
                ($level:ident) => {
                    tracing::$level!(
                        name: "memwarden.end",
                        cause,
                        probability,
                        workload,
                        run,
                        rank,
                        user,
                        pid,
                        "{}",
                        sentence(end)
                    )
                };
            }
            if end.cause == EndCause::Finished { log!(info) } else { log!(warn) }
        }
        for (user, count) in of_user.into_iter().filter(|(_, count)| *count > MOST_ENDS) {
            tracing::info!(user, count = count - MOST_ENDS, "Further ends of this user are not logged.");
        }
    }

    /// Records a response with this status code.
    pub fn http_answered(&self, code: u16) {
        let class = usize::from((code / 100).clamp(2, 5) - 2);
        self.http[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Records a connection or request that was closed or refused because of a limit.
    pub fn http_limited(&self, limit: HttpLimit) {
        if let Some(place) = HttpLimit::ALL.iter().position(|other| *other == limit)
            && self.limited[place].fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::info!(reason = limit.label(), "An HTTP limit was reached for the first time.");
        }
    }

    /// Records how many series of the newest frame have no recent past.
    pub fn history_recorded(&self, omitted: usize) {
        self.history_omitted.store(omitted as u64, Ordering::Relaxed);
    }

    /// Records that OTLP export to this endpoint started.
    pub fn otlp_started(&self, endpoint: &str, protocol: &str) {
        lock(&self.otlp).on = true;
        tracing::info!(endpoint, protocol, "OTLP export started.");
    }

    /// Records that OTLP export is configured and cannot start; counted as a failure, so that the alert fires.
    pub fn otlp_not_started(&self, error: &str) {
        let mut state = lock(&self.otlp);
        state.on = true;
        state.failures += 1;
        tracing::error!(error, "OTLP export could not be started.");
    }

    /// Records an export that the collector accepted.
    pub fn otlp_exported(&self, at: Timestamp) {
        let mut state = lock(&self.otlp);
        state.exports += 1;
        state.last_success = Some(at);
        if std::mem::take(&mut state.failing) {
            tracing::info!("OTLP export succeeds again.");
        }
    }

    /// Records a failed export; logged once until the next success.
    pub fn otlp_failed(&self, error: &str) {
        let mut state = lock(&self.otlp);
        state.failures += 1;
        if !std::mem::replace(&mut state.failing, true) {
            tracing::warn!(error, "OTLP export failed; retrying each interval.");
        }
    }

    /// Records what became of log records for OTLP.
    pub fn otlp_logs(&self, outcome: LogRecords, count: usize) {
        let place = LogRecords::ALL.iter().position(|other| *other == outcome).unwrap_or_default();
        self.otlp_logs[place].fetch_add(count as u64, Ordering::Relaxed);
        if outcome == LogRecords::Exported && self.otlp_logs_failing.swap(false, Ordering::Relaxed) {
            tracing::info!("OTLP export of log records succeeds again.");
        }
    }

    /// Records log records that could not be exported; logged once until the next success.
    pub fn otlp_logs_failed(&self, count: usize, error: &str) {
        self.otlp_logs(LogRecords::Failed, count);
        if !self.otlp_logs_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(error, "OTLP export of log records failed.");
        }
    }

    /// Records the prerequisites of protection: name, whether it is available, and what is lost without it. Those that
    /// are missing are logged only where a job is `protected`.
    pub fn protection_needs(&self, needs: &[(&'static str, bool, &'static str)], protected: bool) {
        for (need, _, lost) in needs.iter().filter(|(_, met, _)| protected && !met) {
            tracing::info!(need, "A prerequisite of protection is missing: {lost}.");
        }
        *lock(&self.needs) = needs.iter().map(|(need, met, _)| (*need, *met)).collect();
    }

    /// Records the state of the protection records.
    pub fn records(&self, state: RecordsState) {
        *lock(&self.records) = Some(state);
    }

    /// Adds every counter to the batch, including those at zero.
    pub fn put(&self, sources: impl Iterator<Item = &'static str>, out: &mut Batch) {
        out.put(&TICKS_SKIPPED, &[], Count(self.ticks_skipped.load(Ordering::Relaxed)));
        for (step, count) in &*lock(&self.stalls) {
            out.put(&STALLS, &[(*step).into()], Count(*count));
        }
        out.put(&RELOAD_SUCCESSFUL, &[], Flag(self.reload_failed.load(Ordering::Relaxed) == 0));
        let loaded = self.reload_success.load(Ordering::Relaxed);
        if loaded > 0 {
            out.put(&RELOAD_TIME, &[], Duration::from_millis(loaded).into());
        }
        for (count, class) in self.http.iter().zip(["2xx", "3xx", "4xx", "5xx"]) {
            out.put(&HTTP_REQUESTS, &[class.into()], Count(count.load(Ordering::Relaxed)));
        }
        for (count, limit) in self.limited.iter().zip(HttpLimit::ALL) {
            out.put(&HTTP_LIMITED, &[limit.label().into()], Count(count.load(Ordering::Relaxed)));
        }
        out.put(&HISTORY_OMITTED, &[], Count(self.history_omitted.load(Ordering::Relaxed)));
        let otlp = lock(&self.otlp);
        if otlp.on {
            out.put(&OTLP_EXPORTS, &[], Count(otlp.exports));
            out.put(&OTLP_FAILURES, &[], Count(otlp.failures));
            for (count, outcome) in self.otlp_logs.iter().zip(LogRecords::ALL) {
                out.put(&OTLP_LOGS, &[outcome.label().into()], Count(count.load(Ordering::Relaxed)));
            }
            out.put_some(&OTLP_LAST_SUCCESS, &[], otlp.last_success.map(|at| Seconds::from(at.unix())));
        }
        drop(otlp);
        for (need, met) in &*lock(&self.needs) {
            out.put(&PROTECTION_NEED, &[(*need).into()], Flag(*met));
        }
        if let Some(state) = *lock(&self.records) {
            if state.on_disk {
                out.put(&RECORDS_WRITABLE, &["audit".into()], Flag(state.audit_writable));
                out.put(&RECORDS_WRITABLE, &["incidents".into()], Flag(state.incidents_writable));
            }
            out.put(&RECORDS_LOST, &["audit".into()], Count(state.audit_lost));
            out.put(&RECORDS_LOST, &["incidents".into()], Count(state.incidents_lost));
            out.put(&INCIDENTS, &[], Count(state.incidents));
        }
        let states = lock(&self.sources);
        for source in sources {
            for kind in Failure::ALL {
                let count = states.get(source).and_then(|state| state.errors.get(&kind)).copied();
                out.put(&SOURCE_ERRORS, &[source.into(), kind.label().into()], Count(count.unwrap_or(0)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_hangs_is_named_with_the_process_and_counted_once() {
        let (events, at) = (Events::new(), Timestamp::from_secs);
        events.step("memory", at(10));
        events.step("process", at(11));
        attention::attend(4711);
        assert_eq!(events.stalled(at(15)), None);
        for second in 16..40 {
            events.watch_sampler(at(second));
        }
        let stalled = events.stalled(at(31)).unwrap();
        assert_eq!(stalled.to_string(), "the step process has lasted 20 s, at process 4711");
        events.step("workload", at(40));
        assert_eq!(attention::attended(), None);
        events.steps_end(at(60));
        events.watch_sampler(at(90));
        assert_eq!(events.stalled(at(90)), None);
        assert_eq!(*lock(&events.stalls), [("process", 1)].into());
    }
}
