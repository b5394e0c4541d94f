//! Made series: the null tests, and labeled ones of many shapes, from a seed.

use memwarden::analyzers::tracker::Sample;

use super::score::{Case, Label};

const MB: f64 = 1e6;

/// A small generator of pseudo-random numbers (xorshift64*, Vigna 2016).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            chance.bits();
        }
        chance
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform(0.0, 1.0)).sum::<f64>() - 6.0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.bits() >> 33) as usize % of.len()]
    }
}

/// The leak-free processes of the null tests, 500 MB and what the name says, 0.5 s apart.
pub(crate) const NULLS: [&str; 7] = ["white", "ar 0.9", "ar 0.99", "walk", "sawtooth", "warm-up", "sine"];

pub(crate) fn null(kind: &str, samples: usize, seed: u64) -> Case {
    let mut chance = Chance::new(seed ^ 0xABCD);
    let phase = chance.uniform(0.0, 1.0);
    let mut state = 0.0;
    let mut made = Vec::new();
    for i in 0..samples {
        let at = i as f64 * 0.5;
        let noise = chance.normal();
        let value = match kind {
            "white" => 20.0 * noise,
            "ar 0.9" | "ar 0.99" | "walk" => {
                let (keep, step) = match kind {
                    "ar 0.9" => (0.9, 10.0 * (1.0_f64 - 0.81).sqrt()),
                    "ar 0.99" => (0.99, 5.0 * (1.0_f64 - 0.9801).sqrt()),
                    _ => (1.0, 1.0),
                };
                state = keep * state + step * noise;
                state
            }
            "sawtooth" => 80.0 * (at / 13.0 + phase).fract() + 2.0 * noise,
            "warm-up" => 400.0 * (1.0 - (-at / 60.0).exp()) + 5.0 * noise,
            _ => 100.0 * (std::f64::consts::TAU * (at / 200.0 + phase)).sin() + 5.0 * noise,
        };
        made.push((at, Sample { used: ((500.0 + value) * MB).max(0.0), ..Sample::default() }));
    }
    Case {
        name: format!("{kind} {samples} {seed}"),
        label: Label::Flat,
        interval: 0.5,
        limit: 1200.0 * MB,
        limit_at: f64::INFINITY,
        onset: 0.0,
        plateau: 0.0,
        samples: made,
    }
}

/// What the process does besides growing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Texture {
    Quiet,
    White,
    Sawtooth,
    Phases,
    Bursts,
    Wandering,
}

/// How it grows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Growth {
    None,
    Diurnal,
    Steps,
    Line,
    Stairs,
    Faster,
    Delayed,
    FillThenStop,
    Saturating,
    Lru,
}

const GROWTHS: [Growth; 10] = [
    Growth::None,
    Growth::Diurnal,
    Growth::Steps,
    Growth::Line,
    Growth::Stairs,
    Growth::Faster,
    Growth::Delayed,
    Growth::FillThenStop,
    Growth::Saturating,
    Growth::Lru,
];

/// A labeled series of the shape and texture that the seed chooses.
pub(crate) fn made(seed: u64) -> Case {
    let mut chance = Chance::new(seed);
    let growth = GROWTHS[(seed % 10) as usize];
    let texture = chance.pick(&[
        Texture::Quiet,
        Texture::White,
        Texture::Sawtooth,
        Texture::Phases,
        Texture::Bursts,
        Texture::Wandering,
    ]);
    let interval = chance.pick(&[0.5, 0.5, 0.5, 1.0, 5.0, 60.0]);
    let samples = chance.pick(&[600_usize, 720, 840, 960, 1200, 1500, 3000]);
    let n = samples as f64;
    let base = chance.uniform(60.0, 600.0);
    let gain = base * chance.uniform(0.15, 2.0);
    let startup = chance.uniform(5.0, 45.0);
    let (stop, begin) = (chance.uniform(0.2, 0.6), chance.uniform(0.3, 0.5));
    let wobble = gain.min(base) * chance.uniform(0.01, 0.12);
    let period = chance.uniform(8.0, 60.0);
    let cycle = n / chance.uniform(2.0, 4.0);
    let (mut state, mut stair, mut burst) = (0.0_f64, 0.0, 0_i32);
    let stairs = chance.uniform(30.0, 80.0);
    let mut step = 0.0;
    let mut made = Vec::new();
    let mut clean = Vec::new();
    for i in 0..samples {
        let at = i as f64;
        let u = at / n;
        if chance.uniform(0.0, 1.0) < stairs / n {
            stair += gain / stairs;
        }
        if chance.uniform(0.0, 1.0) < 8.0 / n {
            step = chance.uniform(0.0, 0.5) * gain;
        }
        let grown = match growth {
            Growth::None => 0.0,
            Growth::Diurnal => gain * 0.5 * (1.0 - (std::f64::consts::TAU * at / cycle).cos()),
            Growth::Steps => step,
            Growth::Line => gain * u,
            Growth::Stairs => stair,
            Growth::Faster => gain * (0.5 * u + 0.5 * u * u),
            Growth::Delayed => gain * ((u - begin) / (1.0 - begin)).max(0.0),
            Growth::FillThenStop => gain * (u / stop).min(1.0),
            Growth::Saturating => gain * (1.0 - (-u * 5.0 / stop).exp()),
            Growth::Lru => gain * ((u / stop).min(1.0) * 12.0).floor() / 12.0,
        };
        let noise = chance.normal();
        let wobbling = match texture {
            Texture::Quiet => 0.05 * wobble * noise,
            Texture::White => wobble * noise,
            Texture::Sawtooth => 3.0 * wobble * (at / period).fract() + 0.1 * wobble * noise,
            Texture::Phases => {
                let phase = if (at / (2.0 * period)).fract() < 0.25 { 4.0 * wobble } else { 0.0 };
                phase + 0.1 * wobble * noise
            }
            Texture::Bursts => {
                if burst == 0 && chance.uniform(0.0, 1.0) < 0.02 {
                    burst = 15;
                }
                burst = (burst - 1).max(0);
                if burst > 0 { 4.0 * wobble } else { 0.1 * wobble * noise }
            }
            Texture::Wandering => {
                state = 0.97 * state + 0.25 * wobble * noise;
                state
            }
        };
        let started = if at < startup { 0.1 + 0.9 * (at / startup).powi(2) } else { 1.0 };
        let value = (started * (base + wobbling) + grown).max(1.0) * MB;
        clean.push(value);
        made.push((at * interval, Sample { used: value, ..Sample::default() }));
    }
    let label = match growth {
        Growth::None | Growth::Diurnal | Growth::Steps => Label::Flat,
        Growth::Line | Growth::Stairs | Growth::Faster | Growth::Delayed => Label::Leak,
        Growth::FillThenStop | Growth::Saturating | Growth::Lru => Label::Bounded,
    };
    let peak = |until: usize| clean[..until].iter().copied().fold(0.0, f64::max);
    let limit = if label == Label::Leak { peak(samples * 7 / 10) } else { 1.25 * peak(samples) };
    let crossed =
        clean.iter().position(|value| *value >= limit).map_or(f64::INFINITY, |i| i as f64 * interval);
    let limit_at = if label == Label::Leak { crossed } else { f64::INFINITY };
    let plateau = if growth == Growth::Saturating { stop * 0.8 } else { stop };
    Case {
        name: format!("{seed} {growth:?} {texture:?} {samples}x{interval}"),
        label,
        interval,
        limit,
        limit_at,
        onset: if growth == Growth::Delayed { begin * n * interval } else { 0.0 },
        plateau: plateau * n * interval,
        samples: made,
    }
}
