//! The rank of a workload that the others wait for, and the one with the most allocated memory.

use std::collections::BTreeMap;

use super::lasting::{Lasting, mean};
use super::metrics;
use super::spread::Spread;
use crate::analyzers::imbalance::{REGISTRATION, UNEVEN};
use crate::analyzers::ranks;
use crate::model::analyzer::{Analysis, View};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::format;
use crate::model::label::Label;
use crate::model::point::Point;
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag, Ratio, whole};
use crate::sources::training::metrics::{ALLOCATED, PHASE_SECONDS, STEP, STEP_LAST};

/// Minimum excess of the slowest rank's step time over the mean for a finding; also the minimum difference in waiting
/// for data.
const SLOW: f64 = 0.1;
/// Minimum delay of a rank in seconds, so that ranks that report at different times are not counted.
const BEHIND: f64 = 10.0;
/// Minimum delay of a rank in steps.
const STEPS_BEHIND: f64 = 3.0;
/// The phase in which a rank waits for data, while the others wait for this rank.
const LOADER: &str = "loader";

/// State of the ranks.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    known: BTreeMap<[Label; 2], RankMeans>,
    last: Option<f64>,
    uneven: Lasting,
}

/// A rank, and the finding of it without its subject.
type RankFinding = (Label, Finding);

/// Means of one rank over a minute.
#[derive(Clone, Copy, Debug, Default)]
struct RankMeans {
    /// Mean seconds per step.
    step: Option<f64>,
    /// Mean share of the time that it waited for data.
    loader: Option<f64>,
    /// Last reported total of the waiting time, in seconds.
    loader_seconds: Option<f64>,
}

/// The values of a rank in this tick.
#[derive(Clone, Debug, Default)]
struct RankValues {
    rank: Label,
    step: Option<f64>,
    step_seconds: Option<f64>,
    loader: Option<f64>,
    allocated: Option<f64>,
}

impl Ranks {
    /// Compares the ranks of each run of a workload; adds metrics and findings.
    pub(super) fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let at = now.monotonic().as_secs_f64();
        let passed = self.last.replace(at).map_or(0.0, |last| (at - last).max(0.0));
        let groups = self.members(view, passed);
        let pids = ranks::pids(view);
        self.uneven.begin();
        for (group, members) in groups.iter().filter(|(_, members)| members.len() > 1) {
            let workload = &group[0];
            let mut found = self.steps(group, members, now, out);
            found.extend(self.memory(group, members, now, out));
            // A rank that is slow for several reasons gets one finding, for the first of them.
            let mut reported: Vec<Label> = Vec::new();
            for (rank, finding) in found {
                if !reported.contains(&rank) {
                    let pid = pids.get(&[workload, &rank]).copied().cloned().unwrap_or_default();
                    out.findings.push(Finding { subject: Subject::rank(workload, &pid), ..finding });
                    reported.push(rank);
                }
            }
        }
    }

    /// The ranks that train together, by workload and run.
    fn members(&mut self, view: &View<'_>, passed: f64) -> BTreeMap<[Label; 2], Vec<RankValues>> {
        let runs = ranks::runs(view);
        let mut found: BTreeMap<[Label; 2], RankValues> = BTreeMap::new();
        let key = |point: &Point| [point.labels[0].clone(), point.labels[1].clone()];
        for point in view.points(&STEP) {
            found.entry(key(point)).or_default().step = Some(point.value);
        }
        for point in view.points(&STEP_LAST) {
            found.entry(key(point)).or_default().step_seconds = Some(point.value);
        }
        for point in view.points(&PHASE_SECONDS).iter().filter(|point| point.labels[2].as_str() == LOADER) {
            found.entry(key(point)).or_default().loader = Some(point.value);
        }
        for point in view.points(&ALLOCATED) {
            // Of several devices, the one with the most allocated memory counts.
            let member = found.entry(key(point)).or_default();
            member.allocated = Some(member.allocated.map_or(point.value, |known| known.max(point.value)));
        }
        self.known.retain(|key, _| found.contains_key(key));
        let mut groups: BTreeMap<[Label; 2], Vec<RankValues>> = BTreeMap::new();
        for ([workload, rank], mut member) in found {
            let run = runs.get(&[&workload, &rank]).copied().cloned();
            let known = self.known.entry([workload.clone(), rank.clone()]).or_default();
            member.step_seconds = known.follow_steps(member.step_seconds, passed);
            member.loader = known.follow_loader(member.loader, passed);
            member.rank = rank;
            if let Some(run) = run {
                groups.entry([workload, run]).or_default().push(member);
            }
        }
        groups
    }

    fn steps(
        &mut self,
        group: &[Label; 2],
        members: &[RankValues],
        now: Timestamp,
        out: &mut Analysis,
    ) -> Vec<RankFinding> {
        let mut found = Vec::new();
        let [workload, run] = group;
        // Only if every rank has a value: a rank without one could be the slowest.
        let each = |of: fn(&RankValues) -> Option<f64>| {
            let all: Option<Vec<f64>> = members.iter().map(of).collect();
            all.and_then(|all| Some((Spread::of(&all)?, all)))
        };
        if let Some((spread, _)) = each(|member| member.step_seconds) {
            let slowest = &members[spread.largest].rank;
            out.batch.put_some(&metrics::STEP_SPREAD, group, Ratio::new(spread.above));
            out.batch.put(&metrics::SLOWEST, &[workload.clone(), run.clone(), slowest.clone()], Flag(true));
            if let Some(since) = self.uneven.since(group, "slow", spread.above >= SLOW, now) {
                let how = format!("takes {} longer per step than the mean", format::percent(spread.above));
                let evidence = vec![
                    Evidence { what: "step_spread_ratio", value: spread.above },
                    Evidence { what: "mean_step_seconds", value: spread.mean },
                ];
                found.push(straggler(workload, slowest, &how, since, evidence));
            }
        }
        // Synchronous ranks all take as long as the slowest: the rank that waits for data delays the others.
        if let Some((spread, waits)) = each(|member| member.loader) {
            let most = waits[spread.largest];
            let apart = most - waits[spread.least];
            out.batch.put_some(&metrics::LOADER_SPREAD, group, Ratio::new(apart));
            if let Some(since) = self.uneven.since(group, "loader", apart >= SLOW, now) {
                let how = format!("waits {} of its time for data", format::percent(most));
                let evidence = vec![Evidence { what: "loader_spread_ratio", value: apart }];
                found.push(straggler(workload, &members[spread.largest].rank, &how, since, evidence));
            }
        }
        if let Some((behind, last)) = behind(members) {
            out.batch.put(&metrics::BEHIND, group, Count(whole(behind)));
            let seconds = last.step_seconds.map(|seconds| behind * seconds);
            let late = behind >= STEPS_BEHIND && seconds.is_some_and(|seconds| seconds >= BEHIND);
            if let Some(since) = self.uneven.since(group, "behind", late, now) {
                let how = format!("is {behind:.0} steps behind the most advanced rank");
                let evidence = vec![Evidence { what: "behind_steps", value: behind }];
                found.push(straggler(workload, &last.rank, &how, since, evidence));
            }
        }
        found
    }

    fn memory(
        &mut self,
        group: &[Label; 2],
        members: &[RankValues],
        now: Timestamp,
        out: &mut Analysis,
    ) -> Option<RankFinding> {
        let used: Vec<f64> = members.iter().map(|member| member.allocated).collect::<Option<_>>()?;
        let spread = Spread::of(&used)?;
        let fullest = &members[spread.largest].rank;
        let [workload, run] = group;
        out.batch.put_some(&metrics::RANK_SPREAD, group, Ratio::new(spread.above));
        out.batch.put(&metrics::FULLEST_RANK, &[workload.clone(), run.clone(), fullest.clone()], Flag(true));
        let since = self.uneven.since(group, "memory", spread.above >= UNEVEN, now)?;
        let share = format::percent(spread.above);
        let finding = Finding {
            analyzer: REGISTRATION.name,
            subject: Subject::default(),
            state: "uneven",
            severity: Severity::Info,
            since_unix_seconds: since,
            summary: format!(
                "Rank {fullest} of {workload} has {share} more memory allocated than the mean of its ranks."
            ),
            evidence: vec![
                Evidence { what: "rank_spread_ratio", value: spread.above },
                Evidence { what: "mean_allocated_bytes", value: spread.mean },
            ],
            advice: "Move layers, shards or micro-batches off the fullest rank; pipelines are uneven by design.",
        };
        Some((fullest.clone(), finding))
    }
}

impl RankMeans {
    fn follow_steps(&mut self, seconds: Option<f64>, passed: f64) -> Option<f64> {
        self.step = seconds.map(|seconds| mean(self.step, seconds, passed));
        self.step
    }

    /// The share of its time that a rank waits for data, from the total that it reports.
    fn follow_loader(&mut self, total: Option<f64>, passed: f64) -> Option<f64> {
        let before = std::mem::replace(&mut self.loader_seconds, total);
        let waited = total.zip(before).map(|(now, before)| now - before);
        let share = waited.filter(|waited| *waited >= 0.0 && passed > 0.0).map(|waited| waited / passed);
        if total.is_some() && share.is_none() {
            return self.loader;
        }
        self.loader = share.map(|share| mean(self.loader, share, passed));
        // A long wait is reported when it ends, and then exceeds the time since the last report.
        self.loader.map(|share| share.min(1.0))
    }
}

/// How many steps the last rank is behind the most advanced one, and which rank it is; absent if any rank reports no
/// step.
fn behind(members: &[RankValues]) -> Option<(f64, &RankValues)> {
    let mut steps = members.iter().map(|member| Some((member.step?, member)));
    let first = steps.next()??;
    let (mut front, mut last) = (first.0, first);
    for each in steps {
        let (step, member) = each?;
        front = front.max(step);
        if step < last.0 {
            last = (step, member);
        }
    }
    Some((front - last.0, last.1))
}

fn straggler(workload: &Label, rank: &Label, how: &str, since: f64, evidence: Vec<Evidence>) -> RankFinding {
    let finding = Finding {
        analyzer: REGISTRATION.name,
        subject: Subject::default(),
        state: "straggler",
        severity: Severity::Warning,
        since_unix_seconds: since,
        summary: format!("Rank {rank} of {workload} {how}."),
        evidence,
        advice: "Check the clocks and throttling of its GPU, its input pipeline, and other processes on its CPUs.",
    };
    (rank.clone(), finding)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::desc::Metric;
    use crate::model::point::Batch;
    use crate::model::units::{Bytes, Seconds};
    use crate::sources::training::metrics::INFO;

    /// One rank: steps a second, seconds of waiting for data a second, GiB.
    type Rank = (f64, f64, u64);

    /// Three minutes of the ranks of one run; the findings and the values of the last second.
    fn say(ranks: &[Rank]) -> (Vec<String>, Vec<String>) {
        let world = ranks.len().to_string();
        say_of(&ranks.iter().map(|rank| (*rank, "r", world.as_str())).collect::<Vec<_>>())
    }

    /// The information of a rank of a run with this world size.
    pub(in crate::analyzers::imbalance) fn meet(
        batch: &mut Batch,
        labels: &[Label; 2],
        run: &str,
        world: &str,
    ) {
        let label = |name: &&str| match *name {
            "workload" => labels[0].clone(),
            "rank" => labels[1].clone(),
            "run" => run.into(),
            "world" => world.into(),
            _ => Label::default(),
        };
        batch.put(&INFO, &INFO.desc.labels.iter().map(label).collect::<Vec<_>>(), Flag(true));
    }

    /// The same of ranks with the run and the world size of each.
    fn say_of(ranks: &[(Rank, &str, &str)]) -> (Vec<String>, Vec<String>) {
        let mut analyzer = Ranks::default();
        let mut last = Analysis::default();
        for second in 0..180_u32 {
            let mut batch = Batch::new();
            for (rank, ((pace, loader, allocated), run, world)) in ranks.iter().enumerate() {
                let labels: [Label; 2] = ["sft".into(), rank.to_string().as_str().into()];
                meet(&mut batch, &labels, run, world);
                batch.put(&STEP, &labels, Count(whole(f64::from(second) * pace)));
                batch.put_some(&STEP_LAST, &labels, Seconds::new(1.0 / pace));
                let waited = Seconds::new(f64::from(second) * loader);
                batch.put_some(
                    &PHASE_SECONDS,
                    &[labels[0].clone(), labels[1].clone(), LOADER.into()],
                    waited,
                );
                let place = [labels[0].clone(), labels[1].clone(), "0".into(), "".into()];
                batch.put(&ALLOCATED, &place, Bytes::new(allocated << 30));
            }
            last = Analysis::default();
            analyzer.analyze(&View::new(batch.families()), Timestamp::from_secs(second.into()), &mut last);
        }
        let findings = last.findings.iter().map(|finding| format!("{}: {}", finding.state, finding.summary));
        let (families, ..) = last.batch.seal();
        let shown = families.iter().flat_map(|family| {
            let name = family.desc.name.trim_start_matches("memwarden_imbalance_");
            family.points.iter().map(move |point| {
                format!("{name} {} {:.2}", point.labels[point.labels.len() - 1], point.value)
            })
        });
        (findings.collect(), shown.collect())
    }

    #[test]
    fn even_ranks_and_a_single_one_have_no_finding() {
        assert!(say(&[(2.0, 0.02, 40); 4]).0.is_empty());
        let (findings, shown) = say(&[(2.0, 0.5, 40)]);
        assert!(findings.is_empty() && shown.is_empty(), "{shown:?}");
    }

    #[test]
    fn ranks_are_compared_within_their_run() {
        // A sweep: three processes of one workload, each a world of its own, under one name or several.
        for names in [["r"; 3], ["a", "b", "c"]] {
            let sweep = [(5.0, 0.02, 70), (2.0, 0.4, 30), (1.0, 0.02, 10)];
            let sweep: Vec<_> = sweep.into_iter().zip(names).map(|(rank, name)| (rank, name, "1")).collect();
            let (findings, shown) = say_of(&sweep);
            assert!(findings.is_empty() && shown.is_empty(), "{findings:?} {shown:?}");
        }
        let (slow, fast) = ((1.0, 0.02, 10), (5.0, 0.02, 70));
        let (findings, shown) =
            say_of(&[(slow, "a", "2"), (slow, "a", "2"), (fast, "b", "2"), (fast, "b", "2")]);
        assert!(findings.is_empty(), "{findings:?}");
        assert!(shown.contains(&"steps_behind a 0.00".to_owned()), "{shown:?}");
        assert!(shown.contains(&"steps_behind b 0.00".to_owned()), "{shown:?}");
    }

    #[test]
    fn the_slowest_the_one_that_waits_and_the_fullest_are_named() {
        let (findings, shown) = say(&[(2.0, 0.02, 40), (2.0, 0.02, 40), (1.6, 0.02, 40)]);
        assert_eq!(findings, ["straggler: Rank 2 of sft takes 15 % longer per step than the mean."]);
        assert!(shown.contains(&"steps_behind r 72.00".to_owned()), "{shown:?}");
        let (findings, _) = say(&[(2.0, 0.02, 40), (2.0, 0.4, 40)]);
        assert_eq!(findings, ["straggler: Rank 1 of sft waits 40 % of its time for data."]);
        let (findings, _) = say(&[(2.0, 0.02, 70), (2.0, 0.02, 30)]);
        assert_eq!(
            findings,
            ["uneven: Rank 0 of sft has 40 % more memory allocated than the mean of its ranks."]
        );
    }

    #[test]
    fn a_rank_that_makes_no_steps_is_behind() {
        let mut analyzer = Ranks::default();
        let mut last = Analysis::default();
        for second in 0..300_u32 {
            let mut batch = Batch::new();
            for rank in ["0", "1"] {
                let labels: [Label; 2] = ["sft".into(), rank.into()];
                meet(&mut batch, &labels, "r", "2");
                let step = if rank == "1" { second.min(100) } else { second };
                batch.put(&STEP, &labels, Count(whole(step.into())));
                batch.put_some(&STEP_LAST, &labels, Seconds::new(1.0));
            }
            last = Analysis::default();
            analyzer.analyze(&View::new(batch.families()), Timestamp::from_secs(second.into()), &mut last);
        }
        assert_eq!(last.findings[0].summary, "Rank 1 of sft is 199 steps behind the most advanced rank.");
        assert!(metrics::BEHIND.desc().name.ends_with("steps_behind"));
    }
}
