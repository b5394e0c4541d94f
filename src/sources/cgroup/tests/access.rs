//! Files and folders that cannot be read.

use super::*;
use crate::model::source::Failure;

/// Runs on a thread without privileges, so that access permissions apply.
fn unprivileged<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            run()
        });
        thread.join().unwrap()
    })
}

fn forbid(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn unreadable_files_are_named_and_the_others_are_read() {
    let tree = Tree::v2();
    forbid(tree.root.path(), 0o755);
    tree.group("/a", 10, 0, None);
    tree.group("/b", 20, 0, Some(100));
    forbid(&tree.dir("/b").join("memory.max"), 0o000);
    let (text, error) = unprivileged(|| tree.source().sample(0));
    expect![[r#"
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/"} 1000
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/a"} 10
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/b"} 20
        memwarden_cgroup_memory_file_bytes{cgroup="/"} 500
        memwarden_cgroup_memory_file_bytes{cgroup="/a"} 0
        memwarden_cgroup_memory_file_bytes{cgroup="/b"} 0
        memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 10
        memwarden_cgroup_memory_usage_bytes{cgroup="/b"} 20
        memwarden_cgroup_memory_working_set_bytes{cgroup="/a"} 10
        memwarden_cgroup_memory_working_set_bytes{cgroup="/b"} 20
        memwarden_cgroup_memory_held_bytes{cgroup="/a"} 10
        memwarden_cgroup_memory_held_bytes{cgroup="/b"} 20
    "#]]
    .assert_eq(&only(&text, &["cgroup=\"/"]));
    let why = format!("cannot read {}/b/memory.max: Permission denied (os error 13)", tree.top.display());
    let Some(SourceError::Failed { kind: Failure::Permission, why: found }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(found, why);
}

#[test]
fn a_forbidden_folder_does_not_hide_the_others() {
    let tree = Tree::v2();
    forbid(tree.root.path(), 0o755);
    tree.group("/a", 10, 0, None);
    tree.group("/b", 20, 0, None);
    tree.group("/b/c", 5, 0, None);
    forbid(&tree.dir("/b"), 0o000);
    let mut source = tree.source();
    let (text, error) = unprivileged(|| source.sample(0));
    assert_eq!(only(&text, &["usage_bytes"]), "memwarden_cgroup_memory_usage_bytes{cgroup=\"/a\"} 10\n");
    assert!(matches!(error, Some(SourceError::Failed { kind: Failure::Permission, .. })));
    let (_, again) = unprivileged(|| source.sample(1));
    assert!(again.is_some(), "a failure of the walk lasts until the next");
    forbid(&tree.dir("/b"), 0o755);
    source.check(
        5,
        &["usage_bytes"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 10
        memwarden_cgroup_memory_usage_bytes{cgroup="/b"} 20
        memwarden_cgroup_memory_usage_bytes{cgroup="/b/c"} 5
    "#]],
    );
}

#[test]
fn a_cgroup_without_memory_stat_is_kept_and_what_it_would_tell_is_unknown() {
    for tree in [Tree::v1(), Tree::v2()] {
        tree.group("/a", 10, 0, Some(100));
        tree.group("/a/b", 5, 1, Some(50));
        std::fs::remove_file(tree.dir("/a").join("memory.stat")).unwrap();
        let mut source = tree.source();
        for second in 0..2 {
            let (text, error) = source.sample(second);
            let shown =
                only(&text, &["usage_bytes{cgroup=\"/a", "set_bytes{cgroup=\"/a", "limit", "headroom"]);
            let mut lines: Vec<&str> = shown.lines().collect();
            lines.sort_unstable();
            expect![[r#"
                memwarden_cgroup_memory_effective_limit_bytes{cgroup="/a"} 100
                memwarden_cgroup_memory_effective_limit_bytes{cgroup="/a/b"} 50
                memwarden_cgroup_memory_limit_bytes{cgroup="/a"} 100
                memwarden_cgroup_memory_limit_bytes{cgroup="/a/b"} 50
                memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 10
                memwarden_cgroup_memory_usage_bytes{cgroup="/a/b"} 5
                memwarden_cgroup_memory_working_set_bytes{cgroup="/a/b"} 4"#]]
            .assert_eq(&lines.join("\n"));
            let why = format!("{}/a/memory.stat does not exist: its values are unknown", tree.top.display());
            assert_eq!(error, Some(SourceError::unavailable(why)));
        }
        tree.remove("/a");
        let (text, error) = source.sample(2);
        assert_eq!((only(&text, &["/a"]).as_str(), error), ("", None));
    }
}
