//! Simulated series, deterministic from a seed: growth of many shapes under the textures that programs give it.

use memwarden::model::series::Row;

use super::score::{Case, EVERY, Label};

const MB: f64 = 1e6;
const TAU: f64 = std::f64::consts::TAU;

/// A generator of pseudo-random numbers (xorshift64*, Vigna 2016).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03 | 1);
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

    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    pub(crate) fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform on a logarithmic scale.
    pub(crate) fn scale(&mut self, from: f64, to: f64) -> f64 {
        self.uniform(from.ln(), to.ln()).exp()
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform(0.0, 1.0)).sum::<f64>() - 6.0
    }

    pub(crate) fn is(&mut self, probability: f64) -> bool {
        self.uniform(0.0, 1.0) < probability
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let place = (self.bits() >> 33) as usize % of.len();
        of[place]
    }
}

/// How the level develops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Growth {
    None,
    Diurnal,
    Steps,
    Walk,
    Line,
    Stairs,
    Faster,
    Delayed,
    WarmLine,
    FillThenStop,
    Saturating,
    Lru,
}

/// What the program does besides growing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Texture {
    Quiet,
    White,
    Sawtooth,
    Collector,
    Peaks,
    TwoPeaks,
    Phases,
    Bursts,
    Wandering,
}

pub(crate) const GROWING: [Growth; 5] =
    [Growth::Line, Growth::Stairs, Growth::Faster, Growth::Delayed, Growth::WarmLine];
const FLAT: [Growth; 4] = [Growth::None, Growth::Diurnal, Growth::Steps, Growth::Walk];
pub(crate) const BOUNDED: [Growth; 3] = [Growth::FillThenStop, Growth::Saturating, Growth::Lru];
const TEXTURES: [Texture; 12] = [
    Texture::Quiet,
    Texture::White,
    Texture::Sawtooth,
    Texture::Collector,
    Texture::Peaks,
    Texture::Peaks,
    Texture::Peaks,
    Texture::TwoPeaks,
    Texture::Phases,
    Texture::Bursts,
    Texture::Wandering,
    Texture::Collector,
];

/// Peaks that recur: an evaluation, a checkpoint, a fork for a background save.
#[derive(Clone, Debug)]
struct Recurring {
    period: f64,
    /// Relative deviation of each period.
    jitter: f64,
    /// Samples from begin to end.
    width: f64,
    /// Height as a share of the level (a copy of what is there), and in MB.
    share: f64,
    height: f64,
    /// Relative deviation of each height.
    varies: f64,
    next: f64,
    ends: f64,
    now: f64,
}

impl Recurring {
    fn new(chance: &mut Chance, base: f64, n: f64) -> Self {
        let period = chance.scale(16.0, n / 6.0);
        let of_level = chance.is(0.4);
        let height = chance.scale(0.02, 0.6);
        Self {
            period,
            jitter: chance.pick(&[0.0, 0.02, 0.05, 0.15]),
            width: chance.scale(1.0, (0.4 * period).max(2.0)),
            share: if of_level { height } else { 0.0 },
            height: if of_level { 0.0 } else { height * base },
            varies: chance.pick(&[0.0, 0.01, 0.03, 0.1]),
            next: chance.uniform(0.2, 1.0) * period,
            ends: 0.0,
            now: 0.0,
        }
    }

    /// What it adds to the level.
    fn at(&mut self, chance: &mut Chance, at: f64, level: f64) -> f64 {
        if at >= self.next {
            self.ends = at + self.width;
            self.now = (1.0 + self.varies * chance.normal()).max(0.0);
            self.next = at + self.period * (1.0 + self.jitter * chance.normal()).max(0.3);
        }
        if at < self.ends { self.now * (self.share * level + self.height) } else { 0.0 }
    }
}

/// A garbage-collected heap: it fills at a rate that varies, and is collected at a threshold that varies.
#[derive(Clone, Debug)]
struct Collector {
    height: f64,
    rate: f64,
    varies: f64,
    full: f64,
    now: f64,
}

impl Collector {
    fn new(chance: &mut Chance, height: f64) -> Self {
        let period = chance.scale(10.0, 150.0);
        let varies = chance.pick(&[0.0, 0.03, 0.1, 0.25]);
        Self { height, rate: height / period, varies, full: height, now: 0.0 }
    }

    fn next(&mut self, chance: &mut Chance) -> f64 {
        self.now += self.rate * chance.uniform(0.7, 1.3);
        if self.now >= self.full {
            self.now = self.height * chance.uniform(0.0, 0.15);
            self.full = self.height * (1.0 + self.varies * chance.normal()).max(0.4);
        }
        self.now
    }
}

/// A series of the shape and the texture that the seed chooses.
pub(crate) fn simulated(seed: u64) -> Case {
    of_length(seed, 1)
}

/// The same with so many times as many samples.
pub(crate) fn of_length(seed: u64, times: u32) -> Case {
    let mut chance = Chance::new(seed);
    let growth = match seed % 4 {
        0 | 1 => chance.pick(&GROWING),
        2 => chance.pick(&FLAT),
        _ => chance.pick(&BOUNDED),
    };
    let texture = chance.pick(&TEXTURES);
    drawn(seed, &mut chance, growth, texture, times)
}

/// A series of this growth and texture, with parameters that are drawn in this order.
#[expect(clippy::too_many_lines, reason = "one draw of parameters after another")]
pub(crate) fn drawn(seed: u64, chance: &mut Chance, growth: Growth, texture: Texture, times: u32) -> Case {
    let label = match growth {
        Growth::None | Growth::Diurnal | Growth::Steps | Growth::Walk => Label::Flat,
        Growth::FillThenStop | Growth::Saturating | Growth::Lru => Label::Bounded,
        _ => Label::Growing,
    };
    let interval = chance.pick(&[0.5, 0.5, 0.5, 1.0, 1.0, 10.0, 60.0]);
    let samples = times * chance.pick(&[600_u32, 720, 840, 960, 1200, 1500, 2400, 3600]);
    let n = f64::from(samples);
    let base = chance.scale(60.0, 20_000.0);
    let gain = base * chance.scale(0.08, 1.6);
    let startup = chance.uniform(3.0, 40.0);
    let (stop, begin) = (chance.uniform(0.15, 0.6), chance.uniform(0.2, 0.5));
    let wobble = gain.min(base) * chance.scale(0.004, 0.15);
    let period = chance.scale(8.0, 90.0);
    let cycle = n / chance.uniform(2.0, 6.0);
    let stairs = chance.scale(12.0, 80.0);
    let even_stairs = chance.is(0.5);
    let phase_share = chance.uniform(0.1, 0.5);
    let mut one = Recurring::new(chance, base, n);
    let mut two = Recurring::new(chance, base, n);
    let tooth = gain.min(base) * chance.scale(0.03, 0.5);
    let mut heap = Collector::new(chance, tooth);
    let (mut state, mut walk, mut stair, mut burst, mut step) = (0.0_f64, 0.0_f64, 0.0, 0_u32, 0.0);
    let mut rows = Vec::new();
    for i in 0..samples {
        let at = f64::from(i);
        let u = at / n;
        if !even_stairs && chance.is(stairs / n) {
            stair += gain / stairs;
        }
        if even_stairs {
            stair = (u * stairs).floor() * gain / stairs;
        }
        if chance.is(6.0 / n) {
            step = chance.uniform(0.0, 0.4) * gain;
        }
        walk = 0.998 * walk + 0.02 * wobble * chance.normal();
        let line = u / (1.0 - begin);
        let grown = match growth {
            Growth::None => 0.0,
            Growth::Diurnal => gain * 0.5 * (1.0 - (TAU * at / cycle).cos()),
            Growth::Steps => step,
            Growth::Walk => walk,
            Growth::Line => gain * u,
            Growth::Stairs => stair,
            Growth::Faster => gain * (0.5 * u + 0.5 * u * u),
            Growth::Delayed => gain * (line - begin / (1.0 - begin)).max(0.0),
            Growth::WarmLine => gain * (0.5 * u + 0.4 * (1.0 - (-u * 20.0).exp())),
            Growth::FillThenStop => gain * (u / stop).min(1.0),
            Growth::Saturating => gain * (1.0 - (-u * 5.0 / stop).exp()),
            Growth::Lru => gain * ((u / stop).min(1.0) * 12.0).floor() / 12.0,
        };
        let noise = chance.normal();
        let level = base + grown;
        let small = 0.05 * wobble * noise;
        let added = match texture {
            Texture::Quiet => small,
            Texture::White => wobble * noise,
            Texture::Sawtooth => 3.0 * wobble * (at / period).fract() + small,
            Texture::Collector => heap.next(chance) + small,
            Texture::Peaks => one.at(chance, at, level) + small,
            Texture::TwoPeaks => one.at(chance, at, level).max(two.at(chance, at, level)) + small,
            Texture::Phases => {
                if (at / (2.0 * period)).fract() < phase_share {
                    4.0 * wobble + small
                } else {
                    small
                }
            }
            Texture::Bursts => {
                if burst == 0 && chance.is(0.02) {
                    burst = 15;
                }
                burst = burst.saturating_sub(1);
                if burst > 0 { 4.0 * wobble } else { small }
            }
            Texture::Wandering => {
                state = 0.97 * state + 0.25 * wobble * noise;
                state
            }
        };
        let started = if at < startup { 0.1 + 0.9 * (at / startup).powi(2) } else { 1.0 };
        let used = ((started * (level + added)).max(1.0) * MB).round();
        rows.push(Row { at: at * interval, used, ..Row::default() });
    }
    let part = (samples * 7 / 10) as usize;
    let highest = |rows: &[Row]| rows.iter().map(|row| row.used).fold(0.0, f64::max);
    let limit =
        if label == Label::Growing { highest(&rows[..part]) } else { (1.25 * highest(&rows)).floor() };
    let reached = rows.iter().find(|row| row.used >= limit).map_or(f64::INFINITY, |row| row.at);
    let plateau = if growth == Growth::Saturating { stop * 0.8 } else { stop };
    let name = format!("{seed}-{growth:?}-{texture:?}-{samples}x{interval}").to_lowercase();
    Case {
        node: name.clone(),
        name,
        every: EVERY,
        origin: "simulated".to_owned(),
        label,
        interval,
        limit,
        limit_at: if label == Label::Growing { reached } else { f64::INFINITY },
        onset: if growth == Growth::Delayed { begin * n * interval } else { 0.0 },
        plateau: plateau * n * interval,
        rows,
    }
}

/// A series whose sampling is interrupted: the host is suspended, or the sampling alone pauses, or the interval becomes
/// ten times as long.
pub(crate) fn interrupted(seed: u64) -> Case {
    let mut case = simulated(seed);
    let mut chance = Chance::new(seed ^ 0x5EED);
    let at =
        case.rows[case.rows.len() * 3 / 10].at + chance.uniform(0.0, 0.3) * case.rows[case.rows.len() - 1].at;
    let pause = chance.scale(10.0, 1_000.0) * case.interval;
    match seed / 4 % 3 {
        0 => {
            let later = |time: f64| if time > at { time + pause } else { time };
            case.rows.iter_mut().for_each(|row| row.at = later(row.at));
            (case.limit_at, case.plateau) = (later(case.limit_at), later(case.plateau));
        }
        1 => case.rows.retain(|row| row.at <= at || row.at > at + pause.min(0.2 * at)),
        _ => {
            let mut count = 0;
            case.rows.retain(|row| {
                count += u32::from(row.at > at);
                count % 10 == 0
            });
        }
    }
    case
}

/// The leak-free processes of the null tests.
pub(crate) const NULLS: [&str; 8] =
    ["white", "ar 0.9", "ar 0.99", "walk", "sawtooth", "warm-up", "sine", "peaks"];

/// A series without growth of the given kind: 500 MB and what the name says, 0.5 s apart.
pub(crate) fn null(kind: &str, samples: u32, seed: u64) -> Case {
    let mut chance = Chance::new(seed ^ 0xABCD);
    let phase = chance.uniform(0.0, 1.0);
    let mut recurring = Recurring::new(&mut chance, 200.0, f64::from(samples));
    let mut state = 0.0_f64;
    let mut rows = Vec::new();
    for i in 0..samples {
        let at = f64::from(i) * 0.5;
        let noise = chance.normal();
        let value = match kind {
            "white" => 20.0 * noise,
            "ar 0.9" | "ar 0.99" | "walk" => {
                let (keep, step) = match kind {
                    "ar 0.9" => (0.9_f64, 10.0 * (1.0_f64 - 0.81).sqrt()),
                    "ar 0.99" => (0.99, 5.0 * (1.0_f64 - 0.9801).sqrt()),
                    _ => (1.0, 1.0),
                };
                state = keep * state + step * noise;
                state
            }
            "sawtooth" => 80.0 * (at / 13.0 + phase).fract() + 2.0 * noise,
            "warm-up" => 400.0 * (1.0 - (-at / 60.0).exp()) + 5.0 * noise,
            "sine" => 100.0 * (TAU * (at / 200.0 + phase)).sin() + 5.0 * noise,
            _ => recurring.at(&mut chance, f64::from(i), 200.0) + 2.0 * noise,
        };
        rows.push(Row { at, used: ((500.0 + value) * MB).max(0.0), ..Row::default() });
    }
    Case {
        node: format!("{kind} {samples} {seed}"),
        name: format!("{kind} {samples} {seed}"),
        every: EVERY,
        origin: "simulated".to_owned(),
        label: Label::Flat,
        interval: 0.5,
        limit: 1200.0 * MB,
        limit_at: f64::INFINITY,
        onset: 0.0,
        plateau: 0.0,
        rows,
    }
}
