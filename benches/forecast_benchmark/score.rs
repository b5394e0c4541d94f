//! The columns of the table: how well a method classifies growth and forecasts exhaustion on labeled series.
//!
//! All times scale with the sampling interval: a unit is two intervals, so that series of any interval are judged
//! alike. A method makes one assessment after every tenth sample.

use std::collections::BTreeMap;

use memwarden::model::series::Row;

/// Samples from one assessment to the next.
pub(crate) const EVERY: usize = 10;
/// The horizon of the probability, in units.
pub(crate) const HORIZON: f64 = 60.0;
/// Seconds in a day.
const DAY: f64 = 86_400.0;
/// The limit of a healthy series in the second run, as a multiple of its maximum.
const NEAR: f64 = 1.02;

/// What is true of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    /// It grows until the limit is reached.
    Growing,
    /// It does not grow.
    Flat,
    /// It grows, and then stays below a bound.
    Bounded,
}

/// A labeled series; times in seconds, bytes.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// The run on the node that it is from; a run has a series for each GPU.
    pub(crate) node: String,
    /// Samples from one assessment to the next.
    pub(crate) every: usize,
    /// How it was made: recorded, public or simulated.
    pub(crate) origin: String,
    pub(crate) label: Label,
    pub(crate) interval: f64,
    pub(crate) limit: f64,
    /// When the limit is reached; infinite if never.
    pub(crate) limit_at: f64,
    /// When growth begins.
    pub(crate) onset: f64,
    /// When bounded growth ends.
    pub(crate) plateau: f64,
    pub(crate) rows: Vec<Row>,
}

impl Case {
    /// Seconds in a unit.
    pub(crate) fn unit(&self) -> f64 {
        self.interval / 0.5
    }

    /// The same healthy series with the limit directly above its maximum.
    pub(crate) fn near_limit(&self) -> Option<Self> {
        let highest = self.rows.iter().map(|row| row.used).fold(0.0, f64::max);
        (self.label != Label::Growing).then(|| Self { limit: (NEAR * highest).floor(), ..self.clone() })
    }
}

/// One assessment of a method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) at: f64,
    pub(crate) leak: bool,
    /// The quantiles p10, p50 and p90 of the time to exhaustion in seconds; infinite for none.
    pub(crate) tte: [f64; 3],
    /// The probability of exhaustion within the horizon.
    pub(crate) p: f64,
}

/// The assessments of one series against its label.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judged {
    pub(crate) name: String,
    growing: bool,
    flat: bool,
    is_final: bool,
    on: f64,
    delay: f64,
    errors: Option<[f64; 3]>,
    band: Vec<bool>,
    band_late: Vec<bool>,
    warned: Option<bool>,
    before: Option<f64>,
    after: Option<f64>,
    false_tte: f64,
    pub(crate) false_warn: Vec<bool>,
    chances: Vec<(f64, bool)>,
    node: String,
    /// Times of the assessments, and whether the probability was at least 0.5.
    warnings: Vec<(f64, bool)>,
    /// When the limit is reached; infinite if never.
    limit_at: f64,
    unit: f64,
}

/// The times at which warnings begin.
fn begins(warnings: &[(f64, bool)]) -> impl Iterator<Item = f64> {
    let before = std::iter::once(false).chain(warnings.iter().map(|(_, warned)| *warned));
    warnings.iter().zip(before).filter(|((_, warned), before)| *warned && !before).map(|((at, _), _)| *at)
}

fn days(warnings: &[(f64, bool)]) -> f64 {
    warnings.last().zip(warnings.first()).map_or(0.0, |((last, _), (first, _))| (last - first) / DAY)
}

impl Judged {
    /// Whether its series did not end out of memory.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.growing
    }

    /// When false warnings begin.
    pub(crate) fn false_warnings(&self) -> impl Iterator<Item = f64> {
        begins(&self.warnings).filter(|at| !self.is_right_warning(*at))
    }

    /// Days that it was watched.
    pub(crate) fn days(&self) -> f64 {
        days(&self.warnings)
    }

    /// Whether exhaustion follows within two horizons.
    fn is_right_warning(&self, at: f64) -> bool {
        self.limit_at - at <= 2.0 * HORIZON * self.unit
    }

    /// Whether the final verdict is right.
    pub(crate) fn is_right(&self) -> bool {
        self.is_final == self.growing
    }

    /// One line: the verdict, the share of time in alarm, the errors where 50, 25 and 10 % of the way remain, the
    /// shares within the quantiles, whether there was a warning, and the number of wrong ones.
    pub(crate) fn summary(&self) -> String {
        let mark = if self.is_right() { ' ' } else { 'X' };
        let mut text = format!("{mark} {:44} on {:.2}", self.name, self.on);
        if let Some(errors) = self.errors {
            let shares = [&self.band, &self.band_late].map(|band| share(band.iter().copied()));
            text.push_str(&format!(
                " err {errors:.2?} band {shares:.2?} warned {}",
                self.warned == Some(true)
            ));
        } else {
            text.push_str(&format!(
                " false_warn {}",
                self.false_warn.iter().filter(|warned| **warned).count()
            ));
        }
        text
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts")]
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let all: Vec<f64> = values.collect();
    if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
}

fn share(flags: impl Iterator<Item = bool>) -> f64 {
    mean(flags.map(|flag| f64::from(u8::from(flag))))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::INFINITY,
        n => f64::midpoint(values[(n - 1) / 2], values[n / 2]),
    }
}

/// Judges the assessments of one series.
pub(crate) fn judge(case: &Case, said: &[Said]) -> Judged {
    let (unit, limit_at) = (case.unit(), case.limit_at);
    let said: Vec<Said> = said.iter().copied().filter(|said| said.at <= limit_at).collect();
    let Some(last) = said.last() else { return Judged::default() };
    let tail = (said.len() * 15 / 100).max(3).min(said.len());
    let mut judged = Judged {
        name: case.name.clone(),
        growing: case.label == Label::Growing,
        flat: case.label == Label::Flat,
        is_final: share(said[said.len() - tail..].iter().map(|said| said.leak)) > 0.5,
        on: share(said.iter().map(|said| said.leak)),
        node: case.node.clone(),
        warnings: said.iter().map(|said| (said.at, said.p >= 0.5)).collect(),
        limit_at,
        unit,
        chances: said
            .iter()
            .map(|said| (said.p, case.label == Label::Growing && limit_at - said.at <= HORIZON * unit))
            .collect(),
        ..Judged::default()
    };
    if judged.growing {
        let stays = |from: usize| share(said[from..].iter().map(|said| said.leak)) >= 0.8;
        let first = (0..said.len()).find(|i| said[*i].leak && said[*i].at >= case.onset && stays(*i));
        let span = last.at - case.onset;
        judged.delay = match first {
            Some(first) if span > 0.0 => (said[first].at - case.onset) / span,
            _ => 1.0,
        };
        if limit_at.is_finite() {
            let way = limit_at - case.onset;
            judged.errors = Some([0.5, 0.25, 0.1].map(|left| {
                let from = case.onset + way * (1.0 - left);
                let said = said.iter().find(|said| said.at >= from).unwrap_or(last);
                let real = limit_at - said.at;
                if real > 0.0 { (said.tte[1] - real).abs() / real } else { f64::INFINITY }
            }));
            let within = |said: &Said| (said.tte[0]..=said.tte[2]).contains(&(limit_at - said.at));
            let forecast = |said: &&Said| said.tte[1].is_finite();
            judged.band =
                said.iter().filter(|said| said.at >= case.onset).filter(forecast).map(within).collect();
            let late = said.iter().filter(|said| limit_at - said.at <= way / 4.0);
            judged.band_late = late.filter(forecast).map(within).collect();
            let in_time = |said: &Said| (20.0 * unit..=60.0 * unit).contains(&(limit_at - said.at));
            judged.warned = Some(said.iter().any(|said| in_time(said) && said.p >= 0.5));
        }
    } else {
        let from = if judged.flat { 0.0 } else { case.plateau };
        let (after, before): (Vec<Said>, Vec<Said>) = said.iter().partition(|said| said.at >= from);
        let on = |part: &[Said]| (!part.is_empty()).then(|| share(part.iter().map(|said| said.leak)));
        (judged.before, judged.after) = (on(&before), on(&after));
        judged.false_tte = share(after.iter().map(|said| said.tte[1] < 300.0 * unit));
        judged.false_warn = after.iter().map(|said| said.p >= 0.5).collect();
    }
    judged
}

/// The columns over all series.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) columns: Vec<(&'static str, f64)>,
}

impl Table {
    /// The value of a column.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.columns.iter().find(|(own, _)| *own == name).map_or(f64::NAN, |(_, value)| *value)
    }
}

/// Computes the columns of judgments, and of those of the healthy series with the limit directly above their maximum.
pub(crate) fn table(judged: &[&(Judged, Option<Judged>)]) -> Table {
    let all: Vec<&Judged> = judged.iter().map(|(all, _)| all).collect();
    let near: Vec<&Judged> = judged.iter().filter_map(|(_, near)| near.as_ref()).collect();
    let growing: Vec<&Judged> = all.iter().copied().filter(|judged| judged.growing).collect();
    let healthy: Vec<&Judged> = all.iter().copied().filter(|judged| !judged.growing).collect();
    let of = |flat: bool| healthy.iter().filter(move |judged| judged.flat == flat);
    let found = mean(growing.iter().map(|judged| f64::from(u8::from(judged.is_final))));
    let hits = growing.iter().filter(|judged| judged.is_final).count();
    let wrong = healthy.iter().filter(|judged| judged.is_final).count();
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    let precision = hits as f64 / (hits + wrong).max(1) as f64;
    let mut columns = vec![("recall", found), ("precision", precision)];
    columns.push(("flat_on", mean(of(true).map(|judged| judged.on))));
    columns.push(("called", mean(healthy.iter().map(|judged| f64::from(u8::from(judged.is_final))))));
    columns.push(("bnd_pre", mean(of(false).filter_map(|judged| judged.before))));
    columns.push(("bnd_post", mean(of(false).filter_map(|judged| judged.after))));
    columns.push(("mttd", median(growing.iter().map(|judged| judged.delay).collect())));
    for (place, (cov, err)) in
        [("cov50", "err50"), ("cov25", "err25"), ("cov10", "err10")].into_iter().enumerate()
    {
        let errors: Vec<f64> = growing.iter().filter_map(|judged| Some(judged.errors?[place])).collect();
        columns.push((cov, share(errors.iter().map(|error| error.is_finite()))));
        columns.push((err, median(errors.into_iter().filter(|error| error.is_finite()).collect())));
    }
    columns.push(("band", share(growing.iter().flat_map(|judged| judged.band.iter().copied()))));
    columns.push(("band_late", share(growing.iter().flat_map(|judged| judged.band_late.iter().copied()))));
    columns.push(("warned", share(growing.iter().filter_map(|judged| judged.warned))));
    let warns = |all: &[&Judged]| share(all.iter().flat_map(|judged| judged.false_warn.iter().copied()));
    columns.push(("false_warn", warns(&healthy)));
    columns.push(("false_near", warns(&near)));
    columns.push(("false_flat", mean(of(true).map(|judged| judged.false_tte))));
    columns.push(("false_bnd", mean(of(false).map(|judged| judged.false_tte))));
    columns.extend(per_day(&all, &healthy));
    let chances = || all.iter().flat_map(|judged| judged.chances.iter());
    let came = |came: bool| f64::from(u8::from(came));
    columns.push(("brier", mean(chances().map(|(p, real)| (p - came(*real)).powi(2)))));
    columns.push(("brier0", share(chances().map(|(_, real)| *real))));
    columns.push(("top_p", mean(chances().filter(|(p, _)| *p >= 0.8).map(|(p, _)| *p))));
    columns.push(("top_freq", share(chances().filter(|(p, _)| *p >= 0.8).map(|(_, real)| *real))));
    Table { columns }
}

/// How often a person is called without need, for each GPU and each node, and the share of calls with need.
#[expect(clippy::cast_precision_loss, reason = "counts")]
fn per_day(all: &[&Judged], healthy: &[&Judged]) -> [(&'static str, f64); 3] {
    let rate = |count: usize, days: f64| if days > 0.0 { count as f64 / days } else { 0.0 };
    let gpu = rate(
        healthy.iter().map(|judged| begins(&judged.warnings).count()).sum(),
        healthy.iter().map(|judged| judged.days()).sum(),
    );
    // A node warns while any of its GPUs does.
    let mut nodes: BTreeMap<&str, BTreeMap<u64, bool>> = BTreeMap::new();
    for judged in healthy {
        let node = nodes.entry(&judged.node).or_default();
        for (at, warned) in &judged.warnings {
            // Times are not negative, so that their bits are in their order.
            *node.entry(at.to_bits()).or_default() |= warned;
        }
    }
    let nodes: Vec<Vec<(f64, bool)>> = nodes
        .values()
        .map(|node| node.iter().map(|(at, warned)| (f64::from_bits(*at), *warned)).collect())
        .collect();
    let node =
        rate(nodes.iter().map(|node| begins(node).count()).sum(), nodes.iter().map(|node| days(node)).sum());
    let warnings: usize = all.iter().map(|judged| begins(&judged.warnings).count()).sum();
    let wrong: usize = all.iter().map(|judged| judged.false_warnings().count()).sum();
    let right = if warnings > 0 { (warnings - wrong) as f64 / warnings as f64 } else { f64::NAN };
    [("gpu_day", gpu), ("node_day", node), ("alarm_prec", right)]
}
