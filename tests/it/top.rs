//! The terminal UI in a real terminal (tmux), beside the real daemon with fake GPUs.

use std::process::Output;
use std::time::Duration;

use crate::harness::{Daemon, memwarden, on_path, program, wait_for};
use crate::skip::skip;

const LIMIT: Duration = Duration::from_secs(30);

/// A terminal in which a command runs; ended when dropped.
struct Terminal {
    folder: tempfile::TempDir,
}

impl Terminal {
    /// Runs a command of a shell in a terminal of 80 by 24; absent where tmux is not installed.
    fn open(command: &str) -> Option<Self> {
        if on_path("tmux").is_none() {
            skip("the terminal UI in a terminal: tmux is not installed (tests/run installs it)");
            return None;
        }
        let terminal = Self { folder: tempfile::tempdir().unwrap() };
        let made = terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", command]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(terminal)
    }

    /// Runs `memwarden top` with these options, then says how it ended and keeps the terminal.
    fn top(options: &str) -> Option<Self> {
        let command = memwarden(&[]);
        let binary = command.get_program().to_str().unwrap();
        Self::open(&format!(
            "export LC_ALL=C.UTF-8; echo before; '{binary}' top {options}; echo \"ended with $?\"; \
             stty -a | tr ' ' '\\n' | grep -x -e icanon -e echo; sleep 600"
        ))
    }

    fn tmux(&self, args: &[&str]) -> Output {
        let socket = self.folder.path().join("tmux");
        program("tmux").arg("-S").arg(socket).args(args).env_remove("TMUX").output().unwrap()
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"]).stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        assert!(self.tmux(&[&["send-keys"], keys].concat()).status.success());
    }

    /// Waits until the screen has all of these texts, and returns it.
    #[track_caller]
    fn shows(&self, parts: &[&str]) -> String {
        let mut last = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for("the screen", LIMIT, || {
                last = self.screen();
                parts.iter().all(|part| last.contains(part)).then_some(())
            });
        }));
        assert!(found.is_ok(), "{parts:?} is not on the screen:\n{last}");
        last
    }

    /// The screen after the program: what was there before is there again, and the modes of the line are as before.
    #[track_caller]
    fn is_as_before(&self, code: u8) {
        let end = format!("ended with {code}");
        let screen = self.shows(&["before", &end, "icanon", "echo\n"]);
        assert!(!screen.contains("Workloads"), "{screen}");
        let modes = self.tmux(&[
            "display-message",
            "-p",
            "#{alternate_on} #{cursor_flag} #{mouse_any_flag}#{mouse_standard_flag}#{mouse_button_flag}",
        ]);
        assert_eq!(String::from_utf8_lossy(&modes.stdout).trim(), "0 1 000");
    }

    /// The process of `memwarden top`.
    fn pid(&self) -> u32 {
        let pane = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let shell = String::from_utf8_lossy(&pane.stdout).trim().to_owned();
        let found = program("pgrep").args(["-P", &shell, "memwarden"]).output().unwrap();
        String::from_utf8_lossy(&found.stdout).trim().parse().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

fn quiet() -> Daemon {
    Daemon::start(&["--set", "sources.gpu.enabled=false", "--set", "sampling.interval=200ms"])
}

#[test]
fn a_terminal_is_required() {
    let output = memwarden(&["top"]).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("must be a terminal") && output.stdout.is_empty(), "{said}");
    let output = memwarden(&["top", "--interval", "100ms"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("from 500ms to 10s"));
}

#[test]
fn keys_and_sizes_and_the_end() {
    let daemon = quiet();
    let Some(terminal) = Terminal::top(&format!("--url http://{}", daemon.address)) else { return };
    terminal.shows(&["host", "1 Workloads", "q quit"]);
    terminal.keys(&["7"]);
    terminal.shows(&["last complete sample", "memory"]);
    terminal.keys(&["/", "v", "m", "s", "t"]);
    terminal.shows(&["filter: vmst"]);
    terminal.keys(&["Enter"]);
    let screen = terminal.shows(&["[filter: vmst]", "vmstat"]);
    assert!(!screen.contains("buddyinfo"), "{screen}");
    terminal.keys(&["Escape"]);
    terminal.shows(&["buddyinfo"]);
    terminal.keys(&["?"]);
    terminal.shows(&["Ctrl-C", "critical"]);
    terminal.keys(&["x"]);
    terminal.keys(&["Space"]);
    terminal.shows(&["PAUSED"]);
    for (columns, rows) in [("120", "40"), ("200", "60"), ("60", "12")] {
        assert!(terminal.tmux(&["resize-window", "-x", columns, "-y", rows]).status.success());
        let screen = terminal.shows(&["PAUSED", "host", "1 Work"]);
        assert!(screen.lines().all(|line| line.chars().count() <= columns.parse().unwrap()), "{screen}");
    }
    terminal.keys(&["q"]);
    terminal.is_as_before(0);
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    let daemon = quiet();
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let Some(terminal) = Terminal::top(&format!("--url http://{}", daemon.address)) else { return };
        terminal.shows(&["host", "1 Workloads"]);
        crate::harness::signal(terminal.pid(), signal);
        terminal.is_as_before(code);
    }
}

#[test]
fn a_killed_daemon_is_not_healthy() {
    let mut daemon = quiet();
    let Some(terminal) = Terminal::top(&format!("--url http://{}", daemon.address)) else { return };
    terminal.shows(&["host", "1 Workloads"]);
    daemon.signal("KILL");
    daemon.wait(LIMIT);
    let screen = terminal.shows(&["The daemon does not answer since", "host"]);
    assert!(!screen.lines().any(|line| line.starts_with("ok")), "{screen}");
    terminal.keys(&["C-c"]);
    terminal.is_as_before(0);
}

#[test]
fn without_a_daemon_it_samples_the_node() {
    let Some(terminal) = Terminal::top("--set sources.gpu.enabled=false") else { return };
    terminal.shows(&["without a daemon", "host", "GiB"]);
    terminal.keys(&["7"]);
    terminal.shows(&["vmstat"]);
    terminal.keys(&["q"]);
    terminal.is_as_before(0);
}

#[test]
fn a_closed_terminal_ends_it() {
    let daemon = quiet();
    let Some(terminal) = Terminal::top(&format!("--url http://{}", daemon.address)) else { return };
    terminal.shows(&["host", "1 Workloads"]);
    let pid = terminal.pid();
    drop(terminal);
    let gone = || !std::path::Path::new(&format!("/proc/{pid}")).exists();
    wait_for("the end of top", LIMIT, || gone().then_some(()));
}
