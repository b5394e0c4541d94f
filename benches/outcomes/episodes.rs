//! Simulated episodes of jobs under a limit, deterministic from a seed, and what each policy makes of them.
//!
//! `memwarden_lab::what_if` plays them; the series are those of the benchmark of forecasts, with one second between two samples.

use memwarden::app::{self, guarded_engine, serve};
use memwarden::config;
use memwarden::model::series::{Row, Series};
use memwarden::protection::options::Protection;
use memwarden_lab::what_if::{Assumed, Fate, Outcome, Policy, play};

use super::simulate::{BOUNDED, Chance, GROWING, Growth, Texture, drawn};

/// What is left of the limit, as a share, where a job is on the edge.
const EDGE: f64 = 0.05;

/// What happens in an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A constant level with noise.
    Steady,
    /// Growth that ends below the limit.
    WarmUp,
    /// Growth without end.
    Ramp,
    /// A constant level, and once a peak of at most five seconds, which does or does not reach the limit.
    Spike,
    /// Growth from garbage collection to garbage collection, to the same level each time.
    Sawtooth,
    /// Recurring peaks below the limit.
    EvaluationPeaks,
    /// Growth without end, and a peak while a regular checkpoint is saved.
    SavePeaks,
    /// A ramp and a steady job share the memory of a host.
    Neighbor,
    /// A ramp of a job that does not handle the checkpoint signal.
    NoHandler,
    /// A ramp of a job that saves for minutes.
    SlowSave,
}

pub(crate) const SHAPES: [(Shape, &str); 10] = [
    (Shape::Steady, "steady"),
    (Shape::WarmUp, "warm-up"),
    (Shape::Ramp, "ramp"),
    (Shape::Spike, "spike"),
    (Shape::Sawtooth, "sawtooth"),
    (Shape::EvaluationPeaks, "evaluation peaks"),
    (Shape::SavePeaks, "save peaks"),
    (Shape::Neighbor, "neighbor"),
    (Shape::NoHandler, "no handler"),
    (Shape::SlowSave, "slow save"),
];

/// Jobs that begin at the same time and share a limit.
#[derive(Clone, Debug)]
pub(crate) struct Episode {
    pub(crate) shape: Shape,
    pub(crate) jobs: Vec<Series>,
    /// The place of the job that has the shape; the others are bystanders.
    pub(crate) actor: usize,
    /// In bytes.
    pub(crate) limit: f64,
    pub(crate) assumed: Assumed,
}

pub(crate) fn episode(seed: u64) -> Episode {
    let count = SHAPES.len() as u64;
    let shape = SHAPES[usize::try_from(seed % count).expect("there are ten shapes")].0;
    let mut chance = Chance::new(!seed);
    let noise = chance.pick(&[Texture::Quiet, Texture::White, Texture::Wandering]);
    let (growth, texture) = match shape {
        Shape::Steady | Shape::Spike => (Growth::None, noise),
        Shape::WarmUp => (chance.pick(&BOUNDED), noise),
        Shape::Sawtooth => (Growth::None, chance.pick(&[Texture::Sawtooth, Texture::Collector])),
        Shape::EvaluationPeaks => (Growth::None, Texture::Peaks),
        _ => (chance.pick(&GROWING), noise),
    };
    let case = drawn(seed, &mut Chance::new(seed), growth, texture, 1);
    let mut limit = case.limit;
    let mut rows = each_second(case.rows);
    // Who sets a limit leaves a margin above the peaks that are known.
    let margin = chance.scale(1.02, 2.0);
    if !GROWING.contains(&growth) {
        limit = margin * highest(&rows);
    }
    let save = match shape {
        Shape::SlowSave => chance.scale(60.0, 600.0),
        _ => chance.scale(2.0, 60.0),
    };
    let every = Some(chance.scale(120.0, 3_600.0)).filter(|_| shape == Shape::SavePeaks || chance.is(0.7));
    let share = chance.scale(0.1, 1.0);
    if shape == Shape::Spike {
        let at = chance.uniform(0.1, 0.9) * rows.last().map_or(0.0, |row| row.at);
        let width = chance.uniform(1.0, 5.0);
        add(&mut rows, share, |time| (at..at + width).contains(&time));
    }
    if let (Shape::SavePeaks, Some(every)) = (shape, every) {
        add(&mut rows, 0.5 * share, |time| time % every >= every - save);
    }
    let name = format!("{}-{shape:?}", case.name);
    let mut jobs = vec![Series { name, rows, ..Series::default() }];
    let mut actor = 0;
    if shape == Shape::Neighbor {
        let rows = each_second(drawn(!seed, &mut Chance::new(!seed), Growth::None, noise, 1).rows);
        limit += highest(&rows);
        actor = usize::from(chance.is(0.5));
        jobs.insert(1 - actor, Series { name: "bystander".to_owned(), rows, ..Series::default() });
    }
    let assumed =
        Assumed { save: Some(save).filter(|_| shape != Shape::NoHandler), every, ..Assumed::default() };
    Episode { shape, jobs, actor, limit, assumed }
}

fn each_second(rows: Vec<Row>) -> Vec<Row> {
    (0..).zip(rows).map(|(second, row)| Row { at: f64::from(second), ..row }).collect()
}

fn highest(rows: &[Row]) -> f64 {
    rows.iter().map(|row| row.used).fold(0.0, f64::max)
}

/// Adds a share of the level at the times that are chosen.
fn add(rows: &mut [Row], share: f64, during: impl Fn(f64) -> bool) {
    rows.iter_mut().filter(|row| during(row.at)).for_each(|row| row.used *= 1.0 + share);
}

/// The policies with their names; the first one is the kernel's, with which the others are compared.
pub(crate) fn policies() -> anyhow::Result<Vec<(&'static str, Policy)>> {
    // Every key but those that a target must have is the default.
    let daemon =
        "protection: { mode: enforce, targets: [{ name: job, workload: job, allow_users: [root] }] }";
    let daemon = config::parse_str(daemon, "daemon".as_ref(), &app::schema(), &[])?;
    let guard = |protection: Protection| {
        let target = protection.targets.into_iter().next().expect("there is one target");
        Policy::Memwarden(Box::new(target), protection.max_kills_per_hour)
    };
    Ok(vec![
        ("kernel", Policy::Kernel),
        ("earlyoom", Policy::Earlyoom),
        ("ray", Policy::Ray),
        ("memwarden run --guard", guard(guarded_engine::protection_of("job", None)?)),
        ("memwarden serve", guard(serve::protection(&daemon))),
    ])
}

/// The outcomes of episodes under one policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    jobs: u32,
    /// Jobs that the kernel would kill, and that have saved a checkpoint on request before their end.
    pub(crate) saved: u32,
    /// Jobs that the kernel killed before they had saved on request.
    pub(crate) to_the_kernel: u32,
    /// Jobs that the kernel would kill, and that the policy ended without a requested checkpoint.
    pub(crate) unsaved: u32,
    /// Jobs that the policy ended, and that would have reached their end under the kernel.
    pub(crate) needless: u32,
    /// Jobs that ended because of another one.
    pub(crate) bystanders: u32,
    /// The seconds of work that each job that was ended has lost.
    lost: Vec<f64>,
    /// Seconds with at most [`EDGE`] of the limit left.
    edge: u32,
}

impl Tally {
    /// Adds an episode, of which `kernel` are the outcomes without a policy.
    pub(crate) fn add(&mut self, episode: &Episode, kernel: &[Outcome], outcomes: &[Outcome]) {
        for (place, (without, with)) in kernel.iter().zip(outcomes).enumerate() {
            self.jobs += 1;
            self.edge += if place == 0 { on_the_edge(episode, outcomes) } else { 0 };
            let doomed = without.fate != Fate::Survived;
            let saved = with.saved_seconds.is_some();
            self.saved += u32::from(doomed && saved);
            if with.fate == Fate::Survived {
                continue;
            }
            let killed = with.fate == Fate::OomKilled;
            self.to_the_kernel += u32::from(killed && !saved);
            self.unsaved += u32::from(doomed && !saved && !killed);
            self.needless += u32::from(!doomed && !killed);
            self.bystanders += u32::from(place != episode.actor);
            self.lost.extend(with.lost_seconds);
        }
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.saved += other.saved;
        self.to_the_kernel += other.to_the_kernel;
        self.unsaved += other.unsaved;
        self.needless += other.needless;
        self.bystanders += other.bystanders;
        self.lost.extend(other.lost);
        self.edge += other.edge;
    }

    pub(crate) const COLUMNS: &str = "jobs | saved | to the kernel | unsaved | needless | bystanders \
        | lost p50 | lost p99 | lost hours | edge hours";

    pub(crate) fn cells(&self) -> String {
        let mut lost = self.lost.clone();
        lost.sort_by(f64::total_cmp);
        let of = |percent: usize| lost.get((lost.len() * percent / 100).min(lost.len().saturating_sub(1)));
        let seconds = |percent| of(percent).map_or("–".to_owned(), |lost| format!("{lost:.0}"));
        let Self { jobs, saved, to_the_kernel, unsaved, needless, bystanders, edge, .. } = self;
        let hours = [lost.iter().fold(0.0, |all, lost| all + lost), f64::from(*edge)]
            .map(|seconds| seconds / 3_600.0);
        format!(
            "{jobs} | {saved} | {to_the_kernel} | {unsaved} | {needless} | {bystanders} | {} | {} | {:.1} | {:.1}",
            seconds(50),
            seconds(99),
            hours[0],
            hours[1],
        )
    }
}

fn on_the_edge(episode: &Episode, outcomes: &[Outcome]) -> u32 {
    let longest = episode.jobs.iter().map(|job| job.rows.len()).max().unwrap_or(0);
    let used = |second: usize| {
        let rows = episode.jobs.iter().zip(outcomes).filter_map(|(job, outcome)| {
            job.rows.get(second).filter(|row| row.at < outcome.ended_seconds.unwrap_or(f64::INFINITY))
        });
        rows.map(|row| row.used).sum::<f64>()
    };
    (0..longest).map(|second| u32::from(used(second) >= (1.0 - EDGE) * episode.limit)).sum()
}

/// The tally of each shape, and in it of each policy.
pub(crate) fn tallies(seeds: std::ops::Range<u64>, policies: &[(&str, Policy)]) -> Vec<Vec<Tally>> {
    let mut tallies = vec![vec![Tally::default(); policies.len()]; SHAPES.len()];
    for episode in seeds.map(episode) {
        let jobs: Vec<&Series> = episode.jobs.iter().collect();
        let of = |(_, policy): &(&str, Policy)| play(&jobs, episode.limit, policy, episode.assumed);
        let outcomes: Vec<_> = policies.iter().map(of).collect();
        let shape = SHAPES.iter().position(|(shape, _)| *shape == episode.shape);
        for (tally, with) in tallies[shape.expect("each shape is listed")].iter_mut().zip(&outcomes) {
            tally.add(&episode, &outcomes[0], with);
        }
    }
    tallies
}

/// The same on all processors; the result does not depend on their number.
pub(crate) fn on_all_processors(seeds: std::ops::Range<u64>, policies: &[(&str, Policy)]) -> Vec<Vec<Tally>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let part = (seeds.end - seeds.start).div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let begins = seeds.clone().step_by(usize::try_from(part).expect("a number of episodes"));
        let parts: Vec<_> = begins
            .map(|begin| begin..(begin + part).min(seeds.end))
            .map(|seeds| scope.spawn(|| tallies(seeds, policies)))
            .collect();
        let mut all = tallies(0..0, policies);
        for part in parts.into_iter().map(|part| part.join().expect("playing does not panic")) {
            all.iter_mut().flatten().zip(part.into_iter().flatten()).for_each(|(all, part)| all.join(part));
        }
        all
    })
}
