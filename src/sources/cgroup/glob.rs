//! Patterns for cgroup paths: `*` and `?` within a segment, `**` across segments.
//!
//! There is no escape character, because systemd's names contain backslashes
//! (`dev-sda\x2d1.swap`). A pattern that does not begin with `/` matches
//! at any depth: `docker-*.scope` is `/**/docker-*.scope`.

use crate::model::pattern;

/// A parsed pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// `**`: any number of segments, including none.
    Any,
    One(Box<[u8]>),
}

impl Glob {
    /// Parses a pattern; every text is valid.
    pub fn new(pattern: &str) -> Self {
        let mut segments = Vec::new();
        if !pattern.starts_with('/') {
            segments.push(Segment::Any);
        }
        for text in parts(pattern) {
            match text {
                "**" if segments.last() == Some(&Segment::Any) => {}
                "**" => segments.push(Segment::Any),
                _ => segments.push(Segment::One(text.as_bytes().into())),
            }
        }
        Self { segments }
    }

    /// Whether the whole path matches; `/` is the path without segments.
    pub fn matches(&self, path: &str) -> bool {
        let path: Vec<&[u8]> = parts(path).map(str::as_bytes).collect();
        pattern::fits_parts(
            &self.segments,
            &path,
            |segment| *segment == Segment::Any,
            |segment, text| match segment {
                Segment::Any => false,
                Segment::One(one) => pattern::fits_bytes(one, text),
            },
        )
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(pattern: &str, yes: &[&str], no: &[&str]) {
        let glob = Glob::new(pattern);
        for path in yes {
            assert!(glob.matches(path), "{pattern} should match {path}");
        }
        for path in no {
            assert!(!glob.matches(path), "{pattern} should not match {path}");
        }
    }

    #[test]
    fn patterns_match_whole_paths() {
        check("/", &["/"], &["/a"]);
        check("/**", &["/", "/a", "/a/b"], &[]);
        check("/a", &["/a"], &["/", "/ab", "/a/b", "/b/a"]);
        check("/a/*", &["/a/b"], &["/a", "/a/b/c"]);
        check("/a/**", &["/a", "/a/b", "/a/b/c"], &["/ab"]);
        check("/**/c", &["/c", "/a/c", "/a/b/c"], &["/a/c/d"]);
        check("/a/**/d/**/f", &["/a/d/f", "/a/b/d/d/e/f"], &["/a/f", "/a/d/f/g"]);
        check("a*b?d", &["/axxbcd", "/x/abcd"], &["/abd", "/abcd/x"]);
        check("/x**y", &["/xzy"], &["/x/y"]);
        check("", &[], &[]);
    }

    #[test]
    fn patterns_for_usual_jobs_are_short() {
        check("/slurm/**/job_*", &["/slurm/uid_1000/job_42"], &["/slurm/uid_1000/job_42/step_0"]);
        check(
            "/kubepods.slice/**/cri-containerd-*.scope",
            &[
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-ab.scope",
            ],
            &["/kubepods.slice/kubepods-burstable.slice"],
        );
        check("docker-*.scope", &["/system.slice/docker-0a.scope"], &["/system.slice/docker.service"]);
        check(r"*\x2dx.service", &[r"/system.slice/a\x2dx.service"], &["/system.slice/a-x.service"]);
    }

    #[test]
    fn many_wildcards_match_in_bounded_time() {
        let glob = Glob::new(&("/**/".to_owned() + &"a*".repeat(100) + "b/**/".repeat(50).as_str() + "z"));
        assert!(!glob.matches(&("/".to_owned() + &"a".repeat(2_000) + &"/a".repeat(500))));
    }

    proptest! {
        #[test]
        fn matching_never_panics(pattern in "\\PC{0,40}", path in "\\PC{0,60}") {
            Glob::new(&pattern).matches(&path);
        }

        #[test]
        fn a_path_matches_itself_and_everything_matches_all(path in "(/[a-z.]{1,5}){0,6}") {
            prop_assert!(Glob::new("/**").matches(&path));
            let rooted = format!("/{path}");
            prop_assert!(Glob::new(&rooted).matches(&path));
        }
    }
}
