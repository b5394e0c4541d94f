//! The keys of the section `protection`, with their help and defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::peers::Peers;
use super::presets::{self, AskedRanks, Preset};
use super::signals;
use super::target::Victims;
use crate::model::setting::{self, Opt, OptKind, Setting, Value};
use crate::model::units::Amount;
use crate::policy::{Mode, Rung, SwapCounts};
use crate::types::step::{MarkerKind, SignalNumber};

/// The section `protection`. Only configured targets are acted on, and only when both the target's mode and this mode
/// are `enforce`.
pub static PROTECTION: Opt = Opt::new::<Section>(
    "protection",
    "Protection: the actions taken before memory is exhausted. Only configured targets are acted on, and only when both this mode and the target's mode are `enforce`.",
    "",
    None,
);

crate::options! {
    /// The section `protection`.
    pub(super) struct Section {
        /// Most severe mode of all targets: `off`, `observe` (evaluate the policy, expose and log its decisions, and do
        /// not act) or `enforce`.
        mode: Mode = observe;
        /// Maximum number of times per hour that protection terminates jobs on this host. Users with jobs share it
        /// equally, each with at least one as long as one is left; targets of a user whose share is used up are disarmed
        /// until the hour has passed.
        max_kills_per_hour: u32 = 5 in 0..=100;
        /// File with the bearer token of at least 16 bytes that `POST /api/v1/alerts` requires (`Authorization: Bearer`),
        /// readable and writable by its owner only. Without it, alerts are accepted only if web.config_file configures
        /// users.
        alert_token_file: Option<PathBuf>;
        /// File with the certificates of the authorities that certify the `https://` services of webhooks, PEM; empty
        /// uses the distribution's.
        webhook_certificate: Option<PathBuf>;
        /// Daemons of the other nodes of a run, which are asked for a checkpoint too where a target has the scope `run`,
        /// and whose requests are accepted. Without a token or accepted certificates, every request is refused.
        peers: Peers;
        /// Socket that systemd-oomd of systemd 260 or later calls before it kills a cgroup, such as
        /// `/run/systemd/oomd.prekill.hook/memwarden`: a checkpoint of the targets in the cgroup is requested, and the
        /// kill waits for it for at most PrekillHookTimeoutSec= of oomd.conf. Empty opens none.
        prekill_socket: Option<PathBuf>;
        /// Targets: the workloads or cgroups that are protected. When the host runs short of memory, targets are acted
        /// on in this order.
        targets: Vec<Target>;
    }

    /// One target.
    pub(super) struct Target {
        /// Name of the target in metrics, logs and incidents.
        name: String;
        /// Mode of the target: `off`, `observe` or `enforce`; empty uses protection.mode, which also limits it.
        mode: Option<Mode>;
        /// Pattern of the workloads in the target, compared with the label `workload`; `*` and `?` are wildcards.
        workload: Option<String>;
        /// Pattern of the cgroups in the target, descendants included, compared with the path in the memory controller's
        /// hierarchy; `*` and `?` are wildcards.
        cgroup: Option<String>;
        /// Users, by name or number, whose processes may be signalled. Processes of all other users are never acted on.
        allow_users: Vec<String>;
        /// Processes to terminate: the `whole` target, its `largest` process or its `newest` process, each with its
        /// descendants.
        victims: Victims = whole;
        /// Last step of the escalation, whatever triggers it: `warn`, `soft` (the hook, raising the limit, freezing),
        /// `checkpoint`, `term` or `kill`.
        max_state: Option<Rung> = kill;
        /// Levels of the host's available memory.
        host: Host;
        /// Limit of the anonymous and shared memory of the job's processes, as a size or a percentage of the host's memory, where
        /// its cgroup has none, or a larger one: it counts as a limit of the cgroup. Pages that the processes share count once,
        /// files that they map do not count.
        memory_limit: Option<Amount>;
        /// Levels of the memory left below the smallest limit on the path of the target's cgroup, or below `memory_limit`;
        /// page cache counts as left.
        cgroup_headroom: CgroupHeadroom;
        /// Levels of the available memory of the NUMA nodes that the cpuset of the job allows, where these are not all: the kernel ends
        /// a process that finds no memory there, whatever is free on other nodes.
        numa_nodes: NumaNodes;
        /// Memory left below the smallest `memory.high` on the path of the target's cgroup at or below which a checkpoint is requested,
        /// as a size or a percentage of it; page cache and swap count as left, and empty disables the level. Above `memory.high` the
        /// kernel throttles processes and ends none, and neither does this level.
        memory_high: Option<Amount> = "5%";
        /// Levels of the free memory of the fullest GPU that the target uses. Disabled by default, because frameworks
        /// reserve nearly all GPU memory.
        gpu: Left;
        /// Levels of the memory that the job's allocator can still allocate, where the job reports it. Disabled by
        /// default.
        allocator: Left;
        /// Whether free swap counts as memory that is left: `count` (a level is crossed where memory and swap are both at or below it),
        /// `warn` (the same, and a job that has only swap left is warned of), or `ignore` (a job that should not swap: the soft level
        /// is one of memory alone, the hard level still counts swap).
        swap: SwapCounts = count;
        /// Memory above the soft level that must be left before the shortage counts as over, as a size or a percentage.
        hysteresis: Option<Amount> = "2%";
        /// Time for which the soft level must be crossed, or exhaustion predicted, before the escalation begins. Where the soft
        /// level of the cgroup is crossed, the escalation to the state `checkpoint` begins after a tenth of the time to exhaustion
        /// at the current rate, if that is shorter.
        r#for: Duration = 2s in 0s..=1h;
        /// Time for which the shortage must be over before a warning ends.
        clear_for: Duration = 30s in 0s..=1h;
        /// Trigger: the forecast of exhaustion by the analyzers; without a recent forecast, by the current rate.
        forecast: Forecast;
        /// Trigger: a confirmed memory leak in the target.
        leak: Leak;
        /// Trigger: alerts that Alertmanager sends to `POST /api/v1/alerts`.
        alert: Alert;
        /// Hook: a program that is started, without a shell, at the soft level.
        hook: Hook;
        /// Raising the cgroup limit at the soft level, before the job is asked for anything. Only limits of the target's
        /// own cgroup are raised, where all processes in it belong to the target. The limit stays raised.
        raise: Raise;
        /// Whether the target's cgroup is frozen while the hook runs; it is thawed before a checkpoint is requested. Needs
        /// `hook.wait`, and `state.file`, from which a daemon that starts after a crash knows what to thaw.
        freeze: bool = false;
        /// Checkpoint request to the job: one signal per incident, sent only to processes with a handler for it.
        checkpoint: Checkpoint;
        /// Time between SIGTERM and SIGKILL.
        term_grace: Duration = 10s in 0s..=1h;
        /// Time to exhaustion at the current rate, below the soft level, under which the processes are killed
        /// immediately.
        kill_margin: Duration = 2s in 0s..=1h;
        /// Time that killed processes have to end, in addition to one second for each GiB of their memory.
        verify_timeout: Duration = 10s in 0s..=1h;
        /// Time after an incident in which the target's protection does not act.
        cooldown: Duration = 15s in 0s..=1h;
        /// Maximum number of times per hour that protection terminates this target. Its users share it equally; a user
        /// who comes when others have used it up has a share too, within the limit of the host.
        max_kills_per_hour: u32 = 3 in 0..=100;
        /// Whether the hard level kills even after the limits max_kills_per_hour are used up.
        hard_ignores_limits: bool = false;
        /// URL (`http://` or `https://`) to which each state transition is sent as JSON; empty sends none. Logs and
        /// records contain only its host.
        webhook: Option<String>;
    }

    /// Levels of the host.
    pub(super) struct Host {
        /// Available memory of the host at or below which the escalation begins, as a size or a percentage of the total;
        /// `default` is 5%, and 10% where GPUs use the memory of the host; empty disables the level.
        soft: Option<HostLevel> = default;
        /// Available memory of the host at or below which the target's processes are killed immediately, as a size or a
        /// percentage of the total; `default` is 2%, and 4% where GPUs use the memory of the host and `soft` is the default too; empty
        /// disables the level.
        hard: Option<HostLevel> = default;
    }

    /// Levels of a cgroup.
    pub(super) struct CgroupHeadroom {
        /// Memory left below the cgroup limit at or below which the escalation begins, as a size or a percentage of the
        /// limit; empty disables the level.
        soft: Option<Amount> = "10%";
        /// Memory left below the cgroup limit at or below which the target's processes are killed immediately, as a size
        /// or a percentage of the limit; empty disables the level.
        hard: Option<Amount> = "3%";
    }

    /// Levels of NUMA nodes.
    pub(super) struct NumaNodes {
        /// Available memory of the nodes at or below which the escalation begins, as a size or a percentage of their total; empty
        /// disables the level.
        soft: Option<Amount> = "5%";
        /// Available memory of the nodes at or below which the target's processes are killed immediately, as a size or a percentage
        /// of their total; empty disables the level.
        hard: Option<Amount> = "2%";
    }

    /// Levels of other memory.
    pub(super) struct Left {
        /// Memory left at or below which the escalation begins, as a size or a percentage of the total; empty disables
        /// the level.
        soft: Option<Amount>;
        /// Memory left at or below which the target's processes are killed immediately, as a size or a percentage of the
        /// total; empty disables the level.
        hard: Option<Amount>;
    }

    /// The trigger by the forecast.
    pub(super) struct Forecast {
        /// Last step of the escalation that a forecast alone can trigger.
        max_state: Option<Rung> = checkpoint;
        /// Predicted time to exhaustion below which a warning is issued.
        warn_within: Duration = 5m in 0s..=1d;
        /// Predicted time to exhaustion below which the escalation begins; at least the time that a checkpoint takes,
        /// plus a margin.
        soft_within: Duration = 90s in 0s..=1d;
    }

    /// The trigger by a leak.
    pub(super) struct Leak {
        /// Last step of the escalation that a leak alone can trigger.
        max_state: Option<Rung> = warn;
    }

    /// The trigger by an alert.
    pub(super) struct Alert {
        /// Labels that an alert must have to match this target, such as `alertname: NodeMemoryLow`; `*` and `?` are
        /// wildcards. Empty matches no alert.
        labels: BTreeMap<String, String>;
        /// Last step of the escalation that an alert alone can trigger.
        max_state: Option<Rung> = checkpoint;
        /// Whether an alert without the labels `workload` and `user` can lead beyond `warn`, for every job of the
        /// target. An alert with such a label, or with `run`, is for the jobs of that name only.
        all_jobs: bool = false;
    }

    /// The hook.
    pub(super) struct Hook {
        /// Absolute path of the hook's program; the program and its folder must belong to root or the daemon's user and
        /// be writable by nobody else. Empty disables the hook.
        program: Option<PathBuf>;
        /// Arguments of the hook's program.
        arguments: Vec<String>;
        /// Time after which the hook and all processes that it started are killed.
        timeout: Duration = 5s in 100ms..=1m;
        /// Time that the hook has to free memory before a checkpoint is requested.
        wait: Duration = 0s in 0s..=1h;
    }

    /// Raising the limit.
    pub(super) struct Raise {
        /// Limit up to which it is raised, as a size or a percentage of the host's memory; empty disables raising.
        to: Option<Amount>;
        /// Amount by which it is raised at a time, as a size or a percentage of the limit; more where the save that the job predicts
        /// needs it.
        by: Option<Amount> = "10%";
        /// Memory of the host that must stay available after the target has used the raised limit, as a size or a
        /// percentage of the total.
        keep_free: Option<Amount> = "10%";
    }

    /// The checkpoint request.
    pub(super) struct Checkpoint {
        /// Whether only this `node` is asked for a checkpoint, or the daemons of all nodes of the job's `run`
        /// (protection.peers). The request is sent where the run of the job is known.
        scope: Scope = node;
        /// Framework of the job, which sets the signal, the ranks that receive it, the marker of a complete checkpoint,
        /// and whether the job ends after saving. Values given beside it override it.
        preset: Option<&'static Preset> = none;
        /// Signal that requests a checkpoint; `preset` is the preset's, and USR1 without a preset; empty sends none.
        signal: Option<Signal> = preset;
        /// Ranks that receive the signal, and no other process: `any` one of the node, the global rank 0 (`first`), or
        /// `all`; `preset` is the preset's, and without a preset all ranks, or all processes of the job if no rank is
        /// known.
        ranks: Option<AskedRanks> = preset;
        /// File that is created, or whose time is set, with the rights of the job's user and as the job sees the path,
        /// for a job that watches a file; empty touches none.
        touch: Option<PathBuf>;
        /// Folder in which the job saves its checkpoints, in which the preset's marker is looked for; empty uses no
        /// marker of the preset.
        folder: Option<PathBuf>;
        /// File that the job writes when its checkpoint is saved (the acknowledgement), instead of the preset's marker;
        /// its last two components can contain the wildcards `*` and `?`. The content `saving` extends the time limit. A
        /// checkpoint file that the job replaces atomically can be used. The file must belong to a user of the target,
        /// and is not read through a link that a user created.
        file: Option<PathBuf>;
        /// What completes a checkpoint: the file is `written`, the target of the symbolic `link` changes, or all files
        /// that appear after the request are `removed` again; `preset` is the preset's, and `written` without a preset.
        done: Option<MarkerKind> = preset;
        /// Whether a job that ends after the request has saved its checkpoint: `yes`, `no`, or the `preset`'s, and `no`
        /// without a preset.
        exit_saves: ExitSaves = preset;
        /// Whether `checkpoint` messages on the job socket count as acknowledgement.
        job: bool = true;
        /// Time limit for a checkpoint while the job reports no progress; at least the longest training step plus the
        /// time to save a checkpoint.
        grace: Duration = 60s in 0s..=1d;
        /// Time limit for a checkpoint while the job reports that it is saving.
        longest_grace: Duration = 10m in 0s..=1d;
        /// Minimum time between two checkpoint requests, over all incidents.
        request_interval: Duration = 5m in 0s..=1d;
    }
}

crate::choice! {
    /// The nodes that are asked for a checkpoint.
    pub(super) enum Scope {
        #[default]
        Node = "node",
        Run = "run",
    }

    /// Whether a job that ends has saved its checkpoint.
    pub(super) enum ExitSaves {
        /// As the preset states.
        #[default]
        Preset = "preset",
        Yes = "yes",
        No = "no",
    }
}

crate::words!(Mode, Mode::LABELS, Mode::of_label);
// With the first word, a trigger is ignored.
crate::words!(Option<Rung>, &words::<6>("ignore", Rung::LABELS), Rung::of_label);
crate::words!(SwapCounts, SwapCounts::LABELS, SwapCounts::of_label);
crate::words!(Victims, Victims::LABELS, Victims::of_label);
crate::words!(Option<AskedRanks>, &words::<4>("preset", AskedRanks::LABELS), AskedRanks::of_label);
crate::words!(Option<MarkerKind>, &words::<4>("preset", MarkerKind::LABELS), MarkerKind::of_label);
crate::words!(Option<&'static Preset>, &words::<9>("none", &presets::NAMES), presets::named);

/// The words of an option: the one that stands for none of the names, and the names, which are one less than `N`.
const fn words<const N: usize>(none: &'static str, names: &[&'static str]) -> [&'static str; N] {
    assert!(names.len() + 1 == N, "the number of words");
    let (mut words, mut place) = ([none; N], 1);
    while place < N {
        words[place] = names[place - 1];
        place += 1;
    }
    words
}

/// The signal that requests a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// That of the preset.
    Preset,
    /// The configured one.
    Number(SignalNumber),
}

/// A level of the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum HostLevel {
    /// That of the kind of host.
    Default,
    Given(Amount),
}

impl HostLevel {
    /// The level where the default is this share of the total.
    pub(super) fn or(self, share: f64) -> Amount {
        match self {
            Self::Default => Amount::Share(share),
            Self::Given(amount) => amount,
        }
    }
}

impl Setting for HostLevel {
    const KIND: OptKind = OptKind::Text;

    fn of(value: &Value) -> Result<Self, String> {
        match String::of(value)?.as_str() {
            "default" => Ok(Self::Default),
            text => setting::amount(text).map(Self::Given),
        }
    }
}

impl Setting for Signal {
    const KIND: OptKind = OptKind::Text;

    fn of(value: &Value) -> Result<Self, String> {
        match String::of(value)?.as_str() {
            "preset" => Ok(Self::Preset),
            name => signals::by_name(name).map(Self::Number),
        }
    }
}
