//! `memwarden top`: the node, or all nodes, as a live screen of the terminal.

mod source;
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Context as _;
use crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use self::source::Source;
use self::terminal::Screen;
use super::fetch;
use super::report::{load, within};
use crate::host::clock;
use crate::top::{Kind, State, Update};

/// Shortest and longest time between two updates, in seconds.
const SHORTEST: f64 = 0.5;
const LONGEST: f64 = 10.0;
/// Time between two updates of a cluster without --interval, in seconds.
const CLUSTER: f64 = 10.0;
/// The clock of the screen, and the time after which a missing sample is noticed, are drawn this often.
const REDRAW: Duration = Duration::from_secs(1);
/// Seconds without an update beyond three intervals after which the source counts as stuck.
const LATE: f64 = 5.0;

/// Show the state of this node, or of all nodes, on the terminal until `q` is pressed.
///
/// The data is from the socket of the daemon of this node, or from --url; where no daemon listens there, this command
/// samples the node itself, which shows no ranks and no protection. With --prometheus, all nodes and training runs that a
/// Prometheus-compatible server knows are shown. The key `?` shows all keys.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden top
  memwarden top --url http://node17:10636 --interval 5
  memwarden top --prometheus http://prometheus:9090")]
pub(super) struct Args {
    /// URL of the daemon.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// URL of a Prometheus-compatible server, with the prefix of its API if it has one.
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    prometheus: Option<String>,
    /// Time between two updates, 0.5 s to 10 s [default: 1s; with --prometheus 10s].
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    interval: Option<f64>,
    /// Leave the mouse to the terminal, for selecting text.
    #[arg(long)]
    no_mouse: bool,
    /// Configuration file for sampling the node without a daemon.
    #[arg(long = "config.file", value_name = "FILE", conflicts_with_all = ["url", "prometheus"])]
    config_file: Option<PathBuf>,
    /// Value of any configuration option by its key, for sampling the node without a daemon; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE", conflicts_with_all = ["url", "prometheus"])]
    set: Vec<String>,
}

fn interval(text: &str) -> Result<f64, String> {
    within(super::report::interval(text)?, SHORTEST..=LONGEST, "must be from 500ms to 10s")
}

/// What the drawing thread waits for.
enum Message {
    Update(Box<Update>),
    Input(Event),
    /// A signal that ends the program.
    Signal(i32),
    /// The input of the terminal is closed.
    Closed,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (source, mut state, interval) = self.open()?;
        let mut screen = Screen::open(!self.no_mouse)?;
        let (send, messages) = channel();
        listen(&send).context("cannot listen for signals and keys")?;
        let (_stop, stopped) = channel();
        let to = send;
        std::thread::Builder::new()
            .name("source".to_owned())
            .spawn(move || sample(source, interval, &to, &stopped))
            .context("cannot start a thread")?;
        show(&mut screen, &mut state, &messages, interval)
    }

    fn open(&self) -> anyhow::Result<(Source, State, f64)> {
        if let Some(url) = &self.prometheus {
            let state = State::new(Kind::Cluster, url, "The server");
            return Ok((Source::cluster(url)?, state, self.interval.unwrap_or(CLUSTER)));
        }
        let interval = self.interval.unwrap_or(1.0);
        let wants_own = self.config_file.is_some() || !self.set.is_empty();
        let url = self.url.clone().or_else(|| (!wants_own && source::has_daemon()).then(fetch::local));
        if let Some(url) = url {
            return Ok((Source::daemon(&url)?, State::new(Kind::Node, &url, "The daemon"), interval));
        }
        let config = load(self.config_file.clone(), &self.set, interval, &[])?;
        let state = State::new(Kind::Node, "sampled here, without a daemon", "The sampler of this command");
        Ok((Source::own(&config, interval), state, interval))
    }
}

/// Starts the threads that wait for keys and for signals.
fn listen(send: &Sender<Message>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT])?;
    let to = send.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if to.send(Message::Signal(signal)).is_err() {
                break;
            }
        }
    })?;
    let to = send.clone();
    std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
        while let Ok(event) = event::read() {
            if to.send(Message::Input(event)).is_err() {
                return;
            }
        }
        // Nobody waits for it where the program ends.
        let _ = to.send(Message::Closed);
    })?;
    Ok(())
}

/// Sends an update at each interval, until nobody waits for it.
fn sample(mut source: Source, interval: f64, to: &Sender<Message>, stopped: &Receiver<()>) {
    let interval = Duration::from_secs_f64(interval);
    loop {
        let begun = clock::now();
        if to.send(Message::Update(Box::new(source.next()))).is_err() {
            return;
        }
        let rest = interval.saturating_sub(clock::now().since(begun));
        // At least as much rest as a tenth of an interval, also where each answer is late.
        if stopped.recv_timeout(rest.max(interval / 10)) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn show(
    screen: &mut Screen,
    state: &mut State,
    messages: &Receiver<Message>,
    interval: f64,
) -> anyhow::Result<ExitCode> {
    let mut updated = clock::now();
    loop {
        let now = clock::now();
        let silent = now.since(updated).as_secs_f64();
        if silent > interval * 3.0 + LATE {
            state.fail(format!("no answer for {silent:.0} s"), now.unix().as_secs_f64() - silent);
        }
        screen.draw(state, now.unix().as_secs_f64())?;
        let mut message = match messages.recv_timeout(REDRAW) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the threads of this command have ended"),
        };
        // Everything that has come is taken before the next drawing.
        while let Some(next) = message {
            match next {
                Message::Update(update) => {
                    updated = clock::now();
                    state.take(*update, updated.unix().as_secs_f64());
                }
                Message::Input(Event::Key(key)) if state.key(key) => return Ok(ExitCode::SUCCESS),
                Message::Input(Event::Mouse(mouse)) => {
                    state.mouse(mouse);
                }
                Message::Input(_) => {}
                Message::Signal(signal) => {
                    return Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX)));
                }
                Message::Closed => return Ok(ExitCode::SUCCESS),
            }
            message = messages.try_recv().ok();
        }
    }
}
