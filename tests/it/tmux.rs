//! A real terminal (tmux) for the tests of what is drawn on one.

use std::process::Output;
use std::time::Duration;

use crate::harness::{memwarden, on_path, program, wait_for};
use crate::skip::skip;

/// Maximum time to wait for a screen.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A terminal in which a command runs; ended when dropped.
pub(crate) struct Terminal {
    folder: tempfile::TempDir,
}

impl Terminal {
    /// Runs a command of a shell in a terminal of 80 by 24; absent where tmux is not installed.
    pub(crate) fn open(command: &str) -> Option<Self> {
        if crate::harness::is_left() {
            return None;
        }
        if on_path("tmux").is_none() {
            skip("a program in a terminal: tmux is not installed (tests/real installs it)");
            return None;
        }
        let terminal = Self { folder: tempfile::tempdir().unwrap() };
        let made = terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", command]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(terminal)
    }

    /// Runs `memwarden top` with these options, then says how it ended and keeps the terminal.
    pub(crate) fn top(options: &str) -> Option<Self> {
        let command = memwarden(&[]);
        let binary = command.get_program().to_str().unwrap();
        Self::open(&format!(
            "export LC_ALL=C.UTF-8; echo before; '{binary}' top {options}; echo \"ended with $?\"; \
             stty -a | tr ' ' '\\n' | grep -x -e icanon -e echo; sleep 600"
        ))
    }

    pub(crate) fn tmux(&self, args: &[&str]) -> Output {
        let socket = self.folder.path().join("tmux");
        program("tmux").arg("-S").arg(socket).args(args).env_remove("TMUX").output().unwrap()
    }

    pub(crate) fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"]).stdout).into_owned()
    }

    pub(crate) fn keys(&self, keys: &[&str]) {
        assert!(self.tmux(&[&["send-keys"], keys].concat()).status.success());
    }

    /// Waits until the screen has all of these texts, and returns it.
    #[track_caller]
    pub(crate) fn shows(&self, parts: &[&str]) -> String {
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
    pub(crate) fn is_as_before(&self, code: u8) {
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
    pub(crate) fn pid(&self) -> u32 {
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
