//! The keys of the section `protection`, with their help and defaults.

use std::time::Duration;

use super::peers::PEERS;
use super::presets::{self, AskedRanks};
use super::target::Victims;
use crate::model::setting::{Opt, OptKind, seconds};
use crate::protection::policy::{MaxState, Mode};

macro_rules! opts {
    ($($(#[doc = $help:literal])+ $id:ident: $key:literal, $kind:expr, $default:literal;)+) => {
        $(pub(super) static $id: Opt = Opt { key: $key, help: concat!($($help),+), kind: $kind, default: $default };)+
    };
}

/// The section `protection`. Only configured targets are acted on, and only when both the target's mode and this mode
/// are `enforce`.
pub static PROTECTION: Opt = Opt {
    key: "protection",
    help: "Protection: the actions taken before memory is exhausted. Only configured targets are acted on, and only when both this mode and the target's mode are `enforce`.",
    kind: OptKind::Section(&[&MODE, &HOST_MAX_KILLS, &ALERT_TOKEN, &WEBHOOK_TRUST, &PEERS, &TARGETS]),
    default: "",
};

const LONG: OptKind = seconds(0, 86_400);
const SHORT: OptKind = OptKind::Duration(Duration::ZERO, Duration::from_secs(3600));

opts! {
    /// Most severe mode of all targets: `off`, `observe` (evaluate the policy, expose and log its decisions, and do not act) or `enforce`.
    MODE: "mode", OptKind::Choice(Mode::WORDS), "observe";
    /// Maximum number of times per hour that protection terminates jobs on this host. Users with jobs share it equally, each with at least one as long as one is left; targets of a user whose share is used up are disarmed until the hour has passed.
    HOST_MAX_KILLS: "max_kills_per_hour", OptKind::Count(0, 100), "5";
    /// File with the bearer token of at least 16 bytes that `POST /api/v1/alerts` requires (`Authorization: Bearer`), readable and writable by its owner only. Without it, alerts are accepted only if web.config_file configures users.
    ALERT_TOKEN: "alert_token_file", OptKind::Path, "\"\"";
    /// File with the certificates of the authorities that certify the `https://` services of webhooks, PEM; empty uses the distribution's.
    WEBHOOK_TRUST: "webhook_certificate", OptKind::Path, "\"\"";
    /// Targets: the workloads or cgroups that are protected. When the host runs short of memory, targets are acted on in this order.
    TARGETS: "targets", OptKind::Sections(&[
        &NAME, &TARGET_MODE, &WORKLOAD, &CGROUP, &USERS, &VICTIMS, &MAX_STATE, &HOST, &CGROUP_HEADROOM, &GPU, &ALLOCATOR, &HYSTERESIS, &FOR,
        &CLEAR_FOR, &FORECAST, &LEAK, &ALERT, &HOOK, &RAISE, &FREEZE, &CHECKPOINT, &TERM_GRACE, &KILL_MARGIN, &VERIFY_TIMEOUT, &COOLDOWN,
        &TARGET_MAX_KILLS, &HARD_IGNORES_RATE, &WEBHOOK,
    ]), "[]";

    /// Name of the target in metrics, logs and incidents.
    NAME: "name", OptKind::Text, "\"\"";
    /// Mode of the target: `off`, `observe` or `enforce`; empty uses protection.mode, which also limits it.
    TARGET_MODE: "mode", OptKind::Choice(&["", "off", "observe", "enforce"]), "";
    /// Pattern of the workloads in the target, compared with the label `workload`; `*` and `?` are wildcards.
    WORKLOAD: "workload", OptKind::Text, "\"\"";
    /// Pattern of the cgroups in the target, descendants included, compared with the path in the memory controller's hierarchy; `*` and `?` are wildcards.
    CGROUP: "cgroup", OptKind::Text, "\"\"";
    /// Users, by name or number, whose processes may be signalled. Processes of all other users are never acted on.
    USERS: "allow_users", OptKind::Texts, "[]";
    /// Processes to terminate: the `whole` target, its `largest` process or its `newest` process, each with its descendants.
    VICTIMS: "victims", OptKind::Choice(Victims::WORDS), "whole";
    /// Last step of the escalation, whatever triggers it: `warn`, `soft` (the hook, raising the limit, freezing), `checkpoint`, `term` or `kill`.
    MAX_STATE: "max_state", OptKind::Choice(MaxState::WORDS), "kill";

    /// Levels of the host's available memory.
    HOST: "host", OptKind::Section(&[&HOST_SOFT, &HOST_HARD]), "";
    /// Available memory of the host at or below which the escalation begins, as a size or a percentage of the total; empty disables the level.
    HOST_SOFT: "soft", OptKind::Amount, "5%";
    /// Available memory of the host at or below which the target's processes are killed immediately, as a size or a percentage of the total; empty disables the level.
    HOST_HARD: "hard", OptKind::Amount, "2%";
    /// Levels of the memory left below the smallest limit on the path of the target's cgroup; page cache counts as left.
    CGROUP_HEADROOM: "cgroup_headroom", OptKind::Section(&[&GROUP_SOFT, &GROUP_HARD]), "";
    /// Memory left below the cgroup limit at or below which the escalation begins, as a size or a percentage of the limit; empty disables the level.
    GROUP_SOFT: "soft", OptKind::Amount, "10%";
    /// Memory left below the cgroup limit at or below which the target's processes are killed immediately, as a size or a percentage of the limit; empty disables the level.
    GROUP_HARD: "hard", OptKind::Amount, "3%";
    /// Levels of the free memory of the fullest GPU that the target uses. Disabled by default, because frameworks reserve nearly all GPU memory.
    GPU: "gpu", OptKind::Section(&[&OTHER_SOFT, &OTHER_HARD]), "";
    /// Levels of the memory that the job's allocator can still allocate, where the job reports it. Disabled by default.
    ALLOCATOR: "allocator", OptKind::Section(&[&OTHER_SOFT, &OTHER_HARD]), "";
    /// Memory left at or below which the escalation begins, as a size or a percentage of the total; empty disables the level.
    OTHER_SOFT: "soft", OptKind::Amount, "";
    /// Memory left at or below which the target's processes are killed immediately, as a size or a percentage of the total; empty disables the level.
    OTHER_HARD: "hard", OptKind::Amount, "";

    /// Memory above the soft level that must be left before the shortage counts as over, as a size or a percentage.
    HYSTERESIS: "hysteresis", OptKind::Amount, "2%";
    /// Time for which the soft level must be crossed, or exhaustion predicted, before the escalation begins.
    FOR: "for", SHORT, "2s";
    /// Time for which the shortage must be over before a warning ends.
    CLEAR_FOR: "clear_for", SHORT, "30s";

    /// Trigger: the forecast of exhaustion by the analyzers; without a recent forecast, by the current rate.
    FORECAST: "forecast", OptKind::Section(&[&FORECAST_MAX_STATE, &WARN_WITHIN, &SOFT_WITHIN]), "";
    /// Last step of the escalation that a forecast alone can trigger.
    FORECAST_MAX_STATE: "max_state", OptKind::Choice(MaxState::WORDS), "checkpoint";
    /// Predicted time to exhaustion below which a warning is issued.
    WARN_WITHIN: "warn_within", LONG, "5m";
    /// Predicted time to exhaustion below which the escalation begins; at least the time that a checkpoint takes, plus a margin.
    SOFT_WITHIN: "soft_within", LONG, "90s";

    /// Trigger: a confirmed memory leak in the target.
    LEAK: "leak", OptKind::Section(&[&LEAK_MAX_STATE]), "";
    /// Last step of the escalation that a leak alone can trigger.
    LEAK_MAX_STATE: "max_state", OptKind::Choice(MaxState::WORDS), "warn";

    /// Trigger: alerts that Alertmanager sends to `POST /api/v1/alerts`.
    ALERT: "alert", OptKind::Section(&[&LABELS, &ALERT_MAX_STATE, &ALL_JOBS]), "";
    /// Labels that an alert must have to match this target, such as `alertname: NodeMemoryLow`; `*` and `?` are wildcards. Empty matches no alert.
    LABELS: "labels", OptKind::Map, "{}";
    /// Last step of the escalation that an alert alone can trigger.
    ALERT_MAX_STATE: "max_state", OptKind::Choice(MaxState::WORDS), "checkpoint";
    /// Whether an alert without the labels `workload` and `user` can lead beyond `warn`, for every job of the target. An alert with such a label, or with `run`, is for the jobs of that name only.
    ALL_JOBS: "all_jobs", OptKind::Bool, "false";

    /// Hook: a program that is started, without a shell, at the soft level.
    HOOK: "hook", OptKind::Section(&[&PROGRAM, &ARGUMENTS, &TIMEOUT, &HOOK_WAIT]), "";
    /// Absolute path of the hook's program; the program and its folder must belong to root or the daemon's user and be writable by nobody else. Empty disables the hook.
    PROGRAM: "program", OptKind::Path, "\"\"";
    /// Arguments of the hook's program.
    ARGUMENTS: "arguments", OptKind::Texts, "[]";
    /// Time after which the hook and all processes that it started are killed.
    TIMEOUT: "timeout", OptKind::Duration(Duration::from_millis(100), Duration::from_secs(60)), "5s";
    /// Time that the hook has to free memory before a checkpoint is requested.
    HOOK_WAIT: "wait", SHORT, "0s";
    /// Raising the cgroup limit at the soft level, before the job is asked for anything. Only limits of the target's own cgroup are raised, where all processes in it belong to the target. The limit stays raised.
    RAISE: "raise", OptKind::Section(&[&RAISE_TO, &RAISE_BY, &KEEP_FREE]), "";
    /// Limit up to which it is raised, as a size or a percentage of the host's memory; empty disables raising.
    RAISE_TO: "to", OptKind::Amount, "";
    /// Amount by which it is raised at a time, as a size or a percentage of the limit.
    RAISE_BY: "by", OptKind::Amount, "10%";
    /// Memory of the host that must stay available after the target has used the raised limit, as a size or a percentage of the total.
    KEEP_FREE: "keep_free", OptKind::Amount, "10%";
    /// Whether the target's cgroup is frozen while the hook runs; it is thawed before a checkpoint is requested.
    FREEZE: "freeze", OptKind::Bool, "false";

    /// Checkpoint request to the job: one signal per incident, sent only to processes with a handler for it.
    CHECKPOINT: "checkpoint", OptKind::Section(&[
        &SCOPE, &PRESET, &SIGNAL, &RANKS, &TOUCH, &FOLDER, &ACK_FILE, &DONE, &EXIT_SAVES, &ACK_JOB, &GRACE, &LONGEST_GRACE, &REQUEST_INTERVAL,
    ]), "";
    /// Whether only this `node` is asked for a checkpoint, or the daemons of all nodes of the job's `run` (protection.peers). The request is sent where the run of the job is known.
    SCOPE: "scope", OptKind::Choice(&["node", "run"]), "node";
    /// Framework of the job, which sets the signal, the ranks that receive it, the marker of a complete checkpoint, and whether the job ends after saving. Values given beside it override it.
    PRESET: "preset", OptKind::Choice(presets::NAMES), "none";
    /// Signal that requests a checkpoint; `preset` is the preset's, and USR1 without a preset; empty sends none.
    SIGNAL: "signal", OptKind::Text, "preset";
    /// Ranks that receive the signal, and no other process: `any` one of the node, the global rank 0 (`first`), or `all`; `preset` is the preset's, and without a preset all ranks, or all processes of the job if no rank is known.
    RANKS: "ranks", OptKind::Choice(AskedRanks::WORDS), "preset";
    /// File that is created, or whose time is set, with the rights of the job's user and as the job sees the path, for a job that watches a file; empty touches none.
    TOUCH: "touch", OptKind::Path, "\"\"";
    /// Folder in which the job saves its checkpoints, in which the preset's marker is looked for; empty uses no marker of the preset.
    FOLDER: "folder", OptKind::Path, "\"\"";
    /// File that the job writes when its checkpoint is saved (the acknowledgement), instead of the preset's marker; its last two components can contain the wildcards `*` and `?`. The content `saving` extends the time limit. A checkpoint file that the job replaces atomically can be used. The file must belong to a user of the target, and is not read through a link that a user created.
    ACK_FILE: "file", OptKind::Path, "\"\"";
    /// What completes a checkpoint: the file is `written`, the target of the symbolic `link` changes, or all files that appear after the request are `removed` again; `preset` is the preset's, and `written` without a preset.
    DONE: "done", OptKind::Choice(presets::DONE_WORDS), "preset";
    /// Whether a job that ends after the request has saved its checkpoint: `yes`, `no`, or the `preset`'s, and `no` without a preset.
    EXIT_SAVES: "exit_saves", OptKind::Choice(&["preset", "yes", "no"]), "preset";
    /// Whether `checkpoint` messages on the job socket count as acknowledgement.
    ACK_JOB: "job", OptKind::Bool, "true";
    /// Time limit for a checkpoint while the job reports no progress; at least the longest training step plus the time to save a checkpoint.
    GRACE: "grace", LONG, "60s";
    /// Time limit for a checkpoint while the job reports that it is saving.
    LONGEST_GRACE: "longest_grace", LONG, "10m";
    /// Minimum time between two checkpoint requests, over all incidents.
    REQUEST_INTERVAL: "request_interval", LONG, "5m";

    /// Time between SIGTERM and SIGKILL.
    TERM_GRACE: "term_grace", SHORT, "10s";
    /// Time to exhaustion at the current rate, below the soft level, under which the processes are killed immediately.
    KILL_MARGIN: "kill_margin", SHORT, "2s";
    /// Time that killed processes have to end, in addition to one second for each GiB of their memory.
    VERIFY_TIMEOUT: "verify_timeout", SHORT, "10s";
    /// Time after an incident in which the target's protection does not act.
    COOLDOWN: "cooldown", SHORT, "15s";
    /// Maximum number of times per hour that protection terminates this target. Its users share it equally; a user who comes when others have used it up has a share too, within the limit of the host.
    TARGET_MAX_KILLS: "max_kills_per_hour", OptKind::Count(0, 100), "3";
    /// Whether the hard level kills even after the limits max_kills_per_hour are used up.
    HARD_IGNORES_RATE: "hard_ignores_limits", OptKind::Bool, "false";
    /// URL (`http://` or `https://`) to which each state transition is sent as JSON; empty sends none. Logs and records contain only its host.
    WEBHOOK: "webhook", OptKind::Text, "\"\"";
}
