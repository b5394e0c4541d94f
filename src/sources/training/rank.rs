//! The state that one process has reported. Pure: messages and times in, state out; no socket, no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::counts::Wrong;
use super::predictions::Predictions;
use super::rate::Rate;
use crate::formats::messages::{
    Body, Bye, Checkpoint, DeviceMemory, Event, Evidence, Grown, Hello, Measure, Mem, Message, Oom, Params,
    Phase, Step, Turn,
};
use crate::model::checkpoint::CheckpointState;
use crate::model::histogram::Buckets;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::timeline::{Entry, EntryKind};
use crate::model::units::{Bytes, real};

/// The largest micro-batch of a rank.
#[derive(Clone, Copy, Debug)]
pub struct LargestBatch {
    size: u64,
    /// When it was reported first, or became larger by a share worth noting.
    at: Timestamp,
    /// The time from the one before; absent before it grew: the first one is larger than none.
    grew: Option<Duration>,
}

impl LargestBatch {
    fn observe(&mut self, size: u64, now: Timestamp) {
        if size > self.size && size >= self.size.saturating_add(self.size / LARGER) {
            *self = Self { size, at: now, grew: Some(now.since(self.at)) };
        }
    }

    /// Whether growth of the job's memory can still be that of its batches.
    pub fn explains_growth(&self, now: Timestamp) -> bool {
        let [least, most] = OF_BATCHES;
        self.grew.is_some_and(|gap| now.since(self.at) < gap.saturating_mul(2).clamp(least, most))
    }
}

/// The first pass of a rank over its data, in which a data set that keeps what it has read grows.
#[derive(Clone, Copy, Debug)]
pub struct FirstPass {
    /// When its batches were counted first, and what was left then.
    begun: (Timestamp, u64),
    latest: (Timestamp, u64),
}

impl FirstPass {
    /// Whether growth of the job's memory can still be that of its data: the pass ends soon, or has just ended.
    pub fn explains_growth(&self, now: Timestamp) -> bool {
        let [least, most] = OF_BATCHES;
        let ((begun, first), (at, left)) = (self.begun, self.latest);
        let each = at.since(begun).as_secs_f64() / real(first.saturating_sub(left).max(1));
        let rest = each * real(left);
        rest <= most.as_secs_f64() && now.since(at).as_secs_f64() < rest + least.as_secs_f64()
    }
}

/// Step times from 2 ms to 512 s.
pub type Durations = Buckets<-9, 19>;

/// Most phase names of one process.
const PHASES: usize = 32;
/// Most nested phases.
const DEPTH: usize = 16;
/// Times that a process may change its rank: it may not know it before its process group is initialized.
const CHANGES: u32 = 3;
/// A micro-batch is larger than all before by at least the inverse of this share.
const LARGER: u64 = 16;
/// Limits of the time after a larger micro-batch for which the growth of the job can be that of its batches: twice the time from the
/// larger one before, as of lengths that are sorted. Also the time after the first pass over the data for which growth can be
/// that of the data, and the longest rest of the pass.
const OF_BATCHES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(180)];
/// Most events that wait for the next sample.
const WAITING: usize = 64;
/// Most things that grow inside a program that the name of an event has.
const NAMED: usize = 4;
/// A sender's clock is used if it differs from the daemon's by at most a day, in seconds.
const BELIEVED: f64 = 86_400.0;

/// The totals of one phase of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Time spent in the phase, in seconds.
    pub seconds: Option<f64>,
    /// Number of times that the phase was completed.
    pub count: Option<u64>,
    /// The highest allocated memory in the phase, in bytes.
    pub allocated_peak: Option<u64>,
}

/// The state that one process has reported.
#[derive(Debug, Default)]
pub struct Rank {
    /// Its identity; absent before its first `hello`.
    pub hello: Option<Box<Hello>>,
    /// When it first reported its current rank.
    pub since: Option<Timestamp>,
    changes: u32,
    /// The number of its last optimizer step.
    pub step: Option<u64>,
    /// When its last optimizer step was reported.
    pub stepped: Option<Timestamp>,
    /// Steps since it connected.
    pub steps: u64,
    /// Durations of its steps.
    pub durations: Durations,
    /// Duration of its last step, in seconds.
    pub last_duration: Option<f64>,
    /// Tokens of this rank alone.
    pub tokens: Option<u64>,
    pub token_rate: Rate,
    /// Samples of this rank alone.
    pub samples: Option<u64>,
    /// The size of its largest micro-batch, and when that was last noticeably larger than all before.
    pub largest_batch: Option<LargestBatch>,
    /// Absent where it has not said how long it is.
    pub first_pass: Option<FirstPass>,
    /// Steps skipped because gradients overflowed.
    pub skipped: Option<u64>,
    /// Steps whose loss or gradients were NaN or infinite.
    pub nan: Option<u64>,
    /// The last loss; absent where it was not finite.
    pub loss: Option<f64>,
    pub learning_rate: Option<f64>,
    /// The last norm of the gradients; absent where it was not finite.
    pub grad_norm: Option<f64>,
    pub phases: BTreeMap<Label, Totals>,
    /// The phases it is currently in, outermost first.
    current: Vec<Label>,
    /// Allocator statistics by device ordinal.
    pub devices: BTreeMap<u16, DeviceMemory>,
    /// When those of each device were last reported.
    pub memory_at: BTreeMap<u16, Timestamp>,
    /// Page-locked memory, in bytes.
    pub pinned: Option<u64>,
    /// The highest resident memory since its start, in bytes.
    pub resident_peak: Option<u64>,
    /// Parameters, gradients and optimizer states of the model.
    pub params: Option<Box<Params>>,
    /// What it predicts of its next phases.
    pub predictions: Predictions,
    /// State and step of its last checkpoint.
    pub checkpoint: Option<(CheckpointState, Option<u64>)>,
    /// When it last saved a checkpoint, in seconds since 1970.
    pub saved_unix: Option<f64>,
    /// Out-of-memory errors that it reported.
    pub ooms: u64,
    /// Messages that its client dropped.
    pub dropped: Option<u64>,
    /// Its `bye` message, once received.
    pub bye: Option<Bye>,
    /// When its last message was received.
    pub last_message: Option<Timestamp>,
    events: Vec<Entry>,
}

impl Rank {
    /// Applies one message.
    ///
    /// # Errors
    /// The kind of error and a sentence; the valid rest of the message is applied.
    pub fn apply(&mut self, message: Message, now: Timestamp) -> Result<(), (Wrong, String)> {
        let Message { t, dropped, body } = message;
        if self.hello.is_none() && !matches!(body, Body::Hello(_)) {
            return Err((Wrong::NoHello, "message before the first hello".to_owned()));
        }
        self.last_message = Some(now);
        let received = now.unix().as_secs_f64();
        let at = t.filter(|t| (t - received).abs() <= BELIEVED).unwrap_or(received);
        let mut decreased = Decreased(None);
        decreased.raise("dropped", &mut self.dropped, dropped);
        match body {
            Body::Hello(hello) => self.hello(hello, at, now)?,
            Body::Step(step) => self.step(step, at, now, &mut decreased)?,
            Body::Mem(mem) => self.mem(mem, now, &mut decreased),
            Body::Phase(phase) => self.phase(phase, &mut decreased)?,
            Body::Event(event) => self.event(event, at)?,
            Body::Oom(oom) => self.oom(&oom, at)?,
            Body::Checkpoint(checkpoint) => self.checkpoint(&checkpoint, at)?,
            Body::Params(params) => self.params = Some(params),
            Body::Prediction(prediction) => self.predictions.add(*prediction, now)?,
            Body::Evidence(evidence) => self.evidence(&evidence, at)?,
            Body::Bye(bye) => self.bye = Some(bye),
            Body::Unknown => {}
        }
        match decreased.0 {
            Some(key) => Err((Wrong::Decreased, format!("the total `{key}` decreased"))),
            None => Ok(()),
        }
    }

    fn hello(&mut self, hello: Box<Hello>, at: f64, now: Timestamp) -> Result<(), (Wrong, String)> {
        let (rank, world) = (hello.rank.unwrap_or(0), hello.world.unwrap_or(1));
        if rank >= world {
            return Err((Wrong::Rank, format!("rank {rank} is not in a world of {world} ranks")));
        }
        let before = self.hello.as_ref().map(|before| before.rank.unwrap_or(0));
        if before.is_some_and(|before| before != rank) {
            if self.changes == CHANGES {
                return Err((Wrong::Rank, format!("the rank changed more than {CHANGES} times")));
            }
            self.changes += 1;
        }
        if before.is_none() {
            let detail = json!({
                "world": world,
                "client": hello.client,
                "run": hello.run,
                "framework": hello.framework,
                "framework_version": hello.framework_version,
                "precision": hello.precision,
            });
            self.add_event(at, EntryKind::Start, "hello", None, to_raw_value(&detail).ok())?;
        }
        if before != Some(rank) {
            self.since = Some(now);
        }
        self.hello = Some(hello);
        Ok(())
    }

    fn step(
        &mut self,
        step: Step,
        at: f64,
        now: Timestamp,
        decreased: &mut Decreased,
    ) -> Result<(), (Wrong, String)> {
        decreased.raise("tokens", &mut self.tokens, step.tokens);
        decreased.raise("samples", &mut self.samples, step.samples);
        decreased.raise("skipped", &mut self.skipped, step.skipped);
        decreased.raise("nan", &mut self.nan, step.nan);
        if let Some(tokens) = self.tokens.filter(|_| step.tokens.is_some()) {
            self.token_rate.push(now, tokens);
        }
        if let Some(size) = step.largest_batch {
            self.largest_batch.get_or_insert(LargestBatch { size, at: now, grew: None }).observe(size, now);
        }
        if let Some(left) = step.first_pass_left {
            let latest = (now, left);
            self.first_pass.get_or_insert(FirstPass { begun: latest, latest }).latest = latest;
        }
        if let Some(seconds) = step.seconds {
            self.durations.observe(seconds);
            self.last_duration = Some(seconds);
        }
        let replace = |known: &mut Option<f64>, reported: Option<Measure>| {
            if let Some(reported) = reported {
                *known = reported.finite();
            }
        };
        replace(&mut self.loss, step.loss);
        replace(&mut self.grad_norm, step.grad_norm);
        self.learning_rate = step.learning_rate.or(self.learning_rate);
        let Some(number) = step.step else { return Ok(()) };
        let first = self.step.is_none();
        self.steps = self.steps.saturating_add(match self.step {
            Some(before) if number == before => 0,
            Some(before) if number > before => number - before,
            // The first step, or a step after a return to an earlier checkpoint.
            _ => 1,
        });
        if self.step.replace(number) != Some(number) {
            self.stepped = Some(now);
        }
        if first { self.add_event(at, EntryKind::FirstStep, "step", Some(number), None) } else { Ok(()) }
    }

    fn mem(&mut self, mem: Mem, now: Timestamp, decreased: &mut Decreased) {
        self.pinned = mem.pinned.or(self.pinned);
        self.resident_peak = self.resident_peak.max(mem.resident_peak);
        for (ordinal, mut reported) in mem.devices.into_iter().flatten() {
            let known = self.devices.entry(ordinal).or_default();
            let (mut retries, mut ooms) = (known.retries, known.ooms);
            decreased.raise("devices.retries", &mut retries, reported.retries);
            decreased.raise("devices.ooms", &mut ooms, reported.ooms);
            (reported.retries, reported.ooms) = (retries, ooms);
            *known = reported;
            self.memory_at.insert(ordinal, now);
        }
    }

    fn phase(&mut self, phase: Phase, decreased: &mut Decreased) -> Result<(), (Wrong, String)> {
        let Some((name, turn)) = phase.name.zip(phase.state) else { return Ok(()) };
        let name = Label::printable(&name);
        if self.phases.len() >= PHASES && !self.phases.contains_key(&name) {
            return Err((Wrong::Excess, format!("more than {PHASES} phases")));
        }
        let totals = self.phases.entry(name.clone()).or_default();
        decreased.raise("seconds", &mut totals.seconds, phase.seconds);
        decreased.raise("count", &mut totals.count, phase.count);
        decreased.raise("allocated_peak", &mut totals.allocated_peak, phase.allocated_peak);
        match turn {
            // A phase that never ends must not hide the others.
            Turn::Begin => {
                if self.current.len() == DEPTH {
                    self.current.remove(0);
                }
                self.current.push(name);
            }
            Turn::End => {
                if let Some(place) = self.current.iter().rposition(|begun| *begun == name) {
                    self.current.truncate(place);
                }
            }
        }
        Ok(())
    }

    fn event(&mut self, event: Event, at: f64) -> Result<(), (Wrong, String)> {
        let name = event.name.unwrap_or_default();
        let detail = event.detail.and_then(|text| RawValue::from_string(text).ok());
        self.add_event(at, EntryKind::Event, &name, event.step.or(self.step), detail)
    }

    fn oom(&mut self, oom: &Oom, at: f64) -> Result<(), (Wrong, String)> {
        self.ooms = self.ooms.saturating_add(1);
        let detail = json!({
            "device": oom.device,
            "requested": oom.requested,
            "allocated": oom.allocated,
            "reserved": oom.reserved,
            "free": oom.free,
            "total": oom.total,
            "snapshot": oom.snapshot,
            "expandable_segments": oom.expandable_segments,
        });
        self.add_event(at, EntryKind::Oom, "oom", self.step, to_raw_value(&detail).ok())
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint, at: f64) -> Result<(), (Wrong, String)> {
        let Some(state) = checkpoint.state else { return Ok(()) };
        self.checkpoint = Some((state, checkpoint.step));
        if state == CheckpointState::Saved {
            self.saved_unix = Some(at);
        }
        let text = |text: &Option<String>| text.as_deref().map(Value::from);
        let detail = details([("path", text(&checkpoint.path)), ("reason", text(&checkpoint.reason))]);
        self.add_event(at, EntryKind::Checkpoint, state.label(), checkpoint.step.or(self.step), detail)
    }

    /// The event is named by what has grown most of each kind, and has all in its detail.
    fn evidence(&mut self, evidence: &Evidence, at: f64) -> Result<(), (Wrong, String)> {
        let mut items: Vec<&Grown> = evidence.items.iter().flatten().collect();
        items.retain(|item| item.more.is_some_and(|more| more > 0));
        let text = |text: &Option<String>| Label::printable(text.as_deref().unwrap_or_default());
        let mut named = Vec::new();
        for item in &items {
            if named.len() < NAMED {
                let now = item.now.map(|now| format!("{now} now"));
                let bytes = item.more_bytes.map(|bytes| format!("{} more", Bytes::new(bytes)));
                let known: Vec<String> = now.into_iter().chain(bytes).collect();
                let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
                let more = item.more.unwrap_or_default();
                named.push(format!("{} {}: {more} more{known}", text(&item.what), text(&item.name)));
            }
        }
        if named.is_empty() && evidence.items.as_ref().is_some_and(Vec::is_empty) {
            named.push("no Python object that was counted, so that native code holds it".to_owned());
        }
        if named.is_empty() {
            return Ok(());
        }
        let each = |item: &&Grown| {
            json!({
                "what": text(&item.what).as_str(),
                "name": text(&item.name).as_str(),
                "now": item.now,
                "more": item.more,
                "bytes": item.bytes,
                "more_bytes": item.more_bytes,
            })
        };
        let all: Vec<_> = items.iter().map(each).collect();
        let detail = json!({ "seconds": evidence.seconds, "items": all });
        self.add_event(at, EntryKind::Growth, &named.join(", "), self.step, to_raw_value(&detail).ok())
    }

    fn add_event(
        &mut self,
        unix_seconds: f64,
        kind: EntryKind,
        name: &str,
        step: Option<u64>,
        detail: Option<Box<RawValue>>,
    ) -> Result<(), (Wrong, String)> {
        if self.events.len() == WAITING {
            return Err((Wrong::Excess, format!("more than {WAITING} events since the last sample")));
        }
        self.events.push(entry(unix_seconds, kind, name, step, detail));
        Ok(())
    }

    /// The innermost phase that it is currently in.
    pub fn phase_now(&self) -> Option<&Label> {
        self.current.last()
    }

    /// The event of its end, at a time since 1970.
    pub fn end(&self, unix_seconds: f64) -> Entry {
        let (name, detail) = match &self.bye {
            Some(bye) => {
                let reason = bye.reason.as_deref().filter(|why| !why.is_empty()).map(Value::from);
                let known = [
                    ("reason", reason),
                    ("end", bye.end.map(|end| end.label().into())),
                    ("resource", bye.resource.map(|resource| resource.label().into())),
                    ("limit", bye.limit.map(|limit| limit.label().into())),
                    ("limit_value", bye.limit_value.map(Value::from)),
                    ("phase", bye.phase.as_deref().map(Value::from)),
                ];
                ("bye", details(known))
            }
            // One that was killed in a phase says nothing.
            None => {
                ("end of stream", details([("phase", self.phase_now().map(|phase| phase.as_str().into()))]))
            }
        };
        entry(unix_seconds, EntryKind::End, name, self.step, detail)
    }

    /// Returns and removes the events since the previous call.
    pub fn take_events(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.events)
    }
}

/// An event of a process that is not identified yet.
fn entry(
    unix_seconds: f64,
    kind: EntryKind,
    name: &str,
    step: Option<u64>,
    detail: Option<Box<RawValue>>,
) -> Entry {
    Entry { unix_seconds, kind, name: Label::printable(name), step, detail, ..Entry::default() }
}

/// A JSON object of the values that are known; nothing if none is.
fn details<const N: usize>(values: [(&str, Option<Value>); N]) -> Option<Box<RawValue>> {
    let known: BTreeMap<_, _> = values.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    if known.is_empty() { None } else { to_raw_value(&known).ok() }
}

/// The key of a total that decreased.
struct Decreased(Option<&'static str>);

impl Decreased {
    /// Adopts a total that does not decrease.
    fn raise<T: PartialOrd>(&mut self, key: &'static str, known: &mut Option<T>, reported: Option<T>) {
        match reported {
            Some(reported) if known.as_ref().is_some_and(|known| reported < *known) => self.0 = Some(key),
            Some(reported) => *known = Some(reported),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::messages::parse;
    use expect_test::expect;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_secs(1_700_000_000 + second)
    }

    /// A rank of a world of 8 that received these lines, one per second, and the errors in them.
    fn rank(lines: &[&str]) -> (Rank, Vec<String>) {
        let mut rank = Rank::default();
        let mut wrong = Vec::new();
        for (second, line) in lines.iter().enumerate() {
            if let Err((kind, why)) = rank.apply(parse(line.as_bytes()).unwrap(), at(second as u64)) {
                wrong.push(format!("{}: {why}", kind.label()));
            }
        }
        (rank, wrong)
    }

    const HELLO: &str = r#"{"type":"hello","v":1,"rank":3,"world":8}"#;

    #[test]
    fn totals_do_not_decrease_and_steps_are_counted_over_gaps() {
        let (rank, wrong) = rank(&[
            HELLO,
            r#"{"type":"step","step":100,"tokens":50,"seconds":0.5,"loss":2.5}"#,
            r#"{"type":"step","step":103,"tokens":40,"samples":9,"loss":"nan","dropped":2}"#,
            r#"{"type":"step","step":103,"tokens":60}"#,
            r#"{"type":"step","step":90,"tokens":60,"dropped":1}"#,
        ]);
        assert_eq!(
            wrong,
            ["falling: the total `tokens` decreased", "falling: the total `dropped` decreased"]
        );
        assert_eq!((rank.step, rank.steps, rank.tokens, rank.samples), (Some(90), 5, Some(60), Some(9)));
        assert_eq!((rank.loss, rank.dropped, rank.durations.count()), (None, Some(2), 1));
    }

    #[test]
    fn a_rank_is_below_the_world_size_and_changes_are_bounded() {
        let (found, wrong) = rank(&[
            r#"{"type":"step","step":1}"#,
            r#"{"type":"hello","v":1,"rank":8,"world":8}"#,
            r#"{"type":"hello","v":1,"rank":0,"world":0}"#,
            r#"{"type":"hello","v":1}"#,
        ]);
        assert_eq!(
            wrong,
            [
                "no_hello: message before the first hello",
                "rank: rank 8 is not in a world of 8 ranks",
                "rank: rank 0 is not in a world of 0 ranks",
            ]
        );
        assert!(found.hello.is_some());
        let lines: Vec<String> =
            (0..6).map(|rank| format!(r#"{{"type":"hello","v":1,"rank":{rank},"world":8}}"#)).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (found, wrong) = rank(&lines);
        assert_eq!(wrong.len(), 2);
        assert_eq!(found.hello.unwrap().rank, Some(3));
    }

    #[test]
    fn phases_are_nested_and_bounded() {
        let (mut found, wrong) = rank(&[
            HELLO,
            r#"{"type":"phase","name":"forward","state":"begin"}"#,
            r#"{"type":"phase","name":"attention","state":"begin"}"#,
        ]);
        assert!(wrong.is_empty());
        assert_eq!(found.phase_now().unwrap().as_str(), "attention");
        for (line, now) in [
            (r#"{"type":"phase","name":"loader","state":"end","seconds":2.0,"count":4}"#, Some("attention")),
            (
                r#"{"type":"phase","name":"forward","state":"end","seconds":1.5,"count":1,"allocated_peak":9}"#,
                None,
            ),
        ] {
            found.apply(parse(line.as_bytes()).unwrap(), at(9)).unwrap();
            assert_eq!(found.phase_now().map(Label::as_str), now);
        }
        let forward = found.phases[&Label::from("forward")];
        assert_eq!(forward, Totals { seconds: Some(1.5), count: Some(1), allocated_peak: Some(9) });
        for name in 0..100 {
            let line = format!(r#"{{"type":"phase","name":"p{name}","state":"begin"}}"#);
            let _ = found.apply(parse(line.as_bytes()).unwrap(), at(10));
        }
        assert_eq!((found.phases.len(), found.current.len()), (PHASES, DEPTH));
    }

    #[test]
    fn events_are_reported_once_and_bounded() {
        let (mut found, _) = rank(&[
            HELLO,
            r#"{"type":"step","t":1700000000.5,"step":7}"#,
            r#"{"type":"event","t":99,"name":"after\u0007eval","detail":{"a":1}}"#,
            r#"{"type":"oom","device":"0","requested":5}"#,
            r#"{"type":"checkpoint","state":"saved","step":6,"path":"/x"}"#,
            r#"{"type":"checkpoint","state":"failed","step":7,"reason":"no space"}"#,
            r#"{"type":"step","step":8}"#,
        ]);
        let shown: Vec<String> = found
            .take_events()
            .iter()
            .map(|event| {
                let detail = event.detail.as_ref().map_or("", |detail| detail.get());
                format!("{} {:?} {} {:?} {detail}\n", event.unix_seconds, event.kind, event.name, event.step)
            })
            .collect();
        expect![[r#"
            1700000000 Start hello None {"client":null,"framework":null,"framework_version":null,"precision":null,"run":null,"world":8}
            1700000000.5 FirstStep step Some(7) 
            1700000002 Event after?eval Some(7) {"a":1}
            1700000003 Oom oom Some(7) {"allocated":null,"device":"0","expandable_segments":null,"free":null,"requested":5,"reserved":null,"snapshot":null,"total":null}
            1700000004 Checkpoint saved Some(6) {"path":"/x"}
            1700000005 Checkpoint failed Some(7) {"reason":"no space"}
        "#]]
        .assert_eq(&shown.concat());
        assert_eq!((found.ooms, found.saved_unix), (1, Some(1_700_000_004.0)));
        let event = parse(br#"{"type":"event","name":"x"}"#).unwrap();
        let taken = (0..200).filter(|_| found.apply(event.clone(), at(9)).is_ok()).count();
        assert_eq!((taken, found.take_events().len(), found.take_events().len()), (WAITING, WAITING, 0));
    }

    #[test]
    fn the_allocators_counters_do_not_decrease() {
        let (found, wrong) = rank(&[
            HELLO,
            r#"{"type":"mem","devices":{"0":{"allocated":9,"retries":3},"1":{"allocated":1}},"pinned":7}"#,
            r#"{"type":"mem","devices":{"0":{"allocated":5,"retries":2,"ooms":1}}}"#,
        ]);
        assert_eq!(wrong, ["falling: the total `devices.retries` decreased"]);
        let zero = &found.devices[&0];
        assert_eq!((zero.allocated, zero.retries, zero.ooms), (Some(5), Some(3), Some(1)));
        assert_eq!((found.devices.len(), found.pinned), (2, Some(7)));
    }

    #[test]
    fn growth_is_that_of_the_data_until_the_first_pass_over_it_has_ended() {
        let at = Timestamp::from_secs;
        let pass = |begun, latest| FirstPass { begun, latest };
        let ending = pass((at(100), 300), (at(150), 100));
        assert!(ending.explains_growth(at(204)), "25 s are left, and the growth ends after that");
        assert!(!ending.explains_growth(at(205)));
        let long = pass((at(100), 250_000), (at(150), 249_800));
        assert!(!long.explains_growth(at(150)), "it lasts for hours");
        let unknown = pass((at(100), 300), (at(100), 300));
        assert!(unknown.explains_growth(at(129)) && !unknown.explains_growth(at(130)));
    }

    #[test]
    fn growth_is_that_of_batches_only_after_they_grew() {
        let at = Timestamp::from_secs;
        let mut batch = LargestBatch { size: 512, at: at(100), grew: None };
        assert!(!batch.explains_growth(at(100)), "the first one is larger than none");
        batch.observe(520, at(110));
        assert!(!batch.explains_growth(at(110)), "hardly larger");
        batch.observe(600, at(200));
        assert!(batch.explains_growth(at(379)) && !batch.explains_growth(at(380)), "at most three minutes");
        batch.observe(700, at(205));
        assert!(batch.explains_growth(at(234)) && !batch.explains_growth(at(235)), "half a minute at least");
        batch.observe(100, at(300));
        assert!(!batch.explains_growth(at(300)));
    }
}
