use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;
use crate::host::process;
use crate::model::facts::ExitedProcess;
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::units::{Bytes, MIB, whole};
use crate::sources::testing::tick;

/// Ends of the channels of a thread that only a test answers for.
struct FakeThread {
    requests: Receiver<Vec<Member>>,
    answers: std::sync::mpsc::Sender<Result<TmpfsTable, String>>,
}

impl FakeThread {
    fn of(source: &mut Tmpfs) -> Self {
        let (requests, requested) = sync_channel(1);
        let (answer, answers) = channel();
        source.thread = Some(ReadingThread { requests, answers, is_reading: false });
        Self { requests: requested, answers: answer }
    }

    fn is_asked(&self) -> bool {
        self.requests.try_recv().is_ok()
    }

    fn answer(&self, second: u64, used: f64) {
        let own = FileSystem {
            device: "0:9".into(),
            workload: None,
            mount: "/dev/shm".into(),
            size: Bytes::new(100),
            used: Bytes::new(whole(100.0 * used)),
            owners: Vec::new(),
        };
        let read_at = Timestamp::from_secs(second);
        let (of_process, of_workload, left_out) = Default::default();
        let table = TmpfsTable { read_at, file_systems: vec![own], of_process, of_workload, left_out };
        self.answers.send(Ok(table)).unwrap();
    }
}

fn source() -> Tmpfs {
    Tmpfs { proc: "/proc".into(), interval: Duration::from_secs(5), ..Tmpfs::default() }
}

#[test]
fn the_sampler_goes_on_while_a_read_hangs_and_states_no_old_values() {
    let mut source = source();
    let thread = FakeThread::of(&mut source);
    let shown = |source: &mut Tmpfs, second| {
        let (text, outcome) = tick(source, second);
        (text.lines().count(), outcome.err().map(|error| error.to_string()))
    };
    assert_eq!(shown(&mut source, 0), (0, Some("no tmpfs has been read yet".to_owned())));
    assert!(thread.is_asked());
    thread.answer(0, 0.1);
    assert_eq!(shown(&mut source, 1), (2, None));
    assert_eq!(shown(&mut source, 5), (2, None));
    assert!(thread.is_asked());
    assert_eq!(shown(&mut source, 14), (2, None));
    let why = "a read of the tmpfs of processes has not returned for 15 s".to_owned();
    assert_eq!(shown(&mut source, 20), (0, Some(why)));
    assert!(!thread.is_asked(), "one read at a time");
    thread.answer(21, 0.1);
    assert_eq!(shown(&mut source, 22), (2, None));
    drop(thread);
    assert_eq!(shown(&mut source, 30).0, 0, "it has panicked");
}

#[test]
fn a_full_tmpfs_is_read_often_and_an_end_by_sigbus_at_once() {
    let mut source = source();
    let thread = FakeThread::of(&mut source);
    let mut asked = |second: u64, status: Option<i32>| {
        let mut batch = Batch::new();
        let process = ProcessKey { pid: 7, start: 1 };
        batch.facts.exited.extend(status.map(|status| ExitedProcess { process, tid: process.pid, status }));
        let _ = source.sample(Timestamp::from_secs(second), &mut batch);
        let is_asked = thread.is_asked();
        if is_asked {
            thread.answer(second, if second < 20 { 0.5 } else { 0.9 });
        }
        is_asked
    };
    assert!(asked(0, None));
    assert!(!asked(1, None) && !asked(4, Some(9)));
    assert!(asked(5, None));
    assert!(asked(6, Some(7)), "SIGBUS");
    assert!(!asked(7, None));
    assert!(asked(8, Some((128 + 7) << 8)), "a shell of which the command ended by SIGBUS");
    assert!(!asked(12, None) && asked(20, None));
    assert!(asked(21, None) && asked(22, None), "it is nearly full");
}

/// A process in a mount namespace of its own.
struct Contained(Child);

impl Contained {
    /// Runs a script there, and another one after a line; nothing where that is not permitted.
    fn start(script: &str, after: &str) -> Option<Self> {
        let script = format!("set -e; {script}; echo ready; read go; {after}; read end");
        #[expect(clippy::disallowed_methods, reason = "a process in another mount namespace")]
        let mut command = Command::new("unshare");
        let child =
            command.args(["-m", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let own = Self(child);
        if line.trim() == "ready" {
            return Some(own);
        }
        crate::skip::skip("a tmpfs in another mount namespace needs root, and the right to mount");
        None
    }

    fn member(&self, name: &str) -> Member {
        let text = std::fs::read(format!("/proc/{}/stat", self.0.id())).unwrap();
        let process = ProcessKey { pid: self.0.id(), start: process::stat(&text).unwrap().start };
        let workload = Membership::in_group(process, name).workload;
        Member { process, workload, user: 0, rss: Bytes::new(1) }
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The tmpfs of a workload: mount point, size and used share of each.
fn of_workload(table: &TmpfsTable, key: &WorkloadKey) -> Vec<(String, f64, f64)> {
    let own = |own: &&FileSystem| own.workload.as_ref().is_some_and(|workload| workload.key == *key);
    let shown = |own: &FileSystem| {
        let share = (own.used_share() * 100.0).round() / 100.0;
        (own.mount.to_string(), crate::model::units::real(own.size.get()) / MIB, share)
    };
    table.file_systems.iter().filter(own).map(shown).collect()
}

#[test]
fn a_tmpfs_of_another_mount_namespace_is_read() {
    let mount = "mount -t tmpfs -o size=4m none /dev/shm; head -c 1048576 /dev/zero >/dev/shm/file; \
                 mkdir '/dev/shm/a b'; mount -t tmpfs -o size=8m none '/dev/shm/a b'; \
                 mount -t tmpfs -o size=8m,ro none /mnt";
    let Some(contained) = Contained::start(mount, "true") else { return };
    let member = contained.member("job");
    let (key, mut reader) = (&member.workload.key, Reader::default());
    let table = reader.read(Path::new("/proc"), std::slice::from_ref(&member)).unwrap();
    let expected = [("/dev/shm".to_owned(), 4.0, 0.25), ("/dev/shm/a b".to_owned(), 8.0, 0.0)];
    assert_eq!(of_workload(&table, key), expected, "{table:?}");
    assert_eq!(table.of_process[&member.process].len(), 2 + shared(&table, &member));
    // Nothing of it is kept open: it can be unmounted, and ends with its last process.
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    reader.read(Path::new("/proc"), std::slice::from_ref(&member)).unwrap();
    assert_eq!(std::fs::read_dir("/proc/self/fd").unwrap().count(), before);
    drop(contained);
    let table = reader.read(Path::new("/proc"), std::slice::from_ref(&member)).unwrap();
    assert_eq!(of_workload(&table, key), []);
}

#[test]
fn the_owners_of_files_in_a_nearly_full_tmpfs_are_known() {
    let mount = "mount -t tmpfs -o size=1m none /mnt; cd /mnt; for name in a b c; do head -c 262144 /dev/zero >$name; done; \
                 chown 7001 a b; mkdir mounted; mount -t tmpfs -o size=1m none mounted; ln -s a link; mkfifo pipe; \
                 head -c 131072 /dev/zero >d; cd /";
    let Some(contained) = Contained::start(mount, "true") else { return };
    let member = contained.member("job");
    let table = Reader::default().read(Path::new("/proc"), &[member]).unwrap();
    let own = table.file_systems.iter().find(|own| own.mount.as_str() == "/mnt").unwrap();
    assert_eq!(own.owners, [(7001, Bytes::new(524_288)), (0, Bytes::new(393_216))]);
}

/// The number of tmpfs that a process shares with the host.
fn shared(table: &TmpfsTable, member: &Member) -> usize {
    let places = table.of_process[&member.process].iter();
    places.filter(|place| table.file_systems[**place].workload.is_none()).count()
}

#[test]
fn what_is_mounted_over_a_tmpfs_is_not_asked() {
    let mount = "mount -t tmpfs -o size=4m none /mnt";
    let Some(mut contained) = Contained::start(mount, "mount --bind /proc /mnt") else { return };
    let member = contained.member("job");
    let (key, mut reader) = (&member.workload.key, Reader::default());
    let mut read = || reader.read(Path::new("/proc"), std::slice::from_ref(&member)).unwrap();
    assert_eq!(of_workload(&read(), key), [("/mnt".to_owned(), 4.0, 0.0)]);
    contained.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let mounts = format!("/proc/{}/mountinfo", contained.0.id());
    while std::fs::read_to_string(&mounts).unwrap().matches(" /mnt ").count() < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(of_workload(&read(), key), []);
}
