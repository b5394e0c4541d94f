//! A replay in words.

use forecast::exhaustion::recurrence::Recurrence;
use forecast::tracker::{Assessment, Watched};
use forecast::view::Envelope;
use forecast::{Basis, LeakState};

use memwarden::analyzers::replay::ReplayedAssessment;
use memwarden::model::format;
use memwarden::model::health::Health;
use memwarden::model::health::Rule;
use memwarden::model::printable::escaped;
use memwarden::model::series::Series;
use memwarden::node_view::table::{Cell, Row};
use memwarden::plot::{self, TimeAxis};
use memwarden::report::Page;
use memwarden::report::text;

/// When the verdict changed, and to what.
pub(crate) fn changes(replayed: &[ReplayedAssessment]) -> impl Iterator<Item = (f64, LeakState)> {
    let before = std::iter::once(None).chain(replayed.iter().map(|replayed| Some(replayed.assessment.leak)));
    replayed.iter().zip(before).filter_map(|(replayed, before)| {
        let state = replayed.assessment.leak;
        (before != Some(state)).then_some((replayed.at, state))
    })
}

/// What was seen, the verdict, the forecast, the evidence, what to do.
pub(crate) fn write(
    out: &mut String,
    series: &Series,
    replayed: &[ReplayedAssessment],
    horizon: f64,
    page: Page,
) {
    let (Some(first), Some(last), Some(end)) = (series.rows.first(), series.rows.last(), replayed.last())
    else {
        return;
    };
    let lowest = series.rows.iter().map(|row| row.used).fold(f64::INFINITY, f64::min);
    let highest = series.rows.iter().map(|row| row.used).fold(0.0, f64::max);
    let now = &end.assessment;
    let mut rows: Vec<Row> = Vec::new();
    let row = |what: &str, cell: Cell| Row::default().text("", 0, what).prose("", cell);
    let mut line = |what: &str, text: String| rows.push(row(what, text.into()));
    line(
        "seen",
        format!(
            "{} {} over {}; used {} to {}, last {}",
            series.rows.len(),
            if series.rows.len() == 1 { "sample" } else { "samples" },
            format::duration(last.at - first.at),
            format::bytes(lowest),
            format::bytes(highest),
            format::bytes(last.used)
        ),
    );
    for remark in &series.remarks {
        line("remark", escaped(remark).into_owned());
    }
    let level = match now.leak {
        LeakState::Leaking | LeakState::Growing => Health::Warning,
        LeakState::Insufficient => Health::Unknown,
        _ => Health::Ok,
    };
    let verdict = Cell::text(verdict(now, last.at)).of(level);
    rows.push(row("verdict", verdict));
    let mut line = |what: &str, text: String| rows.push(row(what, text.into()));
    for (at, _) in changes(replayed).filter(|(_, state)| *state == LeakState::Leaking) {
        line("alarm", format!("leaking from {}", moment(at)));
    }
    line("forecast", forecast(end, last.used, horizon));
    if let Some(recurring) = &now.peaks {
        line("peaks", peaks(recurring, end.at));
    }
    if let Some(rule) = end.rule {
        line("health", format!("{}: {}", rule.health().label(), rule.text()));
    }
    line("evidence", evidence(now));
    line("advice", advice(end, series.gpu).to_owned());
    out.push_str(&escaped(&series.name));
    out.push('\n');
    text::rows(out, rows, page);
}

/// A probability above this is not worth a remark.
const CERTAIN: f64 = 0.95;

/// The peaks that the forecast is computed from, at the time `at`.
pub(crate) fn peaks(peaks: &Recurrence, at: f64) -> String {
    format!(
        "{} peaks since {}, one every {}, {} high, {}/h; the next one in {}",
        peaks.count,
        moment((at - peaks.for_seconds).max(0.0)),
        format::duration(peaks.period_seconds),
        format::bytes(peaks.height_bytes),
        format::change(peaks.growth_bytes_per_second * 3600.0),
        format::duration(peaks.next_seconds.max(0.0))
    )
}

fn verdict(now: &Assessment, at: f64) -> String {
    let mut text = now.leak.label().to_owned();
    if let (Some(lasted), Some(growth)) = (now.growing_for_seconds, now.growth) {
        let since = moment((at - lasted).max(0.0));
        text.push_str(&format!(
            " since {since}, {}/h of {}",
            format::bytes(growth.bytes_per_second * 3600.0),
            now.watched.words()
        ));
    }
    if let Some(confidence) = now.confidence {
        text.push_str(&format!(", confidence {confidence:.2}"));
    }
    text
}

fn forecast(end: &ReplayedAssessment, used: f64, horizon: f64) -> String {
    let Some(limit) = end.limit else { return "none: no limit (--limit)".to_owned() };
    if used >= limit {
        return format!("{} is reached", format::bytes(limit));
    }
    let now = &end.assessment;
    let Some(tte) = now.tte else { return format!("none against {}", format::bytes(limit)) };
    if tte.p50 <= 0.0 {
        return format!("{} is reached", format::bytes(limit));
    }
    let until = tte.p90.map_or("never".to_owned(), format::duration);
    let basis = match now.basis {
        _ if now.peaks.is_some() => "by the peaks that recur",
        Some(Basis::Allocated) => "by the allocator's figure, as that of the device does not change",
        _ => "by the used figure",
    };
    let chance = now.p_exhaustion.first().copied().flatten().unwrap_or(0.0);
    let mut text = format!(
        "{} is reached in {} ({} to {until}) if the growth continues, {basis}; within {}: {}",
        format::bytes(limit),
        format::duration(tte.p50),
        format::duration(tte.p10),
        format::duration(horizon),
        format::percent(chance)
    );
    if let Some(continues) = now.p_growth_continues.filter(|continues| *continues < CERTAIN) {
        text.push_str(&format!(", as the growth continues until then with {}", format::percent(continues)));
    }
    text
}

fn evidence(now: &Assessment) -> String {
    let Some(seen) = now.evidence else { return "fewer than 60 samples".to_owned() };
    let lead = match seen.lead {
        Envelope::Floor => "floor",
        Envelope::Center => "center",
        Envelope::Peak => "peak",
    };
    format!(
        "{} over the last {} of {}; slopes in standard errors: floor {:.1}, center {:.1}, peak {:.1}; {lead} leads",
        format::change(seen.rise_bytes),
        format::duration(seen.window_seconds),
        now.watched.words(),
        seen.floor_z,
        seen.center_z,
        seen.peak_z
    )
}

fn advice(end: &ReplayedAssessment, gpu: bool) -> &'static str {
    let is_full = matches!(end.rule, Some(Rule::Full | Rule::FullAfterGrowth));
    let now = &end.assessment;
    match (now.leak, now.watched) {
        (LeakState::Insufficient | LeakState::Steady, _) if is_full => {
            "raise the limit or reduce memory use: no memory is left"
        }
        (LeakState::Insufficient, _) => "record for longer",
        (LeakState::Steady, _) => "nothing to do",
        (LeakState::Warming, _) => "wait: the growth rate decreases",
        (LeakState::Growing, _) => {
            "continue to observe: a cache that fills grows the same way until it is full"
        }
        (LeakState::Leaking, Watched::Allocated) => {
            "compare two allocator snapshots: find what is kept from step to step (losses, outputs, hooks)"
        }
        (LeakState::Leaking, Watched::Unreclaimable) => {
            "compare heap profiles; look for lists that grow each step and for data-loader workers that copy"
        }
        (LeakState::Leaking, Watched::Used) if gpu => {
            "record the allocated bytes of the job too: an allocator keeps what it has freed"
        }
        (LeakState::Leaking, Watched::Used) => {
            "record anonymous and shared memory too, to exclude file cache"
        }
    }
}

/// A time of the series: since it begins, or in UTC where it counts from 1970.
fn moment(seconds: f64) -> String {
    match plot::report::clock(seconds) {
        axis @ TimeAxis::Utc => plot::moment(axis, seconds),
        _ => format!("t = {}", format::duration(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwarden::analyzers::replay::{Options, replay};
    use memwarden::model::series::Row;

    #[test]
    fn a_leak_is_described_in_a_sentence() {
        let row = |i: u32| Row {
            at: f64::from(i),
            used: 1e9 + 1e6 * f64::from(i) + 1e5 * f64::from(i % 7),
            limit: Some(2e9),
            ..Row::default()
        };
        let series =
            Series { name: "run.csv".to_owned(), rows: (0..600).map(row).collect(), ..Series::default() };
        let replayed =
            replay(&series, &Options { limit: None, horizons: vec![900.0], every: 10, gpu: false });
        let mut text = String::new();
        write(&mut text, &series, &replayed, 900.0, Page::default());
        expect_test::expect![[r#"
            run.csv
              seen      600 samples over 10 min; used 953.7 MiB to 1.5 GiB, last 1.5 GiB
              verdict   leaking since t = 7.5 s, 3.4 GiB/h of used memory, confidence 1.00
              alarm     leaking from t = 69 s
              forecast  1.9 GiB is reached in 6 min (6 min to 7 min) if the growth continues, by the used figure; within 15 min: 78 %, as the growth continues until then with 78 %
              health    critical: exhaustion within 15 minutes is more likely than not
              evidence  +495.9 MiB over the last 9 min of used memory; slopes in standard errors: floor 44.7, center 26525.5, peak 85.1; center leads
              advice    record anonymous and shared memory too, to exclude file cache
        "#]].assert_eq(&text);
    }
}
