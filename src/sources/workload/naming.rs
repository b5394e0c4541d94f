//! Names of workloads: unique among existing workloads, and assigned once.
//!
//! A name is display text. Of workloads with the same name, the later ones get a
//! suffix; of several that are found at the same sample, those named by the host's
//! managers and the configuration come first, then the oldest.

use super::identity::Identity;
use crate::model::ids::{Anchor, ProcessKey};
use crate::model::label::{LONGEST, Label};

/// Order in which names are assigned to workloads found at the same sample.
pub(super) const fn rank(identity: &Identity) -> u8 {
    match (&identity.key.anchor, identity.key.user) {
        (Anchor::Group(_), None) => 0,
        (Anchor::Rule(_), _) => 1,
        (Anchor::Tree(_), _) => 2,
        (Anchor::Group(_), Some(_)) => 3,
    }
}

/// The first possible name of a workload that is free; `number` is its own number.
pub(super) fn name(identity: &Identity, user: &Label, number: u32, free: impl Fn(&Label) -> bool) -> Label {
    let plain = &identity.plain;
    // A workload created by a user in its own cgroup never has the name of one created by the host's managers.
    let own = matches!((&identity.key.anchor, identity.key.user), (Anchor::Group(_), Some(_)));
    let plain_one = (!own).then(|| plain.clone());
    let with_user = || with(plain, &format!("@{user}"));
    let with_anchor = || match &identity.key.anchor {
        Anchor::Rule(_) => with(plain, &format!("@{}", identity.key.user.unwrap_or(0))),
        Anchor::Group(path) => with(plain, &format!("#{:08x}", hash(path))),
        Anchor::Tree(ProcessKey { start, .. }) => with(plain, &format!("#{start}")),
    };
    let first = [Some(with_user()), Some(with_anchor())];
    let numbered = (0_u64..).map(|more| with(plain, &format!("#{}", u64::from(number).saturating_add(more))));
    let mut names = plain_one.into_iter().chain(first.into_iter().flatten()).chain(numbered);
    names.find(|name| free(name)).unwrap_or_default()
}

/// A name with a suffix, which is never truncated.
fn with(plain: &Label, addition: &str) -> Label {
    let plain = plain.as_str();
    let mut end = plain.len().min(LONGEST.saturating_sub(addition.len()));
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{addition}", &plain[..end]).into()
}

/// FNV-1a: stable between runs and releases, unlike the hasher of the standard library.
fn hash(path: &str) -> u32 {
    path.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::identity::WorkloadKind;
    use super::*;
    use crate::model::ids::WorkloadKey;

    fn identity(anchor: Anchor, user: Option<u32>, plain: &str) -> Identity {
        let empty = Label::default;
        let (kind, key, plain) = (WorkloadKind::Matcher, WorkloadKey { anchor, user }, plain.into());
        Identity {
            kind,
            key,
            plain,
            cgroup: empty(),
            slurm_job: empty(),
            pod_uid: empty(),
            unit: empty(),
            run: None,
        }
    }

    #[test]
    fn equal_names_are_distinguished_by_user_then_by_key() {
        let mut taken = HashSet::new();
        let mut give = |identity: &Identity, user: &str, number| {
            let name = name(identity, &user.into(), number, |name| !taken.contains(name));
            taken.insert(name.clone());
            name.to_string()
        };
        let rule = |user| identity(Anchor::Rule("train".into()), Some(user), "train");
        assert_eq!(give(&rule(1001), "ada", 1), "train");
        assert_eq!(give(&rule(1002), "bob", 2), "train@bob");
        // Two workload numbers with the same name.
        assert_eq!(give(&rule(1003), "bob", 3), "train@1003");
        let group = |path: &str, user| identity(Anchor::Group(path.into()), user, "slurm-7");
        assert_eq!(give(&group("/slurm/job_7", None), "ada", 4), "slurm-7");
        assert_eq!(give(&group("/slurm_b/job_7", None), "ada", 5), "slurm-7@ada");
        assert_eq!(
            give(&group("/slurm_c/job_7", None), "ada", 6),
            format!("slurm-7#{:08x}", hash("/slurm_c/job_7"))
        );
        assert_eq!(give(&group("/slurm_c/job_7", None), "ada", 7), "slurm-7#7");
        // A workload created by a user is never first.
        assert_eq!(
            give(&identity(Anchor::Group("/u/x".into()), Some(9), "container-x"), "eve", 8),
            "container-x@eve"
        );
    }

    #[test]
    fn suffixes_of_long_names_are_not_truncated() {
        let long = identity(Anchor::Rule("r".into()), Some(7), &"é".repeat(200));
        let name = name(&long, &"ada".into(), 1, |name| name.as_str().contains('@'));
        assert!(name.as_str().ends_with("é@ada") && name.as_str().len() <= LONGEST);
    }
}
