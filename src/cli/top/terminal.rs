//! The terminal: taken at the start, and left as it was found, also after a signal or a panic.

use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write as _};
use std::panic::PanicHookInfo;
use std::sync::Mutex;
use std::thread::ThreadId;

use anyhow::{Context as _, bail};
use crossterm::cursor::Show;
use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;

use crate::cli::out;
use crate::top::{Look, State, draw};

/// Maximum number of messages of panics in other threads that are kept for the end.
const MOST_PANICS: usize = 8;
/// What other threads said when they panicked, while the screen was taken.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The screen of the terminal; dropped, it leaves the terminal as it was.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    look: Look,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// Standard input or output is no terminal, or one that cannot move its cursor.
    pub(super) fn open(has_mouse: bool) -> anyhow::Result<Self> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            bail!(
                "standard input and output must be a terminal; `memwarden check` and `memwarden oom` write reports"
            );
        }
        let term = std::env::var_os("TERM").unwrap_or_default();
        if term.is_empty() || term == "dumb" {
            bail!("the terminal cannot move its cursor (TERM is {})", term.display());
        }
        restore_on_panic(std::thread::current().id());
        enable_raw_mode().context("cannot set up the terminal")?;
        let entered = execute!(io::stdout(), EnterAlternateScreen)
            .and_then(|()| if has_mouse { execute!(io::stdout(), EnableMouseCapture) } else { Ok(()) });
        let backend = CrosstermBackend::new(BufWriter::with_capacity(64 * 1024, io::stdout()));
        let terminal = entered.and_then(|()| Terminal::new(backend));
        match terminal {
            Ok(terminal) => Ok(Self { terminal, look: look() }),
            Err(error) => {
                restore();
                Err(error).context("cannot set up the terminal")
            }
        }
    }

    /// Draws the state: only the cells that changed are written.
    ///
    /// # Errors
    /// The terminal is closed.
    pub(super) fn draw(&mut self, state: &mut State, now: f64) -> io::Result<()> {
        let look = self.look;
        queue!(self.terminal.backend_mut(), BeginSynchronizedUpdate)?;
        self.terminal.draw(|frame| draw(state, frame.buffer_mut(), look, now))?;
        execute!(self.terminal.backend_mut(), EndSynchronizedUpdate)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        for said in PANICS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).drain(..) {
            out::note(&format!("memwarden: {said}\n"));
        }
    }
}

/// Leaves the terminal as it was. A terminal that is closed needs nothing.
fn restore() {
    let _ = execute!(io::stdout(), EndSynchronizedUpdate, DisableMouseCapture, LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    let _ = io::stdout().flush();
}

/// A panic of the drawing thread is reported on the restored terminal. The engine goes on after a panic of a source:
/// what other threads report is written at the end.
fn restore_on_panic(drawing: ThreadId) {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        if std::thread::current().id() == drawing {
            restore();
            report(info);
        } else if let Ok(mut said) = PANICS.lock()
            && said.len() < MOST_PANICS
        {
            said.push(info.to_string());
        }
    }));
}

/// What the terminal can show, by the environment (no-color.org, and the locale as POSIX finds it).
fn look() -> Look {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
    let locale = locale.to_lowercase();
    Look {
        has_colors: set("NO_COLOR").is_none(),
        is_unicode: locale.contains("utf-8") || locale.contains("utf8"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a copy of this test does in its terminal.
    const PANIC: &str = "MEMWARDEN_TEST_PANIC";

    /// What a terminal receives from a copy of this test that takes the screen and panics, in the drawing thread or in
    /// another one, and the modes of the line before and after it; absent without `script`.
    #[expect(clippy::disallowed_methods, reason = "a panic ends a process, so that it is one of its own")]
    fn of_a_panic(place: &str) -> Option<String> {
        let binary = std::env::current_exe().unwrap();
        let name = "cli::top::terminal::tests::the_terminal_is_left_as_it_was_after_a_panic";
        let command =
            format!("stty -a; '{}' --exact {name} --nocapture --test-threads 1; stty -a", binary.display());
        let shell = ["-qec", &command, "/dev/null"];
        let mut script = std::process::Command::new("script");
        script.args(shell).env(PANIC, place).env("TERM", "xterm").stdin(std::process::Stdio::null());
        match script.output() {
            Ok(output) => Some(String::from_utf8_lossy(&output.stdout).replace('\r', "")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_terminal_is_left_as_it_was_after_a_panic() {
        if let Ok(place) = std::env::var(PANIC) {
            let _screen = Screen::open(true).unwrap();
            if place == "drawing" {
                panic!("a defect of the drawing");
            }
            let other = std::thread::spawn(|| panic!("a defect of a source"));
            other.join().unwrap_err();
            return;
        }
        for (place, said) in [("drawing", "a defect of the drawing"), ("other", "a defect of a source")] {
            let Some(shown) = of_a_panic(place) else {
                println!("skipped: script (util-linux) is not installed");
                return;
            };
            // The screen is left, the mouse is released and the cursor is shown before anything is said.
            let (taken, left) = shown.split_once("\x1b[?1049h").unwrap_or_else(|| panic!("{shown:?}"));
            let (drawn, after) = left.split_once("\x1b[?1049l").unwrap_or_else(|| panic!("{shown:?}"));
            assert!(drawn.contains("\x1b[?1000h") && drawn.contains("\x1b[?1000l"), "{shown:?}");
            assert!(!drawn.contains(said) && after.contains(said), "{shown:?}");
            assert!(after.contains("\x1b[?25h"), "{shown:?}");
            // The modes of the line are those of before.
            let modes = |text: &str| {
                let flags = text.split_whitespace().map(|word| word.trim_end_matches(';').to_owned());
                flags
                    .filter(|flag| ["icanon", "echo", "isig", "opost"].contains(&flag.as_str()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(modes(taken).len(), 4, "{taken:?}");
            assert_eq!(modes(after), modes(taken), "{shown:?}");
        }
    }
}
