//! The section `protection` of the configuration: declared in `keys`, read here, checked in `check`.

mod check;
mod keys;
mod peers;
pub mod presets;
pub mod signals;
pub mod target;
#[cfg(test)]
mod tests;

pub use check::check;
pub use keys::PROTECTION;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use self::presets::AskedRanks;
use self::target::{Ask, Raise, Selector, Target, Victims};
use super::policy::{Levels, Limits, MaxState, Mode, Trigger};
use super::types::marker::{self, Marker};
use super::types::run_request::Peers;
use super::types::step::{Acknowledgement, Hook, MarkerKind, SignalNumber};
use crate::model::setting::{Opt, Settings};
use crate::model::units::Amount;

/// Maximum age of the guard's own readings: three times its longest interval.
const OWN_AGE: Duration = Duration::from_secs(3);
/// Maximum age of the readings of a frame, such as GPU memory: ten samples at the default interval, and three at
/// longer intervals.
fn frame_age(interval: Duration) -> Duration {
    (3 * interval).max(Duration::from_secs(10))
}

/// Maximum age of an alert: Alertmanager repeats a firing alert every few hours, and sends its resolution.
const ALERT_AGE: Duration = Duration::from_secs(6 * 3600);

/// The section `protection`.
#[derive(Clone, Debug, PartialEq)]
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
    /// The targets whose mode is not `off`, in the order of the file.
    pub targets: Vec<Target>,
}

impl Default for Protection {
    /// No target.
    fn default() -> Self {
        Self {
            mode: Mode::Off,
            max_kills_per_hour: 0,
            alert_token: None,
            peers: None,
            peer_token: None,
            peer_certificates: false,
            webhook_certificate: None,
            targets: Vec::new(),
        }
    }
}

impl Protection {
    /// Reads a checked section; targets that [`check()`] rejects are left out. `interval` is the sampling interval.
    pub fn new(settings: &Settings, interval: Duration) -> Self {
        let mode = Mode::of(&settings.choice(&keys::MODE)).unwrap_or(Mode::Observe);
        let count = |opt| u32::try_from(settings.count(opt)).unwrap_or(u32::MAX);
        let sections = settings.sections(&keys::TARGETS);
        let peer_section = settings.section(&peers::PEERS);
        let targets = sections.iter().filter_map(|section| target(section, mode, interval).ok());
        Self {
            mode,
            max_kills_per_hour: count(&keys::HOST_MAX_KILLS),
            alert_token: settings.path(&keys::ALERT_TOKEN),
            peers: peers::peers(&peer_section).ok().flatten(),
            peer_token: peer_section.path(&peers::TOKEN),
            peer_certificates: peer_section.bool(&peers::ACCEPT),
            webhook_certificate: settings.path(&keys::WEBHOOK_TRUST),
            targets: targets.filter(|target| target.limits.mode != Mode::Off).collect(),
        }
    }
}

/// A key within an entry of `targets`, and what is wrong with it.
type KeyProblem = (&'static str, String);

/// One entry of `targets`.
fn target(section: &Settings, most: Mode, interval: Duration) -> Result<Target, KeyProblem> {
    let selector = match (section.text(&keys::WORKLOAD), section.text(&keys::CGROUP)) {
        (Some(pattern), None) => Selector::Workload(pattern),
        (None, Some(pattern)) => Selector::Cgroup(pattern),
        (Some(_), Some(_)) => {
            return Err((
                keys::CGROUP.key,
                "is given beside `workload`; a target has one of them".to_owned(),
            ));
        }
        (None, None) => {
            return Err((
                keys::WORKLOAD.key,
                "is empty, and so is `cgroup`; a target has one of them".to_owned(),
            ));
        }
    };
    let hook = section.section(&keys::HOOK);
    let alert = section.section(&keys::ALERT);
    Ok(Target {
        name: section.text(&keys::NAME).unwrap_or_default().as_str().into(),
        selector,
        users: section.texts(&keys::USERS),
        victims: Victims::of(&section.choice(&keys::VICTIMS)).unwrap_or(Victims::Whole),
        ask: ask(&section.section(&keys::CHECKPOINT))?,
        hook: hook.path(&keys::PROGRAM).map(|program| {
            Hook { program, arguments: hook.texts(&keys::ARGUMENTS), timeout: hook.duration(&keys::TIMEOUT) }
                .into()
        }),
        webhook: section.text(&keys::WEBHOOK).map(|url| url.as_str().into()),
        raise: raise(&section.section(&keys::RAISE)),
        freeze: section.bool(&keys::FREEZE),
        alert: alert.map(&keys::LABELS).into_iter().collect(),
        alert_all_jobs: alert.bool(&keys::ALL_JOBS),
        limits: limits(section, most, frame_age(interval)),
    })
}

/// How a checkpoint is requested: as the preset states, except for what is given.
fn ask(section: &Settings) -> Result<Ask, KeyProblem> {
    let preset = presets::named(&section.choice(&keys::PRESET));
    let signal = match section.text(&keys::SIGNAL).as_deref() {
        Some("preset") => Some(preset.map_or(SignalNumber::USR1, |preset| preset.signal)),
        Some(name) => Some(signals::by_name(name).map_err(|what| ("checkpoint.signal", what))?),
        None => None,
    };
    let given = presets::marker_kind(&section.choice(&keys::DONE));
    let marker = preset.and_then(|preset| preset.marker);
    let of_preset = section.path(&keys::FOLDER).zip(marker);
    // A file that is given replaces the marker, and with it what completes a checkpoint.
    let file = section.path(&keys::ACK_FILE).map(|path| (MarkerKind::Written, path));
    let file = file.or_else(|| of_preset.map(|(folder, (kind, name))| (kind, folder.join(name))));
    let file = file.map(|(kind, path)| (given.unwrap_or(kind), path)).map(|(kind, path)| match kind {
        MarkerKind::Written if !marker::is_pattern(&path) => Ok(Acknowledgement::File(path)),
        kind => Marker::new(kind, &path).map(Acknowledgement::Marker),
    });
    let file = file.transpose().map_err(|what| ("checkpoint.file", what))?;
    Ok(Ask {
        signal,
        run: section.choice(&keys::SCOPE) == "run",
        ranks: AskedRanks::of(&section.choice(&keys::RANKS)).or(preset.map(|preset| preset.ranks)),
        file: file.map(Arc::new),
        touch: section.path(&keys::TOUCH).map(|path| path.as_path().into()),
        job: section.bool(&keys::ACK_JOB),
    })
}

fn raise(section: &Settings) -> Option<Raise> {
    let nothing = Amount::Share(0.0);
    let amount = |opt| section.amount(opt);
    let (by, keep_free) = (amount(&keys::RAISE_BY), amount(&keys::KEEP_FREE));
    amount(&keys::RAISE_TO).map(|to| Raise {
        to,
        by: by.unwrap_or(nothing),
        keep_free: keep_free.unwrap_or(nothing),
    })
}

fn limits(section: &Settings, most: Mode, frame_age: Duration) -> Limits {
    let sub = |opt: &'static Opt| section.section(opt);
    let levels = |opt: &'static Opt, soft: &'static Opt, hard: &'static Opt, max_age| {
        let levels = sub(opt);
        levels.amount(soft).map(|soft| Levels { soft, hard: levels.amount(hard), max_age })
    };
    let max_state = |section: &Settings, opt| MaxState::of(&section.choice(opt)).unwrap_or(MaxState::Ignore);
    let trigger = |section: &Settings, opt, max_age| Trigger { max_state: max_state(section, opt), max_age };
    let (forecast, checkpoint) = (sub(&keys::FORECAST), sub(&keys::CHECKPOINT));
    let (leak, alert) = (sub(&keys::LEAK), sub(&keys::ALERT));
    let own = Mode::of(&section.choice(&keys::TARGET_MODE)).unwrap_or(most);
    Limits {
        mode: own.min(most),
        max_state: max_state(section, &keys::MAX_STATE),
        levels: [
            levels(&keys::HOST, &keys::HOST_SOFT, &keys::HOST_HARD, OWN_AGE),
            levels(&keys::CGROUP_HEADROOM, &keys::GROUP_SOFT, &keys::GROUP_HARD, OWN_AGE),
            levels(&keys::GPU, &keys::OTHER_SOFT, &keys::OTHER_HARD, frame_age),
            levels(&keys::ALLOCATOR, &keys::OTHER_SOFT, &keys::OTHER_HARD, frame_age),
        ],
        hysteresis: section.amount(&keys::HYSTERESIS).unwrap_or(Amount::Share(0.0)),
        for_time: section.duration(&keys::FOR),
        clear_for: section.duration(&keys::CLEAR_FOR),
        forecast: trigger(&forecast, &keys::FORECAST_MAX_STATE, frame_age),
        warn_within: forecast.duration(&keys::WARN_WITHIN),
        soft_within: forecast.duration(&keys::SOFT_WITHIN),
        leak: trigger(&leak, &keys::LEAK_MAX_STATE, frame_age),
        alert: match alert.map(&keys::LABELS).is_empty() {
            true => Trigger { max_state: MaxState::Ignore, max_age: ALERT_AGE },
            false => trigger(&alert, &keys::ALERT_MAX_STATE, ALERT_AGE),
        },
        hook_wait: sub(&keys::HOOK).duration(&keys::HOOK_WAIT),
        grace: checkpoint.duration(&keys::GRACE),
        longest_grace: checkpoint.duration(&keys::LONGEST_GRACE),
        request_interval: checkpoint.duration(&keys::REQUEST_INTERVAL),
        exit_saves: match checkpoint.choice(&keys::EXIT_SAVES).as_str() {
            "preset" => presets::named(&checkpoint.choice(&keys::PRESET)).is_some_and(|preset| preset.exits),
            word => word == "yes",
        },
        kill_margin: section.duration(&keys::KILL_MARGIN),
        term_grace: section.duration(&keys::TERM_GRACE),
        verify_timeout: section.duration(&keys::VERIFY_TIMEOUT),
        cooldown: section.duration(&keys::COOLDOWN),
        max_kills_per_hour: u32::try_from(section.count(&keys::TARGET_MAX_KILLS)).unwrap_or(u32::MAX),
        hard_ignores_rate: section.bool(&keys::HARD_IGNORES_RATE),
    }
}
