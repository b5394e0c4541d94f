//! Who may import whom. The layers are kept here, not by crates.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A room and the rooms it may name; a file's own room is always allowed.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("config", &["model"]),
    ("events", &["model"]),
    ("history", &["model"]),
    ("host", &["model"]),
    ("training", &["model"]),
    ("sources", &["model", "host", "training"]),
    ("analyzers", &["model", "history", "training", "sources"]),
    ("engine", &["model", "config", "events", "history", "host", "sources", "analyzers"]),
    ("exposition", &["model", "config", "events", "host"]),
    ("protection", &["model"]),
    ("catalog", &["model", "engine", "events", "sources", "analyzers", "protection"]),
];

/// Rooms that read no clock, file or socket.
const PURE: &[&str] = &["model", "history", "training", "analyzers", "protection"];
const IMPURE_WORDS: &[&str] =
    &["std::fs", "std::net", "std::process", "Instant::now", "SystemTime::now", "tokio::", "std::env"];

/// What opens, creates, renames or removes by a path.
const OPENERS: &[&str] = &[
    "File::open(",
    "File::create(",
    "File::options(",
    "OpenOptions",
    "DirBuilder",
    "fs::read(",
    "fs::read_to_string(",
    "fs::write(",
    "fs::metadata(",
    "fs::symlink_metadata(",
    "fs::read_dir(",
    "fs::read_link(",
    "fs::rename(",
    "fs::copy(",
    "fs::hard_link(",
    "fs::soft_link(",
    "fs::remove_",
    "fs::create_dir",
    "fs::set_permissions(",
    "fs::canonicalize(",
    ".exists()",
    "openat",
    "rfs::open(",
    "rustix::fs::open(",
    "statat(",
    "mkdirat",
    "renameat",
    "unlinkat",
    "read_bounded(",
    "read_text(",
    "write_atomically(",
];

/// Who may, and why: `host/user_files` opens everything that a user can name. Everything else is no user's to name.
const MAY_OPEN: &[(&str, &[&str])] = &[
    ("the module that opens what users can name", &["host/user_files/folder.rs", "host/user_files/walk.rs"]),
    ("functions for the files of the kernel and of the daemon itself", &["host/fs.rs"]),
    (
        "files of the kernel, below the configured roots of /proc, /sys and /dev/kmsg",
        &[
            "app/records/mod.rs",
            "app/sampler.rs",
            "cli/report/options.rs",
            "host/capability.rs",
            "host/cgroup/mod.rs",
            "host/cgroup_owner.rs",
            "host/subordinate.rs",
            "host/child.rs",
            "host/connection.rs",
            "host/deaths/mod.rs",
            "host/executor/group.rs",
            "host/executor/never.rs",
            "host/executor/person.rs",
            "host/hooks/running.rs",
            "host/job.rs",
            "host/levels.rs",
            "host/process/root.rs",
            "host/signal.rs",
            "sources/cgroup/group.rs",
            "sources/cgroup/walk.rs",
            "sources/daemon/mod.rs",
            "sources/gpu/mod.rs",
            "sources/kmsg/reader.rs",
            "sources/perf/mod.rs",
        ],
    ),
    ("the library of the driver", &["sources/gpu/worker/session.rs"]),
    ("the list of users", &["app/guard/users.rs", "sources/workload/users.rs"]),
    (
        "the administrator's configuration, certificates, tokens and hooks",
        &[
            "app/guard/desk.rs",
            "config/read.rs",
            "exposition/http/web_config/watched.rs",
            "host/hooks/check.rs",
            "host/tls.rs",
        ],
    ),
    (
        "the daemon's own state folder",
        &[
            "app/records/memory.rs",
            "app/records/paused.rs",
            "app/state.rs",
            "host/audit/file.rs",
            "host/audit/mod.rs",
            "host/incident/mod.rs",
            "host/lock.rs",
        ],
    ),
    ("its own socket, looked at without following links", &["host/job_socket.rs"]),
    ("a folder of its own, made under a name that did not exist", &["cli/run/instrument.rs"]),
    (
        "what a person names to a command is read with that person's rights, pipes and links included",
        &[
            "cli/params/checkpoint.rs",
            "cli/params/file.rs",
            "cli/plot/input.rs",
            "cli/replay/input.rs",
            "cli/snapshot/mod.rs",
        ],
    ),
];

/// Files of the commands that use standard output or error themselves; the others go through `cli/out.rs`, which lets
/// no character through that moves a cursor.
const MAY_WRITE: &[(&str, &str)] = &[
    ("cli/out.rs", "it is the one"),
    ("cli/report/screen.rs", "paints, and moves the cursor itself"),
    ("cli/report/watch.rs", "asks whether it is a terminal, and flushes"),
    ("cli/replay/input.rs", "asks whether it is a terminal, and says a number"),
    ("cli/run/mod.rs", "asks whether it is a terminal"),
    ("cli/snapshot_digest.rs", "answers the daemon"),
];

/// Production lines a file may have, its inline tests not counted.
const LONGEST_FILE: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every source file below `folder`, with its production text.
fn files(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            if is_test(&path) {
                continue;
            }
            let production = text.split("\nmod tests {").next().unwrap().to_owned();
            found.push((path.strip_prefix(root()).unwrap().to_owned(), production));
        }
    }
}

/// Files and folders that are compiled for tests only, by the names this house gives them.
fn is_test(path: &Path) -> bool {
    path.components().any(|part| {
        let name = part.as_os_str().to_str().unwrap();
        matches!(name, "testing.rs" | "tests.rs" | "tests" | "fixture.rs")
    })
}

fn all_files() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root(), &mut found);
    assert!(found.len() > 30, "the walk found only {} files", found.len());
    found
}

fn room(path: &Path) -> String {
    let first = path.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The rooms named in code after `crate::`, comments left out.
fn imports(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    for (place, _) in code.match_indices("crate::") {
        let rest = &code[place + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let group = group.split('}').next().unwrap_or_default();
            let names = group.split(',').map(|name| name.trim().split("::").next().unwrap_or_default());
            found.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
        } else {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.insert(name);
        }
    }
    found.remove("metrics");
    found
}

#[test]
fn every_room_imports_only_what_it_may() {
    let mut wrong = Vec::new();
    for (path, text) in all_files() {
        let own = room(&path);
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == own) else { continue };
        for import in imports(&text) {
            if import != own && !allowed.contains(&import.as_str()) {
                wrong.push(format!("{} imports {import}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_source_knows_another() {
    let mut wrong = Vec::new();
    for (path, text) in all_files() {
        let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_str().unwrap()).collect();
        if parts[0] != "sources" || parts.len() < 3 {
            continue;
        }
        for (place, _) in text.match_indices("crate::sources::") {
            let rest = &text[place + "crate::sources::".len()..];
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let shared =
                name.is_empty() || name.chars().next().is_some_and(char::is_uppercase) || name == "testing";
            let metrics_only = rest[name.len()..].starts_with("::metrics");
            if !shared && name != parts[1] && !metrics_only {
                wrong.push(format!("{} names the source {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn analyzers_know_sources_by_their_metrics_only() {
    let mut wrong = Vec::new();
    for (path, text) in all_files().into_iter().filter(|(path, _)| room(path) == "analyzers") {
        for line in text.lines().filter(|line| line.contains("crate::sources::")) {
            if !line.contains("::metrics")
                && !line.contains("use crate::sources::{")
                && !line.ends_with("workload;")
            {
                wrong.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
        let named =
            ["cgroup::", "memory::", "workload::", "gpu::"].iter().flat_map(|name| text.match_indices(name));
        for (place, name) in named {
            if !text[place + name.len()..].starts_with("metrics") {
                wrong.push(format!("{}: {name} without metrics", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_rooms_read_no_clock_file_or_socket() {
    let mut wrong = Vec::new();
    let pure = |path: &Path| {
        PURE.contains(&room(path).as_str())
            || path.starts_with("exposition/plot")
            || path.starts_with("exposition/report")
    };
    for (path, text) in all_files().into_iter().filter(|(path, _)| pure(path)) {
        for word in IMPURE_WORDS.iter().filter(|word| text.contains(**word)) {
            wrong.push(format!("{} has {word}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kernel_paths_are_literal_in_one_place() {
    let mut wrong = Vec::new();
    for (path, text) in all_files() {
        // A command that needs no configuration has its default beside its flag.
        if [Path::new("config/schema.rs"), Path::new("cli/gpu.rs")].contains(&path.as_path()) {
            continue;
        }
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let literal = ["\"/proc", "\"/sys", "\"/dev/kmsg"].iter().any(|start| line.contains(start));
            if literal {
                wrong.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "read under Roots instead:\n{}", wrong.join("\n"));
}

/// The code of a file, comments left out.
fn code(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_users_can_name_is_opened_in_one_place() {
    let listed: BTreeSet<&str> = MAY_OPEN.iter().flat_map(|(_, files)| files.iter().copied()).collect();
    let mut wrong = Vec::new();
    let mut opening = BTreeSet::new();
    for (path, text) in all_files() {
        let code = code(&text);
        let words: Vec<_> = OPENERS.iter().filter(|word| code.contains(**word)).collect();
        if words.is_empty() {
            continue;
        }
        let name = path.to_str().unwrap().to_owned();
        if !listed.contains(name.as_str()) {
            wrong.push(format!("{name} has {words:?}: open it through host::user_files"));
        }
        opening.insert(name);
    }
    let stale = listed.iter().filter(|name| !opening.contains(**name));
    wrong.extend(stale.map(|name| format!("{name} opens nothing any more: take it off the list")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_write_through_one_place() {
    let mut wrong = Vec::new();
    for (path, text) in all_files().into_iter().filter(|(path, _)| room(path) == "cli") {
        let code = code(&text);
        let writes = code.contains("io::stdout()") || code.contains("io::stderr()");
        if writes && MAY_WRITE.iter().all(|(name, _)| Path::new(name) != path) {
            wrong.push(format!("{} writes by itself: write through cli::out", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_can_be_read_in_one_sitting() {
    let mut wrong = Vec::new();
    for (path, text) in all_files() {
        let lines = text.lines().count();
        if lines > LONGEST_FILE {
            wrong.push(format!("{} has {lines} production lines", path.display()));
        }
        if !text.starts_with("//!") {
            wrong.push(format!("{} does not say what it is", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
