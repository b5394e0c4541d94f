//! `history` and `compare`: the past runs of commands, and how the memory of two of them differs.

use std::fmt::Write as _;

use serde::Serialize;

use super::text::{self, Page};
use crate::model::fit::{Medium, Phase};
use crate::model::format;
use crate::model::health::Health;
use crate::model::printable::escaped;
use crate::model::units::real;
use crate::node_view::table::{Cell, Row};
use crate::past_runs::{LIVES, LifePeak, Outcome, PastRun, ShownRun, ShownRuns};

/// The past runs as text, the newest first.
pub fn past_runs_text(shown: &ShownRuns, page: Page) -> String {
    if shown.runs.is_empty() {
        return "No past run is known: memwarden remembers runs that report over the job socket.\n"
            .to_owned();
    }
    let row = |run: &ShownRun| {
        let (command, past) = (&run.command, &run.past);
        let health = match &past.outcome {
            end if end.cause.is_memory() => Health::Critical,
            end if end.is_death() => Health::Warning,
            _ => Health::Ok,
        };
        let phase = escaped(past.outcome.phase.as_str()).into_owned();
        let life = |resource: Medium| past.life_peaks.iter().find(|life| life.resource == resource);
        let peak = |resource: Medium| {
            let own = past.peaks.iter().filter(|peak| peak.resource == resource).map(|peak| peak.bytes);
            own.chain(life(resource).map(|life| life.bytes)).max().map(real)
        };
        let growth = life(Medium::Host).and_then(|life| life.growth_bytes).map(real);
        Row::new(past.number.to_string(), health)
            .number("run", 0, past.number.to_string())
            .text("ended", 1, format::timestamp(past.ended_unix_seconds))
            .number("user", 4, command.user_id.to_string())
            .text("script", 0, command.script.as_str())
            .text("arguments", 3, command.arguments_hash.as_str())
            .value("last step", 0, past.step.map(real), format::whole)
            .text("end", 0, Cell::text(past.outcome.words()).of(health))
            .text("phase", 2, phase)
            .bytes("GPU peak", 1, peak(Medium::Device))
            .bytes("host peak", 2, peak(Medium::Host))
            .bytes("host growth", 5, growth)
            .bytes("per token", 5, past.bytes_per_token)
    };
    let mut out = "Past runs\n".to_owned();
    text::rows(&mut out, shown.runs.iter().map(row), page);
    out
}

/// Name of the memory for each token, which is estimated and not measured in each run.
const PER_TOKEN: &str = "bytes_per_token";

/// Name of the memory over the whole life of a process.
const WHOLE_RUN: &str = "run";

/// Two values of the same quantity.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Difference {
    /// `PHASE/RESOURCE`, `run/RESOURCE` for the whole run, `growth/RESOURCE`, or `bytes_per_token`.
    what: String,
    /// In the first run, in bytes; absent where it did not measure it.
    before_bytes: Option<f64>,
    /// In the second run.
    after_bytes: Option<f64>,
    /// The second over the first, minus 1.
    change_ratio: Option<f64>,
    /// Whether the second run takes more than the tolerance allows; never for `bytes_per_token`.
    regression: bool,
    /// Whether the first run measured this phase and the second did not.
    missing: bool,
}

/// How the memory of two runs differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunComparison {
    /// Grows when a key changes its meaning or disappears.
    schema_version: u32,
    /// The numbers of the runs.
    runs: [u64; 2],
    /// How much more the second run may take, as a share of the first.
    tolerance_ratio: f64,
    /// Whether both are runs of the same script and have the same number of ranks and shape of the model.
    same_command: bool,
    /// How they ended.
    ends: [Outcome; 2],
    differences: Vec<Difference>,
}

impl RunComparison {
    /// The differences of the second run from the first.
    pub fn of(before: &ShownRun, after: &ShownRun, tolerance: f64) -> Self {
        let peak = |run: &PastRun, phase: Phase, resource: Medium| {
            let own = run.peaks.iter().find(|peak| peak.phase == phase && peak.resource == resource);
            own.map(|peak| real(peak.bytes))
        };
        let all = Phase::ALL.iter().flat_map(|phase| Medium::ALL.iter().map(move |medium| (*phase, *medium)));
        let peaks = all.map(|(phase, resource)| {
            let [one, other] = [before, after].map(|run| peak(&run.past, phase, resource));
            (format!("{phase}/{resource}"), one, other)
        });
        let life = |run: &PastRun, resource: Medium| {
            run.life_peaks.iter().copied().find(|life| life.resource == resource)
        };
        let lives = LIVES.into_iter().map(|resource| {
            let [one, other] =
                [before, after].map(|run| life(&run.past, resource).map(|life| real(life.bytes)));
            (format!("{WHOLE_RUN}/{resource}"), one, other)
        });
        let per_token = (PER_TOKEN.to_owned(), before.past.bytes_per_token, after.past.bytes_per_token);
        let known =
            peaks.chain(lives).chain([per_token]).filter(|(_, one, other)| one.is_some() || other.is_some());
        let differences = known.map(|(what, before_bytes, after_bytes)| {
            let both = before_bytes.zip(after_bytes);
            Difference {
                missing: what != PER_TOKEN
                    && !what.starts_with(WHOLE_RUN)
                    && before_bytes.is_some()
                    && after_bytes.is_none(),
                // The memory for each token is a slope over few steps, which differs between equal runs.
                regression: what != PER_TOKEN
                    && both.is_some_and(|(one, other)| other > one * (1.0 + tolerance)),
                what,
                before_bytes,
                after_bytes,
                change_ratio: both.filter(|(one, _)| *one > 0.0).map(|(one, other)| other / one - 1.0),
            }
        });
        let grown = LIVES.into_iter().filter_map(|resource| {
            let [one, other] = [before, after].map(|run| life(&run.past, resource));
            let grown = |life: Option<LifePeak>| Some(real(life?.growth_bytes?));
            let (before_bytes, after_bytes) = (grown(one), grown(other));
            before_bytes.or(after_bytes)?;
            // A share of the growth means little: it is compared with the memory of the first run.
            let allowed = real(one.map_or(0, |life| life.bytes)) * tolerance;
            let both = before_bytes.zip(after_bytes);
            Some(Difference {
                what: format!("growth/{resource}"),
                before_bytes,
                after_bytes,
                change_ratio: None,
                regression: both.is_some_and(|(one, other)| other > one + allowed),
                missing: false,
            })
        });
        let shape = |run: &ShownRun| {
            let own = &run.command;
            (own.script.clone(), own.world_size, own.parameters, own.trainable)
        };
        Self {
            schema_version: 1,
            runs: [before.past.number, after.past.number],
            tolerance_ratio: tolerance,
            same_command: shape(before) == shape(after),
            ends: [before, after].map(|run| run.past.outcome.clone()),
            differences: differences.chain(grown).collect(),
        }
    }

    /// Whether only the second run ended for lack of memory.
    fn dies(&self) -> bool {
        let [before, after] = self.ends.each_ref().map(|outcome| outcome.cause);
        after.is_memory() && !before.is_memory()
    }

    /// 1 where the second run takes more than the tolerance allows, or it alone ended for lack of memory; else 2 where nothing
    /// was measured in both, or a phase of the first run was not measured in the second; else 0.
    pub fn exit_code(&self) -> u8 {
        let is_compared = |own: &Difference| own.before_bytes.and(own.after_bytes).is_some();
        if self.dies() || self.differences.iter().any(|own| own.regression) {
            1
        } else if !self.differences.iter().any(is_compared) || self.differences.iter().any(|own| own.missing)
        {
            2
        } else {
            0
        }
    }

    pub fn text(&self, page: Page) -> String {
        let mut out = String::new();
        let [before, after] = self.runs;
        let verdict = match self.exit_code() {
            0 => format!("takes no more than run {before}"),
            1 if self.dies() => format!("ended for lack of memory, and run {before} did not"),
            1 => format!("takes more than run {before}"),
            _ if self.differences.iter().any(|own| own.missing) => {
                format!("cannot be compared with run {before}: it did not measure every phase of that run")
            }
            _ => format!("cannot be compared with run {before}: no phase was measured in both"),
        };
        // Writing to a text cannot fail.
        let tolerance = format::percent(self.tolerance_ratio);
        let _ = writeln!(out, "Run {after} {verdict} (tolerance {tolerance}).");
        let [first, second] = self.ends.each_ref().map(Outcome::words);
        let _ = writeln!(out, "Ends: run {before} {first}; run {after} {second}.");
        if !self.same_command {
            let _ = writeln!(out, "The runs are of different scripts, models or numbers of ranks.");
        }
        let rows = self.differences.iter().map(|own| {
            let health = if own.regression { Health::Warning } else { Health::Ok };
            let change = own.change_ratio.map(|change| {
                let sign = if change < 0.0 { "−" } else { "+" };
                format!("{sign}{}", format::percent(change.abs()))
            });
            Row::new(own.what.clone(), health)
                .text("", 0, escaped(&own.what).into_owned())
                .bytes("before", 0, own.before_bytes)
                .bytes("after", 0, own.after_bytes)
                .number("change", 0, Cell::text(change.unwrap_or_default()).of(health))
        });
        text::rows(&mut out, rows, page);
        out
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::model::ends::EndCause;
    use crate::past_runs::{Command, PhasePeak};

    fn run(number: u64, peaks: &[(Phase, Medium, u64)], per_token: Option<f64>) -> ShownRun {
        let peaks = peaks.iter().map(|(phase, resource, gib)| PhasePeak {
            phase: *phase,
            resource: *resource,
            bytes: gib << 30,
        });
        ShownRun {
            command: Command {
                user_id: 1000,
                script: "train.py".into(),
                arguments_hash: "0123456789abcdef".into(),
                world_size: 8,
                parameters: Some(7),
                trainable: Some(7),
            },
            past: PastRun {
                number,
                run: "sft".into(),
                ranks: 8,
                started_unix_seconds: 0.0,
                ended_unix_seconds: 1_700_000_000.0,
                step: Some(261),
                outcome: Outcome { resource: Some(Medium::Device), ..EndCause::GpuMemory.into() },
                peaks: peaks.collect(),
                life_peaks: Vec::new(),
                bytes_per_token: per_token,
            },
        }
    }

    #[test]
    fn a_run_is_compared_within_a_tolerance() {
        let before =
            run(1, &[(Phase::Step, Medium::Device, 60), (Phase::Save, Medium::Host, 40)], Some(1000.0));
        let of = |gib: u64, per_token: f64| {
            let peaks = [(Phase::Step, Medium::Device, gib), (Phase::Save, Medium::Host, 40)];
            RunComparison::of(&before, &run(2, &peaks, Some(per_token)), 0.05)
        };
        let same = of(60, 1000.0).text(Page::default());
        assert!(same.starts_with("Run 2 takes no more than run 1"), "{same}");
        assert_eq!([of(63, 1000.0), of(64, 1000.0), of(50, 4000.0)].map(|own| own.exit_code()), [0, 1, 0]);
        let nothing = RunComparison::of(
            &run(1, &[(Phase::Step, Medium::Device, 1)], Some(1.0)),
            &run(2, &[(Phase::Save, Medium::Device, 1)], None),
            0.05,
        );
        assert_eq!(nothing.exit_code(), 2);
        expect![[r#"
            Run 2 takes more than run 1 (tolerance 5.0 %).
            Ends: run 1 out of GPU memory; run 2 out of GPU memory.
                                 before     after  change
              step/device      60.0 GiB  66.0 GiB   +10 %
              save/host        40.0 GiB  40.0 GiB    +0 %
              bytes_per_token    1000 B     500 B   −50 %
        "#]]
        .assert_eq(&of(66, 500.0).text(Page::default()));
    }

    #[test]
    fn a_run_that_died_or_did_not_reach_a_phase_is_not_said_to_take_no_more() {
        let all = [(Phase::Step, Medium::Device, 60), (Phase::Save, Medium::Host, 40)];
        let of = |ends: [EndCause; 2], peaks: &[(Phase, Medium, u64)]| {
            let [before, after] = [(1, &all[..]), (2, peaks)].map(|(number, peaks)| run(number, peaks, None));
            let [before, after] = [(before, ends[0]), (after, ends[1])]
                .map(|(run, end)| ShownRun { past: PastRun { outcome: end.into(), ..run.past }, ..run });
            RunComparison::of(&before, &after, 0.05)
        };
        for end in [EndCause::GpuMemory, EndCause::OomKill] {
            assert_eq!(of([EndCause::Finished, end], &all).exit_code(), 1);
            assert_eq!(of([end, EndCause::Finished], &all).exit_code(), 0);
            assert_eq!(of([end, end], &all).exit_code(), 0);
        }
        let short = of([EndCause::Finished, EndCause::Unknown], &all[..1]);
        assert_eq!(short.exit_code(), 2);
        assert!(short.text(Page::default()).contains("it did not measure every phase"));
        expect![[r#"
            Run 2 ended for lack of memory, and run 1 did not (tolerance 5.0 %).
            Ends: run 1 finished; run 2 killed by the OOM killer.
                             before     after  change
              step/device  60.0 GiB  60.0 GiB    +0 %
              save/host    40.0 GiB         –       –
        "#]]
        .assert_eq(&of([EndCause::Finished, EndCause::OomKill], &all[..1]).text(Page::default()));
    }

    #[test]
    fn a_leak_outside_of_the_measured_steps_is_a_regression() {
        let with = |number: u64, gib: u64, growth: u64| {
            let mut own = run(number, &[(Phase::Step, Medium::Host, 10)], None);
            let life =
                LifePeak { resource: Medium::Host, bytes: gib << 30, growth_bytes: Some(growth << 30) };
            own.past.outcome = EndCause::Finished.into();
            own.past.life_peaks = vec![life];
            own
        };
        let of = |gib: u64, growth: u64| RunComparison::of(&with(1, 20, 1), &with(2, gib, growth), 0.05);
        assert_eq!([of(20, 1), of(21, 2), of(22, 1), of(20, 3)].map(|own| own.exit_code()), [0, 0, 1, 1]);
        expect![[r#"
            Run 2 takes more than run 1 (tolerance 5.0 %).
            Ends: run 1 finished; run 2 finished.
                             before     after  change
              step/host    10.0 GiB  10.0 GiB    +0 %
              run/host     20.0 GiB  31.0 GiB   +55 %
              growth/host   1.0 GiB  12.0 GiB       –
        "#]]
        .assert_eq(&of(31, 12).text(Page::default()));
        // An older record has no such peak.
        let mut older = with(1, 0, 0);
        older.past.life_peaks.clear();
        assert_eq!(RunComparison::of(&with(2, 31, 12), &older, 0.05).exit_code(), 0);
    }

    #[test]
    fn past_runs_are_listed() {
        let runs = vec![run(2, &[(Phase::Step, Medium::Device, 60), (Phase::Save, Medium::Host, 40)], None)];
        expect![[r#"
            Past runs
              run  ended                 user  script    arguments         last step  end                phase  GPU peak  host peak  host growth  per token
                2  2023-11-14T22:13:20Z  1000  train.py  0123456789abcdef        261  out of GPU memory  –      60.0 GiB   40.0 GiB            –          –
        "#]]
        .assert_eq(&past_runs_text(&ShownRuns { schema_version: 1, runs }, Page::default()));
        let none = past_runs_text(&ShownRuns { schema_version: 1, runs: Vec::new() }, Page::default());
        assert!(none.starts_with("No past run is known"), "{none}");
    }
}
