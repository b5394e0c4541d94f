//! Processes whose files in /proc cannot be read.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Daemon, Page, memwarden, program, try_get, wait_for};
use crate::protection::job::{Job, witness};
use crate::protection::room::Room;

/// Long enough for a loaded machine; nothing waits so long unless it fails.
const SOON: Duration = Duration::from_secs(60);

/// A user that no other test uses, including other runs on this machine.
fn stranger(number: u32) -> u32 {
    2_000_000 + 2 * std::process::id() + number
}

/// A process that exits with its input, or when dropped.
struct Helper(Child);

impl Helper {
    /// Starts it and waits for its first line, which is "ready" or the reason of a failure.
    fn start(command: &mut Command) -> Result<Self, String> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let helper = Self(child);
        if line.trim() == "ready" { Ok(helper) } else { Err(line) }
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file system whose file is served or never. Blocked reads continue when this is dropped.
pub(super) struct Fuse {
    server: Option<Helper>,
    holder: Option<Helper>,
    user: u32,
    pub(super) folder: tempfile::TempDir,
}

impl Fuse {
    /// Mounts it for this user; prints a message if this is not possible.
    pub(super) fn mount(user: u32, how: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            crate::skip::skip("attacks of another user need root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut fuse = Self { server: None, holder: None, user, folder };
        let mut command = script();
        command.arg("serve").arg(fuse.folder.path()).arg(user.to_string()).arg(how);
        match Helper::start(&mut command) {
            Ok(server) => fuse.server = Some(server),
            Err(why) => {
                crate::skip::skip(&format!("no file system in user space: {}", why.trim()));
                return None;
            }
        }
        Some(fuse)
    }

    /// A process of another user, with these words in its command line, that will read the file.
    fn hold(&mut self, words: &[&str]) -> u32 {
        let mut command = script();
        command.arg("hold").arg(self.folder.path().join("file")).arg(self.user.to_string()).args(words);
        self.holder.insert(Helper::start(&mut command).unwrap()).0.id()
    }

    /// Lets it read, with the lock of its memory.
    fn hang(&mut self) {
        let holder = &mut self.holder.as_mut().unwrap().0;
        holder.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let tasks = format!("/proc/{}/task", holder.id());
        let hangs = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.contains("(mapper) D")
        };
        // It may be blocked elsewhere for a moment.
        let mut times = 0;
        wait_for("a process that hangs", SOON, || {
            let hangs = std::fs::read_dir(&tasks).unwrap().flatten().any(hangs);
            times = if hangs { times + 1 } else { 0 };
            (times == 5).then_some(())
        });
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // All reads end with the server.
        self.server = None;
        self.holder = None;
        let _ = program("umount").arg("-l").arg(self.folder.path()).stderr(Stdio::null()).status();
    }
}

fn script() -> Command {
    let mut command = program("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/attacks/fuse.py"));
    command
}

/// A cgroup that can be frozen, and is thawed when dropped.
struct Freezer {
    folder: PathBuf,
    file: &'static str,
    words: [&'static str; 2],
}

impl Freezer {
    /// Freezes this process; prints a message if this is not possible.
    fn freeze(pid: u32) -> Option<Self> {
        let name = format!("memwarden-attack-{}-{pid}", std::process::id());
        let older = ("/sys/fs/cgroup/freezer", "freezer.state", ["FROZEN", "THAWED"]);
        let hierarchies = [older, ("/sys/fs/cgroup", "cgroup.freeze", ["1", "0"])];
        for (root, file, words) in hierarchies {
            let folder = Path::new(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() || std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let freezer = Self { folder, file, words };
            let moved = std::fs::write(freezer.folder.join("cgroup.procs"), pid.to_string());
            if moved.is_ok() && std::fs::write(freezer.folder.join(file), words[0]).is_ok() {
                let events = freezer.folder.join("cgroup.events");
                wait_for("a frozen group", SOON, || {
                    let state = std::fs::read_to_string(freezer.folder.join(file)).unwrap();
                    let events = std::fs::read_to_string(&events).unwrap_or_default();
                    (state.trim() == "FROZEN" || events.contains("frozen 1")).then_some(())
                });
                return Some(freezer);
            }
        }
        crate::skip::skip("no group can be frozen here");
        None
    }

    fn thaw(&self) {
        // It may have exited already.
        let _ = std::fs::write(self.folder.join(self.file), self.words[1]);
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        let above = self.folder.parent().unwrap().join("cgroup.procs");
        let pids = std::fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines() {
            let _ = std::fs::write(&above, pid);
        }
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// A configuration that watches the processes whose command line has `mark`.
fn watching(folder: &Path, mark: &str) -> String {
    let file = folder.join("memwarden.yaml");
    let matchers = format!("[{{name: marked, command_line: \"{mark}\"}}]");
    let text = format!("sampling: {{interval: 200ms}}\nsources: {{workload: {{matchers: {matchers}}}}}\n");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn sleeper(mark: &str) -> Helper {
    let mut command = program("sh");
    Helper::start(command.args(["-c", "echo ready; read end", mark])).unwrap()
}

/// The threads of all processes with the mark, of any user's workload.
fn members(daemon: &Daemon) -> f64 {
    let page = daemon.page();
    let marked = page.all("memwarden_workload_threads", &[]);
    marked.filter(|series| series.labels["workload"].starts_with("marked")).map(|series| series.value).sum()
}

/// Waits until a number of threads have the mark.
#[track_caller]
fn wait_members(daemon: &Daemon, count: f64) {
    wait_for("members", SOON, || (members(daemon) >= count).then_some(()));
}

fn hanging(user: u32) -> String {
    format!("memwarden_process_reads_hanging{{user=\"{user}\"}}")
}

/// Checks the daemon while the command line of a process of this user cannot be read.
#[track_caller]
fn continues(daemon: &Daemon, user: u32, pid: u32, mark: &str) -> Helper {
    let subject = format!("\"pid\":\"{pid}\"");
    wait_for("a finding that names the process", SOON, || {
        let findings = daemon.get("/api/v1/findings").body;
        (findings.contains("\"not_readable\"") && findings.contains(&subject)).then_some(())
    });
    daemon.wait_frames(5.0);
    // A frame may be late on a busy machine, but must arrive.
    wait_for("readiness", SOON, || (daemon.get("/-/ready").code == 200).then_some(()));
    assert_eq!(daemon.value(&hanging(user)), Some(1.0));
    daemon.logs_once(&["cannot be read", &format!("Process {pid} ")]);
    // All others are compared with the matchers.
    let other = sleeper(mark);
    wait_members(daemon, 1.0);
    other
}

#[test]
fn an_unreadable_command_line_blocks_neither_the_sampler_nor_its_successor() {
    let mark = format!("never-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let config = watching(folder.path(), &mark);
    // This is dropped first and ends the blocked reads, so that the daemon can exit.
    let mut daemon;
    let user = stranger(0);
    let Some(mut fuse) = Fuse::mount(user, "silent") else { return };
    let holder = fuse.hold(&[]);
    fuse.hang();
    daemon = Daemon::start(&["--config.file", &config]);
    let _other = continues(&daemon, user, holder, &mark);

    // The blocked thread keeps the process, but no descriptor: another daemon can use the address.
    daemon.signal("TERM");
    let address = daemon.address;
    wait_for("the end of serving", SOON, || std::net::TcpStream::connect(address).is_err().then_some(()));
    let jobs = format!("sources.training.socket={}", folder.path().join("job.sock").display());
    let listen = address.to_string();
    let next = ["serve", "--web.listen-address", &listen, "--config.file", &config, "--set", &jobs];
    let waiting = Waiting(memwarden(&next).stderr(Stdio::inherit()).stdout(Stdio::null()).spawn().unwrap());
    let named = |body: &str| body.contains("\"not_readable\"");
    wait_for("the same finding", SOON, || {
        try_get(address, "/api/v1/findings").filter(|answer| named(&answer.body))
    });
    wait_for("its readiness", SOON, || try_get(address, "/-/ready"));
    drop(fuse);
    assert!(daemon.wait(SOON).success());
    wait_for("no finding any more", SOON, || {
        try_get(address, "/api/v1/findings").filter(|answer| !named(&answer.body))
    });
    drop(waiting);
}

/// A process in a mount namespace of its own, with tmpfs at /dev/shm and /mnt. After a line, it mounts a file system over the path
/// to the first one, and writes to the second one.
const HIDES: &str = r#"
import ctypes, sys
libc = ctypes.CDLL(None)
def mount(what, where, kind, flags, options=b''):
    if libc.mount(what, where, kind, flags, options) != 0: sys.exit('cannot mount')
if libc.unshare(0x20000) != 0: sys.exit('cannot unshare')
mount(b'none', b'/', None, 0x44000)
mount(b'none', b'/dev/shm', b'tmpfs', 0, b'size=1m')
mount(b'none', b'/mnt', b'tmpfs', 0, b'size=2m')
print('ready', flush=True)
sys.stdin.readline()
mount(sys.argv[1].encode(), sys.argv[2].encode(), None, 0x1000)
with open('/mnt/file', 'wb') as file: file.write(b'x' * (1 << 20))
sys.stdin.readline()
"#;

#[test]
fn a_file_system_that_never_answers_over_a_tmpfs_is_not_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mark = format!("hides-{}", std::process::id());
    let file = folder.path().join("memwarden.yaml");
    let matchers = format!("[{{name: marked, command_line: {mark}}}]");
    let text = format!(
        "sampling: {{interval: 200ms}}\nsources: {{tmpfs: {{interval: 1s}}, workload: {{matchers: {matchers}}}}}\n"
    );
    std::fs::write(&file, text).unwrap();
    let daemon = Daemon::start(&["--config.file", file.to_str().unwrap()]);
    for over in ["/dev/shm", "/dev"] {
        let Some(fuse) = Fuse::mount(0, "mute") else { return };
        let mut command = program("python3");
        command.args(["-c", HIDES]).arg(fuse.folder.path()).args([over, &mark]);
        let mut job = match Helper::start(&mut command) {
            Ok(job) => job,
            Err(why) => return crate::skip::skip(&format!("no mount namespace: {}", why.trim())),
        };
        let used = |mount: &str| {
            daemon.page().get("memwarden_tmpfs_used_bytes", &[("workload", "marked"), ("mount", mount)])
        };
        wait_for("both tmpfs", SOON, || {
            (used("/dev/shm") == Some(0.0) && used("/mnt") == Some(0.0)).then_some(())
        });
        job.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        wait_for("the other tmpfs", SOON, || (used("/mnt") == Some(1_048_576.0)).then_some(()));
        assert_eq!(used("/dev/shm"), None, "{over}");
        assert_eq!(daemon.value("memwarden_source_up{source=\"tmpfs\"}"), Some(1.0));
        drop((job, fuse));
        wait_for("the end of the job", SOON, || used("/mnt").is_none().then_some(()));
    }
}

/// SIGKILL does not end the read of a file that is not served.
#[test]
fn a_daemon_killed_while_reads_hang_releases_its_port_socket_and_folder() {
    let room = Room::staged();
    let job = Job::start(&room, &witness());
    // This is dropped first and ends the blocked reads, so that the first daemon can exit.
    let mut first;
    let next;
    let Some(mut fuse) = Fuse::mount(0, "silent") else { return };
    let logs =
        format!("sources: {{logs: {{files: [{{path: {}}}]}}, ", fuse.folder.path().join("file").display());
    let file = room.configure("mode: enforce", &[room.target("train", "host: {soft: 30%}")], "");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("sources: {", &logs)).unwrap();
    let holder = fuse.hold(&[]);
    room.show(holder);
    fuse.hang();
    first = room.start();
    let pid = first.pid();
    let hangs = |name: &str| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let mut stats =
            tasks.map(|task| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        stats.any(|stat| stat.contains(&format!("({name}) D")))
    };
    let named = |body: &str| body.contains("\"not_readable\"");
    wait_for("a process that cannot be read", SOON, || {
        named(&first.get("/api/v1/findings").body).then_some(())
    });
    // The wait is interruptible, while no signal is sent.
    let reads = |task: std::fs::DirEntry| {
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        comm.trim() == "log-tail"
    };
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    wait_for("the log's thread", SOON, || tasks().any(reads).then_some(()));
    first.wait_frames(5.0);

    let address = first.address;
    let jobs = format!("sources.training.socket={}", first.job_socket().display());
    first.signal("KILL");
    wait_for("the log's thread alone", SOON, || (hangs("log-tail") && !hangs("reader")).then_some(()));
    let enter = "ln -s /proc/$$ \"$0/$$\"; exec \"$@\"";
    let mut command = program("sh");
    command.args(["-c", enter]).arg(room.staged_file("")).args([env!("CARGO_BIN_EXE_memwarden"), "serve"]);
    command.args(["--web.listen-address", &address.to_string(), "--set", &jobs, "--config.file"]).arg(&file);
    next = Waiting(command.stderr(Stdio::inherit()).stdout(Stdio::null()).spawn().unwrap());
    wait_for("its readiness", SOON, || try_get(address, "/-/ready"));
    wait_for("the same finding", SOON, || {
        try_get(address, "/api/v1/findings").filter(|answer| named(&answer.body))
    });
    wait_for("the job's seat", SOON, || {
        let page = Page::parse(&try_get(address, "/metrics")?.body);
        (page.sum("memwarden_protection_members", &[("target", "train")]) == 1.0).then_some(())
    });
    std::os::unix::net::UnixStream::connect(first.job_socket()).unwrap();
    room.available(100);
    job.wait_said("signal 10");
    room.wait_move("checkpoint");
    assert!(hangs("log-tail"), "the first one's thread was to hang all the time");
    drop(fuse);
    assert!(!first.wait(SOON).success());
    drop(next);
}

/// The next daemon; killed when dropped, after the process that it waits for.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

#[test]
fn a_frozen_file_system_blocks_no_thread_of_the_daemon_and_is_read_after_the_thaw() {
    let mark = format!("frozen-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let config = watching(folder.path(), &mark);
    let daemon;
    let user = stranger(1);
    let Some(mut fuse) = Fuse::mount(user, "answer") else { return };
    let holder = fuse.hold(&[&mark]);
    let Some(freezer) = Freezer::freeze(fuse.server.as_ref().unwrap().pid()) else { return };
    fuse.hang();
    daemon = Daemon::start(&["--config.file", &config]);
    let other = continues(&daemon, user, holder, &mark);
    freezer.thaw();
    wait_members(&daemon, 2.0);
    wait_for("no hanging read", SOON, || daemon.value(&hanging(user)).is_none().then_some(()));
    drop(other);
}

#[test]
fn a_frozen_process_is_matched_as_any_other() {
    let mark = format!("stopped-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let sleeper = sleeper(&mark);
    let Some(_freezer) = Freezer::freeze(sleeper.pid()) else { return };
    let daemon = Daemon::start(&["--config.file", &watching(folder.path(), &mark)]);
    wait_members(&daemon, 1.0);
}
