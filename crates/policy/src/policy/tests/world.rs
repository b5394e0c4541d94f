//! A cgroup, a job in it and a clock, all of them played.

use std::fmt::Write as _;
use std::time::Duration;

use super::GIB;
use crate::model::checkpoint::CheckpointState;

use crate::model::outlook::Tte;
use crate::model::room::Room;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::policy::{
    Ack, Aged, Board, Escalation, Limits, Members, Mode, Observed, Occupied, Reading, Resource, Rung, State,
};

/// In the unit of the played rates.
const GIB_F: f64 = 1_073_741_824.0;
/// The tick of the played guard.
const TICK: Duration = Duration::from_millis(100);

/// What the job does; times are seconds of the play.
pub(super) struct Job {
    /// Bytes a second it takes, at each time.
    pub(super) takes: fn(f64) -> f64,
    /// Seconds until it says `saving`, and until it says `saved`, after it is asked.
    pub(super) saving: Option<f64>,
    pub(super) saved: Option<f64>,
    /// Whether it catches the checkpoint signal.
    pub(super) catches: bool,
    /// Seconds until it is gone after SIGTERM; absent where it ignores it.
    pub(super) ends: Option<f64>,
    /// Seconds until it is gone after SIGKILL; absent where it cannot be killed.
    pub(super) dies: Option<f64>,
    /// Bytes a second that come back once it is gone.
    pub(super) returns: f64,
    /// How many stay when the victims are gone.
    pub(super) rest: u32,
    /// When the sensors stop and begin again.
    pub(super) blind: std::ops::Range<f64>,
    /// When an alert fires.
    pub(super) alert: std::ops::Range<f64>,
    /// What the analyzers foresee.
    pub(super) foreseen: fn(f64) -> Option<f64>,
    /// The bytes that a save takes, as the job predicts.
    pub(super) save: Option<u64>,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            takes: |_| 0.0,
            saving: Some(0.5),
            saved: Some(5.0),
            catches: true,
            ends: Some(1.0),
            dies: Some(0.5),
            returns: 4.0 * GIB_F,
            rest: 0,
            blind: 0.0..0.0,
            alert: 0.0..0.0,
            foreseen: |_| None,
            save: None,
        }
    }
}

/// What was asked of the job, and when.
#[derive(Default)]
struct Asked {
    checkpoint: Option<f64>,
    term: Option<f64>,
    kill: Option<f64>,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a play of a few GiB and seconds"
)]
/// Plays the job for that long and writes down every move.
pub(super) fn play(limits: Limits, job: &Job, seconds: u32) -> String {
    let total = 8.0 * GIB_F;
    let (mut used, mut held) = (2.0 * GIB_F, 0.0);
    let enforce = limits.mode == Mode::Enforce;
    let zero = Timestamp::from_secs(1000);
    let mut board = Board::new(1, [limits.max_kills_per_hour], 5);
    board.set_slot(0, Some(Occupied { target: 0, user: None, escalation: Escalation::new(limits, zero) }));
    let (mut asked, mut trace) = (Asked::default(), String::new());
    let mut history = vec![used];
    let mut last = None;
    let mut gone: Option<f64> = None;
    for tick in 0..seconds * 10 {
        let time = f64::from(tick) / 10.0;
        let now = zero.plus(TICK * tick);
        let since =
            |at: Option<f64>, after: Option<f64>| at.zip(after).is_some_and(|(at, after)| time >= at + after);
        if gone.is_none() && (since(asked.term, job.ends) || since(asked.kill, job.dies)) {
            (gone, held) = (Some(time), used);
        }
        if gone.is_none() {
            used = (used + (job.takes)(time) / 10.0).clamp(0.0, total);
        } else {
            held = f64::max(held - job.returns / 10.0, 0.0);
            used = held;
        }
        // A save takes its memory evenly.
        let share = asked.checkpoint.zip(job.saving).zip(job.saved).map_or(0.0, |((at, begins), ends)| {
            if gone.is_some() || time >= at + ends {
                0.0
            } else {
                (time - at - begins).max(0.0) / (ends - begins)
            }
        });
        let shown = used + share * job.save.unwrap_or(0) as f64;
        history.push(shown);
        let rate = |ticks: usize| {
            let before = history.len().checked_sub(ticks + 1)?;
            Some((shown - history[before]) / (ticks as f64 / 10.0))
        };
        if !job.blind.contains(&time) {
            let headroom = Bytes::new((total - shown).max(0.0) as u64);
            let reading =
                Reading { room: Room::new(headroom, Bytes::new(8 * GIB)), fast: rate(10), slow: rate(300) };
            last = Some((now, reading));
        }
        let mut observed =
            Observed { fit: true, gives: Some(Bytes::new(used as u64)), ..Observed::default() };
        observed.readings[Resource::Cgroup.place()] =
            last.map(|(at, reading)| Aged::of(reading, now.since(at)));
        observed.save[Resource::Cgroup.place()] = job.save.map(Bytes::new);
        let foreseen = (job.foreseen)(time).map(|p50| Tte { p10: p50 / 2.0, p50, p90: None });
        observed.forecast = Some(Aged::now(foreseen));
        observed.alert = job.alert.contains(&time).then_some(Aged::now(Some(Some(Rung::Kill))));
        let victims = u32::from(gone.is_none()) * 8;
        let count = victims + job.rest;
        observed.members = Some(Aged::now(Members { count, catching: Some(u32::from(job.catches) * count) }));
        let ack = |kind, after: Option<f64>| {
            let said = asked.checkpoint.zip(after).map(|(at, after)| at + after)?;
            let at = zero.plus(Duration::from_secs_f64(said));
            since(asked.checkpoint, after).then_some(Ack { kind, at })
        };
        observed.ack =
            ack(CheckpointState::Saved, job.saved).or_else(|| ack(CheckpointState::Saving, job.saving));
        observed.alive = (asked.term.is_some() || asked.kill.is_some()).then_some(victims);
        observed.victims = Bytes::new(used as u64);
        let Some(transition) = board.step(0, now, &observed) else { continue };
        let done = match (transition.acts() && enforce, transition.to) {
            (true, State::Checkpoint) if transition.ask => {
                asked.checkpoint = Some(time);
                ", asked to save"
            }
            (true, State::Term) => {
                asked.term = Some(time);
                ", asked to end"
            }
            (true, State::Kill) => {
                asked.kill = Some(time);
                ", killed"
            }
            _ => "",
        };
        let headroom = (total - used) / GIB_F;
        writeln!(
            trace,
            "at {time:5.1} s {headroom:5.2} GiB left: {} → {}: {}{done}",
            transition.from.label(),
            transition.to.label(),
            transition.reason
        )
        .unwrap();
    }
    trace
}
