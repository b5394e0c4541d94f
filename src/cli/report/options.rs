//! Options of all report commands.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use crate::app::serve;
use crate::cli::output::{Format, Output};
use crate::config::{self, Config, Override};
use crate::model::printable;
use crate::report::{Focus, Kind};

/// The shortest and the longest time between two samples, in seconds.
const SHORTEST: f64 = 0.1;
const LONGEST: f64 = 60.0;
/// Samples of a report without `--interval`: twice those that a verdict requires, with a reserve.
const SAMPLES: f64 = 150.0;
/// Samples that a verdict requires, and samples that are planned for it: some may be late.
const VERDICT: f64 = 60.0;
const PLANNED: f64 = 66.0;
/// Duration of sampling without --duration, in seconds.
const DURATION: f64 = 30.0;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Options {
    /// Time to sample: 5m, or a number of seconds [default: 30s; with --url, `oom` and `leak` report the current
    /// state of the daemon at once].
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    pub(super) duration: Option<f64>,
    /// Time between two samples, 0.1 s to 60 s [default: 1s, and less for a short duration, to take 150
    /// samples, or as many as a verdict requires].
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    pub(super) interval: Option<f64>,
    /// GPUs to report, by index or UUID, separated by commas; `all` selects every GPU.
    #[arg(long, value_name = "GPUS", value_delimiter = ',', default_value = "all")]
    pub(super) devices: Vec<String>,
    /// Process ID of a process tree; only selected trees are reported. May be given several times.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pid: Vec<u32>,
    /// Name of a workload; only selected workloads are reported. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub(super) workload: Vec<String>,
    /// Share above which a warning is printed and the exit code is 2: 90%, or 0.9.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(super) threshold: Option<f64>,
    /// Run until Ctrl-C, and write the report then. Until then, standard error shows the report of each sample if it
    /// is a terminal, otherwise a line when the verdict changes.
    #[arg(long)]
    pub(super) monitor: bool,
    #[command(flatten)]
    pub(super) output: Output<Format>,
    /// File for a chart of the report: .svg or .png.
    #[arg(long, value_name = "FILE", value_parser = crate::cli::picture::drawable)]
    pub(super) plot: Option<PathBuf>,
    /// URL of a running daemon to query instead of sampling this node, such as unix:/run/memwarden/api.sock. If it is given several
    /// times, each node gets its report, and the exit code is the worst; a daemon that does not answer is a node whose state
    /// is unknown.
    #[arg(long, value_name = "URL")]
    pub(super) url: Vec<String>,
    /// Configuration file of the daemon, for its matchers and paths; without it, the default configuration.
    #[arg(long = "config.file", value_name = "FILE", conflicts_with = "url")]
    pub(super) config_file: Option<PathBuf>,
    /// Value of any configuration option by its key; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE", conflicts_with = "url")]
    pub(super) set: Vec<String>,
}

impl Options {
    /// Seconds between two samples.
    pub(super) fn interval(&self) -> f64 {
        let duration = self.duration.unwrap_or(DURATION);
        let short = if self.monitor || self.is_remote() {
            1.0
        } else {
            (duration / SAMPLES).clamp(0.2, 1.0).min((duration / PLANNED).max(SHORTEST))
        };
        self.interval.unwrap_or(short)
    }

    /// Seconds to sample; 0 for one frame, where the daemon already has a verdict.
    pub(super) fn duration(&self, kind: Kind) -> f64 {
        let report = self.is_remote() && !self.monitor && matches!(kind, Kind::Oom | Kind::Leak);
        self.duration.unwrap_or(if report { 0.0 } else { DURATION })
    }

    /// Why a report over this duration has no verdict; absent if it can have one.
    pub(super) fn too_short(&self, kind: Kind) -> Option<String> {
        let judges = matches!(kind, Kind::Oom | Kind::Leak);
        if self.is_remote() || self.monitor || !judges {
            return None;
        }
        let (duration, interval) = (self.duration(kind), self.interval());
        let samples = (duration / interval).floor() + 1.0;
        let needed = (PLANNED * interval).ceil();
        (samples < PLANNED).then(|| {
            format!(
                "a verdict requires {VERDICT} samples in a row, and some may be late; {duration} s with an interval of {interval:.3} s give {samples}: \
                 use --duration {needed} or longer"
            )
        })
    }

    /// Whether daemons are queried.
    fn is_remote(&self) -> bool {
        !self.url.is_empty()
    }

    /// Whether the report is empty if the selected subjects do not exist.
    pub(super) fn is_narrow(&self, kind: Kind) -> bool {
        let devices = kind == Kind::Fragmentation && self.names_devices();
        !self.workload.is_empty() || !self.pid.is_empty() || devices
    }

    /// Whether GPUs were selected by index or UUID.
    pub(super) fn names_devices(&self) -> bool {
        self.devices.iter().all(|device| device != "all")
    }

    pub(super) fn selection(&self) -> String {
        let pids = self.pid.iter().map(|pid| format!("process {pid}"));
        let workloads = self.workload.iter().map(|name| format!("workload {name}"));
        let devices = self.devices.iter().filter(|_| self.names_devices()).map(|name| format!("GPU {name}"));
        pids.chain(workloads).chain(devices).collect::<Vec<_>>().join(", ")
    }

    /// The selection of the report; `trees` are the workload names of the process trees of `--pid`.
    pub(super) fn focus(&self, trees: &[String]) -> Focus {
        let devices: BTreeSet<String> = self.devices.iter().cloned().collect();
        let pids = if self.is_remote() {
            self.pid.iter().map(ToString::to_string).collect()
        } else {
            BTreeSet::new()
        };
        Focus {
            devices: self.names_devices().then_some(devices),
            workloads: self
                .workload
                .iter()
                .chain(trees)
                .map(|name| printable::escaped(name).into_owned())
                .collect(),
            pids,
        }
    }

    /// The configuration for sampling, and the workload names of the process trees of `--pid`.
    pub(super) fn config(&self) -> anyhow::Result<(Config, Vec<String>)> {
        let plain = load(self.config_file.clone(), &self.set, self.interval(), &[])?;
        if self.pid.is_empty() {
            return Ok((plain, Vec::new()));
        }
        let mut trees = Vec::new();
        for pid in &self.pid {
            let path = plain.paths.proc.join(format!("{pid}/comm"));
            let comm =
                std::fs::read_to_string(&path).with_context(|| format!("there is no process {pid}"))?;
            trees.push((*pid, format!("{}-{pid}", comm.trim().replace(printable::is_hidden, " "))));
        }
        let config = load(self.config_file.clone(), &self.set, self.interval(), &trees)?;
        Ok((config, trees.into_iter().map(|(_, name)| name).collect()))
    }
}

/// The configuration of a file, or the defaults, for a sampler at this interval in seconds that samples
/// these trees, by pid and name.
pub(in crate::cli) fn load(
    file: Option<PathBuf>,
    set: &[String],
    interval: f64,
    trees: &[(u32, String)],
) -> anyhow::Result<Config> {
    let every = Duration::from_secs_f64(interval.clamp(SHORTEST, LONGEST)).as_millis();
    let mut overrides = ["sampling.interval", "sources.gpu.interval"]
        .map(|key| Override::new("--interval", key, vec![format!("{every}ms")]))
        .to_vec();
    if !trees.is_empty() {
        let trees = trees.iter().map(|(pid, name)| format!("{pid} {name}")).collect();
        overrides.push(Override::new("--pid", "sources.workload.trees", trees));
    }
    // The default job socket belongs to the daemon; setting one of its keys enables another one.
    if !set.iter().any(|text| text.starts_with("sources.training.")) {
        let off = vec!["false".to_owned()];
        overrides.push(Override::new("this command", "sources.training.enabled", off));
    }
    overrides.extend(set_options(set)?);
    Ok(serve::load(&serve::Options { file, overrides })?)
}

/// What `--set KEY=VALUE` overrides.
pub(in crate::cli) fn set_options(set: &[String]) -> anyhow::Result<Vec<Override>> {
    let option = |text: &String| {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .with_context(|| format!("--set {text}: write KEY=VALUE, such as sampling.interval=5s"))?;
        Ok(Override::new(&format!("--set {key}"), key, vec![value.to_owned()]))
    };
    set.iter().map(option).collect()
}

/// A duration: `5m`, or a number of seconds.
pub(in crate::cli) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() => seconds,
        _ => config::duration(text)?.as_secs_f64(),
    };
    match seconds {
        seconds if seconds <= 0.0 => Err("must be more than 0 s, as in 30s".to_owned()),
        seconds if seconds > 31_536_000.0 => Err("must be at most a year".to_owned()),
        seconds => Ok(seconds),
    }
}

/// A time between two samples.
pub(in crate::cli) fn interval(text: &str) -> Result<f64, String> {
    within(seconds(text)?, SHORTEST..=LONGEST, "must be from 100ms to 60s")
}

/// The value, if it is in the range.
pub(in crate::cli) fn within(value: f64, range: RangeInclusive<f64>, why: &str) -> Result<f64, String> {
    if range.contains(&value) { Ok(value) } else { Err(why.to_owned()) }
}

/// A share: `90%` or `0.9`.
fn share(text: &str) -> Result<f64, String> {
    let (number, by) = text.strip_suffix('%').map_or((text, 1.0), |number| (number.trim(), 0.01));
    let share = number.parse::<f64>().ok().map(|number| number * by);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| format!("expected 90% or 0.9, found `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_may_have_a_unit() {
        assert_eq!([seconds("60"), seconds("5m"), seconds("0.5")], [Ok(60.0), Ok(300.0), Ok(0.5)]);
        assert!(["0", "-1", "x", "inf", "400d"].iter().all(|text| seconds(text).is_err()));
        assert_eq!([share("90%"), share("0.9"), share("1")], [Ok(0.9), Ok(0.9), Ok(1.0)]);
        assert!(["90", "x", "-1%", "101%"].iter().all(|text| share(text).is_err()));
        assert!(interval("50ms").is_err() && interval("100ms").is_ok() && interval("61").is_err());
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(args: &[&str]) -> Options {
        <Line as clap::Parser>::parse_from([&["memwarden"], args].concat()).options
    }

    #[test]
    fn a_short_watch_samples_often_enough_for_a_verdict_where_it_can() {
        let ten = options(&["--duration", "10s"]);
        assert!(ten.duration(Kind::Oom) / ten.interval() > VERDICT, "{}", ten.interval());
        assert_eq!(ten.too_short(Kind::Oom), None);
        assert_eq!([options(&[]).interval(), options(&["--duration", "5m"]).interval()], [0.2, 1.0]);
        let two = options(&["--duration", "2"]);
        let note = two.too_short(Kind::Leak).unwrap();
        assert!(
            note.contains("2 s with an interval of 0.100 s give 21") && note.contains("--duration 7 "),
            "{note}"
        );
        assert_eq!(two.too_short(Kind::Profile), None);
        assert!(options(&["--duration", "6"]).too_short(Kind::Oom).unwrap().contains("--duration 7 "));
    }

    #[test]
    fn a_daemon_that_knows_the_answer_is_asked_once() {
        let url = ["--url", "http://127.0.0.1:1"];
        let duration = |kind, more: &[&str]| options(&[&url[..], more].concat()).duration(kind);
        assert_eq!((duration(Kind::Oom, &[]), duration(Kind::Leak, &[])), (0.0, 0.0));
        assert_eq!((duration(Kind::Profile, &[]), duration(Kind::Oom, &["--monitor"])), (30.0, 30.0));
        assert_eq!(
            (duration(Kind::Oom, &["--duration", "5"]), options(&[]).duration(Kind::Oom)),
            (5.0, 30.0)
        );
    }
}
