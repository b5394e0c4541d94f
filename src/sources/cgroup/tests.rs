//! Tests of the whole source on fixture trees.

mod access;
mod bounds;
mod hierarchies;
mod hugetlb;
mod values;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::glob::Glob;
use super::options::{Globs, Options};
use super::*;
use crate::host::cgroup::Version;
use crate::sources::testing::{Root, root, tick};

/// A tree of cgroups in a temporary folder.
struct Tree {
    root: Root,
    /// Location of the memory controller.
    top: PathBuf,
    version: Version,
}

impl Tree {
    fn v2() -> Self {
        let root = root(&[]);
        let tree = Self { top: root.path().to_path_buf(), root, version: Version::V2 };
        tree.write("/", "cgroup.controllers", "cpu memory pids\n");
        tree.write("/", "memory.stat", "anon 1000\nfile 500\ninactive_file 100\n");
        tree
    }

    fn v1() -> Self {
        let root = root(&[]);
        let tree = Self { top: root.path().join("memory"), root, version: Version::V1 };
        tree.group("/", 1_000_000, 0, None);
        tree.write("/", "release_agent", "\n");
        tree
    }

    fn dir(&self, path: &str) -> PathBuf {
        self.top.join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, file: &str, text: impl AsRef<[u8]>) {
        self.root.write(self.dir(path).join(file), text);
    }

    /// Adds a cgroup with the files that every cgroup has.
    fn group(&self, path: &str, usage: u64, inactive_file: u64, limit: Option<u64>) {
        let (anon, v1) = (usage.saturating_sub(inactive_file), self.version == Version::V1);
        self.write(path, self.version.usage_file(), format!("{usage}\n"));
        let limit = limit.map(|limit| format!("{limit}\n"));
        if v1 {
            let stat = format!(
                "cache 7\nrss 7\ntotal_cache {inactive_file}\ntotal_rss {anon}\ntotal_inactive_file {inactive_file}\n"
            );
            self.write(path, "memory.stat", &stat);
            self.write(path, "memory.limit_in_bytes", limit.as_deref().unwrap_or("9223372036854771712\n"));
        } else {
            let stat = format!("anon {anon}\nfile {inactive_file}\ninactive_file {inactive_file}\n");
            self.write(path, "memory.stat", &stat);
            self.write(path, "memory.max", limit.as_deref().unwrap_or("max\n"));
        }
    }

    fn remove(&self, path: &str) {
        std::fs::remove_dir_all(self.dir(path)).unwrap();
    }

    fn source(&self) -> Subject {
        self.source_with(&[], &[], 8, 256, 1_000)
    }

    fn source_with(
        &self,
        include: &[&str],
        exclude: &[&str],
        depth: u64,
        max_cgroups: usize,
        descriptors: usize,
    ) -> Subject {
        let globs = |list: &[&str]| Globs(list.iter().map(|text| Glob::new(text)).collect());
        let (include, exclude) = (globs(include), globs(exclude));
        let options = Options { include, exclude, depth, max_cgroups, ..Options::default() };
        Subject(Cgroups::new(options, self.root.path().to_path_buf(), descriptors))
    }
}

struct Subject(Cgroups);

impl Subject {
    /// The exposition after a tick at that second, without comments, and the error.
    fn sample(&mut self, second: u64) -> (String, Option<SourceError>) {
        let (text, outcome) = tick(&mut self.0, second);
        assert!(!text.contains("dropped"), "{text}");
        (text, outcome.err())
    }

    /// The lines of a complete tick that contain one of these parts.
    #[track_caller]
    fn check(&mut self, second: u64, parts: &[&str], expected: Expect) {
        let (text, error) = self.sample(second);
        assert!(error.is_none(), "{error:?}");
        expected.assert_eq(&only(&text, parts));
    }
}

fn only(text: &str, parts: &[&str]) -> String {
    text.lines()
        .filter(|line| parts.iter().any(|word| line.contains(word)))
        .flat_map(|line| [line, "\n"])
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_text_in_any_file_never_panics(
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 8),
        is_v1 in any::<bool>(),
    ) {
        let tree = if is_v1 { Tree::v1() } else { Tree::v2() };
        tree.group("/a", 1, 0, None);
        let files = if is_v1 {
            ["memory.stat", "memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control", "memory.failcnt",
             "memory.max_usage_in_bytes", "memory.memsw.limit_in_bytes", "memory.use_hierarchy"]
        } else {
            ["memory.stat", "memory.current", "memory.max", "memory.events", "memory.high",
             "memory.peak", "memory.pressure", "pids.current"]
        };
        for (file, text) in files.iter().zip(&texts) {
            tree.write("/a", file, text);
        }
        let mut source = tree.source();
        source.sample(0);
        source.sample(1);
    }
}
