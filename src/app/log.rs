//! The daemon's own log, on standard error: logfmt, JSON or plain text, with a level that a reload can change.
//!
//! A separate thread writes the lines: a pipe that is not read or a full disk blocks that thread, never the sampler.
//! Lines beyond the capacity of the queue are dropped and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use crate::config::{Log, LogFormat, LogLevel};
use crate::model::printable;
use crate::otlp::LogTap;

/// Capacity of the queue in lines; a start with every source failing writes about thirty.
const QUEUE: usize = 1024;
/// The time that shutdown waits for the last lines.
const FLUSH: Duration = Duration::from_millis(300);

/// The running log: changes the level, and writes what is queued when dropped.
#[derive(Debug)]
pub struct Logger {
    level: reload::Handle<Targets, Registry>,
    queue: SyncSender<Line>,
    /// What passes named events on, over OTLP.
    pub(super) tap: LogTap,
}

/// Starts logging as `config` says.
///
/// # Errors
/// A logger is already installed, or the thread could not be started.
pub fn start(config: &Log) -> anyhow::Result<Logger> {
    let (queue, lines) = mpsc::sync_channel(QUEUE);
    std::thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&lines))?;
    let writer = Queued { queue: queue.clone(), dropped: Arc::default(), format: config.format };
    let (filter, level) = reload::Layer::new(filter(config.level));
    let tap = LogTap::default();
    let registry = tracing_subscriber::registry().with(filter).with(tap.clone());
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    match config.format {
        LogFormat::Logfmt => registry
            .with(
                layer
                    .event_format(tracing_logfmt::EventsFormatter::default())
                    .fmt_fields(tracing_logfmt::FieldsFormatter::default()),
            )
            .try_init()?,
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init()?,
        LogFormat::Text => {
            registry.with(layer.compact().without_time().with_target(false).with_ansi(false)).try_init()?
        }
    }
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "A thread panicked.")));
    Ok(Logger { level, queue, tap })
}

impl Logger {
    /// Applies the level of a new configuration.
    pub fn set_level(&self, config: &Log) {
        if let Err(error) = self.level.reload(filter(config.level)) {
            tracing::error!(%error, "The log level could not be changed.");
        }
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        let (done, wait) = mpsc::sync_channel(1);
        if self.queue.try_send(Line::Flush(done)).is_ok() {
            // A closed or slow reader must not delay shutdown.
            let _ = wait.recv_timeout(FLUSH);
        }
    }
}

/// Our own lines at `level`; those of libraries at level error.
fn filter(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    Targets::new().with_default(LevelFilter::ERROR).with_target(env!("CARGO_PKG_NAME"), level)
}

enum Line {
    Text(Vec<u8>),
    Flush(SyncSender<()>),
}

fn write_all(lines: &Receiver<Line>) {
    let mut out = io::stderr();
    while let Ok(line) = lines.recv() {
        match line {
            // Without standard error, the failure cannot be reported.
            Line::Text(text) => drop(out.write_all(&text)),
            Line::Flush(done) => drop(done.try_send(())),
        }
    }
}

#[derive(Clone)]
struct Queued {
    queue: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
    format: LogFormat,
}

impl<'a> MakeWriter<'a> for Queued {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for Queued {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let lost = self.dropped.load(Ordering::Relaxed);
        let line_text = String::from_utf8_lossy(line);
        let shown = match self.format {
            LogFormat::Logfmt => printable::lines(&line_text),
            LogFormat::Json => printable::json(&line_text),
            LogFormat::Text => format!("memwarden: {}\n", printable::escaped(line_text.trim())).into(),
        };
        let mut text = shown.into_owned().into_bytes();
        if lost > 0 {
            let notice = match self.format {
                LogFormat::Logfmt => format!("level=warn message=\"Log lines were dropped.\" count={lost}\n"),
                LogFormat::Text => format!("memwarden: WARN Log lines were dropped. count={lost}\n"),
                LogFormat::Json => {
                    format!(
                        "{{\"level\":\"WARN\",\"message\":\"Log lines were dropped.\",\"count\":{lost}}}\n"
                    )
                }
            };
            text.extend_from_slice(notice.as_bytes());
        }
        match self.queue.try_send(Line::Text(text)) {
            Ok(()) => self.dropped.fetch_sub(lost, Ordering::Relaxed),
            Err(_) => self.dropped.fetch_add(1, Ordering::Relaxed),
        };
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_value_forges_no_line_for_people() {
        let (queue, lines) = mpsc::sync_channel(1);
        let mut writer = Queued { queue, dropped: Arc::default(), format: LogFormat::Text };
        writer.write_all("WARN It ends. name=a\n\u{1b}[2JWARN \u{202e}b\n".as_bytes()).unwrap();
        let Ok(Line::Text(text)) = lines.recv() else { panic!("no line") };
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("memwarden: WARN It ends. name=a") && text.ends_with("b\n"), "{text:?}");
        assert_eq!(text.chars().filter(|letter| printable::is_hidden(*letter)).collect::<String>(), "\n");
    }

    #[test]
    fn our_lines_are_written_at_the_level_and_only_errors_of_libraries() {
        for (level, ours, not_ours) in [
            (LogLevel::Error, Level::ERROR, Level::WARN),
            (LogLevel::Warn, Level::WARN, Level::INFO),
            (LogLevel::Info, Level::INFO, Level::DEBUG),
            (LogLevel::Debug, Level::DEBUG, Level::TRACE),
        ] {
            let filter = filter(level);
            for target in ["memwarden", "memwarden::sources::gpu"] {
                assert!(filter.would_enable(target, &ours), "{level:?} {target}");
                assert!(!filter.would_enable(target, &not_ours), "{level:?} {target}");
            }
            assert!(filter.would_enable("hyper::proto", &Level::ERROR), "{level:?}");
            assert!(!filter.would_enable("hyper::proto", &Level::WARN), "{level:?}");
        }
    }
}
