//! The progress line on the terminal while the command runs.
//!
//! The command writes to the same terminal directly, and its output must not be changed: a pseudoterminal between them
//! would change what the command sees. So the line is drawn below the cursor, which stays where the command left it, and
//! only while nothing has been written to the terminal for some seconds; it is erased when the command writes
//! (inotify(7) on the terminal), and at the end.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::termios::LocalModes;

use crate::cli::report::{is_dumb, size};
use crate::host::clock;
use crate::model::printable;
use crate::report::RunProgress;

/// The line is drawn when nothing has been written to the terminal for this time.
const QUIET: Duration = Duration::from_secs(2);
/// Time between two drawings.
const REDRAW: Duration = Duration::from_secs(1);
/// After output of the command, the terminal is not observed for this time: a command that writes without a pause
/// costs no more.
const PAUSE: Duration = Duration::from_millis(500);
/// The end of the command waits this long for a terminal that accepts no output, as after Ctrl-S.
const TERMINAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Seconds without a sample, beyond three intervals, after which the line says so.
const LATE: f64 = 10.0;
/// Terminals with fewer columns or rows have no room for the line.
const LEAST: (usize, usize) = (20, 4);

/// The newest figures; absent before the first sample.
pub(super) type Figures = Arc<Mutex<Option<RunProgress>>>;

/// The thread that draws the line, from [`ProgressLine::start`] to [`ProgressLine::stop`].
pub(super) struct ProgressLine {
    stop: Arc<OwnedFd>,
    ended: Receiver<()>,
}

impl ProgressLine {
    /// Starts drawing; absent where standard error is no terminal that can move its cursor, or where the terminal cannot
    /// be observed below `proc`: then nothing is drawn. `interval` is the longest time between two samples, in seconds.
    pub(super) fn start(proc: &Path, figures: Figures, interval: f64) -> Option<Self> {
        if !io::stderr().is_terminal() || is_dumb() {
            return None;
        }
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let written = inotify::init(flags).ok()?;
        inotify::add_watch(&written, proc.join("self/fd/2"), inotify::WatchFlags::MODIFY).ok()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).ok()?);
        let (send, ended) = channel();
        let own_stop = Arc::clone(&stop);
        let draw = move || {
            Drawing { written, stop: own_stop, figures, stale_after: interval * 3.0 + LATE, drawn: false }
                .run();
            // The receiver is closed if the terminal accepted no output for too long.
            let _ = send.send(());
        };
        std::thread::Builder::new().name("progress".to_owned()).spawn(draw).ok()?;
        Some(Self { stop, ended })
    }

    /// Erases the line.
    pub(super) fn stop(self) {
        // An eventfd whose counter is 0 accepts a write.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        // Elapsed: the terminal accepts no output. Disconnected: the thread has ended by a defect.
        let _ = self.ended.recv_timeout(TERMINAL_TIMEOUT);
    }
}

struct Drawing {
    /// Readable after anything was written to the terminal.
    written: OwnedFd,
    stop: Arc<OwnedFd>,
    figures: Figures,
    /// Seconds after which figures are no longer current.
    stale_after: f64,
    /// Whether the line is on the terminal, below the cursor.
    drawn: bool,
}

impl Drawing {
    fn run(&mut self) {
        let begun = clock::now();
        let mut quiet_since = begun;
        let mut pause = PAUSE;
        while !self.is_stopped_within(pause) {
            let now = clock::now();
            if self.has_been_written() {
                self.erase_after_output();
                quiet_since = now;
            }
            let is_quiet = now.since(quiet_since) >= QUIET;
            if is_quiet && self.draw(now.since(begun).as_secs_f64()).is_err() {
                // The terminal is closed.
                return;
            }
            pause = if self.drawn { REDRAW } else { PAUSE };
        }
        if self.has_been_written() {
            self.erase_after_output();
        } else if self.drawn {
            self.erase();
        }
    }

    /// Waits for the end of the command; shorter if the line is drawn and something is written to the terminal.
    fn is_stopped_within(&self, pause: Duration) -> bool {
        let mut all = [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.written, PollFlags::IN)];
        let watched = if self.drawn { &mut all[..] } else { &mut all[..1] };
        let pause = Timespec::try_from(pause).ok();
        match poll(watched, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => !all[0].revents().is_empty(),
            Err(_) => true,
        }
    }

    /// Whether anything was written to the terminal since the last call.
    fn has_been_written(&self) -> bool {
        let mut events = [0; 4096];
        let mut found = false;
        while rustix::io::read(&self.written, &mut events).is_ok_and(|read| read > 0) {
            found = true;
        }
        found
    }

    fn draw(&mut self, elapsed: f64) -> io::Result<()> {
        let (columns, rows) = size(io::stderr());
        let figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(figures) = figures.filter(|_| columns >= LEAST.0 && rows >= LEAST.1) else { return Ok(()) };
        if !may_write(io::stderr()) {
            self.drawn = false;
            return Ok(());
        }
        // The last column stays free: some terminals wrap after it.
        let line = figures.line(elapsed, self.stale_after, columns - 1);
        // A row below the cursor is made where it is in the last one (ECMA-48 and DEC: IND, CUU), and then written.
        let text = below(&printable::escaped(&line));
        io::stderr().write_all(format!("\x1bD\x1b[A{text}").as_bytes())?;
        self.drawn = true;
        // This was written by this thread.
        self.has_been_written();
        Ok(())
    }

    fn erase(&mut self) {
        self.drawn = false;
        if may_write(io::stderr()) {
            // A closed terminal needs no erasing.
            let _ = io::stderr().write_all(below("").as_bytes());
            self.has_been_written();
        }
    }

    /// Erases the line where it is after the first output of the command: below the cursor, or, after a line feed, to
    /// its right.
    fn erase_after_output(&mut self) {
        if self.drawn && may_write(io::stderr()) {
            let _ = io::stderr().write_all(format!("\x1b[K{}", below("")).as_bytes());
            self.has_been_written();
        }
        self.drawn = false;
    }
}

/// What replaces the row below the cursor and leaves the cursor where it is (DECSC, CUD, EL, DECRC).
fn below(text: &str) -> String {
    format!("\x1b7\x1b[B\r\x1b[2K{text}\x1b8")
}

/// Whether the line may be written: not in the background, where the write could stop the command (SIGTTOU), and not
/// while a program reads keys or a password, or uses the whole screen.
fn may_write(terminal: impl AsFd) -> bool {
    let terminal = terminal.as_fd();
    let is_ours = match rustix::termios::tcgetpgrp(terminal) {
        Ok(group) => group == rustix::process::getpgrp(),
        // It is not the controlling terminal: a write to it stops nobody.
        Err(Errno::NOTTY) => true,
        Err(_) => false,
    };
    let modes = LocalModes::ICANON | LocalModes::ECHO;
    is_ours && rustix::termios::tcgetattr(terminal).is_ok_and(|found| found.local_modes.contains(modes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

    #[test]
    fn nothing_is_written_while_a_program_reads_keys() {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let manager = openpt(flags).unwrap();
        grantpt(&manager).unwrap();
        unlockpt(&manager).unwrap();
        let terminal = ioctl_tiocgptpeer(&manager, flags).unwrap();
        assert!(may_write(&terminal));
        for mode in [LocalModes::ECHO, LocalModes::ICANON] {
            let before = tcgetattr(&terminal).unwrap();
            let mut modes = before.clone();
            modes.local_modes -= mode;
            tcsetattr(&terminal, OptionalActions::Now, &modes).unwrap();
            assert!(!may_write(&terminal));
            tcsetattr(&terminal, OptionalActions::Now, &before).unwrap();
        }
        assert!(may_write(&terminal));
        let (file, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!may_write(file));
    }
}
