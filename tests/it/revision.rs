//! The commit in `--version` and in `memwarden_build_info`: where `build.rs` finds it, and when it runs again.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use crate::harness::{Daemon, memwarden, on_path, program};
use crate::skip::skip;

#[path = "../../build/commit.rs"]
mod commit;

const ONE: &str = "1111111111111111111111111111111111111111";
const TWO: &str = "2222222222222222222222222222222222222222";

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The result for `tree`: the commit, and the watched paths below `root`.
fn found(tree: &Path, root: &Path) -> (Option<String>, Vec<String>) {
    let found = commit::find(tree);
    let below = |path: PathBuf| {
        let path = path.canonicalize().expect("whatever is watched exists");
        path.strip_prefix(root.canonicalize().unwrap()).unwrap().display().to_string()
    };
    (found.commit, found.watched.into_iter().map(below).collect())
}

fn owned(commit: &str, watched: &[&str]) -> (Option<String>, Vec<String>) {
    let commit = Some(commit.to_owned()).filter(|commit| !commit.is_empty());
    (commit, watched.iter().map(|path| (*path).to_owned()).collect())
}

#[test]
fn the_commit_is_found_in_every_layout_of_git() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let git = root.join(".git");
    assert_eq!(found(root, root), owned("", &[]), "an archive");

    write(&git.join("HEAD"), &format!("{ONE}\n"));
    assert_eq!(found(root, root), owned(ONE, &[".git/HEAD"]), "a detached head");

    write(&git.join("HEAD"), "ref: refs/heads/area/topic\n");
    std::fs::create_dir_all(git.join("refs/heads")).unwrap();
    assert_eq!(found(root, root), owned("", &[".git/HEAD", ".git/refs/heads"]), "no commit yet");

    let packed = format!(
        "# pack-refs with: peeled \n{ONE} refs/heads/area/topic-2\n{TWO} refs/heads/area/topic\n^{ONE}\n"
    );
    write(&git.join("packed-refs"), &packed);
    let watched = [".git/HEAD", ".git/refs/heads", ".git/packed-refs"];
    assert_eq!(found(root, root), owned(TWO, &watched), "a packed branch");

    write(&git.join("refs/heads/area/topic"), &format!("{ONE}\n"));
    let watched = [".git/HEAD", ".git/refs/heads/area/topic"];
    assert_eq!(found(root, root), owned(ONE, &watched), "the loose one is newer");

    // A worktree has a separate head, and the branches of the repository.
    let tree = root.join("tree");
    write(&tree.join(".git"), "gitdir: ../.git/worktrees/tree\n");
    write(&git.join("worktrees/tree/HEAD"), "ref: refs/heads/other\n");
    write(&git.join("worktrees/tree/commondir"), "../..\n");
    write(&git.join("refs/heads/other"), &format!("{TWO}\n"));
    let watched = [".git/worktrees/tree/HEAD", ".git/refs/heads/other"];
    assert_eq!(found(&tree, root), owned(TWO, &watched), "a worktree");

    let unpacked = root.join("vendor/memwarden");
    std::fs::create_dir_all(&unpacked).unwrap();
    assert_eq!(found(&unpacked, root), owned("", &[]), "an archive within another project's checkout");

    for wrong in ["", "1111", "ref: refs/heads/none", &"g".repeat(40)] {
        write(&git.join("HEAD"), wrong);
        assert_eq!(commit::find(root).commit, None, "{wrong:?}");
    }
}

#[test]
fn a_packager_gives_a_commit_that_is_one_word() {
    assert_eq!(commit::given(""), Ok(None));
    assert_eq!(commit::given(" \n"), Ok(None));
    for good in [ONE, "0.1.0-1", "v0.1.0+build.7", "release/0.1"] {
        assert_eq!(commit::given(good), Ok(Some(good.to_owned())));
    }
    for wrong in ["a b", "a\nb", "\"", "é", &"1".repeat(65)] {
        assert!(commit::given(wrong).unwrap_err().starts_with("MEMWARDEN_COMMIT must be "), "{wrong:?}");
    }
}

/// A package with the build script of this tree, which prints its commit.
struct Package {
    folder: tempfile::TempDir,
}

impl Package {
    fn new() -> Self {
        let package = Self { folder: tempfile::tempdir().unwrap() };
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        for file in ["build.rs", "build/commit.rs"] {
            write(&package.tree().join(file), &std::fs::read_to_string(own.join(file)).unwrap());
        }
        let manifest = "[package]\nname = \"tells\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n";
        write(&package.tree().join("Cargo.toml"), manifest);
        let main = "fn main() {\n    print!(\"{}\", env!(\"MEMWARDEN_COMMIT\"));\n}\n";
        write(&package.tree().join("src/main.rs"), main);
        package
    }

    fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    fn git(&self, tree: &Path, words: &[&str]) -> String {
        let mut git = program("git");
        for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR"] {
            git.env_remove(variable);
        }
        git.env("HOME", self.folder.path()).env("GIT_CONFIG_NOSYSTEM", "1").current_dir(tree);
        git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]).args(words);
        let done = git.output().unwrap();
        assert!(done.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    fn cargo(&self, tree: &Path, given: Option<&str>) -> Output {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut cargo = program(cargo);
        cargo.args(["run", "--offline", "--color", "never"]).current_dir(tree);
        cargo.env("CARGO_TARGET_DIR", tree.join("target")).env_remove("MEMWARDEN_COMMIT");
        if let Some(given) = given {
            cargo.env("MEMWARDEN_COMMIT", given);
        }
        cargo.output().unwrap()
    }

    /// The commit of a build, and whether anything was compiled for it.
    fn build(&self, tree: &Path, given: Option<&str>) -> (String, bool) {
        let done = self.cargo(tree, given);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{errors}");
        (String::from_utf8(done.stdout).unwrap(), errors.contains("Compiling"))
    }
}

#[test]
fn a_build_is_of_the_commit_that_is_checked_out() {
    if on_path("git").is_none() {
        return skip("git is not installed");
    }
    let package = Package::new();
    let tree = &package.tree();
    assert_eq!(package.build(tree, None), ("unknown".to_owned(), true), "an archive");
    assert_eq!(package.build(tree, None), ("unknown".to_owned(), false), "nothing changed");
    assert_eq!(package.build(tree, Some("0.1-2")), ("0.1-2".to_owned(), true), "a packager's");
    let wrong = package.cargo(tree, Some("two words"));
    assert!(!wrong.status.success());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("MEMWARDEN_COMMIT must be "), "{wrong:?}");

    // A build script that ran in an archive does not watch a repository: remove its output.
    std::fs::remove_dir_all(tree.join("target")).unwrap();
    write(&tree.join(".gitignore"), "/target/\n");
    package.git(tree, &["init", "-q", "-b", "area/topic"]);
    let commit = |tree: &Path, words: &[&str]| {
        package.git(tree, &[&["commit", "-q", "--allow-empty", "-m", "x"][..], words].concat());
        package.git(tree, &["rev-parse", "HEAD"])
    };
    package.git(tree, &["add", "."]);
    let first = commit(tree, &[]);
    assert_eq!(package.build(tree, None), (first.clone(), true), "a checkout");
    assert_eq!(package.build(tree, None), (first.clone(), false), "nothing changed");
    let second = commit(tree, &[]);
    assert_eq!(package.build(tree, None), (second.clone(), true), "the next commit");
    package.git(tree, &["pack-refs", "--all", "--prune"]);
    assert_eq!(package.build(tree, None).0, second, "packed");
    assert_eq!(package.build(tree, None), (second.clone(), false), "packed, and nothing changed");
    let third = commit(tree, &[]);
    assert_eq!(package.build(tree, None), (third, true), "the commit after that");
    package.git(tree, &["checkout", "-q", "--detach", &first]);
    assert_eq!(package.build(tree, None), (first.clone(), true), "another one is checked out");

    let other = package.folder.path().join("other");
    package.git(tree, &["worktree", "add", "-q", "-b", "other", other.to_str().unwrap(), &second]);
    assert_eq!(package.build(&other, None), (second, true), "a worktree");
    let fourth = commit(&other, &[]);
    assert_eq!(package.build(&other, None), (fourth, true), "the next commit in it");
    assert_eq!(package.build(tree, None), (first, false), "which is none here");
}

#[test]
fn version_and_metric_have_the_same_commit() {
    let done = memwarden(&["--version"]).output().unwrap();
    let shown = String::from_utf8(done.stdout).unwrap();
    let (version, revision) = (env!("CARGO_PKG_VERSION"), env!("MEMWARDEN_COMMIT"));
    assert_eq!(shown, format!("memwarden {version} (revision {revision})\n"));
    let daemon = Daemon::start(&[]);
    daemon.wait_page("the build", Duration::from_secs(30), |page| {
        page.get("memwarden_build_info", &[("version", version), ("revision", revision)]) == Some(1.0)
    });
    daemon.logs_once(&["memwarden is serving", revision]);
}
