//! Workloads and ranks that imitate those of others.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::people::{ALICE, MALLORY, as_user};
use crate::harness::{Daemon, Page, wait_for};

/// A generous limit: the machine may be busy with other tests.
const SOON: Duration = Duration::from_secs(30);

/// A process of a user, killed at the end of the test.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Changes its name, prints a line, and reports an out-of-memory error on the job socket whose path it reads.
const SPEAKER: &str = r#"
import socket, sys
open("/proc/self/comm", "w").write("slurm")
print("named", flush=True)
job = socket.socket(socket.AF_UNIX)
job.connect(sys.stdin.readline().strip())
job.sendall(b'{"type":"hello","v":1,"rank":0}\n')
job.sendall(b'{"type":"mem","devices":{"0":{"allocated":800,"reserved":800,"free":0}}}\n')
job.recv(1)
"#;

/// A process of Mallory's that is named `slurm` and waits for the path of the socket.
fn speaker(marker: &str) -> Option<Kept> {
    let mut command = as_user(MALLORY, "python3")?;
    command.args(["-c", SPEAKER, marker]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(child) = command.spawn() else {
        crate::skip::skip("python3 is needed to speak as another user");
        return None;
    };
    let mut child = Kept(child);
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "named\n");
    Some(child)
}

/// Sends it the path of the daemon's socket, which other users can reach.
fn speak(speaker: &mut Kept, daemon: &Daemon) {
    let socket = daemon.job_socket();
    // The socket accepts connections before its file has its mode, and the client tries once.
    let open = || Some(std::fs::metadata(&socket).ok()?.permissions().mode() & 0o002 != 0);
    wait_for("the job socket", SOON, || open().filter(|open| *open));
    std::fs::set_permissions(socket.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut input = speaker.0.stdin.take().unwrap();
    writeln!(input, "{}", socket.display()).unwrap();
}

const RESERVED: &str = "memwarden_training_allocator_reserved_bytes";

/// The workload of Mallory's values, once they are shown.
fn accused(page: &Page) -> Option<String> {
    let series = page.0.iter().find(|series| series.name == RESERVED)?;
    series.labels.get("workload").cloned()
}

/// The names of workloads by their users.
fn workloads(page: &Page) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for series in page.0.iter().filter(|series| series.name == "memwarden_workload_info") {
        let name = series.labels["workload"].clone();
        all.entry(series.labels.get("user").cloned().unwrap_or_default()).or_default().push(name);
    }
    all
}

/// Writes a process's files below a folder that stands for `/proc`.
fn process(root: &Path, pid: u32, user: u32, stat: &str, group: &str) {
    let folder = root.join(format!("proc/{pid}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("stat"), stat).unwrap();
    std::fs::write(folder.join("cgroup"), format!("0::{group}\n")).unwrap();
    let status = format!("Name:\tx\nUid:\t{user}\t{user}\t{user}\t{user}\nVmHWM:\t8 kB\nRssAnon:\t8 kB\n");
    std::fs::write(folder.join("status"), status).unwrap();
    chown(&folder, Some(user), Some(user)).unwrap();
    std::fs::create_dir_all(root.join("cgroup").join(group.trim_start_matches('/'))).unwrap();
}

#[test]
fn neither_a_name_nor_an_own_cgroup_makes_a_process_a_member_of_anothers_job() {
    let Some(mut mallory) = speaker("x") else { return };
    let pid = mallory.0.id();
    let host = tempfile::tempdir().unwrap();
    let root = host.path();
    std::fs::create_dir(root.join("proc")).unwrap();
    std::fs::create_dir(root.join("cgroup")).unwrap();
    std::fs::write(root.join("cgroup/cgroup.controllers"), "memory\n").unwrap();
    std::fs::write(root.join("kmsg"), "").unwrap();
    std::fs::write(root.join("passwd"), format!("alice:x:{ALICE}:0::/:\nmallory:x:{MALLORY}:0::/:\n"))
        .unwrap();
    std::fs::write(root.join("proc/stat"), "cpu 1 2\nbtime 1700000000\nprocesses 4\n").unwrap();
    // The values that the kernel reports for the client; the other processes are derived from them.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.split_once(") ").unwrap();
    let forged = format!("/user/{MALLORY}/slurm/uid_{ALICE}/job_{pid}/step_0");
    let container = format!("/docker/{}/slurm/job_{pid}", "a".repeat(64));
    process(root, 1, 0, &format!("1 (init) {rest}"), "/init.scope");
    process(root, pid, MALLORY, &stat, "/user.slice");
    // The job's number is the pid of Mallory's process, which is named `slurm`.
    let [job, other, inner] = [pid + 1, pid + 2, pid + 3];
    process(
        root,
        job,
        ALICE,
        &format!("{job} (python) {rest}"),
        &format!("/slurm/uid_{ALICE}/job_{pid}/step_0"),
    );
    process(root, other, MALLORY, &format!("{other} (python) {rest}"), &forged);
    process(root, inner, MALLORY, &format!("{inner} (python) {rest}"), &container);
    // Folders delegated to Mallory.
    for folder in [format!("user/{MALLORY}"), format!("docker/{}", "a".repeat(64))] {
        chown(root.join("cgroup").join(folder), Some(MALLORY), Some(MALLORY)).unwrap();
    }
    let paths =
        ["proc", "cgroup", "kmsg", "passwd"].map(|name| format!("paths.{name}={}/{name}", root.display()));
    let mut args = vec!["--set", "sampling.interval=200ms"];
    args.extend(paths.iter().flat_map(|path| ["--set", path.as_str()]));
    let daemon = Daemon::start(&args);
    speak(&mut mallory, &daemon);
    let page = daemon.wait_page("the figures", SOON, |page| accused(page).is_some());
    assert_eq!(accused(&page), Some(format!("tree-slurm-{pid}")));
    let job = format!("slurm-{pid}");
    assert_eq!(page.sum("memwarden_workload_processes", &[("workload", &job)]), 1.0, "only its own process");
    let names = workloads(&page);
    assert_eq!(names["alice"], [job]);
    assert!(!names["mallory"].iter().any(|name| name.starts_with("slurm-")), "{names:?}");
}

#[test]
fn a_matcher_without_a_user_takes_each_user_apart() {
    let marker = format!("attacked-train-{}", std::process::id());
    let Some(mut alices) = as_user(ALICE, "sleep") else { return };
    let _alices = Kept(alices.arg0(&marker).arg("600").spawn().unwrap());
    let Some(mut mallory) = speaker(&marker) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memwarden.yaml");
    let matcher = format!("{{name: train, command_line: {marker}}}");
    let text = format!("sampling: {{interval: 200ms}}\nsources: {{workload: {{matchers: [{matcher}]}}}}\n");
    std::fs::write(&file, text).unwrap();
    let daemon = Daemon::start(&["--config.file", file.to_str().unwrap()]);
    speak(&mut mallory, &daemon);
    let (alice, user) = (ALICE.to_string(), MALLORY.to_string());
    // Until its arguments are read, a process belongs to its tree; other processes of the two users are ignored.
    let trains = |page: &Page| {
        let mut all = workloads(page);
        all.values_mut().for_each(|names| names.retain(|name| name.starts_with("train")));
        all.retain(|_, names| !names.is_empty());
        all
    };
    let page = daemon.wait_page("both workloads and the figures", SOON, |page| {
        let shown = trains(page);
        shown.contains_key(&alice)
            && shown.contains_key(&user)
            && accused(page).is_some_and(|name| name.starts_with("train"))
    });
    let shown = trains(&page);
    assert_eq!(shown[&alice].len(), 1, "{shown:?}");
    assert_eq!(shown[&user], [accused(&page).unwrap()], "{shown:?}");
    assert_ne!(shown[&alice], shown[&user], "{shown:?}");
    let alices = shown[&alice][0].as_str();
    assert_eq!(page.sum("memwarden_workload_processes", &[("workload", alices)]), 1.0);
}
