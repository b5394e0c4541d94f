//! The keys of the section `protection`, with their help and defaults.

use std::time::Duration;

use super::target::Victims;
use crate::model::setting::{Opt, OptKind, seconds};
use crate::protection::policy::{Mode, Reach};

macro_rules! opts {
    ($($(#[doc = $help:literal])+ $id:ident: $key:literal, $kind:expr, $default:literal;)+) => {
        $(pub(super) static $id: Opt = Opt { key: $key, help: concat!($($help),+), kind: $kind, default: $default };)+
    };
}

/// What is done when memory runs out. Nothing is touched that no target names, and nothing at all before a target's mode
/// and this one are `enforce`.
pub static PROTECTION: Opt = Opt {
    key: "protection",
    help: "What is done when memory runs out. Nothing is touched that no target names, and nothing is done at all \
           before both this mode and the target's are `enforce`.",
    kind: OptKind::Section(&[&MODE, &HOST_MOST, &ALERT_TOKEN, &WEBHOOK_TRUST, &TARGETS]),
    default: "",
};

const LONG: OptKind = seconds(0, 86_400);
const SHORT: OptKind = OptKind::Duration(Duration::ZERO, Duration::from_secs(3600));

opts! {
    /// The most that any target may do: `off`, `observe` (decide, export and log, and do nothing) or `enforce`.
    MODE: "mode", OptKind::Choice(Mode::WORDS), "observe";
    /// The most times in an hour that jobs are ended on this host. Each user who has jobs has an equal share, and at least one as long as the host has one left; whoever has used it up is disarmed until the hour has passed.
    HOST_MOST: "most_per_hour", OptKind::Count(0, 100), "5";
    /// A file with the token that `POST /api/v1/alerts` asks for (`Authorization: Bearer`). Alerts are refused unless this, or users in web.config_file, keep strangers out.
    ALERT_TOKEN: "alert_token_file", OptKind::Path, "\"\"";
    /// Authorities that certify the `https://` services of webhooks, PEM; empty means the distribution's.
    WEBHOOK_TRUST: "webhook_certificate", OptKind::Path, "\"\"";
    /// Who is protected, the first victim of a shortage of the host first.
    TARGETS: "targets", OptKind::Sections(&[
        &NAME, &TARGET_MODE, &WORKLOAD, &CGROUP, &USERS, &VICTIMS, &REACH, &HOST, &GROUP, &GPU, &ALLOCATOR, &MARGIN, &HOLD,
        &CLEAR, &FORECAST, &LEAK, &ALERT, &HOOK, &PAUSE, &CHECKPOINT, &TERM_TIME, &KILL_MARGIN, &VERIFY_TIME, &COOLDOWN,
        &TARGET_MOST, &HARD_IGNORES_RATE, &WEBHOOK,
    ]), "[]";

    /// The name in metrics, logs and incidents.
    NAME: "name", OptKind::Text, "\"\"";
    /// `off`, `observe` or `enforce`; empty is as much as protection.mode allows.
    TARGET_MODE: "mode", OptKind::Choice(&["", "off", "observe", "enforce"]), "";
    /// The workloads it names, by the `workload` label; `*` and `?` are wildcards.
    WORKLOAD: "workload", OptKind::Text, "\"\"";
    /// The cgroups it names, with all below them, by their path in the memory controller's hierarchy; `*` and `?` are wildcards.
    CGROUP: "cgroup", OptKind::Text, "\"\"";
    /// The users, by name or number, whose processes may be touched. A process with any other user id is left alone.
    USERS: "allow_users", OptKind::Texts, "[]";
    /// Who ends: the `whole` target, its `largest` process or its `newest`, each with what descends from it.
    VICTIMS: "victims", OptKind::Choice(Victims::WORDS), "whole";
    /// The highest rung, whatever happens: `warn`, `soft` (the hook), `checkpoint`, `term` or `kill`.
    REACH: "reach", OptKind::Choice(Reach::WORDS), "kill";

    /// The host's available memory.
    HOST: "host", OptKind::Section(&[&HOST_SOFT, &HOST_HARD]), "";
    /// With this much left, or less, the ladder begins: a size, or a share of the total. Empty watches nothing.
    HOST_SOFT: "soft", OptKind::Amount, "5%";
    /// With this much left, or less, the victims are killed at once. Empty kills at no level.
    HOST_HARD: "hard", OptKind::Amount, "2%";
    /// What is left below the smallest limit on the path of the target's cgroup; file cache counts as left.
    GROUP: "limit", OptKind::Section(&[&GROUP_SOFT, &GROUP_HARD]), "";
    /// With this much left, or less, the ladder begins: a size, or a share of the limit. Empty watches nothing.
    GROUP_SOFT: "soft", OptKind::Amount, "10%";
    /// With this much left, or less, the victims are killed at once. Empty kills at no level.
    GROUP_HARD: "hard", OptKind::Amount, "3%";
    /// The GPU with least memory left of those the target uses. Frameworks take nearly all of it on purpose, so nothing is watched by default.
    GPU: "gpu", OptKind::Section(&[&OTHER_SOFT, &OTHER_HARD]), "";
    /// What the job's own allocator can still get, where the job tells. Nothing is watched by default.
    ALLOCATOR: "allocator", OptKind::Section(&[&OTHER_SOFT, &OTHER_HARD]), "";
    /// With this much left, or less, the ladder begins: a size, or a share of the total. Empty watches nothing.
    OTHER_SOFT: "soft", OptKind::Amount, "";
    /// With this much left, or less, the victims are killed at once. Empty kills at no level.
    OTHER_HARD: "hard", OptKind::Amount, "";

    /// How much more than the soft level must be left before memory counts as back.
    MARGIN: "margin", OptKind::Amount, "2%";
    /// How long the soft level must be crossed, or exhaustion foreseen, before the ladder begins.
    HOLD: "hold", SHORT, "2s";
    /// How long memory must be back before a warning ends.
    CLEAR: "clear", SHORT, "30s";

    /// What the analyzers foresee; where they are silent for too long, the present rate.
    FORECAST: "forecast", OptKind::Section(&[&FORECAST_REACH, &WARN_WITHIN, &SOFT_WITHIN]), "";
    /// How far it may lead by itself.
    FORECAST_REACH: "reach", OptKind::Choice(Reach::WORDS), "checkpoint";
    /// A warning is given when exhaustion is foreseen within this time.
    WARN_WITHIN: "warn_within", LONG, "5m";
    /// The ladder begins when exhaustion is foreseen within this time: what a checkpoint takes, with a margin.
    SOFT_WITHIN: "soft_within", LONG, "90s";

    /// A leak in the target that the analyzers confirmed.
    LEAK: "leak", OptKind::Section(&[&LEAK_REACH]), "";
    /// How far it may lead by itself.
    LEAK_REACH: "reach", OptKind::Choice(Reach::WORDS), "warn";

    /// Alerts that Alertmanager sends to `POST /api/v1/alerts`.
    ALERT: "alert", OptKind::Section(&[&LABELS, &ALERT_REACH]), "";
    /// An alert is for this target where it has all of these labels, such as `alertname: NodeMemoryLow`; `*` and `?` are wildcards. Without any, none is.
    LABELS: "labels", OptKind::Map, "{}";
    /// How far it may lead by itself.
    ALERT_REACH: "reach", OptKind::Choice(Reach::WORDS), "checkpoint";

    /// A program that is started, without a shell, at the soft level.
    HOOK: "hook", OptKind::Section(&[&PROGRAM, &ARGUMENTS, &TIMEOUT, &HOOK_TIME]), "";
    /// Its absolute path; it and its folder must belong to root or the daemon's user and be writable by nobody else. Empty starts nothing.
    PROGRAM: "program", OptKind::Path, "\"\"";
    /// Its arguments.
    ARGUMENTS: "arguments", OptKind::Texts, "[]";
    /// When it and all that it started is killed.
    TIMEOUT: "timeout", OptKind::Duration(Duration::from_millis(100), Duration::from_secs(60)), "5s";
    /// How long it alone may try before a checkpoint is asked for.
    HOOK_TIME: "time", SHORT, "0s";
    /// Whether the target's cgroup is frozen while the hook alone tries; it goes on before a checkpoint is asked for.
    PAUSE: "pause", OptKind::Bool, "false";

    /// Asking the job to save itself: one signal in an incident, only to processes that have a handler for it.
    CHECKPOINT: "checkpoint", OptKind::Section(&[&SIGNAL, &ACK_FILE, &ACK_JOB, &GRACE, &LONGEST_GRACE, &AGAIN]), "";
    /// The signal; empty sends none.
    SIGNAL: "signal", OptKind::Text, "USR1";
    /// A file that the job writes when it has saved; `saving` in it asks for more time. The checkpoint itself will do, where the job replaces it as a whole. It counts from the target's users only, and not through a link that a user made.
    ACK_FILE: "file", OptKind::Path, "\"\"";
    /// Whether `checkpoint` messages on the job socket count.
    ACK_JOB: "job", OptKind::Bool, "true";
    /// How long a job that says nothing has; at least its longest step and a checkpoint.
    GRACE: "grace", LONG, "60s";
    /// How long a job that says it is saving has.
    LONGEST_GRACE: "longest_grace", LONG, "10m";
    /// Time between two requests, over all incidents.
    AGAIN: "again", LONG, "5m";

    /// How long a job has to end after SIGTERM before SIGKILL.
    TERM_TIME: "term_time", SHORT, "10s";
    /// With less than this until exhaustion at the present rate, below the soft level, only a kill is left.
    KILL_MARGIN: "kill_margin", SHORT, "2s";
    /// How long victims may take to go, beside a second for each GiB they had.
    VERIFY_TIME: "verify_time", SHORT, "10s";
    /// How long it is quiet after an incident.
    COOLDOWN: "cooldown", SHORT, "15s";
    /// The most times in an hour that this target is ended; users share it in the same way, and a user who comes when others have used it up has a share all the same, within the host's limit.
    TARGET_MOST: "most_per_hour", OptKind::Count(0, 100), "3";
    /// Whether the hard level kills even when these limits are used up.
    HARD_IGNORES_RATE: "hard_ignores_limits", OptKind::Bool, "false";
    /// An `http://` or `https://` address that is sent each move as JSON; empty sends none. Records show its host only.
    WEBHOOK: "webhook", OptKind::Text, "\"\"";
}
