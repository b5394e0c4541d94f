//! The terminal UI in a real terminal (tmux), beside the real daemon with fake GPUs.

use std::io::Read as _;

use crate::harness::{Daemon, memwarden, wait_for};
use crate::tmux::{LIMIT, Terminal};

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
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129), ("QUIT", 131)] {
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

/// The terminal is closed, as by a connection that breaks, and no signal says so: the terminal is not the controlling one.
#[test]
fn a_broken_output_ends_it() {
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    let daemon = quiet();
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let manager = openpt(flags).unwrap();
    grantpt(&manager).unwrap();
    unlockpt(&manager).unwrap();
    let terminal = ioctl_tiocgptpeer(&manager, flags).unwrap();
    let size = rustix::termios::Winsize { ws_col: 80, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&manager, size).unwrap();
    let mut top = memwarden(&["top", "--url", &format!("http://{}", daemon.address)])
        .env("TERM", "xterm")
        .stdin(terminal.try_clone().unwrap())
        .stdout(terminal)
        .spawn()
        .unwrap();
    let mut shown = String::new();
    let mut bytes = [0; 4096];
    while !shown.contains("Workloads") {
        let read = rustix::io::read(&manager, &mut bytes).unwrap();
        shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    drop(manager);
    wait_for("the end of top", LIMIT, || top.try_wait().unwrap());
    let mut said = String::new();
    top.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!said.contains("panicked"), "{said}");
}
