//! What the compiler does not hold: the permitted imports within the daemon's crate, and rules for the words of all crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module and the modules that it may name, in import order; the module of a file and `model` are always allowed.
/// `protection` is divided into modules. `app` and `cli` may import everything.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    // Crates, which only those below that draw, and those that protect, name.
    ("plot", &[]),
    ("protection/types", &[]),
    ("protection/policy", &[]),
    ("protection/options", &[]),
    ("protection/plan", &[]),
    ("config", &[]),
    ("events", &[]),
    ("flops", &[]),
    ("formats", &[]),
    ("history", &[]),
    ("host", &[]),
    ("past_runs", &[]),
    ("sources", &["host", "formats", "flops", "past_runs"]),
    ("analyzers", &["sources"]),
    ("engine", &["config", "events", "history", "host", "sources", "analyzers"]),
    ("protection/metrics", &[]),
    ("protection/status", &["protection/types", "protection/policy", "protection/metrics"]),
    ("protection/enforce", &["host", "protection/types"]),
    (
        "protection/record",
        &[
            "config",
            "events",
            "host",
            "sources",
            "engine",
            "protection/types",
            "protection/policy",
            "protection/options",
            "protection/plan",
            "protection/enforce",
        ],
    ),
    (
        "protection/guard",
        &[
            "formats",
            "config",
            "events",
            "host",
            "sources",
            "engine",
            "protection/types",
            "protection/policy",
            "protection/options",
            "protection/plan",
            "protection/metrics",
            "protection/status",
            "protection/enforce",
            "protection/record",
        ],
    ),
    ("catalog", &["events", "sources", "analyzers", "engine", "protection/metrics"]),
    ("job_summary", &["catalog"]),
    ("node_view", &["history", "catalog"]),
    ("cluster", &["node_view"]),
    ("otlp", &["config", "events", "host", "engine", "catalog"]),
    ("perf_log", &["host", "catalog"]),
    ("report", &["plot", "protection/types", "cluster", "catalog", "job_summary", "node_view", "past_runs"]),
    (
        "serve",
        &[
            "config",
            "events",
            "history",
            "host",
            "engine",
            "protection/types",
            "catalog",
            "job_summary",
            "node_view",
            "past_runs",
        ],
    ),
    ("top", &["history", "cluster", "node_view", "report"]),
    ("simulate", &["sources"]),
    (
        "app",
        &[
            "config",
            "events",
            "host",
            "sources",
            "analyzers",
            "engine",
            "protection/types",
            "protection/options",
            "protection/enforce",
            "protection/record",
            "protection/guard",
            "catalog",
            "node_view",
            "job_summary",
            "past_runs",
            "report",
            "otlp",
            "perf_log",
            "serve",
            "simulate",
        ],
    ),
];

/// Modules that read no clock, file or socket.
const PURE: &[&str] = &[
    "flops",
    "formats",
    "lab/files",
    "lab/report",
    "lab/what_if",
    "history",
    "past_runs",
    "analyzers",
    "node_view",
    "job_summary",
    "report",
    "top",
    "simulate",
    "protection/metrics",
    "protection/status",
];
/// Modules that may name the crate `forecast`.
const MAY_NAME_FORECAST: &[&str] = &["model", "analyzers", "lab/report"];
/// The crates that read no clock, file or socket, each with the crates that it depends on.
const PURE_CRATES: &[(&str, &[&str])] = &[
    ("forecast", &["serde"]),
    ("model", &["foldhash", "forecast", "saphyr-parser", "serde", "serde_json", "thiserror", "time"]),
    ("policy", &["base64", "memwarden-model", "ring", "serde", "serde_json", "thiserror", "time"]),
    ("plot", &["memwarden-model", "serde", "serde_json", "thiserror", "time", "tiny-skia"]),
];
const IMPURE_WORDS: &[&str] =
    &["std::fs", "std::net", "std::process", "Instant::now", "SystemTime::now", "tokio::", "std::env"];

/// Calls that open, create, rename or remove by a path.
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

/// The files that may use them, with the reason: `host/user_files` opens everything that a user can name. Users cannot
/// name the other paths.
const MAY_OPEN: &[(&str, &[&str])] = &[
    (
        "the module that opens what users can name",
        &[
            "host/user_files/folder.rs",
            "host/user_files/tmpfs.rs",
            "host/user_files/touch.rs",
            "host/user_files/walk.rs",
        ],
    ),
    ("functions for the files of the kernel and of the daemon itself", &["host/fs.rs"]),
    (
        "files of the kernel, below the configured roots of /proc, /sys and /dev/kmsg",
        &[
            "protection/record/mod.rs",
            "app/sampler.rs",
            "cli/doctor/mod.rs",
            "cli/report/options.rs",
            "host/capability.rs",
            "host/exit_events.rs",
            "sources/gpu/owners.rs",
            "sources/gpu/unlisted.rs",
            "host/huge_pages.rs",
            "host/perf.rs",
            "host/sent_signals.rs",
            "host/cgroup/mod.rs",
            "host/cgroup_owner.rs",
            "host/subordinate.rs",
            "host/child.rs",
            "host/connection.rs",
            "protection/enforce/executor/group.rs",
            "protection/enforce/executor/exempt.rs",
            "protection/enforce/executor/process_status.rs",
            "protection/enforce/hooks/running.rs",
            "host/job.rs",
            "host/numa.rs",
            "protection/enforce/levels.rs",
            "protection/enforce/process_meter.rs",
            "host/process/root.rs",
            "host/process/set.rs",
            "host/process/thread.rs",
            "host/signal.rs",
            "sources/cgroup/group.rs",
            "sources/cgroup/hugetlb.rs",
            "sources/cgroup/walk.rs",
            "sources/daemon/mod.rs",
            "sources/drm/files.rs",
            "sources/gpu/mod.rs",
            "sources/kmsg/reader.rs",
            "sources/perf/mod.rs",
        ],
    ),
    ("the library of the driver", &["sources/gpu/worker/session.rs"]),
    ("the list of users", &["protection/guard/users.rs", "sources/workload/users.rs"]),
    (
        "the administrator's configuration, certificates, tokens and hooks",
        &[
            "cli/doctor/guards.rs",
            "config/read.rs",
            "exporter/web_config/watched.rs",
            "protection/enforce/hooks/check.rs",
            "host/tls.rs",
        ],
    ),
    (
        "the daemon's own state folder",
        &[
            "protection/record/memory.rs",
            "protection/record/paused.rs",
            "app/state.rs",
            "protection/record/audit/file.rs",
            "protection/record/audit/mod.rs",
            "protection/record/store/mod.rs",
            "host/lock.rs",
        ],
    ),
    ("the folders of its own programs", &["host/lab.rs"]),
    ("its own socket, looked at without following links", &["host/local_socket.rs"]),
    (
        "a folder of its own, made under a name that did not exist",
        &["cli/run/guard.rs", "cli/run/instrument.rs"],
    ),
    (
        "what a person names to a command is read with that person's rights, pipes and links included",
        &["lab/recording/chart.rs", "lab/cli/replay/input.rs", "lab/cli/snapshot.rs"],
    ),
];

/// Files of the commands that use standard output or error directly; the others use `cli/out.rs`, which escapes
/// characters that control a terminal.
const MAY_WRITE: &[(&str, &str)] = &[
    ("cli/out.rs", "it is the one"),
    ("cli/report/screen.rs", "paints, and moves the cursor itself"),
    ("cli/report/watch.rs", "asks whether it is a terminal, and flushes"),
    ("lab/cli/replay/input.rs", "asks whether it is a terminal, and says a number"),
    ("lab/cli/snapshot_digest.rs", "answers the daemon"),
    ("cli/run/mod.rs", "asks whether it is a terminal"),
    ("cli/run/progress.rs", "moves the cursor itself"),
    ("cli/top/terminal.rs", "draws the screen of the terminal UI"),
];

/// Maximum number of production lines of a file, without inline tests.
const LONGEST_FILE: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every source file below `folder`, by its path below `root`, with its production text.
fn files(root: &Path, folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            if is_test(&path) {
                continue;
            }
            let production = text.split("\nmod tests {").next().unwrap().to_owned();
            found.push((path.strip_prefix(root).unwrap().to_owned(), production));
        }
    }
}

/// Files and folders that are compiled for tests only, by their names in this tree.
fn is_test(path: &Path) -> bool {
    path.components().any(|part| {
        let name = part.as_os_str().to_str().unwrap();
        matches!(name, "testing.rs" | "tests.rs" | "tests")
    })
}

/// The files of the daemon's crate.
fn own_files() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root(), &root(), &mut found);
    assert!(found.len() > 30, "the walk found only {} files", found.len());
    found
}

/// The files of another crate, by its folder.
fn crate_files(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join("src");
    let mut found = Vec::new();
    files(&root, &root, &mut found);
    assert!(found.len() > 10, "the walk found only {} files", found.len());
    found
}

/// The files of all crates; those of another crate are below its name.
fn all_files() -> Vec<(PathBuf, String)> {
    let crates = std::fs::read_dir(root().with_file_name("crates")).unwrap();
    let crates = crates.map(|entry| format!("crates/{}", entry.unwrap().file_name().to_str().unwrap()));
    let mut found = own_files();
    for folder in crates.chain(["lab".to_owned()]) {
        let name = folder.rsplit('/').next().unwrap();
        found.extend(crate_files(&folder).into_iter().map(|(path, text)| (Path::new(name).join(path), text)));
    }
    found
}

/// The module path of a file, as its parts below the crate.
fn module(path: &Path) -> Vec<String> {
    let text = path.with_extension("");
    let mut parts: Vec<String> =
        text.components().map(|part| part.as_os_str().to_str().unwrap().to_owned()).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib")) {
        parts.pop();
    }
    parts
}

/// The module of a path: its first part, and two parts in `protection` and in the crate `lab`.
fn module_group(module: &[String]) -> String {
    match module {
        [wing, group, ..] if ["protection", "lab"].contains(&wing.as_str()) => format!("{wing}/{group}"),
        [group, ..] => group.clone(),
        [] => String::new(),
    }
}

fn group(path: &Path) -> String {
    module_group(&module(path))
}

/// Every path of a `use` tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn leaves(tree: &str, before: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        found.push(format!("{before}{}", tree.split(" as ").next().unwrap().trim()));
        return;
    };
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    let before = format!("{before}{}", head.trim());
    let (mut depth, mut from) = (0_usize, 0);
    for (place, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                leaves(&inner[from..place], &before, found);
                from = place + 1;
            }
            _ => {}
        }
    }
    if !inner[from..].trim().is_empty() {
        leaves(&inner[from..], &before, found);
    }
}

/// The module that a path leads to from `own`, as parts below the crate; nothing outside of the crate.
fn absolute(path: &str, own: &[String]) -> Option<Vec<String>> {
    let mut parts = path.split("::").map(str::to_owned).peekable();
    let mut at = match parts.next()?.as_str() {
        "crate" | "$crate" => Vec::new(),
        "self" => own.to_vec(),
        "super" => own[..own.len().checked_sub(1)?].to_vec(),
        _ => return None,
    };
    while parts.next_if(|part| part == "super").is_some() {
        at.pop();
    }
    at.extend(parts);
    Some(at)
}

/// The paths below the crate that a file names in code, in any form: `crate::`, `super::`, groups, in a `use` or
/// elsewhere.
fn named_paths(path: &Path, text: &str) -> Vec<Vec<String>> {
    let own = module(path);
    let code = code(text);
    let mut paths = Vec::new();
    for (place, word) in ["crate::", "super::", "self::"].iter().flat_map(|word| code.match_indices(word)) {
        let before = code[..place].chars().next_back();
        if before.is_some_and(|letter| letter.is_alphanumeric() || matches!(letter, '_' | ':')) {
            continue;
        }
        let rest = &code[place..];
        let in_use = code[..place].rsplit(['\n', ';']).next().unwrap().trim_start().contains("use ");
        let end = if in_use {
            rest.find(';')
        } else {
            rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | ':')))
        };
        let mut found = Vec::new();
        leaves(&rest[..end.unwrap_or(rest.len())].replace('\n', " "), "", &mut found);
        debug_assert!(rest.starts_with(word));
        paths.append(&mut found);
    }
    paths.iter().filter_map(|path| absolute(path, &own)).collect()
}

/// The modules that a file names.
fn imports(path: &Path, text: &str) -> BTreeSet<String> {
    let macros = ["metrics", "options", "choice", "words"];
    let groups = named_paths(path, text).into_iter().map(|module| module_group(&module));
    groups.filter(|group| !group.is_empty() && !macros.contains(&group.as_str())).collect()
}

#[test]
fn imports_are_found_in_every_form() {
    let path = Path::new("protection/guard/mod.rs");
    let text = "use crate::{host::clock, model::{a, b::c as d}};\nuse super::super::serve;\n// crate::otlp\nfn f() { \
                super::plan::go(); }\nuse crate::protection::{record, types::{self, step::Step}};\nuse self::own::X;\n";
    let found: Vec<String> = imports(path, text).into_iter().collect();
    let all = [
        "host",
        "model",
        "protection/guard",
        "protection/plan",
        "protection/record",
        "protection/types",
        "serve",
    ];
    assert_eq!(found, all);
}

#[test]
fn every_module_imports_only_what_it_may() {
    let mut wrong = Vec::new();
    for (path, text) in own_files() {
        let own = group(&path);
        if matches!(own.as_str(), "" | "main" | "cli" | "fuzzing" | "protection") {
            continue;
        }
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == own) else {
            wrong.push(format!("{} is in no listed module", path.display()));
            continue;
        };
        for import in imports(&path, &text) {
            if ![own.as_str(), "model"].contains(&import.as_str()) && !allowed.contains(&import.as_str()) {
                wrong.push(format!("{} imports {import}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn modules_are_listed_after_those_that_they_import() {
    for (place, (group, allowed)) in MAY_IMPORT.iter().enumerate() {
        for name in *allowed {
            assert!(MAY_IMPORT[..place].iter().any(|(before, _)| before == name), "{group} before {name}");
        }
    }
}

/// The files that each file of a crate imports, by their modules. A file that declares a module imports it.
fn file_imports(files: &[(PathBuf, String)]) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let modules: BTreeSet<Vec<String>> = files.iter().map(|(path, _)| module(path)).collect();
    let home = |path: &[String]| {
        let prefixes = (0..=path.len()).rev().map(|length| path[..length].to_vec());
        prefixes.into_iter().find(|prefix| modules.contains(prefix)).unwrap()
    };
    let found = files.iter().map(|(path, text)| {
        let own = module(path);
        let declared = text.lines().filter_map(|line| {
            let name = line.split("mod ").nth(1)?.strip_suffix(';')?;
            Some([&own[..], &[name.to_owned()]].concat())
        });
        let named = named_paths(path, text).into_iter().chain(declared).map(|path| home(&path));
        (own.clone(), named.filter(|other| *other != own).collect())
    });
    found.collect()
}

/// The modules that are in a circle of imports, or import one that is.
fn in_circles(mut imports: BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> Vec<String> {
    loop {
        let done: Vec<Vec<String>> =
            imports.iter().filter(|(_, named)| named.is_empty()).map(|(own, _)| own.clone()).collect();
        if done.is_empty() {
            return imports.into_keys().map(|module| module.join("::")).collect();
        }
        imports.retain(|own, _| !done.contains(own));
        imports.values_mut().for_each(|named| named.retain(|other| !done.contains(other)));
    }
}

#[test]
fn a_circle_of_imports_is_found() {
    let file = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
    let leaf = file("b/leaf.rs", "use std::fmt;\n");
    let rest =
        [file("lib.rs", "pub mod a;\npub mod b;\n"), file("b/mod.rs", "mod leaf;\npub use leaf::X;\n")];
    let tree = [file("a.rs", "use crate::b::leaf::{X, Y};\n"), leaf.clone()];
    assert!(in_circles(file_imports(&[&rest[..], &tree].concat())).is_empty());
    let circle = [file("a.rs", "use crate::b::X;\n"), file("b/leaf.rs", "fn f() { crate::a::g(); }\n")];
    assert_eq!(in_circles(file_imports(&[&rest[..], &circle].concat())), ["", "a", "b", "b::leaf"]);
    let parent = [file("b/leaf.rs", "use super::X;\n"), file("a.rs", "")];
    assert_eq!(in_circles(file_imports(&[&rest[..], &parent].concat())), ["", "b", "b::leaf"]);
}

#[test]
fn the_forecast_crate_has_no_circle_of_imports() {
    let circles = in_circles(file_imports(&crate_files("crates/forecast")));
    assert!(circles.is_empty(), "in a circle of imports: {}", circles.join(", "));
}

#[test]
fn pure_crates_read_no_clock_file_or_socket() {
    let mut wrong = Vec::new();
    for (name, dependencies) in PURE_CRATES {
        for (path, text) in crate_files(&format!("crates/{name}")) {
            let code = code(&text);
            let words = IMPURE_WORDS.iter().copied().chain(["static mut", "thread_local"]);
            wrong.extend(
                words
                    .filter(|word| code.contains(word))
                    .map(|word| format!("{name}: {} has {word}", path.display())),
            );
        }
        let manifest = root().with_file_name("crates").join(name).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let (_, listed) = manifest.split_once("[dependencies]").unwrap();
        let listed = listed.split("\n[").next().unwrap();
        let names: Vec<&str> = listed.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
        assert_eq!(names, *dependencies, "{name} depends on nothing that reads a clock or a file");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn few_modules_name_the_crate_forecast() {
    let mut wrong = Vec::new();
    for (path, text) in all_files() {
        if imports_forecast(&code(&text)) && !MAY_NAME_FORECAST.contains(&group(&path).as_str()) {
            wrong.push(format!(
                "{} names the crate forecast: its types are in model::outlook",
                path.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether code imports from the crate `forecast`, and not from a module of this name.
fn imports_forecast(code: &str) -> bool {
    let uses = |line: &str| line.trim_start().trim_start_matches("pub ").starts_with("use forecast::");
    code.lines().any(uses) && !code.contains("mod forecast;")
}

#[test]
fn no_source_imports_another() {
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
fn analyzers_import_only_the_metrics_of_sources() {
    let mut wrong = Vec::new();
    for (path, text) in all_files().into_iter().filter(|(path, _)| group(path) == "analyzers") {
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

/// Code that reads points. The guard uses `Outlook` and `model::facts` instead: identities and no labels.
const POINT_WORDS: &[&str] =
    &[".labels", ".families", ".points", "frame.value(", "Family", "Point", "View", "::metrics::"];

#[test]
fn the_guard_reads_no_point() {
    let mut wrong = Vec::new();
    for (path, text) in all_files().into_iter().filter(|(path, _)| group(path) == "protection/guard") {
        let code = code(&text);
        for word in POINT_WORDS.iter().filter(|word| code.contains(**word)) {
            wrong.push(format!("{} has {word}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_modules_read_no_clock_file_or_socket() {
    let mut wrong = Vec::new();
    for (path, text) in all_files().into_iter().filter(|(path, _)| PURE.contains(&group(path).as_str())) {
        for word in IMPURE_WORDS.iter().filter(|word| text.contains(**word)) {
            wrong.push(format!("{} has {word}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kernel_paths_are_literal_in_one_module() {
    let mut wrong = Vec::new();
    for (path, text) in all_files() {
        // A command without a configuration has its default beside its flag.
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

/// The code of a file without comments.
fn code(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn paths_that_users_can_name_are_opened_in_one_module() {
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
fn commands_write_through_one_module() {
    let mut wrong = Vec::new();
    for (path, text) in
        all_files().into_iter().filter(|(path, _)| ["cli", "lab/cli"].contains(&group(path).as_str()))
    {
        let code = code(&text);
        let writes = code.contains("io::stdout()") || code.contains("io::stderr()");
        if writes && MAY_WRITE.iter().all(|(name, _)| Path::new(name) != path) {
            wrong.push(format!("{} writes by itself: write through cli::out", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_commands_and_the_app_use_errors_without_a_type() {
    let mut wrong = Vec::new();
    let may = ["cli", "app", "main", "lab/cli"];
    for (path, text) in all_files().into_iter().filter(|(path, _)| !may.contains(&group(path).as_str())) {
        if code(&text).contains("anyhow") {
            wrong.push(format!("{} names anyhow: its errors have a type of their own", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_at_most_500_lines() {
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

#[test]
fn readers_of_frames_name_metrics_by_their_declarations() {
    let mut wrong = Vec::new();
    for (path, text) in all_files() {
        if !["node_view", "report", "serve", "perf_log", "cli"].contains(&group(&path).as_str()) {
            continue;
        }
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            if line.contains("\"memwarden_") {
                wrong.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "name these by catalog::ROOM::METRIC.desc.name:\n{}", wrong.join("\n"));
}

/// A string with one of these formats an amount, a share or a duration for people.
const FORMATS: [&str; 11] =
    ["} %", "}%\"", "} B\"", "} KiB", "} MiB", "} GiB", "} ms\"", "} min", "} h\"", "/min\"", "/h\""];
/// Files that may: the formats themselves, and the labels of axes, whose precision is that of their steps.
const MAY_FORMAT: [&str; 5] = [
    "model/format.rs",
    "model/units.rs",
    "plot/ticks.rs",
    "plot/times.rs",
    "lab/report/snapshot/picture/live.rs",
];

#[test]
fn one_module_formats_amounts_and_durations() {
    let mut wrong = Vec::new();
    for (path, text) in all_files() {
        if MAY_FORMAT.iter().any(|name| Path::new(name) == path) {
            continue;
        }
        // Limits in the texts of errors are constants.
        for line in text.lines().filter(|line| !line.trim_start().starts_with("#[error(")) {
            if FORMATS.iter().any(|format| line.contains(format)) {
                wrong.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "format these with model::format:\n{}", wrong.join("\n"));
}

#[test]
fn one_module_names_healths() {
    let mut wrong = Vec::new();
    for (path, text) in all_files().into_iter().filter(|(path, _)| Path::new("model/health.rs") != path) {
        for line in code(&text).lines() {
            if ["\"critical\"", "\"warning\"", "\"1;31\""].iter().any(|word| line.contains(word))
                && Path::new("report/text.rs") != path
            {
                wrong.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "name these by model::health::Health:\n{}", wrong.join("\n"));
}
