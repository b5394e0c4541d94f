//! The programs that use the GPU, as processes of their own.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

/// A program that prints one JSON object a line; its lines are also kept in a file.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    errors: std::path::PathBuf,
}

impl Program {
    /// Starts a program with its lines and errors in files of `folder`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(mut command: Command, folder: &Path, name: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        let errors = folder.join(format!("{name}.stderr"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&errors)?);
        let mut child = command.spawn().with_context(|| format!("{command:?} cannot be started"))?;
        let output = child.stdout.take().context("no standard output")?;
        let mut kept = File::create(folder.join(format!("{name}.jsonl")))?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The file is for people; the run goes on without it.
                let _ = writeln!(kept, "{line}");
                if let Ok(value) = serde_json::from_str(&line)
                    && sender.send(value).is_err()
                {
                    break;
                }
            }
        });
        let input = child.stdin.take();
        Ok(Self { child, input, lines, errors })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets a program begin that waits for it.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn begin(&mut self) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("the program has no input")?;
        writeln!(input)?;
        Ok(input.flush()?)
    }

    /// The lines that came since the last call.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.lines.try_iter().collect()
    }

    /// Waits for a line with this event.
    ///
    /// # Errors
    /// The program ended before, or the time was over; the message has its standard error.
    pub(crate) fn expect(&self, event: &str, limit: Duration) -> anyhow::Result<Value> {
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.get("event").and_then(Value::as_str) == Some(event) => return Ok(line),
                Ok(_) => {}
                Err(_) => {
                    let errors = fs::read_to_string(&self.errors).unwrap_or_default();
                    anyhow::bail!("the program did not say {event:?}: {}", errors.trim());
                }
            }
        }
    }

    /// Whether it runs.
    pub(crate) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends its input, which ends it, and waits.
    pub(crate) fn end(mut self) {
        self.input = None;
        let begun = Instant::now();
        while self.runs() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only where the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
