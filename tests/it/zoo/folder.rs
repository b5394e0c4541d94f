//! The folder of a node: its files at each second, and the truth beside them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use memwarden::model::ends::EndCause;
use memwarden::model::health::Health;
use serde::Deserialize;

/// The second at which the records of `kmsg.txt` are written: records of before the start are not counted.
const KERNEL_LOG_AT: u64 = 5;

/// The folder of cgroups: those of a node have one version, so that `base.txt` completes none.
const GROUPS: &str = "cgroup/";

/// What is right to say of a node. What is left out is not known.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Truth {
    /// What it is, in one sentence.
    pub(crate) about: String,
    /// The public report with its amounts.
    pub(crate) source: String,
    /// Amounts of the host in bytes: `total`, `available`, `swap_free`; null where the amount must be unknown.
    #[serde(default)]
    pub(crate) host: BTreeMap<String, Option<u64>>,
    /// Bytes by size of a huge page: `total` and `free`.
    #[serde(default)]
    pub(crate) huge_pages: BTreeMap<String, BTreeMap<String, u64>>,
    /// Bytes by cgroup: `room`, null where no limit applies.
    #[serde(default)]
    pub(crate) groups: BTreeMap<String, BTreeMap<String, Option<u64>>>,
    /// The health of the node after a minute.
    pub(crate) health: Option<Health>,
    /// Texts that the sentence of a problem contains.
    #[serde(default)]
    pub(crate) says: Vec<String>,
    /// Texts that no sentence of a problem contains.
    #[serde(default)]
    pub(crate) says_not: Vec<String>,
    /// The default level that is crossed, of the host (`host`), of cgroups, of `memory.high` (`high:` and the cgroup), and of NUMA nodes
    /// (`nodes:` and their numbers): `none`, `soft` or `hard`.
    #[serde(default)]
    pub(crate) guard: BTreeMap<String, String>,
    /// The causes of ends, by the pid of the process that the end is about. No other end may be told.
    #[serde(default)]
    pub(crate) ends: BTreeMap<u32, EndCause>,
    /// The states of sources.
    #[serde(default)]
    pub(crate) sources: BTreeMap<String, String>,
    /// Whether the node has no file but those of its folder; otherwise those of `base.txt` complete it.
    #[serde(default)]
    pub(crate) bare: bool,
}

/// One file of the node.
#[derive(Debug)]
struct File {
    path: String,
    /// From this second on.
    from: u64,
    text: String,
}

/// A node of the zoo.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) truth: Truth,
    files: Vec<File>,
    /// The scenario of the fake NVML, where it has GPUs of NVIDIA.
    pub(crate) nvml: Option<PathBuf>,
    kernel_log: Option<String>,
    /// Each with the second from which it does not exist any more; empty where the folder names no process.
    processes: Vec<(u32, Option<u64>)>,
}

/// All nodes, by name.
pub(crate) fn nodes() -> Vec<Node> {
    let zoo = folder();
    let base = files(&std::fs::read_to_string(zoo.join("base.txt")).unwrap());
    let folders = std::fs::read_dir(&zoo).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().map(|path| node(path, &base)).collect()
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zoo")
}

fn node(folder: &Path, base: &[(u64, String, String)]) -> Node {
    let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
    let truth: Truth = serde_json::from_str(&read("truth.json").unwrap())
        .unwrap_or_else(|error| panic!("{name}/truth.json: {error}"));
    let own = files(&read("root.txt").unwrap_or_default());
    let is_own = |path: &str| own.iter().any(|(_, other, _)| other == path);
    let has_groups = own.iter().any(|(_, path, _)| path.starts_with(GROUPS));
    let is_left_out = |path: &str| truth.bare || (has_groups && path.starts_with(GROUPS));
    let missing = base.iter().filter(|(_, path, _)| !is_own(path) && !is_left_out(path));
    let mut all: Vec<_> = missing.cloned().collect();
    all.extend(own);
    let processes = read("processes.txt");
    let mut known = Vec::new();
    for line in processes.iter().flat_map(|text| text.lines()) {
        let (line, end) = line.split_once(" @").map_or((line, None), |(line, end)| (line, Some(end)));
        let (pid, files) = process(line);
        all.extend(files);
        known.push((pid, end.map(|end| end.parse().unwrap())));
    }
    let files = all.into_iter().map(|(from, path, text)| File { path, from, text }).collect();
    let nvml = Some(folder.join("nvml.json")).filter(|path| path.exists());
    Node { truth, files, nvml, kernel_log: read("kmsg.txt"), processes: known, name }
}

/// The files of a text in which `== PATH` or `== @SECOND PATH` begins each.
fn files(text: &str) -> Vec<(u64, String, String)> {
    let mut found: Vec<(u64, String, String)> = Vec::new();
    for line in text.split_inclusive('\n') {
        match (line.strip_prefix("== "), found.last_mut()) {
            (Some(head), _) => {
                let moment = head.trim_end().strip_prefix('@').and_then(|rest| rest.split_once(' '));
                let (from, path) =
                    moment.map_or((0, head.trim_end()), |(at, path)| (at.parse().unwrap(), path));
                found.push((from, path.to_owned(), String::new()));
            }
            (None, Some((_, _, text))) => text.push_str(line),
            (None, None) => panic!("text before the first file: {line}"),
        }
    }
    found
}

/// The pid and the files of a process, of a line with its pid, name, KiB of anonymous memory, and cgroup.
fn process(line: &str) -> (u32, [(u64, String, String); 4]) {
    let [pid, name, anon, group] = line.split_ascii_whitespace().collect::<Vec<_>>()[..] else {
        panic!("four words: {line}")
    };
    let pages = anon.parse::<u64>().unwrap() / 4;
    let parent = u32::from(pid != "1");
    let stat = format!(
        "{pid} ({name}) S {parent} {pid} {pid} 0 -1 4194304 9 0 0 0 0 0 0 0 20 0 1 0 {pid} 8081408 {pages} \
         18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
    );
    let status = format!(
        "Name:\t{name}\nUid:\t1000\t1000\t1000\t1000\nVmHWM:\t{anon} kB\nRssAnon:\t{anon} kB\nRssFile:\t0 kB\n\
         RssShmem:\t0 kB\nVmSwap:\t0 kB\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n"
    );
    let statm = format!("{pages} {pages} 0 1 0 {pages} 0\n");
    let group = format!("0::{group}\n");
    let files = [("stat", stat), ("status", status), ("statm", statm), ("cgroup", group)]
        .map(|(file, text)| (0, format!("proc/{pid}/{file}"), text));
    (pid.parse().unwrap(), files)
}

impl Node {
    /// Writes the files that are new or other at this second, below `root`.
    pub(crate) fn write(&self, root: &Path, second: u64) {
        for file in &self.files {
            let moves = file.text.contains('{') && second > file.from;
            let replaced = self
                .files
                .iter()
                .any(|other| other.path == file.path && other.from > file.from && other.from <= second);
            if second == file.from || (moves && !replaced) {
                let path = root.join(&file.path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, at(&file.text, second - file.from)).unwrap();
            }
        }
        for (pid, _) in self.processes.iter().filter(|(_, end)| *end == Some(second)) {
            std::fs::remove_dir_all(root.join(format!("proc/{pid}"))).unwrap();
        }
        if second == 0 {
            std::fs::write(root.join("kmsg"), "").unwrap();
        }
        if let Some(records) = self.kernel_log.as_ref().filter(|_| second == KERNEL_LOG_AT) {
            let mut log = std::fs::OpenOptions::new().append(true).open(root.join("kmsg")).unwrap();
            log.write_all(records.as_bytes()).unwrap();
        }
    }

    /// Whether other threads and processes read its files, at the time of the real clock.
    pub(crate) fn is_in_real_time(&self) -> bool {
        self.nvml.is_some() || !self.processes.is_empty()
    }

    /// What it has besides a host: `GPU`, `cgroup`.
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        let gpus = self.nvml.is_some() || self.files.iter().any(|file| file.path.contains("driver/nvidia"));
        let groups = self.files.iter().any(|file| {
            file.path.ends_with("/memory.current") || file.path.ends_with("/memory.usage_in_bytes")
        });
        [(gpus, "GPU"), (groups, "cgroup")]
            .into_iter()
            .filter_map(|(has, kind)| has.then_some(kind))
            .collect()
    }
}

/// A text with each `{A+B}` replaced by A + B · `seconds`.
fn at(text: &str, seconds: u64) -> String {
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once('}').unwrap();
        let (start, step) = number.split_once('+').unwrap();
        let [start, step] = [start, step].map(|part| part.parse::<u64>().unwrap());
        out.push_str(&format!("{}{rest}", start + step * seconds));
    }
    out
}
