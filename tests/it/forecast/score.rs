//! The judgment of a replay on a labeled series: the columns of the shared scorer, in process.

use memwarden::analyzers::leak::State;
use memwarden::analyzers::tracker::{Sample, Tracker};

/// What the label says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    Leak,
    Flat,
    Bounded,
}

/// A labeled series.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) label: Label,
    pub(crate) interval: f64,
    pub(crate) limit: f64,
    pub(crate) limit_at: f64,
    pub(crate) onset: f64,
    pub(crate) plateau: f64,
    pub(crate) samples: Vec<(f64, Sample)>,
}

/// One assessment: time, leak, quantiles of the time left (infinite for none), probability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row(pub(crate) f64, pub(crate) bool, pub(crate) [f64; 3], pub(crate) f64);

/// Samples between assessments, and the horizon in sampling intervals, as the shared scorer has them.
const EVERY: usize = 10;
const HORIZON: f64 = 120.0;

pub(crate) fn replay(case: &Case) -> Vec<Row> {
    let mut tracker = Tracker::new();
    let mut rows = Vec::new();
    for (i, (at, sample)) in case.samples.iter().enumerate() {
        tracker.push(*at, *sample);
        if (i + 1) % EVERY == 0 {
            let said = tracker.assess(Some(case.limit), &[HORIZON * case.interval]);
            let never = f64::INFINITY;
            let tte = said.tte.map_or([never; 3], |tte| [tte.p10, tte.p50, tte.p90.unwrap_or(never)]);
            rows.push(Row(*at, said.leak == State::Leaking, tte, said.p_exhaustion[0].unwrap_or(0.0)));
        }
    }
    rows
}

#[derive(Debug, Default)]
pub(crate) struct Judged {
    pub(crate) name: String,
    pub(crate) positive: bool,
    pub(crate) flat: bool,
    pub(crate) last: bool,
    pub(crate) on: f64,
    pub(crate) delay: f64,
    pub(crate) errors: Option<[f64; 3]>,
    pub(crate) band: Vec<bool>,
    pub(crate) before: Option<f64>,
    pub(crate) after: Option<f64>,
    pub(crate) hasty: f64,
    pub(crate) chances: Vec<(f64, bool)>,
}

fn share(flags: impl Iterator<Item = bool>) -> f64 {
    let (mut yes, mut all) = (0.0, 0.0);
    for flag in flags {
        all += 1.0;
        yes += f64::from(u8::from(flag));
    }
    if all > 0.0 { yes / all } else { 0.0 }
}

pub(crate) fn judge(case: &Case, rows: &[Row]) -> Judged {
    let unit = case.interval / 0.5;
    let rows: Vec<Row> = rows.iter().copied().filter(|row| row.0 <= case.limit_at).collect();
    let tail = (rows.len() * 15 / 100).max(3).min(rows.len());
    let mut judged = Judged {
        name: case.name.clone(),
        positive: case.label == Label::Leak,
        flat: case.label == Label::Flat,
        last: share(rows[rows.len() - tail..].iter().map(|row| row.1)) > 0.5,
        on: share(rows.iter().map(|row| row.1)),
        ..Judged::default()
    };
    if judged.positive {
        let kept = |from: usize| share(rows[from..].iter().map(|row| row.1)) >= 0.8;
        let at = (0..rows.len()).find(|i| rows[*i].1 && rows[*i].0 >= case.onset && kept(*i));
        let span = rows[rows.len() - 1].0 - case.onset;
        judged.delay = at.map_or(1.0, |at| (rows[at].0 - case.onset) / span);
        if case.limit_at.is_finite() {
            judged.errors = Some([0.5, 0.25, 0.1].map(|left| {
                let from = case.onset + (case.limit_at - case.onset) * (1.0 - left);
                let row = rows.iter().find(|row| row.0 >= from).unwrap_or(&rows[rows.len() - 1]);
                let wanted = case.limit_at - row.0;
                if wanted > 0.0 { (row.2[1] - wanted).abs() / wanted } else { f64::INFINITY }
            }));
            let told = rows.iter().filter(|row| row.0 >= case.onset && row.2[1].is_finite());
            judged.band = told.map(|r| (r.2[0]..=r.2[2]).contains(&(case.limit_at - r.0))).collect();
        }
    } else {
        let from = if judged.flat { 0.0 } else { case.plateau };
        let part =
            |after: bool| -> Vec<Row> { rows.iter().copied().filter(|r| (r.0 >= from) == after).collect() };
        let mean = |part: &[Row]| (!part.is_empty()).then(|| share(part.iter().map(|row| row.1)));
        (judged.before, judged.after) = (mean(&part(false)), mean(&part(true)));
        judged.hasty = share(part(true).iter().map(|row| row.2[1] < 300.0 * unit));
    }
    judged.chances =
        rows.iter().map(|row| (row.3, judged.positive && case.limit_at - row.0 <= 60.0 * unit)).collect();
    judged
}

/// The table over all series.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) recall: f64,
    pub(crate) precision: f64,
    pub(crate) flat_on: f64,
    pub(crate) bounded_before: f64,
    pub(crate) bounded_after: f64,
    pub(crate) delay: f64,
    pub(crate) coverage: [f64; 3],
    pub(crate) error: [f64; 3],
    pub(crate) band: f64,
    pub(crate) hasty_flat: f64,
    pub(crate) hasty_bounded: f64,
    pub(crate) brier: f64,
    pub(crate) brier_of_zero: f64,
    pub(crate) top_said: f64,
    pub(crate) top_came: f64,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let all: Vec<f64> = values.collect();
    if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::INFINITY } else { f64::midpoint(values[(n - 1) / 2], values[n / 2]) }
}

pub(crate) fn table(all: &[Judged]) -> Table {
    let positive = || all.iter().filter(|j| j.positive);
    let negative = |flat: bool| all.iter().filter(move |j| !j.positive && j.flat == flat);
    let hits = positive().filter(|j| j.last).count() as f64;
    let wrong = all.iter().filter(|j| !j.positive && j.last).count() as f64;
    let mut table = Table {
        recall: hits / positive().count().max(1) as f64,
        precision: hits / (hits + wrong).max(1.0),
        flat_on: mean(negative(true).map(|j| j.on)),
        bounded_before: mean(negative(false).filter_map(|j| j.before)),
        bounded_after: mean(negative(false).filter_map(|j| j.after)),
        delay: median(positive().map(|j| j.delay).collect()),
        band: share(positive().flat_map(|j| j.band.iter().copied())),
        hasty_flat: mean(negative(true).map(|j| j.hasty)),
        hasty_bounded: mean(negative(false).map(|j| j.hasty)),
        ..Table::default()
    };
    for k in 0..3 {
        let errors: Vec<f64> = positive().filter_map(|j| Some(j.errors?[k])).collect();
        let known: Vec<f64> = errors.iter().copied().filter(|e| e.is_finite()).collect();
        table.coverage[k] = known.len() as f64 / errors.len().max(1) as f64;
        table.error[k] = median(known);
    }
    let chances: Vec<(f64, f64)> =
        all.iter().flat_map(|j| &j.chances).map(|(p, came)| (*p, f64::from(u8::from(*came)))).collect();
    table.brier = mean(chances.iter().map(|(p, came)| (p - came).powi(2)));
    table.brier_of_zero = mean(chances.iter().map(|(_, came)| *came));
    let top = || chances.iter().filter(|(p, _)| *p >= 0.8);
    (table.top_said, table.top_came) = (mean(top().map(|c| c.0)), mean(top().map(|c| c.1)));
    table
}
