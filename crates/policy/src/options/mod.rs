//! The section `protection` of the configuration: declared in `keys`, read here, checked in `check`.

mod check;
mod keys;
mod peers;
pub mod presets;
pub mod signals;
pub mod target;
#[cfg(test)]
pub(crate) mod tests;

pub use check::check;
pub use keys::PROTECTION;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use self::keys::{Checkpoint, ExitSaves, Host, HostLevel, Scope, Section, Signal};
use self::target::{Ask, Raise, Selector, Target};
use super::policy::{Levels, Limits, Mode, Trigger};
use super::types::marker::{self, Marker};
use super::types::run_request::Peers;
use super::types::step::{Acknowledgement, Hook, MarkerKind, SignalNumber};
use crate::model::setting::Settings;
use crate::model::units::Amount;

/// The default levels of the host, soft and hard.
const DEFAULT: [f64; 2] = [0.05, 0.02];
/// The same where GPUs use the memory of the host.
///
/// The driver of a GB10 failed to allocate with 12.7 of 119 GiB available (NVIDIA/dgx-spark-playbooks#116), after which
/// hosts hang without an OOM kill (NVIDIA/open-gpu-kernel-modules#1358), while jobs with 7 GiB available went on
/// (MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#54): twice the other levels is on either side.
const OF_POOL: [f64; 2] = [0.10, 0.04];
/// Maximum age of the guard's own readings: three times its longest interval.
const OWN_AGE: Duration = Duration::from_secs(3);
/// Maximum age of the readings of a frame, such as GPU memory: ten samples at the default interval, and three at
/// longer intervals.
fn frame_age(interval: Duration) -> Duration {
    (3 * interval).max(Duration::from_secs(10))
}

/// Maximum age of an alert: Alertmanager repeats a firing alert every few hours, and sends its resolution.
const ALERT_AGE: Duration = Duration::from_secs(6 * 3600);

/// The section `protection`; by default without a target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Protection {
    /// The most severe mode of any target.
    pub mode: Mode,
    /// Maximum number of terminations per hour on the host.
    pub max_kills_per_hour: u32,
    /// The file with the bearer token of `POST /api/v1/alerts`.
    pub alert_token: Option<PathBuf>,
    /// How the daemons of other nodes are found and asked; absent where no node is asked.
    pub peers: Option<Peers>,
    /// The file with the token that signs requests for runs.
    pub peer_token: Option<PathBuf>,
    /// Whether a client certificate that the web-config file trusts is enough to send them.
    pub peer_certificates: bool,
    /// The authorities that certify the `https://` services of webhooks; without it the distribution's.
    pub webhook_certificate: Option<PathBuf>,
    /// The socket that systemd-oomd calls before it kills; absent for none.
    pub prekill_socket: Option<PathBuf>,
    /// Whether the targets are what this process has started. Otherwise its descendants are its helpers, which are never
    /// signalled.
    pub of_command: bool,
    /// The targets whose mode is not `off`, in the order of the file.
    pub targets: Vec<Target>,
}

impl Protection {
    /// Reads a checked section; targets that [`check()`] rejects are left out. `interval` is the sampling interval.
    pub fn new(settings: &Settings, interval: Duration) -> Self {
        let section = Section::read(settings);
        let targets =
            section.targets.into_iter().filter_map(|keys| target(keys, section.mode, interval).ok());
        let targets = targets.filter(|target| target.limits.mode != Mode::Off).collect();
        Self {
            mode: section.mode,
            max_kills_per_hour: section.max_kills_per_hour,
            alert_token: section.alert_token_file,
            peer_token: section.peers.token_file.clone(),
            peer_certificates: section.peers.accept_client_certificates,
            peers: section.peers.resolve().ok().flatten(),
            webhook_certificate: section.webhook_certificate,
            prekill_socket: section.prekill_socket,
            of_command: false,
            targets,
        }
    }
}

/// A key within an entry of `targets`, and what is wrong with it.
type KeyProblem = (&'static str, String);

/// One entry of `targets`.
fn target(keys: keys::Target, most: Mode, interval: Duration) -> Result<Target, KeyProblem> {
    let limits = limits(&keys, most, frame_age(interval));
    let selector = match (keys.workload, keys.cgroup) {
        (Some(pattern), None) => Selector::Workload(pattern),
        (None, Some(pattern)) => Selector::Cgroup(pattern),
        (Some(_), Some(_)) => {
            return Err(("cgroup", "is given beside `workload`; a target has one of them".to_owned()));
        }
        (None, None) => {
            return Err(("workload", "is empty, and so is `cgroup`; a target has one of them".to_owned()));
        }
    };
    let keys::Hook { program, arguments, timeout, .. } = keys.hook;
    let keys::Raise { to, by, keep_free } = keys.raise;
    let or_nothing = |amount: Option<Amount>| amount.unwrap_or(Amount::Share(0.0));
    Ok(Target {
        name: keys.name.as_str().into(),
        selector,
        users: keys.allow_users,
        victims: keys.victims,
        ask: ask(keys.checkpoint)?,
        hook: program.map(|program| Hook { program, arguments, timeout }.into()),
        webhook: keys.webhook.map(|url| url.as_str().into()),
        memory_limit: keys.memory_limit,
        raise: to.map(|to| Raise { to, by: or_nothing(by), keep_free: or_nothing(keep_free) }),
        freeze: keys.freeze,
        alert: keys.alert.labels,
        alert_all_jobs: keys.alert.all_jobs,
        limits,
    })
}

/// How a checkpoint is requested: as the preset states, except for what is given.
fn ask(keys: Checkpoint) -> Result<Ask, KeyProblem> {
    let preset = keys.preset;
    let marker = preset.and_then(|preset| preset.marker);
    let of_preset = keys.folder.zip(marker).map(|(folder, (kind, name))| (kind, folder.join(name)));
    // A file that is given replaces the marker, and with it what completes a checkpoint.
    let file = keys.file.map(|path| (MarkerKind::Written, path)).or(of_preset);
    let file = file.map(|(kind, path)| match keys.done.unwrap_or(kind) {
        MarkerKind::Written if !marker::is_pattern(&path) => Ok(Acknowledgement::File(path)),
        kind => Marker::new(kind, &path).map(Acknowledgement::Marker),
    });
    let file = file.transpose().map_err(|what| ("checkpoint.file", what))?;
    Ok(Ask {
        signal: keys.signal.map(|signal| match signal {
            Signal::Preset => preset.map_or(SignalNumber::USR1, |preset| preset.signal),
            Signal::Number(number) => number,
        }),
        run: keys.scope == Scope::Run,
        ranks: keys.ranks.or(preset.map(|preset| preset.ranks)),
        file: file.map(Arc::new),
        touch: keys.touch.map(|path| path.as_path().into()),
        job: keys.job,
    })
}

fn limits(keys: &keys::Target, most: Mode, frame_age: Duration) -> Limits {
    let levels = |soft: Option<Amount>, hard, max_age| soft.map(|soft| Levels { soft, hard, max_age });
    let host_levels = |[soft, hard]: [f64; 2]| {
        let Host { soft: soft_key, hard: hard_key } = keys.host;
        levels(soft_key.map(|level| level.or(soft)), hard_key.map(|level| level.or(hard)), OWN_AGE)
    };
    // A written soft level may be below the hard one of a pool.
    let has_default = keys.host.soft == Some(HostLevel::Default);
    let trigger = |max_state, max_age| Trigger { max_state, max_age };
    let keys::Target { cgroup_headroom, gpu, allocator, numa_nodes, forecast, alert, checkpoint, .. } = keys;
    Limits {
        mode: keys.mode.unwrap_or(most).min(most),
        max_state: keys.max_state,
        levels: [
            host_levels(DEFAULT),
            levels(cgroup_headroom.soft, cgroup_headroom.hard, OWN_AGE),
            levels(gpu.soft, gpu.hard, frame_age),
            levels(allocator.soft, allocator.hard, frame_age),
            levels(numa_nodes.soft, numa_nodes.hard, OWN_AGE),
            levels(keys.memory_high, None, OWN_AGE),
        ],
        of_pool: host_levels(if has_default { OF_POOL } else { DEFAULT }),
        swap: keys.swap,
        hysteresis: keys.hysteresis.unwrap_or(Amount::Share(0.0)),
        for_time: keys.r#for,
        clear_for: keys.clear_for,
        forecast: trigger(forecast.max_state, frame_age),
        warn_within: forecast.warn_within,
        soft_within: forecast.soft_within,
        leak: trigger(keys.leak.max_state, frame_age),
        alert: match alert.labels.is_empty() {
            true => trigger(None, ALERT_AGE),
            false => trigger(alert.max_state, ALERT_AGE),
        },
        hook_wait: keys.hook.wait,
        raises: keys.raise.to.is_some(),
        grace: checkpoint.grace,
        longest_grace: checkpoint.longest_grace,
        request_interval: checkpoint.request_interval,
        exit_saves: match checkpoint.exit_saves {
            ExitSaves::Preset => checkpoint.preset.is_some_and(|preset| preset.exits),
            exit_saves => exit_saves == ExitSaves::Yes,
        },
        kill_margin: keys.kill_margin,
        term_grace: keys.term_grace,
        verify_timeout: keys.verify_timeout,
        cooldown: keys.cooldown,
        max_kills_per_hour: keys.max_kills_per_hour,
        hard_ignores_rate: keys.hard_ignores_limits,
    }
}
