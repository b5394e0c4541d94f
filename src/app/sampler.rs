//! The sampler thread: a tick, a frame, a wait. It waits for nothing but its own clock.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use super::state;
use crate::config::Config;
use crate::engine::{EVERYTHING, Engine};
use crate::events::Events;
use crate::host::{apart, clock, fs};
use crate::model::acknowledged::{Acknowledgement, ProblemId};
use crate::model::ends::End;
use crate::model::frame::Frame;
use crate::model::health::Health;
use crate::model::source::{Control, Reporter};
use crate::model::time::Timestamp;
use crate::node_view;
use crate::past_runs::PastRuns;
use crate::protection::guard::supervisor::FeedHandle;
use crate::sources::Context;

/// A request to the sampler, which is handled between two ticks.
#[derive(Debug)]
pub enum Request {
    /// Apply a new configuration.
    Configure(Box<Config>, Context),
    /// Pass this to every source.
    Control(Control),
    /// Acknowledge a problem that is as bad as this.
    Acknowledge(ProblemId, Health, Acknowledgement),
    /// Forget the acknowledgements of these problems.
    Forget(Vec<ProblemId>),
    Stop,
}

/// The running thread.
#[derive(Debug)]
pub struct Sampler {
    requests: Sender<Request>,
    thread: JoinHandle<()>,
    /// The interval of the configuration that was passed on last.
    interval: Duration,
    /// The newest configuration, while it waits for the end of an incident, and since when one waits.
    waiting: Option<(Config, Context, Timestamp)>,
}

/// Longest time that a configuration waits for the end of an incident: with `max_state: soft` an incident lasts as long as
/// memory is short, which can be days.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Starts sampling; frames appear in `frames`. `requests` are handled between ticks.
///
/// # Errors
/// The operating system's, where the thread could not be started.
pub fn start(
    config: &Config,
    context: Context,
    events: Arc<Events>,
    frames: watch::Sender<Option<Arc<Frame>>>,
    feed: Arc<FeedHandle>,
    reporters: impl IntoIterator<Item = Arc<dyn Reporter>> + Send + 'static,
    (requests, inbox): (Sender<Request>, Receiver<Request>),
) -> std::io::Result<Sampler> {
    let config = config.clone();
    let interval = config.sampling.interval;
    let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(move || {
        let past_runs = Arc::clone(&context.past_runs);
        let keeper = keeper(&config, &past_runs);
        let mut engine = Engine::new(EVERYTHING, &config, context, Arc::clone(&events));
        engine.add_reporter(Arc::clone(&feed) as _);
        reporters.into_iter().for_each(|reporter| engine.add_reporter(reporter));
        let publish = |engine: &Engine, frame: Arc<Frame>| {
            log_ends(&events, frame.at, &frame.outlook.ends);
            feed.look(&frame, engine.facts());
            frames.send_replace(Some(frame));
        };
        run(&mut engine, interval, &inbox, &events, &publish, keeper.as_ref());
        past_runs.close();
        if let Some(keeping) = keeper {
            keeping.finish(engine.save(), LAST_SAVE);
        }
    })?;
    Ok(Sampler { requests, thread, interval, waiting: None })
}

/// Logs new ends, with what all users of the node may read: the log is exported.
fn log_ends(events: &Events, at: Timestamp, ends: &[Arc<End>]) {
    events.ended(at, ends.iter().map(AsRef::as_ref), node_view::ends::public_sentence);
}

impl Sampler {
    /// Sends a request, which is handled before the next tick.
    pub fn request(&self, request: Request) {
        if self.requests.send(request).is_err() {
            tracing::error!("The sampler has ended.");
        }
    }

    /// Applies a configuration, after the incident that is in progress: without the matcher that names it, a job would leave
    /// its target.
    pub fn configure(&mut self, config: Config, context: Context, in_incident: bool, now: Timestamp) {
        if in_incident {
            tracing::warn!(
                max_seconds = LONGEST_WAIT.as_secs(),
                "An incident is in progress; changes of protection, sources, analyzers and sampling wait for its end, those other than protection not longer than max_seconds."
            );
        }
        let since = self.waiting.take().map_or(now, |(.., since)| since);
        self.waiting = Some((config, context, since));
        self.catch_up(in_incident, now);
    }

    /// Applies the configuration that waits, unless an incident is in progress and the wait is not too long.
    pub fn catch_up(&mut self, in_incident: bool, now: Timestamp) {
        let due = |(.., since): &mut (_, _, Timestamp)| !in_incident || now.since(*since) >= LONGEST_WAIT;
        if let Some((config, context, _)) = self.waiting.take_if(due) {
            if in_incident {
                tracing::warn!(
                    "The incident lasts; changes of sources, analyzers and sampling take effect during it."
                );
            }
            self.interval = config.sampling.interval;
            self.request(Request::Configure(Box::new(config), context));
        }
    }

    /// The sampling interval; while a configuration waits, the longer one of the old and the new.
    pub fn interval(&self) -> Duration {
        let waiting = self.waiting.as_ref().map(|(config, ..)| config.sampling.interval);
        waiting.map_or(self.interval, |new| new.max(self.interval))
    }

    /// Ends the thread; a thread that is blocked in a read is not joined after `deadline`.
    pub fn stop(self, deadline: Duration) {
        self.request(Request::Stop);
        if !apart::ended(&self.thread, deadline) {
            tracing::warn!("The sampler did not end in time and is left behind.");
        }
    }
}

/// The time that shutdown waits for the state to be written.
const LAST_SAVE: Duration = Duration::from_millis(700);

/// Starts the thread that saves the state of the analyzers; absent without a folder for it, and where boots cannot be
/// distinguished.
fn keeper(config: &Config, past_runs: &Arc<PastRuns>) -> Option<state::Keeper> {
    let given = || std::env::var_os("STATE_DIRECTORY").map(|folder| Path::new(&folder).join("state.json"));
    let path = config.state_file.clone().or_else(given)?;
    // The records of protection log why a folder is not used.
    fs::check_folder(path.parent()?, true).ok()?;
    let boot_id = fs::read_text(&config.paths.proc.join("sys/kernel/random/boot_id")).ok()?;
    let started = state::Keeper::start(path, boot_id, Arc::clone(past_runs));
    started.inspect_err(|error| tracing::warn!(%error, "No thread to keep the state.")).ok()
}

fn run(
    engine: &mut Engine,
    mut interval: Duration,
    inbox: &Receiver<Request>,
    events: &Events,
    publish: &dyn Fn(&Engine, Arc<Frame>),
    keeping: Option<&state::Keeper>,
) {
    let mut due = clock::now();
    let (mut saved, mut saved_past) = (due, due);
    loop {
        if let Some(kept) = keeping.and_then(state::Keeper::loaded) {
            engine.restore(kept);
        }
        let now = clock::now();
        let frame = engine.tick(now);
        events.step("publish", clock::now());
        publish(engine, frame);
        if let Some(keeping) = keeping.filter(|_| now.since(saved) >= state::EVERY) {
            saved = now;
            events.step("save", clock::now());
            keeping.keep(engine.save());
        }
        if let Some(keeping) = keeping.filter(|_| now.since(saved_past) >= state::EVERY_PAST) {
            saved_past = now;
            keeping.keep_past_runs();
        }
        let done = clock::now();
        events.steps_end(done);
        let took = done.since(now);
        due = due.plus(interval);
        let missed = missed(done.since(due), interval);
        if missed > 0 {
            events.ticks_skipped(u64::from(missed), took);
            due = due.plus(interval * missed);
        }
        loop {
            match inbox.recv_timeout(due.since(clock::now())) {
                Ok(Request::Configure(config, context)) => {
                    interval = config.sampling.interval;
                    // A shorter interval does not wait for the end of a longer one.
                    due = due.earlier(clock::now().plus(interval));
                    engine.reconfigure(EVERYTHING, &config, context);
                }
                Ok(Request::Control(request)) => engine.control(request),
                Ok(Request::Acknowledge(id, health, acknowledgement)) => {
                    engine.acknowledged().add(id, health, acknowledgement);
                    if let Some(keeping) = keeping {
                        keeping.keep(engine.save());
                    }
                }
                Ok(Request::Forget(ids)) => ids.iter().for_each(|id| engine.acknowledged().remove(id)),
                Ok(Request::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
    }
}

/// How many whole ticks passed when the next one was due `late` ago.
fn missed(late: Duration, interval: Duration) -> u32 {
    if late.is_zero() {
        return 0;
    }
    let ticks = late.as_nanos().div_ceil(interval.as_nanos().max(1));
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::Mutex;

    use tracing::field::{Field, Visit};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::host::roots::Roots;
    use crate::model::ends::{EndCause, EndEvidence, ExitStatus, Sender as SignalSender};
    use crate::model::lock::lock;

    /// Collects the messages of the log.
    #[derive(Clone, Debug, Default)]
    struct Messages(Arc<Mutex<Vec<String>>>);

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Messages {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            event.record(&mut self.clone());
        }
    }

    impl Visit for Messages {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                lock(&self.0).push(format!("{value:?}"));
            }
        }
    }

    /// What is logged of the ends of each frame; frames are a second apart, from 1,000 s on.
    fn logged(frames: &[Vec<End>]) -> Vec<String> {
        let (events, messages) = (Events::new(), Messages::default());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(messages.clone()), || {
            for (second, ends) in (1_000..).zip(frames) {
                let ends: Vec<_> = ends.iter().cloned().map(Arc::new).collect();
                log_ends(&events, Timestamp::from_secs(second), &ends);
            }
        });
        std::mem::take(&mut lock(&messages.0))
    }

    fn end(number: u64, unix_seconds: f64, pid: u32) -> End {
        End { number, unix_seconds, pid, comm: "python".into(), cause: EndCause::Failed, ..End::default() }
    }

    #[test]
    fn events_of_ends_have_no_sender_of_a_signal() {
        let sender = SignalSender { pid: 9, comm: "mine".into(), user_id: Some(1) };
        let evidence = vec![EndEvidence::Status(ExitStatus::Signal(9)), EndEvidence::SentBy(sender)];
        let killed = End { cause: EndCause::Killed, probability: 1.0, evidence, ..end(1, 1_001.0, 7) };
        let logged = logged(&[vec![], vec![killed]]);
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].ends_with("by another program or a person."), "{logged:?}");
        assert!(!logged[0].contains("mine"), "{logged:?}");
    }

    #[test]
    fn events_of_ends_from_before_the_start_are_not_repeated() {
        let old = [end(1, 10.0, 4), end(2, 999.0, 5)];
        // They are restored from the state file, which may be read after the first frame.
        let with = |new: End| [&old[..], &[new]].concat();
        let frames = [vec![], old.to_vec(), with(end(3, 1_002.0, 6)), with(end(3, 1_002.0, 6))];
        let logged = logged(&frames);
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].contains("pid 6"), "{logged:?}");
    }

    #[test]
    fn events_of_ends_of_one_user_leave_room_for_those_of_others() {
        let many = (0..20).map(|pid| End { user_id: 1, ..end(1, 1_001.0, pid) });
        let other = End { user_id: 2, ..end(2, 1_001.0, 99) };
        let logged = logged(&[vec![], many.chain([other]).collect()]);
        assert_eq!(logged.len(), 10, "{logged:?}");
        assert!(logged[8].contains("pid 99"), "{logged:?}");
        assert_eq!(logged[9], "Further ends of this user are not logged.");
    }

    #[test]
    fn events_of_ends_go_on_where_numbering_begins_again() {
        let frames = [vec![], vec![end(7, 1_001.0, 4)], vec![], vec![end(1, 1_003.0, 5)]];
        let logged = logged(&frames);
        assert_eq!(logged.len(), 2, "{logged:?}");
        assert!(logged[1].contains("pid 5"), "{logged:?}");
    }

    #[test]
    fn a_configuration_waits_for_an_incident_but_not_for_ever() {
        let (requests, inbox) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(|| ());
        let seconds = Duration::from_secs;
        let mut sampler = Sampler { requests, thread, interval: seconds(1), waiting: None };
        let config = |interval| {
            let mut config =
                crate::config::parse_str("", Path::new("test"), &crate::app::schema(), &[]).unwrap();
            config.sampling.interval = seconds(interval);
            config
        };
        let context = Context {
            roots: Arc::new(Roots::under(Path::new("/nonexistent"))),
            worker: None,
            checkpoints: Arc::default(),
            past_runs: Arc::default(),
        };
        let at = Timestamp::from_secs;
        sampler.configure(config(5), context.clone(), true, at(1_000));
        assert!(inbox.try_recv().is_err());
        assert_eq!(sampler.interval(), seconds(5));
        // Another one does not prolong the wait.
        sampler.configure(config(3), context.clone(), true, at(1_500));
        sampler.catch_up(true, at(1_599));
        assert!(inbox.try_recv().is_err());
        sampler.catch_up(true, at(1_600));
        assert!(matches!(inbox.try_recv(), Ok(Request::Configure(..))));
        assert_eq!(sampler.interval(), seconds(3));
        // The old interval applies while a shorter one waits.
        sampler.configure(config(1), context, true, at(2_000));
        assert_eq!(sampler.interval(), seconds(3));
        sampler.catch_up(false, at(2_001));
        assert!(matches!(inbox.try_recv(), Ok(Request::Configure(..))));
        assert_eq!(sampler.interval(), seconds(1));
    }

    #[test]
    fn a_late_tick_is_skipped_and_not_queued() {
        let ms = Duration::from_millis;
        let cases = [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (5500, 6)];
        for (late, expected) in cases {
            assert_eq!(missed(ms(late), ms(1000)), expected, "late by {late} ms");
        }
    }
}
