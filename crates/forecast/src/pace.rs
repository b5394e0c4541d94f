//! Training steps per second, so that growth can be reported per step.

/// Minimum interval in seconds that a step rate is computed over; it includes evaluations and checkpoints.
const SHORTEST: f64 = 60.0;
/// The interval is at most twice this long.
const LONGEST: f64 = 600.0;

/// The step count at one time, in seconds.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: f64,
    steps: f64,
}

/// The step rate of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Start of the current interval, and of the next one.
    from: Mark,
    next: Mark,
    now: Mark,
}

impl Pace {
    /// Starts at a step count, at `at` seconds on a clock that never steps.
    pub fn new(at: f64, steps: f64) -> Self {
        let now = Mark { at, steps };
        Self { from: now, next: now, now }
    }

    /// Adds a step count. One below the count before is that of another run.
    pub fn record(&mut self, at: f64, steps: f64) {
        if steps < self.now.steps {
            *self = Self::new(at, steps);
        }
        self.now = Mark { at, steps };
        if at - self.next.at >= LONGEST {
            (self.from, self.next) = (self.next, self.now);
        }
    }

    /// Steps per second; absent before it is known, and while no step is completed.
    pub fn steps_per_second(&self) -> Option<f64> {
        let took = self.now.at - self.from.at;
        let rate = (self.now.steps - self.from.steps) / took;
        (took >= SHORTEST && rate > 0.0).then_some(rate)
    }
}
