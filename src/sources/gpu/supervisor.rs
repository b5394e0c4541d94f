//! Decides when a worker is started, killed or abandoned. Pure: time is an argument.

use std::time::Duration;

use crate::model::time::Timestamp;

/// A worker sends a heartbeat every second; after this silence it is considered stopped or hung.
const SILENCE: Duration = Duration::from_secs(5);

/// Longest initialization of NVML, which takes tens of seconds on large nodes without persistence mode.
const START: Duration = Duration::from_secs(120);

/// After a GPU has hung for this time, one new worker is tried: a call on a lost connection may never return.
const HUNG: Duration = Duration::from_secs(300);

/// How long a worker may take to shut NVML down, or to exit after SIGKILL.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause before the first restart; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A worker that ran for this time was healthy: the pause starts at its first value again.
const HEALTHY: Duration = Duration::from_secs(60);

/// Most workers abandoned in uninterruptible sleep; no other worker is started beyond this number.
pub const MOST_ABANDONED: usize = 2;

/// What the keeper must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Nothing,
    Start,
    /// Ask the worker to shut NVML down and exit.
    RequestExit,
    Kill,
    /// Abandon the worker: SIGKILL does not end it.
    Abandon,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerObservation {
    /// When it last sent a message.
    pub last_message: Option<Timestamp>,
    /// Whether it has reported the state of NVML.
    pub started: bool,
    /// The longest time for which one of its GPUs has hung.
    pub hung: Option<Duration>,
    /// Whether it has exited and was reaped, and if so whether orderly.
    pub ended: Option<bool>,
    /// Abandoned workers that still exist.
    pub abandoned: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Pausing { until: Timestamp },
    Running { since: Timestamp },
    Exiting { since: Timestamp },
    Killed { since: Timestamp },
    Released,
}

/// The state machine of successive workers.
#[derive(Debug)]
pub struct Supervisor {
    phase: Phase,
    pause: Duration,
    restarts: u64,
    /// Whether the last worker exited abnormally.
    failed: bool,
    wanted: bool,
    /// Whether a worker was already replaced because of the GPU that hangs now.
    replaced: bool,
}

impl Supervisor {
    /// Starts a worker at the next call of [`Supervisor::next`] if one is wanted.
    pub fn new(now: Timestamp, wanted: bool) -> Self {
        Self {
            phase: Phase::Pausing { until: now },
            pause: FIRST_PAUSE,
            restarts: 0,
            failed: false,
            wanted,
            replaced: false,
        }
    }

    /// Sets whether a worker should run.
    pub fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    /// Workers started because the previous one failed.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Excludes a time in which the daemon itself was stopped from all limits.
    pub fn exclude_pause(&mut self, time: Duration) {
        if let Phase::Running { since } | Phase::Exiting { since } | Phase::Killed { since } = &mut self.phase
        {
            *since = since.plus(time);
        }
    }

    /// Whether a worker runs and is expected to respond.
    pub fn running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    /// Whether no worker runs because none is wanted.
    pub fn released(&self) -> bool {
        self.phase == Phase::Released
    }

    /// Returns what to do now. The caller must carry the order out.
    pub fn next(&mut self, now: Timestamp, observation: WorkerObservation) -> Order {
        match self.phase {
            Phase::Released if self.wanted => {
                self.phase = Phase::Pausing { until: now };
                self.pause = FIRST_PAUSE;
                Order::Nothing
            }
            Phase::Released => Order::Nothing,
            Phase::Pausing { .. } if !self.wanted => {
                self.phase = Phase::Released;
                Order::Nothing
            }
            Phase::Pausing { until } => {
                if now.monotonic() < until.monotonic() || observation.abandoned >= MOST_ABANDONED {
                    return Order::Nothing;
                }
                self.phase = Phase::Running { since: now };
                self.restarts += u64::from(self.failed);
                Order::Start
            }
            Phase::Running { since } => self.watch(now, since, observation),
            Phase::Exiting { .. } | Phase::Killed { .. } if observation.ended.is_some() => {
                self.rest(now, observation.ended == Some(true))
            }
            Phase::Exiting { since } if now.since(since) >= EXIT_TIMEOUT => {
                self.phase = Phase::Killed { since: now };
                Order::Kill
            }
            Phase::Killed { since } if now.since(since) >= EXIT_TIMEOUT => {
                self.rest(now, false);
                Order::Abandon
            }
            Phase::Exiting { .. } | Phase::Killed { .. } => Order::Nothing,
        }
    }

    fn watch(&mut self, now: Timestamp, since: Timestamp, observation: WorkerObservation) -> Order {
        if now.since(since) >= HEALTHY && observation.started {
            self.pause = FIRST_PAUSE;
        }
        if let Some(orderly) = observation.ended {
            return self.rest(now, orderly);
        }
        if !self.wanted {
            self.phase = Phase::Exiting { since: now };
            return Order::RequestExit;
        }
        let hung = observation.hung.is_some_and(|hung| hung >= HUNG);
        if observation.hung.is_none() && observation.started && now.since(since) >= HUNG {
            self.replaced = false;
        }
        let silent = now.since(observation.last_message.unwrap_or(since)) > SILENCE;
        let late = !observation.started && now.since(since) > START;
        if silent || late || (hung && !self.replaced) {
            self.replaced |= hung;
            self.phase = Phase::Killed { since: now };
            return Order::Kill;
        }
        Order::Nothing
    }

    /// Records that a worker exited or was abandoned, and waits before the next start.
    fn rest(&mut self, now: Timestamp, orderly: bool) -> Order {
        self.failed = !orderly;
        self.phase = if self.wanted {
            let until = now.plus(self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            Phase::Pausing { until }
        } else {
            Phase::Released
        };
        Order::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// Runs a scenario with one letter per second, and compares the orders.
    ///
    /// `.` the worker sends a heartbeat, `i` a heartbeat while NVML is initializing, `h` a GPU has hung for
    /// long, `-` no message, `x` the worker has exited, `R` release is requested, `Q` the GPU is requested
    /// again, `2` two workers are abandoned.
    /// Orders: `S`tart, `A`sk to exit, `K`ill, a`B`andon.
    fn check(story: &str, expected: Expect) {
        let mut supervisor = Supervisor::new(Timestamp::from_secs(0), true);
        let mut last_message = None;
        let mut orders = String::new();
        for (second, letter) in story.chars().enumerate() {
            let now = Timestamp::from_secs(second as u64);
            match letter {
                'R' => supervisor.want(false),
                'Q' => supervisor.want(true),
                _ => {}
            }
            if !matches!(letter, '-' | 'x' | '2') {
                last_message = Some(now);
            }
            let observation = WorkerObservation {
                last_message,
                started: letter != 'i',
                hung: (letter == 'h').then_some(HUNG),
                ended: (letter == 'x').then_some(false),
                abandoned: if letter == '2' { 2 } else { 0 },
            };
            orders.push(match supervisor.next(now, observation) {
                Order::Nothing => '.',
                Order::Start => {
                    last_message = Some(now);
                    'S'
                }
                Order::RequestExit => 'A',
                Order::Kill => 'K',
                Order::Abandon => 'B',
            });
        }
        expected.assert_eq(&format!("{story}\n{orders}\n"));
    }

    #[test]
    fn a_worker_that_exits_is_restarted_with_growing_pauses() {
        check(
            ".x.x..x....x........",
            expect![[r#"
            .x.x..x....x........
            S.S..S....S........S
        "#]],
        );
    }

    #[test]
    fn pauses_are_at_most_a_minute_and_reset_by_a_healthy_worker() {
        let mut supervisor = Supervisor::new(Timestamp::from_secs(0), true);
        let mut starts = Vec::new();
        for second in 0..400 {
            let now = Timestamp::from_secs(second);
            let ended = supervisor.running().then_some(second % 2 == 0);
            if supervisor.next(now, WorkerObservation { ended, ..WorkerObservation::default() })
                == Order::Start
            {
                starts.push(second);
            }
        }
        expect!["[0, 2, 5, 10, 19, 36, 69, 130, 191, 252, 313, 374]"].assert_eq(&format!("{starts:?}"));
        // A worker that exits at an even second is orderly: its successor does not count as a restart.
        let failed = starts.iter().filter(|second| (*second + 1) % 2 == 1 && *second + 1 < 375).count();
        assert_eq!(supervisor.restarts(), failed as u64);
        let long = format!(".x.x..x{}x...", ".".repeat(70));
        check(
            &long,
            expect![[r#"
            .x.x..x......................................................................x...
            S.S..S....S...................................................................S..
        "#]],
        );
    }

    #[test]
    fn a_silent_worker_is_killed_and_abandoned_if_it_cannot_exit() {
        check(
            "..------x...",
            expect![[r#"
            ..------x...
            S......K.S..
        "#]],
        );
        check(
            "..-----------...",
            expect![[r#"
            ..-----------...
            S......K.BS.....
        "#]],
        );
        check(
            ".x22222.",
            expect![[r#"
            .x22222.
            S......S
        "#]],
        );
    }

    #[test]
    fn a_worker_is_not_blamed_for_a_stopped_daemon() {
        let at = Timestamp::from_secs;
        let observation = |second| WorkerObservation {
            last_message: Some(at(second)),
            started: true,
            ..WorkerObservation::default()
        };
        for started in [true, false] {
            let mut supervisor = Supervisor::new(at(0), true);
            assert_eq!(supervisor.next(at(0), observation(0)), Order::Start);
            assert_eq!(
                supervisor.next(at(1), WorkerObservation { started, ..observation(1) }),
                Order::Nothing
            );
            supervisor.exclude_pause(Duration::from_secs(299));
            assert_eq!(
                supervisor.next(at(300), WorkerObservation { started, ..observation(300) }),
                Order::Nothing
            );
        }
        let mut supervisor = Supervisor::new(at(0), true);
        supervisor.next(at(0), observation(0));
        supervisor.want(false);
        assert_eq!(supervisor.next(at(1), observation(1)), Order::RequestExit);
        supervisor.exclude_pause(Duration::from_secs(7));
        assert_eq!(supervisor.next(at(8), observation(8)), Order::Nothing);
    }

    #[test]
    fn a_slow_start_is_waited_for_within_a_limit() {
        let mut supervisor = Supervisor::new(Timestamp::from_secs(0), true);
        let killed = (0..200).find(|second| {
            let now = Timestamp::from_secs(*second);
            supervisor
                .next(now, WorkerObservation { last_message: Some(now), ..WorkerObservation::default() })
                == Order::Kill
        });
        assert_eq!(killed, Some(121));
    }

    #[test]
    fn one_hung_gpu_costs_one_worker_only() {
        check(
            "..hx..hhhhhh..h.....",
            expect![[r#"
            ..hx..hhhhhh..h.....
            S.K.S...............
        "#]],
        );
    }

    #[test]
    fn release_ends_the_worker_until_it_is_wanted_again() {
        check(
            "..Rx....Q...",
            expect![[r#"
            ..Rx....Q...
            S.A......S..
        "#]],
        );
        check(
            "..R....x..Q...",
            expect![[r#"
            ..R....x..Q...
            S.A.K.B....S..
        "#]],
        );
        check(
            ".xR...Q..",
            expect![[r#"
            .xR...Q..
            S......S.
        "#]],
        );
    }
}
