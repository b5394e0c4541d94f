//! Hooks through the real helper process: good ones, and each way of being a bad one.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use memwarden::host::child::WorkerCommand;
use memwarden::protection::enforce::executor::BackgroundExecutor as _;
use memwarden::protection::enforce::hooks::Hooks;
use memwarden::protection::types::rung::State;
use memwarden::protection::types::step::{Finished, Hook, Step, TargetId, Ticket, Work};

use crate::harness::{now, wait_for};

const LONG: Duration = Duration::from_secs(30);

struct Room {
    hooks: Hooks,
    folder: tempfile::TempDir,
    next: u64,
}

impl Room {
    fn new() -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_memwarden"));
        let command = WorkerCommand { program, arguments: vec!["hook-helper".into()] };
        let hooks = Hooks::start(command, Path::new("/proc")).unwrap();
        Self { hooks, folder: tempfile::tempdir().unwrap(), next: 0 }
    }

    fn begin(&mut self, script: &str, timeout: Duration) -> Ticket {
        self.next += 1;
        let program = self.folder.path().join(format!("hook-{}", self.next));
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        self.begin_program(program, timeout)
    }

    fn begin_program(&mut self, program: PathBuf, timeout: Duration) -> Ticket {
        let hook = Hook { program, arguments: vec!["one two".to_owned(), "$HOME".to_owned()], timeout };
        let input = r#"{"target":"job","headroom_bytes":7}"#;
        let work = Work::Hook { hook: Arc::new(hook), input: input.into() };
        let ticket = Ticket(self.next);
        assert!(self.hooks.begin(ticket, &Step { target: TargetId(0), stage: State::Soft, work }));
        ticket
    }

    fn next(&mut self) -> Finished {
        let mut finished = Vec::new();
        wait_for("the hook's end", LONG, || {
            self.hooks.poll(&mut finished);
            finished.pop()
        })
    }

    /// Runs one, and tells how it failed, where it did, and what it said.
    fn run(&mut self, script: &str, timeout: Duration) -> (Option<String>, String) {
        let ticket = self.begin(script, timeout);
        let finished = self.next();
        assert_eq!(finished.ticket, ticket);
        (finished.result.err().map(|error| error.to_string()), finished.output.into())
    }
}

fn alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

#[test]
fn a_hook_is_given_everything_that_is_known() {
    let mut room = Room::new();
    let script = "cat; echo; echo \"$1|$2|$MEMWARDEN_TARGET|$MEMWARDEN_HEADROOM_BYTES|$HOME\" >&2";
    let (failed, said) = room.run(script, LONG);
    assert_eq!(failed, None);
    assert_eq!(said, "{\"target\":\"job\",\"headroom_bytes\":7}\none two|$HOME|job|7|\n");
    assert_eq!(room.hooks.starts(), 1);
}

#[test]
fn a_hook_that_hangs_is_killed_with_all_it_started() {
    let mut room = Room::new();
    let file = room.folder.path().join("pids");
    let script = format!(
        "sleep 1000 & echo $! >> {0}; setsid sleep 1000 & echo $! >> {0}; echo $$ >> {0}; echo stuck; wait",
        file.display()
    );
    let begun = now();
    let (failed, said) = room.run(&script, Duration::from_secs(4));
    assert_eq!(failed.unwrap(), "the hook exceeded its timeout and was killed: stuck");
    assert_eq!(said, "stuck\n");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let pids = std::fs::read_to_string(file).unwrap();
    assert_eq!(pids.lines().count(), 3);
    for pid in pids.lines() {
        wait_for("its end", LONG, || (!alive(pid)).then_some(()));
    }
    assert_eq!(room.run("exit 0", LONG), (None, String::new()), "the next one runs as ever");
    assert_eq!(room.hooks.starts(), 1);
}

#[test]
fn a_flood_is_cut() {
    let mut room = Room::new();
    let (failed, said) = room.run("head -c 10000000 /dev/zero | tr '\\0' x", LONG);
    assert_eq!((failed, said.len()), (None, 4096));
    let (failed, said) = room.run("yes", Duration::from_secs(3));
    assert!(failed.unwrap().starts_with("the hook exceeded its timeout and was killed: y y"));
    assert_eq!(said.len(), 4096);
}

#[test]
fn one_that_cannot_start_states_why() {
    let mut room = Room::new();
    let missing = room.folder.path().join("missing");
    room.begin_program(missing, LONG);
    let error = room.next().result.unwrap_err().to_string();
    assert!(error.contains("missing: No such file"), "{error}");
    let program = room.folder.path().join("strange");
    std::fs::write(&program, "\x7fELF, not quite").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    room.begin_program(program.clone(), LONG);
    let error = room.next().result.unwrap_err().to_string();
    assert!(error.starts_with("cannot start "), "{error}");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o777)).unwrap();
    room.begin_program(program, LONG);
    let error = room.next().result.unwrap_err().to_string();
    assert!(error.ends_with("can be written by others (mode 777)"), "{error}");
    assert_eq!(room.run("exit 3", LONG).0.unwrap(), "the hook exited with code 3");
    assert_eq!(room.run("kill -9 $$", LONG).0.unwrap(), "the hook was terminated by signal 9");
}

#[test]
fn a_grandchild_that_holds_the_pipe_holds_nothing_up() {
    let mut room = Room::new();
    let begun = now();
    let (failed, said) = room.run("(setsid sleep 1000 & echo $!)", LONG);
    assert_eq!(failed, None);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    wait_for("the grandchild's end", LONG, || (!alive(&said)).then_some(()));
}

#[test]
fn a_helper_that_died_is_replaced() {
    let mut room = Room::new();
    assert_eq!(room.run("exit 0", LONG).0, None);
    let first = room.hooks.pid().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
    // Between two hooks.
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let second = wait_for("another helper", LONG, || room.hooks.pid().filter(|pid| *pid != first));
    assert_eq!(room.run("exit 0", LONG).0, None);
    // And while one runs: that one is lost, and said to be.
    room.begin("kill -9 $PPID; sleep 1", LONG);
    let error = room.next().result.unwrap_err().to_string();
    assert!(error.starts_with("the hook helper failed: "), "{error}");
    wait_for("another helper", LONG, || room.hooks.pid().filter(|pid| *pid != second));
    assert_eq!(room.run("exit 0", LONG).0, None);
    assert_eq!(room.hooks.starts(), 3);
}
