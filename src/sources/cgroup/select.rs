//! Selects the cgroups that are exposed.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::options::Options;
use super::walk::FoundCgroup;
use crate::model::fair;

#[derive(Debug, PartialEq, Eq)]
pub struct Chosen<'f> {
    pub shown: Vec<&'f FoundCgroup>,
    /// Number of further matching cgroups, by owner.
    pub omitted: BTreeMap<u32, u64>,
}

/// Selects the largest of the matching cgroups, for each user as many as its share of the limit.
///
/// The size of a cgroup that is already exposed counts a quarter more, so that two of about
/// the same size do not alternate.
pub fn choose<'f>(
    found: &'f [FoundCgroup],
    options: &Options,
    is_shown: impl Fn(&Path) -> bool,
) -> Chosen<'f> {
    let mut wanted: Vec<(u64, &FoundCgroup)> = found
        .iter()
        .filter(|group| options.want(&group.path))
        .map(|group| {
            let usage = match group.usage {
                Some(usage) => usage,
                None if group.path == "/" => u64::MAX,
                None => 0,
            };
            let bonus = if is_shown(&group.dir) { usage / 4 } else { 0 };
            (usage.saturating_add(bonus), group)
        })
        .collect();
    wanted.sort_unstable_by(|(size, one), (other_size, other)| {
        other_size.cmp(size).then_with(|| one.path.cmp(&other.path))
    });
    let (shown, left_out) = fair::split(wanted, options.max_cgroups, |(_, group)| group.user);
    let mut omitted = BTreeMap::new();
    left_out.iter().for_each(|(_, group)| *omitted.entry(group.user).or_default() += 1);
    Chosen { shown: shown.into_iter().map(|(_, group)| group).collect(), omitted }
}

/// The folders of the selected cgroups and of their ancestors up to `root`, which is always included.
pub fn with_parents(chosen: &Chosen<'_>, root: &Path) -> HashSet<PathBuf> {
    let mut all = HashSet::from([root.to_path_buf()]);
    for group in &chosen.shown {
        for dir in group.dir.ancestors() {
            if !all.insert(dir.to_path_buf()) {
                break;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::cgroup::glob::Glob;
    use crate::sources::cgroup::options::Globs;

    fn options(include: &[&str], exclude: &[&str], max_cgroups: usize) -> Options {
        let globs = |list: &[&str]| Globs(list.iter().map(|text| Glob::new(text)).collect());
        Options { include: globs(include), exclude: globs(exclude), max_cgroups, ..Options::default() }
    }

    fn found(sizes: &[(&str, u64)]) -> Vec<FoundCgroup> {
        let group = |(path, usage): &(&str, u64)| FoundCgroup {
            dir: Path::new("/root").join(path.trim_start_matches('/')),
            path: (*path).to_owned(),
            usage: Some(*usage),
            user: 0,
        };
        sizes.iter().map(group).collect()
    }

    #[track_caller]
    fn check(options: &Options, shown_before: &str, expected: &[&str], omitted: u64) {
        let found = found(&[("/", 100), ("/a", 60), ("/a/x", 50), ("/b", 40), ("/b/y", 36)]);
        let chosen = choose(&found, options, |dir| dir.ends_with(shown_before));
        let shown: Vec<&str> = chosen.shown.iter().map(|group| group.path.as_str()).collect();
        assert_eq!((shown.as_slice(), chosen.omitted.values().sum()), (expected, omitted));
    }

    #[test]
    fn the_largest_are_kept_and_the_others_counted() {
        check(&options(&[], &[], 10), "none", &["/", "/a", "/a/x", "/b", "/b/y"], 0);
        check(&options(&[], &[], 4), "none", &["/", "/a", "/a/x", "/b"], 1);
        check(&options(&[], &[], 4), "y", &["/", "/a", "/a/x", "/b/y"], 1);
    }

    #[test]
    fn a_user_with_many_large_ones_leaves_places_to_others() {
        let mut found = found(&[("/a", 90), ("/a/1", 80), ("/a/2", 70), ("/a/3", 60), ("/b", 2), ("/c", 1)]);
        for group in &mut found {
            group.user = if group.path.starts_with("/a") { 1002 } else { 0 };
        }
        let chosen = choose(&found, &options(&[], &[], 4), |_| false);
        let shown: Vec<&str> = chosen.shown.iter().map(|group| group.path.as_str()).collect();
        assert_eq!(shown, ["/a", "/a/1", "/b", "/c"]);
        assert_eq!(chosen.omitted, BTreeMap::from([(1002, 2)]));
    }

    #[test]
    fn exclusion_wins_over_inclusion() {
        check(&options(&["/a/**", "/b"], &[], 10), "none", &["/a", "/a/x", "/b"], 0);
        check(&options(&["/**"], &["/a/**", "/"], 10), "none", &["/b", "/b/y"], 0);
    }

    #[test]
    fn parents_are_read_with_their_children() {
        let found = found(&[("/a/x/deep", 1)]);
        let all = with_parents(&choose(&found, &options(&[], &[], 5), |_| false), Path::new("/root"));
        let mut all: Vec<_> = all.iter().map(|dir| dir.to_str().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, ["/root", "/root/a", "/root/a/x", "/root/a/x/deep"]);
    }
}
