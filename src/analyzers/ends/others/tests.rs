//! Which of the workloads below a limit that was reached is named.

use super::*;
use crate::model::facts::Membership;
use crate::model::ids::ProcessKey;

#[test]
fn of_workloads_below_a_limit_the_one_that_grew_is_named() {
    let key = |pid| ProcessKey { pid, start: 1 };
    let observed = |name: &str, cgroup: &str, rss: [f64; 2]| Observed {
        name: name.into(),
        cgroup: cgroup.into(),
        curve: [(1.0, rss[0], None), (2.0, rss[1], None)].into(),
        ..Observed::default()
    };
    let all = |of: &[(&str, &str, [f64; 2])]| -> HashMap<WorkloadKey, Observed> {
        let each = |(pid, (name, cgroup, rss)): (u32, &(&str, &str, [f64; 2]))| {
            (Membership::named(key(pid), name).workload.key.clone(), observed(name, cgroup, *rss))
        };
        (1..).zip(of).map(each).collect()
    };
    let killed = observed("calm", "/pod/a", [5.0, 5.0]);
    let named = |others: &[(&str, &str, [f64; 2])], limit: &str| {
        in_group(&all(others), Some(&killed), &limit.into()).map(|other| other.workload.to_string())
    };
    let grew =
        [("calm", "/pod/a", [5.0, 5.0]), ("hungry", "/pod/b", [1.0, 9.0]), ("elsewhere", "/x", [1.0, 99.0])];
    assert_eq!(named(&grew, "/pod"), Some("hungry".to_owned()));
    assert_eq!(named(&grew, "/"), None, "the host has no limit of a cgroup");
    assert_eq!(named(&[("large", "/pod/b", [90.0, 90.0])], "/pod"), None, "it did not grow");
}
