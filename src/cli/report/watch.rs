//! One report from its first sample to its exit code; the same for all of them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::chart;
use super::frame_source::FrameSource;
use super::options::Options;
use super::screen::{Screen, bar};
use crate::cli::out;
use crate::cli::output::Format;
use crate::host::clock;
use crate::report::{About, Kind, Page, Recorder, ReportOutput, build};

/// The exit code if the threshold is exceeded.
const ABOVE: u8 = 2;
/// The exit code if the threshold is not exceeded, and part of the selection is not visible.
const UNSEEN: u8 = 3;
/// The number of consecutive failed requests after which the report ends.
const FAILURES: u32 = 5;

/// Samples for the duration, prints the report, and returns the exit code.
pub(super) fn run(kind: Kind, options: &Options) -> anyhow::Result<ExitCode> {
    options.check(kind)?;
    if let Some(why) = options.too_short(kind) {
        out::note(&format!("note: {why}\n"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let (recorder, about) = runtime.block_on(watch(kind, options))?;
    if let Some(problem) = recorder.absent_devices(true) {
        bail!(problem);
    }
    let report = build(kind, &recorder, &about, options.output.page());
    if !report.found && options.is_narrow(kind) {
        bail!("nothing was seen of {}", wanted(options));
    }
    match options.output.format() {
        Format::Text => options.output.colored(&report.text)?,
        Format::Json => options.output.value(&report.json)?,
    }
    if let Some(path) = &options.plot {
        chart::write(&report, path)?;
    }
    // A host without data is not healthy.
    let nothing = !report.found && matches!(kind, Kind::Oom | Kind::Profile);
    Ok(match (report.alarm, report.unseen || nothing) {
        (true, _) => ExitCode::from(ABOVE),
        (false, true) => ExitCode::from(UNSEEN),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// The selection as text.
fn wanted(options: &Options) -> String {
    let pids = options.pid.iter().map(|pid| format!("process {pid}"));
    let workloads = options.workload.iter().map(|name| format!("workload {name}"));
    let devices =
        options.devices.iter().filter(|_| options.names_devices()).map(|name| format!("GPU {name}"));
    pids.chain(workloads).chain(devices).collect::<Vec<_>>().join(", ")
}

async fn watch(kind: Kind, options: &Options) -> anyhow::Result<(Recorder, About)> {
    let (mut frame_source, focus) = FrameSource::open(options)?;
    let mut recorder = Recorder::new(focus);
    let interval = Duration::from_secs_f64(options.interval());
    let duration = options.duration(kind);
    let mut about = About {
        daemon: options.url.clone().unwrap_or_default(),
        interval_seconds: interval.as_secs_f64(),
        threshold: options.threshold,
        remarks: Vec::new(),
    };
    let mut stop = Stop::listen().context("cannot listen for signals")?;
    let mut screen = Screen::new();
    let mut lines = Lines::default();
    let begun = clock::now();
    let mut due = begun;
    let mut failures = 0;
    loop {
        match frame_source.look().await {
            Ok(frame) => {
                recorder.take(frame);
                failures = 0;
                if let Some(problem) = recorder.absent_devices(false) {
                    screen.clear();
                    bail!(problem);
                }
            }
            Err(error) if recorder.samples() == 0 => return Err(error),
            Err(error) => {
                failures += 1;
                about.remarks.retain(|remark| !remark.starts_with("after "));
                let after = clock::now().since(begun).as_secs_f64();
                about.remarks.push(format!("after {after:.0} s: {error:#}"));
            }
        }
        let passed = clock::now().since(begun).as_secs_f64();
        if screen.is_live() {
            let report = build(kind, &recorder, &about, screen.page());
            screen.show(&report.text, &progress(options, duration, passed));
        } else if options.monitor {
            lines.write(&build(kind, &recorder, &about, Page::default()), recorder.seconds());
        }
        let over = !options.monitor && passed >= duration;
        if over || failures >= FAILURES {
            break;
        }
        due = due.plus(interval);
        let mut left = due.since(clock::now());
        if left.is_zero() {
            // Missed samples are skipped.
            due = clock::now();
            left = Duration::from_millis(1);
        }
        let until_end = Duration::from_secs_f64((duration - passed).max(0.001));
        let wait = if options.monitor { left } else { left.min(until_end) };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.asked() => {
                if !options.monitor {
                    about.remarks.push(format!("ended early, after {passed:.0} s of {duration:.0} s"));
                }
                break;
            }
        }
    }
    screen.clear();
    Ok((recorder, about))
}

fn progress(options: &Options, duration: f64, passed: f64) -> String {
    if options.monitor {
        return format!("{passed:.0} s; Ctrl-C ends it");
    }
    let share = if duration > 0.0 { passed / duration } else { 1.0 };
    format!("{} {passed:.0} s of {duration:.0} s; Ctrl-C ends it early", bar(share))
}

/// The lines of a report without end, if standard error is not a terminal.
#[derive(Default)]
struct Lines {
    last: String,
}

impl Lines {
    /// Writes a line if the verdict has changed.
    fn write(&mut self, report: &ReportOutput, seconds: f64) {
        // The numbers in a verdict change with each sample; only its words are compared.
        let words: String = report.plot.subtitle.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        if words != self.last {
            self.last = words;
            out::note(&format!("{seconds:.0} s: {}\n", report.plot.subtitle));
        }
    }
}

/// The signals that end a report early.
struct Stop {
    signals: [Signal; 3],
}

impl Stop {
    fn listen() -> std::io::Result<Self> {
        let listen = |kind| signal(kind);
        Ok(Self {
            signals: [
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
            ],
        })
    }

    async fn asked(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
