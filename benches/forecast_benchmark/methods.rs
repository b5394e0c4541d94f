//! The methods that are compared: memwarden, and what people use today.

use std::process::Command;

use forecast::stats::normal;
use forecast::tracker::Tracker;
use forecast::{LeakState, Rules};
use memwarden::analyzers::replay;
use memwarden::model::series::Row;

use super::score::{Case, HORIZON, Said};

const NEVER: [f64; 3] = [f64::INFINITY; 3];

/// Makes an assessment after every tenth sample of a series, from the samples until then.
pub(crate) type Assess = Box<dyn Fn(&Case) -> Vec<Said> + Send + Sync>;

/// A method with its name in the table.
pub(crate) struct Method {
    pub(crate) name: String,
    pub(crate) assess: Assess,
}

/// All methods.
pub(crate) fn all() -> Vec<Method> {
    let method = |name: &str, assess: Assess| Method { name: name.to_owned(), assess };
    vec![
        method("memwarden", Box::new(memwarden)),
        method("predict_linear, 120 samples", each(|rows, case| predict_linear(rows, case, 120))),
        method("predict_linear, 720 samples", each(|rows, case| predict_linear(rows, case, 720))),
        method("level of 85 %", each(|rows, case| level(rows, case, 0.85))),
        method("level of 95 % (MindRLHF)", each(|rows, case| level(rows, case, 0.95))),
        method("Tiny-Torch, first version", each(tiny_torch)),
        method("Tiny-Torch, last version", each(tiny_torch_last)),
        method("LoRA memory debugger", each(lora_debugger)),
        method("GPUMemoryProfiler", each(gpu_memory_profiler)),
        method("Holt", Box::new(holt)),
        method("Kalman", Box::new(kalman)),
        method("Mann-Kendall, Sen", each(mann_kendall)),
    ]
}

/// A command that prints CSV with the columns `t_s,leak,tte_p10,tte_p50,tte_p90,p_exhaustion`; of its words, {file},
/// {limit}, {horizon} and {every} are replaced.
pub(crate) fn command(words: &str) -> Method {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let name = words.first().cloned().unwrap_or_default();
    Method { name, assess: Box::new(move |case| run(&words, case)) }
}

#[expect(clippy::disallowed_methods, reason = "the command is the method")]
fn run(words: &[String], case: &Case) -> Vec<Said> {
    let path = std::env::temp_dir().join(format!("forecast-{}-{}.csv", std::process::id(), case.name));
    let cell = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let line =
        |row: &Row| format!("{},{},{},{}\n", row.at, row.used, cell(row.unreclaimable), cell(row.allocated));
    let text: String = case.rows.iter().map(line).collect();
    std::fs::write(&path, format!("t_s,bytes,anon,alloc\n{text}")).expect("the temporary folder is writable");
    let filled = |word: &String| {
        word.replace("{file}", &path.to_string_lossy())
            .replace("{limit}", &format!("{:.0}", case.limit))
            .replace("{horizon}", &(HORIZON * case.unit()).to_string())
            .replace("{every}", &case.every.to_string())
    };
    let mut filled = words.iter().map(filled);
    let program = filled.next().expect("a command has a word");
    let done = Command::new(&program).args(filled).output().expect("the command can be started");
    std::fs::remove_file(&path).expect("the file is there");
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let place = |name: &str| header.iter().position(|own| *own == name).expect("the columns are there");
    let places = ["t_s", "leak", "tte_p10", "tte_p50", "tte_p90", "p_exhaustion"].map(place);
    let said = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |place: usize, missing: f64| {
            cells
                .get(place)
                .and_then(|cell| cell.trim().parse::<f64>().ok())
                .filter(|x| x.is_finite())
                .unwrap_or(missing)
        };
        Said {
            at: number(places[0], 0.0),
            leak: matches!(cells.get(places[1]).map(|cell| cell.trim()), Some("1" | "true")),
            tte: [2, 3, 4].map(|i| number(places[i], f64::INFINITY)),
            p: number(places[5], 0.0),
        }
    };
    lines.map(said).collect()
}

/// What the trackers of the daemon say.
fn memwarden(case: &Case) -> Vec<Said> {
    by_rules(Rules::DAEMON, case)
}

/// What they say by other rules.
pub(crate) fn by_rules(rules: &Rules, case: &Case) -> Vec<Said> {
    let horizons = [HORIZON * case.unit()];
    let (mut tracker, mut said) = (Tracker::new(), Vec::new());
    let mut wanted = ends(case).peekable();
    for (i, row) in case.rows.iter().enumerate() {
        tracker.push_by(rules, row.at, replay::sample(row));
        if wanted.next_if(|end| *end == i + 1).is_none() {
            continue;
        }
        let assessment = tracker.assess_by(rules, Some(case.limit), &horizons, None);
        said.push(Said {
            at: row.at,
            leak: assessment.leak == LeakState::Leaking,
            tte: assessment.tte.map_or(NEVER, |tte| [tte.p10, tte.p50, tte.p90.unwrap_or(f64::INFINITY)]),
            p: assessment.p_exhaustion.first().copied().flatten().unwrap_or(0.0),
        });
    }
    said
}

/// A method without memory, called with all samples until each assessment.
fn each(assess: impl Fn(&[Row], &Case) -> Said + Send + Sync + 'static) -> Assess {
    Box::new(move |case| ends(case).map(|end| assess(&case.rows[..end], case)).collect())
}

/// The numbers of samples after which there is an assessment.
fn ends(case: &Case) -> impl Iterator<Item = usize> {
    let all = case.rows.len();
    (1..=all).filter(move |end| end % case.every == 0 || *end == all)
}

fn last(rows: &[Row]) -> Row {
    rows.last().copied().unwrap_or_default()
}

/// The distance to the limit divided by a rate; infinite for none.
fn time_left(distance: f64, rate: f64) -> f64 {
    if distance <= 0.0 {
        0.0
    } else if rate > 0.0 {
        distance / rate
    } else {
        f64::INFINITY
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of samples")]
fn count(number: usize) -> f64 {
    number as f64
}

/// The least-squares line through the last samples: the value at the newest one, and the slope.
fn line(rows: &[Row]) -> (f64, f64) {
    let newest = last(rows);
    let n = count(rows.len());
    let (mut t, mut y) = (0.0, 0.0);
    for row in rows {
        t += (row.at - newest.at) / n;
        y += row.used / n;
    }
    let (mut across, mut along) = (0.0, 0.0);
    for row in rows {
        let apart = row.at - newest.at - t;
        across += apart * apart;
        along += apart * (row.used - y);
    }
    let slope = if across > 0.0 { along / across } else { 0.0 };
    (y - slope * t, slope)
}

/// Prometheus' `predict_linear`: the line through the samples of a window. In alarm where the line reaches the limit
/// within four windows, as in `predict_linear(x[1h], 4 * 3600)`.
fn predict_linear(rows: &[Row], case: &Case, window: usize) -> Said {
    let at = last(rows).at;
    let (value, slope) = line(&rows[rows.len().saturating_sub(window)..]);
    let left = if rows.len() < 2 { f64::INFINITY } else { time_left(case.limit - value, slope) };
    let certain = f64::from(u8::from(left <= HORIZON * case.unit()));
    Said { at, leak: left <= 4.0 * count(window) * case.interval, tte: [left; 3], p: certain }
}

/// A threshold of the level.
fn level(rows: &[Row], case: &Case, share: f64) -> Said {
    let newest = last(rows);
    let above = newest.used >= share * case.limit;
    Said { at: newest.at, leak: above, tte: NEVER, p: f64::from(u8::from(above)) }
}

/// Tiny-Torch's OOM detector and leak detector in their first version: the line through the last ten samples; a leak
/// above 10 MiB per minute.
fn tiny_torch(rows: &[Row], case: &Case) -> Said {
    let newest = last(rows);
    let (_, slope) = line(&rows[rows.len().saturating_sub(10)..]);
    let used = newest.used / case.limit;
    let left = time_left(case.limit - newest.used, slope);
    let confidence = match used {
        used if used >= 0.95 => 0.9,
        used if used >= 0.85 && left < HORIZON * case.unit() => 0.8,
        used if used >= 0.85 => 0.6,
        _ if slope > 10e6 => 0.5,
        _ => 0.0,
    };
    let p = confidence * (count(rows.len()) / 30.0).min(1.0);
    Said { at: newest.at, leak: slope > 10.0 * 1_048_576.0 / 60.0, tte: [left; 3], p }
}

/// Tiny-Torch in its last version: a forecast above 85 % only; a leak 100 MB above the first value.
fn tiny_torch_last(rows: &[Row], case: &Case) -> Said {
    let newest = last(rows);
    let (_, slope) = line(&rows[rows.len().saturating_sub(10)..]);
    let used = newest.used / case.limit;
    let left = if used > 0.85 && rows.len() >= 3 {
        time_left(case.limit - newest.used, slope)
    } else {
        f64::INFINITY
    };
    let certain = f64::from(u8::from(used > 0.85 && left <= HORIZON * case.unit()));
    Said { at: newest.at, leak: newest.used - rows[0].used > 100e6, tte: [left; 3], p: certain }
}

/// The LoRA memory debugger: a leak where five samples rise by 100 MB on average, a warning above 90 %, an alarm above
/// 95 %.
fn lora_debugger(rows: &[Row], case: &Case) -> Said {
    let newest = last(rows);
    let five = &rows[rows.len().saturating_sub(5)..];
    let rises = (newest.used - five[0].used) / 5.0 > 100e6;
    let used = newest.used / case.limit;
    let p = if used > 0.95 {
        0.95
    } else if used > 0.9 {
        0.5
    } else {
        0.0
    };
    Said { at: newest.at, leak: rises, tte: NEVER, p }
}

/// GPUMemoryProfiler: growth is the difference of the last and the first record.
fn gpu_memory_profiler(rows: &[Row], _: &Case) -> Said {
    let newest = last(rows);
    Said { at: newest.at, leak: newest.used > rows[0].used, tte: NEVER, p: 0.0 }
}

/// The quantiles and the probability of a level that grows by `rate` with a variance that depends on the time ahead.
fn normal_forecast(distance: f64, rate: f64, variance: impl Fn(f64) -> f64, case: &Case) -> ([f64; 3], f64) {
    let within = |ahead: f64| {
        let deviation = variance(ahead).sqrt().max(f64::MIN_POSITIVE);
        normal::cdf((rate * ahead - distance) / deviation)
    };
    let longest = 1e4 * case.unit();
    let quantile = |p: f64| {
        if within(longest) < p {
            return f64::INFINITY;
        }
        let (mut low, mut high) = (0.0, longest);
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if within(middle) < p { low = middle } else { high = middle }
        }
        high
    };
    ([0.1, 0.5, 0.9].map(quantile), within(HORIZON * case.unit()))
}

/// Holt's double exponential smoothing (level 0.3, trend 0.05) with the prediction interval of Hyndman et al. 2008;
/// in alarm where the lower 90 % bound of the level ahead is above the present level.
fn holt(case: &Case) -> Vec<Said> {
    const LEVEL: f64 = 0.3;
    const TREND: f64 = 0.05;
    let mut said = Vec::new();
    let (mut level, mut trend, mut variance) = (case.rows[0].used, 0.0, 0.0);
    let mut wanted = ends(case).peekable();
    for (i, row) in case.rows.iter().enumerate() {
        let error = row.used - level - trend;
        level += trend + LEVEL * error;
        trend += LEVEL * TREND * error;
        variance += 0.02 * (error * error - variance);
        if wanted.next_if(|end| *end == i + 1).is_none() {
            continue;
        }
        let ahead = |seconds: f64| {
            let steps = seconds / case.interval;
            let slope = LEVEL * TREND;
            variance
                * (1.0
                    + steps * (LEVEL * LEVEL + LEVEL * slope * steps + slope * slope * steps * steps / 3.0))
        };
        let rate = trend / case.interval;
        let far = HORIZON * case.unit();
        let leak = rate * far > 1.28 * ahead(far).sqrt();
        let (tte, p) = normal_forecast(case.limit - level, rate, ahead, case);
        said.push(Said { at: row.at, leak, tte, p });
    }
    said
}

/// A Kalman filter of a local linear trend, whose noise is learned from the innovations; in alarm where the slope is
/// above three standard errors.
fn kalman(case: &Case) -> Vec<Said> {
    let mut said = Vec::new();
    let (mut level, mut slope) = (case.rows[0].used, 0.0);
    let mut noise = 1e12_f64;
    // Covariance of level and slope, in units of the noise.
    let [mut ll, mut ls, mut ss] = [1.0, 0.0, 1.0];
    let mut wanted = ends(case).peekable();
    for (i, row) in case.rows.iter().enumerate() {
        (ll, ls, ss) = (ll + 2.0 * ls + ss + 1e-2, ls + ss, ss + 1e-6);
        let innovation = row.used - level - slope;
        let total = ll + 1.0;
        noise += 0.02 * (innovation * innovation / total - noise);
        let (gain, drift) = (ll / total, ls / total);
        level += slope + gain * innovation;
        slope += drift * innovation;
        (ll, ls, ss) = (ll * (1.0 - gain), ls * (1.0 - gain), ss - drift * ls);
        if wanted.next_if(|end| *end == i + 1).is_none() {
            continue;
        }
        let ahead = |seconds: f64| {
            let steps = seconds / case.interval;
            noise * (ll + 2.0 * steps * ls + steps * steps * ss + 1e-2 * steps + 1e-6 * steps.powi(3) / 3.0)
        };
        let (tte, p) = normal_forecast(case.limit - level, slope / case.interval, ahead, case);
        said.push(Said { at: row.at, leak: slope > 3.0 * (noise * ss).sqrt(), tte, p });
    }
    said
}

/// The Mann-Kendall test (p < 0.05) with Sen's slope and its confidence interval, on at most 64 means of equal spans.
fn mann_kendall(rows: &[Row], case: &Case) -> Said {
    let newest = last(rows);
    let span = rows.len().div_ceil(64);
    let mean = |rows: &[Row]| {
        let n = count(rows.len());
        (rows.iter().map(|row| row.at).sum::<f64>() / n, rows.iter().map(|row| row.used).sum::<f64>() / n)
    };
    let points: Vec<(f64, f64)> = rows.chunks(span).map(mean).collect();
    let n = points.len();
    let (mut sum, mut slopes) = (0.0, Vec::new());
    for later in 1..n {
        for earlier in 0..later {
            let (apart, rise) = (points[later].0 - points[earlier].0, points[later].1 - points[earlier].1);
            sum += if rise == 0.0 { 0.0 } else { rise.signum() };
            slopes.push(rise / apart);
        }
    }
    if n < 10 {
        return Said { at: newest.at, leak: false, tte: NEVER, p: 0.0 };
    }
    let number = count(n);
    let deviation = (number * (number - 1.0) * (2.0 * number + 5.0) / 18.0).sqrt();
    let z = (sum - sum.signum()) / deviation;
    slopes.sort_by(f64::total_cmp);
    let pairs = count(slopes.len());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank")]
    let rank = |rank: f64| slopes[(rank.max(0.0) as usize).min(slopes.len() - 1)];
    let middle = rank(pairs / 2.0);
    let (low, high) = (rank((pairs - 1.28 * deviation) / 2.0), rank((pairs + 1.28 * deviation) / 2.0));
    let left = |slope: f64| time_left(case.limit - newest.used, slope);
    let error = ((high - low) / 2.56).max(f64::MIN_POSITIVE);
    let needed = (case.limit - newest.used) / (HORIZON * case.unit());
    let leak = z > 1.96;
    let tte = if leak { [high, middle, low].map(left) } else { NEVER };
    Said { at: newest.at, leak, tte, p: if leak { normal::cdf((middle - needed) / error) } else { 0.0 } }
}
