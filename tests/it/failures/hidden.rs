//! A kernel that hides parts of /proc from the daemon.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use super::SOON;
use crate::harness::{Daemon, Page, program};

/// A user without processes and files here.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Mounts a separate `/proc` that hides others' processes, then runs the rest; the mount ends with its namespace.
const HIDING: [&str; 6] =
    ["unshare", "-m", "sh", "-c", "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"", "sh"];

/// A process of root's that a command line names; ended when dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start(mark: &str) -> Self {
        Self(program("sleep").arg(mark).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn may_become_nobody() -> bool {
    let able = rustix::process::geteuid().is_root()
        && program(NOBODY[0]).args(&NOBODY[1..]).arg("true").status().is_ok_and(|status| status.success());
    if !able {
        crate::skip::skip("only root can start the daemon as another user");
    }
    able
}

/// The binary, at a path where every user may run it.
fn open_to_all(folder: &Path) -> PathBuf {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.join("memwarden");
    std::fs::copy(env!("CARGO_BIN_EXE_memwarden"), &copy).unwrap();
    copy
}

/// A configuration that watches the processes whose command line has `mark`.
fn watching(folder: &Path, mark: &str) -> String {
    let file = folder.join("memwarden.yaml");
    let matchers = format!("[{{name: sleeper, command_line: \"{mark}\"}}]");
    let text = format!("sampling: {{interval: 200ms}}\nsources: {{workload: {{matchers: {matchers}}}}}\n");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn limited(page: &Page) -> Option<f64> {
    page.get("memwarden_process_visibility_limited", &[])
}

/// It serves its host's memory, and the process source is up with whatever it can see.
#[track_caller]
fn still_serves(page: &Page) {
    assert!(page.get("memwarden_host_memory_available_bytes", &[]) > Some(0.0));
    assert_eq!(page.get("memwarden_source_up", &[("source", "process")]), Some(1.0));
    assert_eq!(page.get("memwarden_source_up", &[("source", "workload")]), Some(1.0));
    assert_eq!(page.sum("memwarden_source_errors_total", &[("source", "process")]), 0.0);
}

#[test]
fn a_proc_without_processes_of_others_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let proc = folder.path().join("proc");
    let own = proc.join("4711");
    std::fs::create_dir_all(&own).unwrap();
    for name in ["meminfo", "vmstat", "stat", "buddyinfo", "uptime"] {
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host/6.18/proc").join(name);
        if recorded.is_file() {
            std::fs::copy(recorded, proc.join(name)).unwrap();
        }
    }
    for name in ["stat", "statm", "status", "cgroup", "cmdline", "io"] {
        let text = std::fs::read(Path::new("/proc/self").join(name)).unwrap();
        std::fs::write(own.join(name), text).unwrap();
    }
    let stat = std::fs::read_to_string(own.join("stat")).unwrap();
    let rest = stat.split_once(' ').unwrap().1;
    std::fs::write(own.join("stat"), format!("4711 {rest}")).unwrap();
    let daemon = Daemon::start(&["--set", &format!("paths.proc={}", proc.display())]);
    let page = daemon.wait_page("a limited view", SOON, |page| limited(page) == Some(1.0));
    still_serves(&page);
    assert_eq!(page.sum("memwarden_processes", &[]), 1.0);
    daemon.wait_frames(3.0);
    daemon.logs_once(&["hidden from the daemon"]);
}

#[test]
fn an_ordinary_user_measures_what_is_readable_and_reports_the_rest() {
    if !may_become_nobody() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mark = format!("4{:06}", std::process::id());
    let sleeper = Sleeper::start(&mark);
    let binary = open_to_all(folder.path());
    let file = watching(folder.path(), &mark);
    let daemon = Daemon::start_by(&NOBODY, &binary, &["--config.file", &file]);
    let page = daemon.wait_page("the sleeper", SOON, |page| {
        page.sum("memwarden_workload_processes", &[("workload", "sleeper")]) == 1.0
    });
    still_serves(&page);
    assert_eq!(limited(&page), Some(0.0), "the list of processes is whole");
    let sleeper_of = [("workload", "sleeper")];
    assert!(page.get("memwarden_workload_rss_bytes", &sleeper_of) > Some(0.0));
    assert_eq!(page.get("memwarden_workload_restricted_processes", &sleeper_of), Some(1.0));
    let read = page.get("memwarden_workload_io_read_bytes_total", &sleeper_of);
    assert_eq!(read, None, "what is refused was made up");
    // From Linux 6.2 on the size of the folder has the number, also for users who may not list it.
    if let Some(files) = page.get("memwarden_workload_open_files", &sleeper_of) {
        let held = std::fs::read_dir(format!("/proc/{}/fd", sleeper.0.id())).unwrap().count();
        assert_eq!(files, f64::from(u32::try_from(held).unwrap()));
    }
    daemon.wait_frames(5.0);
    let troubles = daemon.logged(&["Source failed"]);
    for (place, line) in troubles.iter().enumerate() {
        let source = line.split(' ').find(|word| word.starts_with("source=")).unwrap();
        assert!(
            !troubles[..place].iter().any(|other| other.contains(source)),
            "not one line a change: {troubles:#?}"
        );
    }
    println!("as nobody: {troubles:#?}");
    drop(sleeper);
}

#[test]
fn hidepid_leaves_own_processes_and_is_reported() {
    // Before 5.8 all mounts of /proc in a pid namespace share their options: this would hide the host's.
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = kernel.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (5, 8) || !may_become_nobody() {
        crate::skip::skip(&format!("hidepid needs root and a kernel from 5.8 (this is {kernel})"));
        return;
    }
    let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
    let before = mounts();
    let possible = program(HIDING[0]).args(&HIDING[1..]).arg("true").output().unwrap();
    if !possible.status.success() {
        crate::skip::skip(&format!("no mount here: {}", String::from_utf8_lossy(&possible.stderr)));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mark = format!("5{:06}", std::process::id());
    let sleeper = Sleeper::start(&mark);
    let binary = open_to_all(folder.path());
    let file = watching(folder.path(), &mark);
    let starter: Vec<&str> = HIDING.iter().chain(&NOBODY).copied().collect();
    let daemon = Daemon::start_by(&starter, &binary, &["--config.file", &file]);
    let page = daemon.wait_page("a limited view", SOON, |page| limited(page) == Some(1.0));
    still_serves(&page);
    let seen = page.sum("memwarden_processes", &[]);
    assert!((1.0..20.0).contains(&seen), "{seen} processes of nobody's");
    assert_eq!(page.sum("memwarden_workload_processes", &[("workload", "sleeper")]), 0.0);
    daemon.wait_frames(5.0);
    daemon.logs_once(&["hidden from the daemon"]);
    assert_eq!(mounts(), before, "the host's own /proc was touched");
    drop(sleeper);
}
