//! One tick: samples every source, runs the analyzers, updates the peaks and publishes a frame.

pub mod analyze;
pub mod limits;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use self::analyze::Analyzers;
use crate::analyzers;
use crate::config::Config;
use crate::events::Events;
use crate::history::peaks::Peaks;
use crate::host::clock;
use crate::model::acknowledged::Acknowledged;
use crate::model::analyzer::SavedState;
use crate::model::facts::{Before, ExitedProcess, Facts};
use crate::model::frame::{Frame, SourceReport};
use crate::model::point::{Batch, Dropped};
use crate::model::setting::Settings;
use crate::model::source::{Control, Failure, Reporter, Source, SourceError, Status};
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag, Seconds};
use crate::sources::{self, Context, Registration};

/// The newest frame; empty before the first one.
pub type Frames = tokio::sync::watch::Receiver<Option<Arc<Frame>>>;

crate::metrics! {
    /// Version of memwarden, the commit it was built from (`unknown` if the build could not determine it) and the processor architecture it was built for; always 1.
    pub BUILD_INFO: Gauge<Flag> = "memwarden_build_info" {version, revision, arch};
    /// Whether the last sample of the source was complete.
    pub SOURCE_UP: Gauge<Flag> = "memwarden_source_up" {source};
    /// Result of the source's last sample: 1 for the current status (ok, unavailable or failed), 0 for the others.
    pub SOURCE_STATUS: Gauge<Flag> = "memwarden_source_status" {source, status};
    /// Time that the last sample of the source took.
    pub SOURCE_DURATION: Gauge<Seconds> = "memwarden_source_duration_seconds" {source};
    /// Time since the last complete sample of the source; absent before the first one.
    pub SAMPLE_AGE: Gauge<Seconds> = "memwarden_sample_age_seconds" {source};
    /// Unix time at which the exposed frame was sampled; a constant value means that the sampler is stuck.
    pub LAST_SAMPLE: Gauge<Seconds> = "memwarden_last_sample_timestamp_seconds" {};
    /// Frames published since memwarden started.
    pub FRAMES: Counter<Count> = "memwarden_frames_total" {}.counting("{frame}");
    /// Points left out of frames, by metric and reason: budget (more series than the metric may have), duplicate, not_finite (NaN or infinite) or labels (wrong labels).
    pub POINTS_DROPPED: Counter<Count> = "memwarden_points_dropped_total" {metric, reason}.counting("{point}");
    /// Series in the exposed frame, without memwarden's own metrics about the frame.
    pub SERIES: Gauge<Count> = "memwarden_frame_series" {}.counting("{series}");
}

/// The commit that the program was built from, as determined by `build.rs`, or `unknown`, as in the client libraries
/// of Prometheus, so that every series has the label.
pub const REVISION: &str = env!("MEMWARDEN_COMMIT");

/// The engine's own metrics.
pub fn all_metrics() -> impl Iterator<Item = &'static crate::model::desc::Desc> {
    METRICS.iter().chain(analyze::METRICS).chain(limits::METRICS).copied()
}

/// The name of the acknowledged problems in the saved state, which is no name of an analyzer.
const ACKNOWLEDGED: &str = "acknowledged";

/// The available sources and analyzers.
#[derive(Clone, Copy, Debug)]
pub struct Registries<'a> {
    /// The sources, in the order they are sampled.
    pub sources: &'a [&'static Registration],
    /// The analyzers, in the order they run.
    pub analyzers: &'a [&'static analyzers::Registration],
}

/// All built-in sources and analyzers.
pub static EVERYTHING: Registries<'static> =
    Registries { sources: sources::REGISTRY, analyzers: analyzers::REGISTRY };

/// Runs the sources and analyzers and creates frames.
pub struct Engine {
    sources: Vec<Running>,
    analyzers: Analyzers,
    limits: limits::Limits,
    peaks: Peaks,
    peak_window: Duration,
    context: Context,
    events: Arc<Events>,
    sequence: u64,
    dropped: HashMap<(&'static str, Dropped), u64>,
    last: Option<Arc<Frame>>,
    /// The facts that the sources exchanged in the last tick.
    facts: Facts,
    /// Ended processes whose parent this program is.
    exited: Vec<ExitedProcess>,
    /// Components besides the sources that add points to each frame.
    reporters: Vec<Arc<dyn Reporter>>,
    /// The operator's last request; sources that are built later receive it too.
    control: Option<Control>,
    acknowledged: Arc<Acknowledged>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.sources.iter().map(|running| running.registration.name).collect();
        f.debug_struct("Engine")
            .field("sources", &names)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

struct Running {
    registration: &'static Registration,
    settings: Settings,
    source: Box<dyn Source>,
    complete: Option<Timestamp>,
}

impl Engine {
    /// Builds the sources that `config` enables.
    pub fn new(registries: Registries<'_>, config: &Config, context: Context, events: Arc<Events>) -> Self {
        let mut engine = Self {
            sources: Vec::new(),
            analyzers: Analyzers::new(),
            limits: limits::Limits::default(),
            peaks: Peaks::new(),
            peak_window: config.sampling.peak_window,
            context,
            events,
            sequence: 0,
            dropped: HashMap::new(),
            last: None,
            facts: Facts::default(),
            exited: Vec::new(),
            reporters: Vec::new(),
            control: None,
            acknowledged: Arc::default(),
        };
        engine.configure(registries, config);
        engine
    }

    /// Applies a new configuration; a source whose section did not change keeps running.
    pub fn reconfigure(&mut self, registries: Registries<'_>, config: &Config, context: Context) {
        if context.roots != self.context.roots {
            self.sources.clear();
        }
        self.context = context;
        self.peak_window = config.sampling.peak_window;
        self.configure(registries, config);
    }

    fn configure(&mut self, registries: Registries<'_>, config: &Config) {
        self.analyzers.configure(registries.analyzers, config);
        let mut before: HashMap<&str, Running> =
            self.sources.drain(..).map(|running| (running.registration.name, running)).collect();
        for registration in registries.sources {
            let Some(wanted) = config.sources.get(registration.name).filter(|source| source.enabled) else {
                continue;
            };
            let kept = before.remove(registration.name).filter(|running| running.settings == wanted.settings);
            self.sources.push(kept.unwrap_or_else(|| Running {
                registration,
                settings: wanted.settings.clone(),
                source: build(registration, &wanted.settings, &self.context, self.control),
                complete: None,
            }));
        }
    }

    /// Adds a component that adds points to each frame.
    pub fn add_reporter(&mut self, reporter: Arc<dyn Reporter>) {
        self.reporters.push(reporter);
    }

    /// The facts that the sources exchanged in the last tick.
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The state to keep across a restart, by analyzer, and the acknowledged problems.
    pub fn save(&self) -> Vec<(&'static str, SavedState)> {
        let mut saved = self.analyzers.save();
        let acknowledged = Arc::clone(&self.acknowledged);
        saved.push((ACKNOWLEDGED, Box::new(move |out| serde_json::to_writer(out, &*acknowledged))));
        saved
    }

    /// Restores the state that [`Engine::save`] returned in an earlier run.
    pub fn restore(&mut self, mut saved: analyze::Kept) {
        if let Some(known) = saved.remove(ACKNOWLEDGED) {
            match serde_json::from_str(known.get()) {
                Ok(known) => self.acknowledged = Arc::new(known),
                Err(error) => {
                    tracing::warn!(%error, "The saved acknowledgements are invalid and were discarded.");
                }
            }
        }
        self.analyzers.restore(saved);
    }

    /// The acknowledged problems, which the next frame has.
    pub fn acknowledged(&mut self) -> &mut Acknowledged {
        Arc::make_mut(&mut self.acknowledged)
    }

    /// Adds the exit status of a process whose parent this program is; in containers, no source has it.
    pub fn exited(&mut self, process: ExitedProcess) {
        self.exited.push(process);
    }

    /// Passes an operator's request to every source.
    pub fn control(&mut self, request: Control) {
        self.control = Some(request);
        for running in &mut self.sources {
            running.source.control(request);
        }
    }

    /// Measures once.
    pub fn tick(&mut self, at: Timestamp) -> Arc<Frame> {
        let last = self.last.take();
        let mut batch = last.clone().map_or_else(Batch::new, Batch::like);
        batch.facts.before = Before {
            frame: last,
            signalled: std::mem::take(&mut self.facts.signalled),
            processes: self.facts.processes.take(),
            workload_of: std::mem::take(&mut self.facts.workload_of),
            ranks: std::mem::take(&mut self.facts.ranks),
        };
        batch.facts.exited = std::mem::take(&mut self.exited);
        batch.facts.answers = std::mem::take(&mut self.facts.answers);
        batch.facts.reporting = batch.facts.before.ranks.iter().filter_map(|rank| rank.key).collect();
        let mut reports = Vec::with_capacity(self.sources.len());
        for running in &mut self.sources {
            let report = running.sample(at, &self.context, self.control, &self.events, &mut batch);
            reports.push(report);
        }
        self.events.step("analyzers", clock::now());
        let (mut findings, mut outlook) =
            self.analyzers.run(at, &mut batch, &reports, &mut self.acknowledged);
        self.remember_peaks(at, &mut batch);
        self.sequence += 1;
        self.events.step("reporters", clock::now());
        for reporter in &self.reporters {
            reporter.report(at, &mut batch);
        }
        findings.append(&mut batch.facts.findings);
        findings.extend(self.limits.state(at, &mut batch));
        self.events.found(&findings);
        self.put_self(at, &mut batch, &reports);
        let (families, dropped, mut facts) = batch.seal();
        facts.before.frame = None;
        for (what, count) in dropped {
            *self.dropped.entry(what).or_default() += count;
        }
        let (sequence, timeline) = (self.sequence, Arc::clone(&facts.timeline));
        outlook.oom_victims.clone_from(&facts.oom_victims);
        self.facts = facts;
        let acknowledged = Arc::clone(&self.acknowledged);
        let sources = reports;
        let frame =
            Arc::new(Frame { sequence, at, families, sources, findings, outlook, timeline, acknowledged });
        self.last = Some(Arc::clone(&frame));
        frame
    }

    /// Adds the `_max` gauge of every metric that has one.
    fn remember_peaks(&mut self, at: Timestamp, batch: &mut Batch) {
        let mut found = Vec::new();
        for family in batch.families() {
            let Some(peak) = family.desc.peak else { continue };
            for point in &family.points {
                let value = self.peaks.record(peak.name, &point.labels, point.value, at, self.peak_window);
                found.push((peak, point.labels.clone(), value));
            }
        }
        for (peak, labels, value) in found {
            batch.add(peak, &labels, value);
        }
        self.peaks.forget_unseen(at);
    }

    fn put_self(&self, at: Timestamp, batch: &mut Batch, reports: &[SourceReport]) {
        let series: usize = batch.families().iter().map(|family| family.points.len()).sum();
        batch.put(&SERIES, &[], Count(series as u64));
        batch.put(
            &BUILD_INFO,
            &[env!("CARGO_PKG_VERSION").into(), REVISION.into(), std::env::consts::ARCH.into()],
            Flag(true),
        );
        batch.put(&LAST_SAMPLE, &[], at.unix().into());
        batch.put(&FRAMES, &[], Count(self.sequence));
        for report in reports {
            let source = report.source.into();
            batch.put(&SOURCE_UP, &[source], Flag(report.status == Status::Ok));
            for status in Status::ALL {
                batch.put(
                    &SOURCE_STATUS,
                    &[report.source.into(), status.label().into()],
                    Flag(status == report.status),
                );
            }
            batch.put_some(&SAMPLE_AGE, &[report.source.into()], report.age_seconds.and_then(Seconds::new));
        }
        for ((metric, reason), count) in &self.dropped {
            batch.put(&POINTS_DROPPED, &[(*metric).into(), reason.label().into()], Count(*count));
        }
        self.events.put(reports.iter().map(|report| report.source), batch);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for running in &mut self.sources {
            running.source.finish();
        }
    }
}

/// Builds a source and passes it the operator's last request.
fn build(
    registration: &Registration,
    settings: &Settings,
    context: &Context,
    control: Option<Control>,
) -> Box<dyn Source> {
    let mut source = (registration.build)(settings, context);
    if let Some(request) = control {
        source.control(request);
    }
    source
}

impl Running {
    /// Samples one source; a panic is caught and the source rebuilt.
    fn sample(
        &mut self,
        at: Timestamp,
        context: &Context,
        control: Option<Control>,
        events: &Events,
        batch: &mut Batch,
    ) -> SourceReport {
        let begun = clock::now();
        events.step(self.registration.name, begun);
        let outcome =
            catch_unwind(AssertUnwindSafe(|| self.source.sample(at, batch))).unwrap_or_else(|panic| {
                self.source = build(self.registration, &self.settings, context, control);
                Err(SourceError::failed(
                    Failure::Panic,
                    format!("panicked and was rebuilt: {}", message(&*panic)),
                ))
            });
        let took = clock::now().since(begun);
        if outcome.is_ok() {
            self.complete = Some(at);
        }
        events.source_sampled(self.registration.name, &outcome);
        batch.put(&SOURCE_DURATION, &[self.registration.name.into()], took.into());
        let status = match &outcome {
            Ok(()) => Status::Ok,
            Err(SourceError::Unavailable { .. }) => Status::Unavailable,
            Err(SourceError::Failed { .. }) => Status::Failed,
        };
        SourceReport {
            source: self.registration.name,
            status,
            why: outcome.err().map(|error| error.to_string()),
            age_seconds: self.complete.map(|complete| at.since(complete).as_secs_f64()),
        }
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::config::schema::{self, GroupSchema, PartSchema, SECTIONS, Schema};
    use crate::host::roots::Roots;
    use crate::model::units::Bytes;

    crate::metrics! {
        /// The largest value of the window.
        pub WAVE_MAX: Gauge<Bytes> = "memwarden_wave_max_bytes" {};
        /// A value that appears and disappears.
        pub WAVE: Gauge<Bytes> = "memwarden_wave_bytes" {}.peak(&WAVE_MAX);
    }

    /// The behavior of the source, by the number of its sample since the start of the test.
    struct Moody(&'static AtomicU64);

    impl Source for Moody {
        fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
            let turn = self.0.fetch_add(1, Ordering::Relaxed);
            out.put(&WAVE, &[], Bytes::new([10, 50, 20, 30, 40, 5][usize::try_from(turn).unwrap_or(0) % 6]));
            match turn {
                2 => panic!("turn two"),
                3 => Err(SourceError::failed(Failure::Permission, "turn three")),
                4 => Err(SourceError::unavailable("turn four")),
                _ => Ok(()),
            }
        }
    }

    static TURNS: AtomicU64 = AtomicU64::new(0);
    static BUILT: AtomicU64 = AtomicU64::new(0);
    static REGISTRATION: Registration = Registration {
        name: "moody",
        about: "A source for tests.",
        on_by_default: true,
        options: &[],
        metrics: METRICS,
        needs: &[],
        check: |_| Vec::new(),
        build: |_, _| {
            BUILT.fetch_add(1, Ordering::Relaxed);
            Box::new(Moody(&TURNS))
        },
    };

    fn only<'a>(sources: &'a [&'static Registration]) -> Registries<'a> {
        Registries { sources, analyzers: &[] }
    }

    fn config(text: &str) -> Config {
        let source = PartSchema {
            key: "moody",
            about: "",
            on_by_default: true,
            options: &[],
            needs: &[],
            check: |_| Vec::new(),
        };
        let group = GroupSchema { key: schema::SOURCES, about: "", parts: vec![source] };
        let schema = Schema { sections: SECTIONS, groups: vec![group], modules: Vec::new() };
        crate::config::parse_str(text, Path::new("test"), &schema, &[]).unwrap()
    }

    #[test]
    fn a_source_may_fail_panic_and_recover() {
        let context = Context {
            roots: Arc::new(Roots::under(Path::new("/nonexistent"))),
            worker: None,
            checkpoints: Arc::default(),
            past_runs: Arc::default(),
        };
        let events = Arc::new(Events::new());
        let config = config("sampling: {interval: 1s, peak_window: 2s}");
        let mut engine = Engine::new(only(&[&REGISTRATION]), &config, context.clone(), events);
        let mut shown = Vec::new();
        for second in 0..6 {
            let frame = engine.tick(Timestamp::from_secs(second));
            let report = &frame.sources[0];
            let value = frame.value("memwarden_wave_bytes", &[]).unwrap();
            let peak = frame.value("memwarden_wave_max_bytes", &[]).unwrap();
            let errors: Vec<f64> = ["panic", "permission"]
                .map(|kind| {
                    let labels = [("source", "moody"), ("kind", kind)];
                    frame.value("memwarden_source_errors_total", &labels).unwrap()
                })
                .into();
            shown.push(format!(
                "{:?} {value} {peak} {errors:?} {:?}",
                report.status,
                report.age_seconds.unwrap()
            ));
        }
        expect_test::expect![[r#"
            Ok 10 10 [0.0, 0.0] 0.0
            Ok 50 50 [0.0, 0.0] 0.0
            Failed 20 50 [1.0, 0.0] 1.0
            Failed 30 50 [1.0, 1.0] 2.0
            Unavailable 40 40 [1.0, 1.0] 3.0
            Ok 5 40 [1.0, 1.0] 0.0"#]]
        .assert_eq(&shown.join("\n"));
        assert_eq!(BUILT.load(Ordering::Relaxed), 2, "built at the start and after the panic");
        engine.reconfigure(only(&[&REGISTRATION]), &config, context.clone());
        assert_eq!(BUILT.load(Ordering::Relaxed), 2, "an unchanged section keeps its source");
        let off = self::config("sources: {moody: {enabled: false}}");
        engine.reconfigure(only(&[&REGISTRATION]), &off, context);
        assert!(engine.tick(Timestamp::from_secs(9)).sources.is_empty());
    }

    static REQUESTS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

    /// Records its requests, and panics in its first sample.
    struct Attentive(bool);

    impl Source for Attentive {
        fn sample(&mut self, _at: Timestamp, _out: &mut Batch) -> Result<(), SourceError> {
            assert!(std::mem::replace(&mut self.0, true), "the first sample");
            Ok(())
        }

        fn control(&mut self, request: Control) {
            REQUESTS.lock().unwrap().push(format!("{request:?}"));
        }

        fn finish(&mut self) {
            REQUESTS.lock().unwrap().push("finish".to_owned());
        }
    }

    #[test]
    fn a_source_that_is_built_later_gets_the_earlier_requests() {
        static ATTENTIVE: Registration = Registration {
            name: "moody",
            about: "A source for tests.",
            on_by_default: true,
            options: &[],
            metrics: METRICS,
            needs: &[],
            check: |_| Vec::new(),
            build: |_, _| Box::new(Attentive(false)),
        };
        let context = Context {
            roots: Arc::new(Roots::under(Path::new("/nonexistent"))),
            worker: None,
            checkpoints: Arc::default(),
            past_runs: Arc::default(),
        };
        let mut engine =
            Engine::new(only(&[&ATTENTIVE]), &config(""), context.clone(), Arc::new(Events::new()));
        engine.control(Control::ReleaseGpu);
        engine.tick(Timestamp::from_secs(1));
        let off = self::config("sources: {moody: {enabled: false}}");
        engine.reconfigure(only(&[&ATTENTIVE]), &off, context.clone());
        engine.reconfigure(only(&[&ATTENTIVE]), &config(""), context);
        drop(engine);
        assert_eq!(*REQUESTS.lock().unwrap(), ["ReleaseGpu", "ReleaseGpu", "ReleaseGpu", "finish"]);
    }

    #[test]
    fn a_clock_that_is_set_changes_no_age() {
        static CALM_TURNS: AtomicU64 = AtomicU64::new(5);
        static CALM: Registration = Registration {
            name: "moody",
            about: "A source for tests.",
            on_by_default: true,
            options: &[],
            metrics: METRICS,
            needs: &[],
            check: |_| Vec::new(),
            build: |_, _| Box::new(Moody(&CALM_TURNS)),
        };
        let context = Context {
            roots: Arc::new(Roots::under(Path::new("/nonexistent"))),
            worker: None,
            checkpoints: Arc::default(),
            past_runs: Arc::default(),
        };
        let mut engine = Engine::new(only(&[&CALM]), &config(""), context, Arc::new(Events::new()));
        // The monotonic clock advances by a second; the other is set back by a day, then forward by a year.
        let day = 86_400;
        for (second, unix) in [(1, 100 * day), (2, 99 * day), (3, 465 * day)] {
            let at = Timestamp::new(Duration::from_secs(second), Duration::from_secs(unix));
            let frame = engine.tick(at);
            assert_eq!(frame.value("memwarden_sample_age_seconds", &[("source", "moody")]), Some(0.0));
            let timestamp = frame.value("memwarden_last_sample_timestamp_seconds", &[]).unwrap();
            assert!((timestamp - Duration::from_secs(unix).as_secs_f64()).abs() < 1e-6, "{timestamp}");
            assert_eq!(
                frame.value("memwarden_wave_max_bytes", &[]),
                [Some(5.0), Some(10.0), Some(50.0)][usize::try_from(second).unwrap() - 1]
            );
        }
    }
}
