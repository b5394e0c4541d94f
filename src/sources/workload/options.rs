//! Configuration keys of the `workload` source.

use std::time::Duration;

use super::matcher::Matcher;
use super::tree::{self, Tree};
use crate::model::setting::{Opt, OptKind, Settings, seconds};

macro_rules! opts {
    ($($(#[doc = $help:literal])+ $id:ident: $key:literal, $kind:expr, $default:literal;)+) => {
        $(static $id: Opt = Opt { key: $key, help: concat!($($help),+), kind: $kind, default: $default };)+
    };
}

opts! {
    /// Workloads defined by conditions, evaluated before all other kinds: the processes that meet every condition given, with their descendants. Entries with the same name form one workload; processes of different users are always separate workloads.
    MATCHERS: "matchers", OptKind::Sections(&[&NAME, &EXECUTABLE, &COMMAND_LINE, &USER, &CGROUP, &ENVIRONMENT, &RUN]), "[]";
    /// Workloads defined by process trees, evaluated before the matchers: the pid of the first process, which must run when sampling starts, and a name, such as "4711 my-run".
    TREES: "trees", OptKind::Texts, "[]";
    /// Name of the workload.
    NAME: "name", OptKind::Text, "\"\"";
    /// File name of the executable, or its whole path if this has a slash; `*` and `?` are wildcards.
    EXECUTABLE: "executable", OptKind::Text, "\"\"";
    /// Part of the command line, or a pattern of all of it if this has `*` or `?`; the first 256 KiB are compared.
    COMMAND_LINE: "command_line", OptKind::Text, "\"\"";
    /// Name or number of the user.
    USER: "user", OptKind::Text, "\"\"";
    /// Path of the cgroup; `*` and `?` are wildcards.
    CGROUP: "cgroup", OptKind::Text, "\"\"";
    /// Environment variable at the start of the process, as `NAME` or `NAME=VALUE`; `*` and `?` are wildcards in the value. The first 256 KiB of the environment are compared.
    ENVIRONMENT: "environment", OptKind::Text, "\"\"";
    /// Name of the training run that the workload is a part of, the same on all its nodes; if it is absent, it is read from the job.
    RUN: "run", OptKind::Text, "\"\"";
    /// Whether each Slurm job is a workload.
    SLURM: "slurm", OptKind::Bool, "true";
    /// Whether each Kubernetes pod is a workload.
    KUBERNETES: "kubernetes", OptKind::Bool, "true";
    /// Whether each container of Docker, Podman or containerd is a workload.
    CONTAINERS: "containers", OptKind::Bool, "true";
    /// systemd units that are workloads, such as `train-*.service`; `*` and `?` are wildcards.
    UNITS: "units", OptKind::Texts, "[]";
    /// Whether the process tree of a process that uses a GPU and is in no other workload is a workload.
    GPU_TREES: "gpu_trees", OptKind::Bool, "true";
    /// Whether the process tree of a process that reports a rank over the job socket and is in no other workload is a workload.
    JOB_TREES: "job_trees", OptKind::Bool, "true";
    /// Maximum number of workloads tracked at once, shared equally between users; of each user, those found first are selected.
    MOST: "max_workloads", OptKind::Count(1, 512), "64";
    /// Number of the largest processes of each workload that are exposed individually.
    TOP_PROCESSES: "top_processes", OptKind::Count(0, 100), "10";
    /// Number of the largest processes outside workloads that are exposed individually.
    HOST_TOP: "host_top", OptKind::Count(0, 100), "10";
    /// Time for which the peak memory of an ended process is exposed; at least the longest scrape interval.
    EXITED_PEAK_HOLD: "exited_peak_hold", seconds(0, 3600), "60s";
    /// Whether the proportional set size (PSS) of processes with less than 1 GiB of anonymous memory is read once a minute. Each read stalls the process for up to 20 ms.
    READ_PSS: "pss", OptKind::Bool, "false";
}

/// Every option, in the order of the default configuration file.
pub(super) static ALL: &[&Opt] = &[
    &MATCHERS,
    &TREES,
    &SLURM,
    &KUBERNETES,
    &CONTAINERS,
    &UNITS,
    &GPU_TREES,
    &JOB_TREES,
    &MOST,
    &TOP_PROCESSES,
    &HOST_TOP,
    &EXITED_PEAK_HOLD,
    &READ_PSS,
];

#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) matchers: Vec<Matcher>,
    pub(super) trees: Vec<Tree>,
    /// Errors because of which matchers and trees were left out.
    pub(super) problems: Vec<String>,
    pub(super) slurm: bool,
    pub(super) kubernetes: bool,
    pub(super) containers: bool,
    pub(super) units: Vec<String>,
    pub(super) gpu_trees: bool,
    pub(super) job_trees: bool,
    pub(super) max_workloads: usize,
    pub(super) top: usize,
    pub(super) host_top: usize,
    pub(super) exited_peak_hold: Duration,
    pub(super) pss: bool,
}

/// The matchers and trees that are invalid, by key.
pub(super) fn check(settings: &Settings) -> Vec<(String, String)> {
    let problems = Rules::new(settings).problems;
    let split = |problem: &String| {
        let (key, what) = problem.split_once(' ')?;
        Some((key.to_owned(), what.to_owned()))
    };
    problems.iter().filter_map(split).collect()
}

/// Prefixes of the names of workloads that cgroups name.
const MANAGED: [&str; 4] = ["slurm-", "pod-", "container-", "unit-"];

impl Rules {
    /// Whether only a cgroup, a matcher or a configured tree may have this name.
    pub(super) fn reserve(&self, name: &str) -> bool {
        // Pods are named NAMESPACE/POD.
        MANAGED.iter().any(|managed| name.starts_with(managed))
            || name.contains('/')
            || self.matchers.iter().any(|matcher| matcher.name.as_str() == name)
            || self.trees.iter().any(|tree| tree.name.as_str() == name)
    }

    pub(super) fn new(settings: &Settings) -> Self {
        let mut matchers = Vec::new();
        let mut problems = Vec::new();
        for (place, section) in settings.sections(&MATCHERS).iter().enumerate() {
            let matcher = Matcher {
                name: section.text(&NAME).unwrap_or_default().as_str().into(),
                executable: section.text(&EXECUTABLE),
                command_line: section.text(&COMMAND_LINE),
                user: section.text(&USER),
                cgroup: section.text(&CGROUP),
                environment: section.text(&ENVIRONMENT),
                run: section.text(&RUN).map(|run| run.as_str().into()),
            };
            match matcher.problem() {
                None => matchers.push(matcher),
                Some(what) => problems.push(format!("matchers[{place}] {what}")),
            }
        }
        let mut trees = Vec::new();
        for (place, text) in settings.texts(&TREES).iter().enumerate() {
            match tree::parse(text) {
                Ok(tree) => trees.push(tree),
                Err(what) => problems.push(format!("trees[{place}] {what}")),
            }
        }
        let count = |opt| usize::try_from(settings.count(opt)).unwrap_or(usize::MAX);
        Self {
            matchers,
            trees,
            problems,
            slurm: settings.bool(&SLURM),
            kubernetes: settings.bool(&KUBERNETES),
            containers: settings.bool(&CONTAINERS),
            units: settings.texts(&UNITS),
            gpu_trees: settings.bool(&GPU_TREES),
            job_trees: settings.bool(&JOB_TREES),
            max_workloads: count(&MOST),
            top: count(&TOP_PROCESSES),
            host_top: count(&HOST_TOP),
            exited_peak_hold: settings.duration(&EXITED_PEAK_HOLD),
            pss: settings.bool(&READ_PSS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::setting::Value;

    #[test]
    fn settings_become_rules_and_bad_matchers_are_named() {
        let section = |name: &str, user: &str| {
            let mut section = Settings::default();
            for opt in [&EXECUTABLE, &COMMAND_LINE, &CGROUP, &ENVIRONMENT, &RUN] {
                section.set(opt, Value::Text(String::new()));
            }
            section.set(&NAME, Value::Text(name.to_owned()));
            section.set(&USER, Value::Text(user.to_owned()));
            section
        };
        let mut settings = Settings::default();
        let sections = vec![section("a", "ada"), section("", "ada"), section("b", "")];
        settings.set(&MATCHERS, Value::Sections(sections));
        for opt in [&SLURM, &KUBERNETES, &CONTAINERS, &GPU_TREES, &JOB_TREES, &READ_PSS] {
            settings.set(opt, Value::Bool(opt.default == "true"));
        }
        settings.set(&UNITS, Value::Texts(vec!["x*".to_owned()]));
        settings.set(&TREES, Value::Texts(vec!["7 run".to_owned()]));
        for opt in [&MOST, &TOP_PROCESSES, &HOST_TOP] {
            settings.set(opt, Value::Count(opt.default.parse().unwrap()));
        }
        settings.set(&EXITED_PEAK_HOLD, Value::Duration(Duration::from_secs(60)));
        let rules = Rules::new(&settings);
        assert_eq!(rules.matchers.len(), 1);
        assert_eq!((rules.max_workloads, rules.top, rules.slurm, rules.pss), (64, 10, true, false));
        expect_test::expect![[r#"
            [
                "matchers[1] must have a name",
                "matchers[2] must have a condition; without one it would match every process",
            ]
        "#]]
        .assert_debug_eq(&rules.problems);
    }
}
