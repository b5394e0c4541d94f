//! Configuration keys of the `workload` source.

use std::time::Duration;

use super::matcher::Matcher;
use super::tree;

crate::options! {
    /// The options of the source.
    pub(super) struct Options {
        /// Workloads defined by conditions, evaluated before all other kinds: the processes that meet every condition
        /// given, with their descendants. Entries with the same name form one workload; processes of different users are
        /// always separate workloads.
        matchers: Vec<Matcher>;
        /// Workloads defined by process trees, evaluated before the matchers: the pid of the first process, which must
        /// run when sampling starts, and a name, such as "4711 my-run".
        trees: Vec<String>;
        /// Whether each Slurm job is a workload.
        slurm: bool = true;
        /// Whether each Kubernetes pod is a workload.
        kubernetes: bool = true;
        /// Whether each container of Docker, Podman or containerd is a workload.
        containers: bool = true;
        /// systemd units that are workloads, such as `train-*.service`; `*` and `?` are wildcards.
        units: Vec<String>;
        /// Whether the process tree of a process that uses a GPU and is in no other workload is a workload.
        gpu_trees: bool = true;
        /// Whether the process tree of a process that reports a rank over the job socket and is in no other workload is
        /// a workload.
        job_trees: bool = true;
        /// Maximum number of workloads tracked at once, shared equally between users; of each user, those found first
        /// are selected.
        max_workloads: usize = 64 in 1..=512;
        /// Number of the largest processes of each workload that are exposed individually.
        top_processes: usize = 10 in 0..=100;
        /// Number of the largest processes outside workloads that are exposed individually.
        host_top: usize = 10 in 0..=100;
        /// Time for which the peak memory of an ended process is exposed; at least the longest scrape interval.
        exited_peak_hold: Duration = 60s in 0s..=1h;
        /// Whether the proportional set size (PSS) of processes with less than 1 GiB of anonymous memory is read once a
        /// minute. Each read stalls the process for up to 20 ms.
        pss: bool = false;
    }
}

/// Prefixes of the names of workloads that cgroups name.
const MANAGED: [&str; 4] = ["slurm-", "pod-", "container-", "unit-"];

impl Options {
    /// Whether only a cgroup, a matcher or a configured tree may have this name.
    pub(super) fn reserve(&self, name: &str) -> bool {
        // Pods are named NAMESPACE/POD.
        MANAGED.iter().any(|managed| name.starts_with(managed))
            || name.contains('/')
            || self.matchers.iter().any(|matcher| matcher.name.as_str() == name)
            || self.trees.iter().any(|tree| tree::parse(tree).is_ok_and(|tree| tree.name.as_str() == name))
    }

    /// The matchers and trees that are invalid, by key.
    pub(super) fn check(&self) -> Vec<(String, String)> {
        let matchers = self.matchers.iter().map(Matcher::problem).enumerate();
        let matchers = matchers.filter_map(|(place, what)| Some((format!("matchers[{place}]"), what?)));
        let trees = self.trees.iter().map(|text| tree::parse(text).err()).enumerate();
        let trees = trees.filter_map(|(place, what)| Some((format!("trees[{place}]"), what?)));
        matchers.chain(trees).map(|(key, what)| (key, what.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_matchers_and_trees_are_named() {
        let matcher = |name: &str, user: &str| Matcher {
            name: name.into(),
            user: Some(user.to_owned()).filter(|user| !user.is_empty()),
            ..Matcher::default()
        };
        let matchers = vec![matcher("a", "ada"), matcher("", "ada"), matcher("b", "")];
        let trees = vec!["7 run".to_owned(), "run".to_owned()];
        let options = Options { matchers, trees, ..Options::default() };
        let wrong = options.check();
        let shown: Vec<_> = wrong.iter().map(|(key, what)| format!("{key} {what}")).collect();
        expect_test::expect![[r#"
            [
                "matchers[1] must have a name",
                "matchers[2] must have a condition; without one it would match every process",
                "trees[1] must begin with a pid",
            ]
        "#]]
        .assert_debug_eq(&shown);
        assert!(options.reserve("run") && options.reserve("a") && !options.reserve("c"));
    }
}
