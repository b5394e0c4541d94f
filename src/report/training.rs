//! Training data that the processes of a command reported: steps, throughput, FLOP/s, time per phase.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::focus::Focus;
use super::text::{self, Page};
use crate::model::fit::Verdict;
use crate::model::fits::Fit;
use crate::model::format::{self, bytes, duration, percent};
use crate::model::timeline::{EntryKind, Timeline};
use crate::model::units::real;
use crate::node_view::NodeView;
use crate::node_view::table::Row;

/// Maximum number of ranks; a command runs those of one node.
const MOST_RANKS: usize = 1_024;
/// Maximum number of phases of a rank: the four standard ones, and the job's own.
const MOST_PHASES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Training {
    ranks: BTreeMap<String, Rank>,
    /// The last phase that will not fit.
    fails: Option<Fit>,
}

#[derive(Debug, Default)]
struct Rank {
    /// The newest step.
    step: Option<f64>,
    steps: Span,
    tokens: Span,
    loss: Option<f64>,
    allocated_peak: Option<f64>,
    reserved_peak: Option<f64>,
    /// By convention.
    flops: BTreeMap<String, Paced>,
    mfu: BTreeMap<String, Paced>,
    phases: BTreeMap<String, Phase>,
}

/// First and last change of a total.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    first: Option<(f64, f64)>,
    last: Option<(f64, f64)>,
}

impl Span {
    fn take(&mut self, now: f64, total: f64) {
        if self.last.is_none_or(|(_, before)| total > before) {
            self.last = Some((now, total));
        }
        self.first = self.first.or(self.last);
    }

    /// Increase per second; absent before the first increase.
    fn rate(self) -> Option<f64> {
        let ((begun, before), (end, now)) = (self.first?, self.last?);
        (end > begun).then(|| (now - before) / (end - begun))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn take(&mut self, value: f64) {
        (self.sum, self.count) = (self.sum + value, self.count + 1.0);
    }

    fn value(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// A rate that is proportional to tokens per second, with those at the same times.
#[derive(Clone, Copy, Debug, Default)]
struct Paced {
    rate: Mean,
    tokens: Mean,
}

impl Paced {
    fn take(&mut self, value: f64, tokens: Option<f64>) {
        self.rate.take(value);
        tokens.into_iter().for_each(|tokens| self.tokens.take(tokens));
    }

    /// The rate at the mean tokens per second of the report, which is not the mean of what samples show: their windows
    /// also cover the time before training.
    fn value(self, tokens: Option<f64>) -> Option<f64> {
        let share = tokens.zip(self.tokens.value().filter(|mean| *mean > 0.0));
        self.rate.value().map(|rate| rate * share.map_or(1.0, |(tokens, mean)| tokens / mean))
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Phase {
    seconds: f64,
    count: f64,
    #[serde(rename = "allocated_peak_bytes")]
    peak: Option<f64>,
}

fn higher(known: &mut Option<f64>, value: f64) {
    *known = Some(known.map_or(value, |known| known.max(value)));
}

/// Whether both are about the same phase of a process on the same resource.
fn is_same(one: &Fit, other: &Fit) -> bool {
    let of = |fit: &Fit| {
        (fit.workload.clone(), fit.rank.clone(), fit.pid.clone(), fit.phase, fit.resource.clone())
    };
    of(one) == of(other)
}

impl Training {
    pub(super) fn take(&mut self, view: &NodeView, focus: &Focus, now: f64) {
        let fails =
            |fit: &&Fit| fit.verdict == Verdict::WillNotFit && focus.has_workload(fit.workload.as_str());
        // The rank of a phase that did not fit ends, and its phase is not judged any more.
        self.fails.take_if(|known| {
            let fits = |fit: &&Fit| matches!(fit.verdict, Verdict::Fits | Verdict::Tight);
            view.fits.iter().filter(fits).any(|fit| is_same(fit, known))
        });
        if let Some(fit) = view.fits.iter().find(fails) {
            self.fails = Some(fit.clone());
        }
        for (_, own) in view.ranks().filter(|(workload, _)| focus.has_workload(&workload.name)) {
            if self.ranks.len() >= MOST_RANKS && !self.ranks.contains_key(&own.rank) {
                continue;
            }
            let rank = self.ranks.entry(own.rank.clone()).or_default();
            rank.step = own.step.or(rank.step);
            rank.loss = own.loss.or(rank.loss);
            own.steps.into_iter().for_each(|steps| rank.steps.take(now, steps));
            own.tokens.into_iter().for_each(|tokens| rank.tokens.take(now, tokens));
            for at in &own.allocators {
                at.allocated_peak.into_iter().for_each(|peak| higher(&mut rank.allocated_peak, peak));
                at.reserved_peak.into_iter().for_each(|peak| higher(&mut rank.reserved_peak, peak));
            }
            for (convention, flops) in &own.flops {
                rank.flops.entry(convention.clone()).or_default().take(*flops, own.tokens_per_second);
            }
            for (convention, mfu) in &own.mfus {
                rank.mfu.entry(convention.clone()).or_default().take(*mfu, own.tokens_per_second);
            }
            for phase in &own.phases {
                if rank.phases.len() < MOST_PHASES || rank.phases.contains_key(&phase.name) {
                    let known = rank.phases.entry(phase.name.clone()).or_default();
                    (known.seconds, known.count) = (phase.seconds, phase.count);
                    phase.peak.into_iter().for_each(|peak| higher(&mut known.peak, peak));
                }
            }
        }
    }

    /// The last phase that will not fit, in words; absent where all fit, or where that is not known.
    pub(super) fn fails(&self) -> Option<&str> {
        self.fails.as_ref().map(|fit| fit.title.as_str())
    }

    /// Whether any rank reported data.
    pub(super) fn seen(&self) -> bool {
        !self.ranks.is_empty()
    }

    /// Adds the last step of each ended rank; returns whether all ranks have ended.
    pub(super) fn ended(&mut self, timeline: &Timeline) -> bool {
        let mut left = self.ranks.len();
        for entry in timeline.entries.iter().filter(|entry| entry.kind == EntryKind::End) {
            if let Some(rank) = self.ranks.get_mut(entry.rank.as_str()) {
                left = left.saturating_sub(1);
                entry.step.into_iter().for_each(|step| higher(&mut rank.step, real(step)));
            }
        }
        left == 0
    }

    /// Writes the training section of the text; nothing without reported data.
    pub(super) fn write_text(&self, out: &mut String, page: Page) {
        let Some(step) = self.step() else { return };
        out.push_str(&format!("  training: step {step:.0}, {}", format::counted(self.ranks.len(), "rank")));
        if let Some(seconds) = self.step_seconds() {
            out.push_str(&format!(", {} a step", short(seconds)));
        }
        if let Some(rate) = self.tokens_per_second() {
            out.push_str(&format!(", {rate:.0} tokens/s"));
        }
        // The text has one convention only.
        let counts = |convention: &&str| !self.flops().contains_key("full") || *convention == "full";
        for (convention, flops) in self.flops().into_iter().filter(|(convention, _)| counts(convention)) {
            out.push_str(&format!(", {} ({convention})", flops_text(flops)));
        }
        for (convention, mfu) in self.mfu().into_iter().filter(|(convention, _)| counts(convention)) {
            out.push_str(&format!(", MFU {} ({convention})", percent(mfu)));
        }
        if let Some(loss) = self.loss() {
            out.push_str(&format!(", loss {loss:.4}"));
        }
        out.push('\n');
        let phases = self.phases();
        let whole: f64 = phases.values().map(|phase| phase.seconds).sum();
        if whole > 0.0 {
            let mut rows = Vec::new();
            for (name, phase) in &phases {
                let mean = (phase.count > 0.0).then(|| phase.seconds / phase.count);
                let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
                rows.push(
                    Row::default()
                        .text("  phase", 0, format!("  {name}"))
                        .value("share", 0, Some(phase.seconds / whole), percent)
                        .value("total", 2, Some(phase.seconds), duration)
                        .value("mean", 1, mean, short)
                        .bytes("peak allocated", 0, phase.peak),
                );
            }
            text::rows(out, rows, page);
        }
        if let (Some(allocated), Some(reserved)) = (self.allocated_peak(), self.reserved_peak()) {
            let [allocated, reserved] = [allocated, reserved].map(bytes);
            out.push_str(&format!(
                "  allocator of the fullest rank: peak {allocated} allocated, {reserved} reserved\n"
            ));
        }
    }

    /// The training section as JSON; null without reported data.
    pub(super) fn json(&self) -> Value {
        if !self.seen() {
            return Value::Null;
        }
        json!({
            "ranks": self.ranks.len(),
            "step": self.step(),
            "step_seconds_mean": self.step_seconds(),
            "tokens_per_second": self.tokens_per_second(),
            "flops_per_second": self.flops(),
            "mfu_ratio": self.mfu(),
            "loss": self.loss(),
            "phases": self.phases(),
            "allocated_peak_bytes": self.allocated_peak(),
            "reserved_peak_bytes": self.reserved_peak(),
        })
    }

    /// The newest step; absent before the first one.
    pub(super) fn step(&self) -> Option<f64> {
        self.ranks.values().filter_map(|rank| rank.step).reduce(f64::max)
    }

    /// Seconds per step of the slowest rank, which the others wait for.
    fn step_seconds(&self) -> Option<f64> {
        let rates = self.ranks.values().filter_map(|rank| rank.steps.rate());
        rates.reduce(f64::min).filter(|rate| *rate > 0.0).map(|rate| 1.0 / rate)
    }

    fn tokens_per_second(&self) -> Option<f64> {
        self.ranks.values().filter_map(|rank| rank.tokens.rate()).reduce(|sum, rate| sum + rate)
    }

    /// Loss of the first rank that reports one: ranks may report the loss of their own samples.
    fn loss(&self) -> Option<f64> {
        self.ranks.values().find_map(|rank| rank.loss)
    }

    fn allocated_peak(&self) -> Option<f64> {
        self.ranks.values().filter_map(|rank| rank.allocated_peak).reduce(f64::max)
    }

    fn reserved_peak(&self) -> Option<f64> {
        self.ranks.values().filter_map(|rank| rank.reserved_peak).reduce(f64::max)
    }

    /// FLOP/s of all ranks, by convention.
    fn flops(&self) -> BTreeMap<&str, f64> {
        let mut sums = BTreeMap::new();
        for rank in self.ranks.values() {
            for (convention, paced) in &rank.flops {
                let own = paced.value(rank.tokens.rate()).unwrap_or_default();
                *sums.entry(convention.as_str()).or_default() += own;
            }
        }
        sums
    }

    /// Mean MFU over the ranks, by convention.
    fn mfu(&self) -> BTreeMap<&str, f64> {
        let mut means: BTreeMap<&str, Mean> = BTreeMap::new();
        for rank in self.ranks.values() {
            for (convention, paced) in &rank.mfu {
                if let Some(value) = paced.value(rank.tokens.rate()) {
                    means.entry(convention).or_default().take(value);
                }
            }
        }
        means.into_iter().filter_map(|(convention, mean)| Some((convention, mean.value()?))).collect()
    }

    /// Phases, summed over all ranks.
    fn phases(&self) -> BTreeMap<String, Phase> {
        let mut all: BTreeMap<String, Phase> = BTreeMap::new();
        for (name, phase) in self.ranks.values().flat_map(|rank| &rank.phases) {
            let own = all.entry(name.clone()).or_default();
            (own.seconds, own.count) = (own.seconds + phase.seconds, own.count + phase.count);
            phase.peak.into_iter().for_each(|peak| higher(&mut own.peak, peak));
        }
        all
    }
}

/// Formats the seconds of a step with three significant digits.
fn short(seconds: f64) -> String {
    let (amount, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s if s < 1e3 => (s, "s"),
        s => return duration(s),
    };
    let digits = if amount < 10.0 { 2 } else { usize::from(amount < 100.0) };
    format!("{amount:.digits$} {unit}")
}

fn flops_text(flops: f64) -> String {
    let (amount, unit) = [(1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s")]
        .into_iter()
        .find(|(size, _)| flops >= *size)
        .unwrap_or((1e6, "MFLOP/s"));
    format!("{:.1} {unit}", flops / amount)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::timeline::Entry;
    use crate::node_view::Workload;
    use expect_test::expect;

    fn after(seconds: u32) -> NodeView {
        let n = f64::from(seconds);
        let phase = crate::node_view::Phase {
            name: "forward".to_owned(),
            seconds: 0.25 * n,
            count: 10.0 * n,
            peak: Some(1e9),
        };
        let rank = crate::node_view::Rank {
            rank: "0".to_owned(),
            step: Some(10.0 * n),
            steps: Some(10.0 * n),
            tokens: Some(1000.0 * n),
            loss: Some(2.5),
            flops: vec![("full".to_owned(), 2e12)],
            mfus: vec![("full".to_owned(), 0.42)],
            phases: vec![phase],
            ..crate::node_view::Rank::default()
        };
        let run = Workload { name: "run".to_owned(), ranks: vec![rank], ..Workload::default() };
        NodeView { workloads: vec![run], ..NodeView::default() }
    }

    #[test]
    fn a_recorded_incident_is_shown() {
        let mut training = Training::default();
        let focus = Focus { workloads: ["run".to_owned()].into(), ..Focus::default() };
        for second in 1..=5 {
            training.take(&after(second), &focus, f64::from(second));
        }
        // Nothing changes, and then the rank is gone.
        training.take(&after(5), &focus, 9.0);
        training.take(&NodeView::default(), &focus, 10.0);
        let mut text = String::new();
        training.write_text(&mut text, Page::default());
        let lines: Vec<&str> = text.lines().map(|line| line.strip_prefix("  ").unwrap()).collect();
        expect![[r#"
            training: step 50, 1 rank, 100 ms a step, 1000 tokens/s, 2.0 TFLOP/s (full), MFU 42 % (full), loss 2.5000
              phase    share  total     mean  peak allocated
              forward  100 %  1.2 s  25.0 ms       953.7 MiB"#]]
        .assert_eq(&lines.join("\n"));
        let entry = Entry {
            kind: EntryKind::End,
            workload: "run".into(),
            rank: "0".into(),
            pid: 7,
            step: Some(53),
            ..Entry::default()
        };
        assert!(!training.ended(&Timeline::default()));
        assert!(training.ended(&Timeline { entries: vec![entry.into()], forgotten: 0 }));
        assert_eq!(training.json()["step"], 53.0);
        assert_eq!(training.json()["flops_per_second"]["full"], 2e12);
    }

    #[test]
    fn operations_and_tokens_of_a_report_agree() {
        let mut training = Training::default();
        // The window of the first samples begins before training.
        for (second, shown) in [(1_u32, 500.0), (2, 900.0), (3, 1000.0)] {
            let mut view = after(second);
            let rank = &mut view.workloads[0].ranks[0];
            rank.tokens_per_second = Some(shown);
            (rank.flops, rank.mfus) =
                (vec![("full".to_owned(), shown * 6e9)], vec![("full".to_owned(), shown * 4e-4)]);
            training.take(&view, &Focus::default(), f64::from(second));
        }
        assert_eq!(training.json()["tokens_per_second"], 1000.0);
        let close = |key: &str, expected: f64| {
            let found = training.json()[key]["full"].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() < 1e-9, "{key}: {found}");
        };
        close("flops_per_second", 6e12);
        close("mfu_ratio", 0.4);
    }

    #[test]
    fn other_targets_are_left_out_and_nothing_is_invented() {
        let mut training = Training::default();
        let focus = Focus { workloads: ["other".to_owned()].into(), ..Focus::default() };
        training.take(&after(1), &focus, 1.0);
        let mut text = String::new();
        training.write_text(&mut text, Page::default());
        assert_eq!((text.as_str(), training.json(), training.seen()), ("", Value::Null, false));
        // One sample is no rate.
        training.take(&after(1), &Focus::default(), 1.0);
        assert_eq!(training.json()["tokens_per_second"], Value::Null);
        assert_eq!(training.json()["reserved_peak_bytes"], Value::Null);
    }
}
