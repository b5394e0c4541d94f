//! The memory that ran short and the job, at the beginning of an incident, from the newest frames and the guard's reading.

use std::sync::Arc;

use serde_json::Value;

use crate::model::desc::Desc;
use crate::model::frame::Frame;
use crate::model::health::Health;
use crate::model::ids::within;
use crate::model::label::Label;
use crate::model::outlook::{Conclusion, Forecast};
use crate::model::point::Point;
use crate::model::printable::escaped;
use crate::model::timeline::EntryKind;
use crate::model::units::{Unit as _, real};
use crate::protection::policy::{Reading, Resource};
use crate::protection::types::incident::Circumstances;
use crate::sources::{cgroup, training, workload};

/// What an incident is about; names that are not known are empty.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub(super) workload: Label,
    /// The pids of processes of the job.
    pub(super) pids: Vec<Label>,
    /// The cgroup whose limit was reached.
    pub(super) cgroup: Label,
    /// The resource that ran short; if it is not known, the one in the worst health is taken, from a warning on.
    pub(super) resource: Option<Resource>,
    /// The guard's reading of this resource for this job; it is newer than the frames.
    pub(super) reading: Option<Reading>,
}

/// What is known, from two frames or fewer, the newest last. A job that was killed may only be in the first, and its memory
/// may be freed in the last: of both, the one with the higher use is taken.
pub(super) fn circumstances(frames: &[Arc<Frame>], about: &About) -> Circumstances {
    let resource = about.resource.map(|resource| resource.label().to_owned());
    let mut found = Circumstances { resource, ..Circumstances::default() };
    let with_job = frames.iter().rev().find_map(|frame| Some((frame, workload_of(frame, about)?)));
    let (mut workload, mut cgroup) = (Label::default(), about.cgroup.clone());
    if let Some(((frame, name), newest)) = with_job.zip(frames.last()) {
        // Ranks can have ended before the rest of their workload, such as a shell.
        let of_ranks = frames.iter().rev().find(|frame| has_ranks(frame, &name)).unwrap_or(frame);
        let frames = [&**frame, &**of_ranks];
        describe(frames, &name, newest.at.unix().as_secs_f64(), &mut found);
        if cgroup.is_empty() {
            cgroup = label(frame, &workload::metrics::INFO.desc, &name, "cgroup").unwrap_or_default();
        }
        workload = name;
    }
    let known = frames.iter().flat_map(|frame| {
        let gpus = labels(frame, &training::metrics::INFO.desc, &workload, "uuid");
        let concerned = |known: &&Conclusion| concerns(known, about.resource, &workload, &cgroup, &gpus);
        let known: Vec<_> = frame.outlook.conclusions.iter().filter(concerned).collect();
        known.into_iter().filter_map(|known| Some((known, known.forecast.as_ref()?)))
    });
    let known = known
        .filter(|(_, forecast)| about.resource.is_some() || forecast.health() >= Health::Warning)
        .max_by(|one, other| {
            let order = |(known, forecast): &(&Conclusion, &Forecast)| {
                let is_named = !about.cgroup.is_empty() && known.subject.cgroup == about.cgroup;
                (is_named, forecast.health())
            };
            let share = one.1.used_share().total_cmp(&other.1.used_share());
            order(one).cmp(&order(other)).then(share)
        });
    let highest = |desc: &Desc| {
        let of_group = [("cgroup", cgroup.as_str())];
        frames.iter().filter_map(|frame| frame.value(desc.name, &of_group)).reduce(f64::max)
    };
    if let Some(reading) = &about.reading {
        found.used_bytes = Some(reading.room.used().value());
        found.limit_bytes = Some(reading.room.limit.value());
        found.growth_bytes_per_second = reading.slow.or(reading.fast);
    } else if let Some((known, forecast)) = known {
        found.resource.get_or_insert_with(|| known.subject.resource.as_str().to_owned());
        found.used_bytes = Some(forecast.used_bytes);
        found.limit_bytes = Some(forecast.limit_bytes);
        found.growth_bytes_per_second = forecast.growth();
    } else if about.resource == Some(Resource::Cgroup) && !cgroup.is_empty() {
        found.used_bytes = highest(&cgroup::metrics::USAGE.desc);
        found.limit_bytes = highest(&cgroup::metrics::LIMIT.desc);
    }
    if found.growth_bytes_per_second.is_none() && !workload.is_empty() {
        let own = |known: &&Conclusion| {
            known.subject.resource.as_str() == "workload" && known.subject.workload == workload
        };
        let growth = |frame: &Arc<Frame>| {
            frame.outlook.conclusions.iter().find(own)?.growth.as_ref()?.bytes_per_second()
        };
        found.growth_bytes_per_second = frames.iter().rev().find_map(growth);
    }
    found
}

/// Whether a conclusion is about memory that the job uses, of the kind that ran short.
fn concerns(
    known: &Conclusion,
    resource: Option<Resource>,
    workload: &Label,
    cgroup: &Label,
    gpus: &[Label],
) -> bool {
    let subject = &known.subject;
    let is = |kind| resource.is_none_or(|wanted| wanted == kind);
    match subject.resource.as_str() {
        "host" => is(Resource::Host),
        "cgroup" => {
            is(Resource::Cgroup) && !cgroup.is_empty() && within(cgroup.as_str(), subject.cgroup.as_str())
        }
        "memory_high" => {
            is(Resource::High) && !cgroup.is_empty() && within(cgroup.as_str(), subject.cgroup.as_str())
        }
        "numa_nodes" => is(Resource::Nodes) && !workload.is_empty() && subject.workload == *workload,
        "gpu" => is(Resource::Gpu) && gpus.contains(&subject.uuid),
        "allocator" => is(Resource::Allocator) && !workload.is_empty() && subject.workload == *workload,
        _ => false,
    }
}

/// The workload of a job in a frame.
fn workload_of(frame: &Frame, about: &About) -> Option<Label> {
    let desc = &workload::metrics::INFO.desc;
    let named = |point: &&Point| {
        let is = |name: &str, wanted: &Label| !wanted.is_empty() && of(desc, point, name) == Some(wanted);
        is("workload", &about.workload) || is("cgroup", &about.cgroup)
    };
    let by_name = points(frame, desc).iter().find(named).and_then(|point| of(desc, point, "workload"));
    let ranks = &training::metrics::INFO.desc;
    let of_process = |point: &&Point| of(ranks, point, "pid").is_some_and(|pid| about.pids.contains(pid));
    let by_pid =
        || points(frame, ranks).iter().find(of_process).and_then(|point| of(ranks, point, "workload"));
    by_name.or_else(by_pid).cloned()
}

/// Whether processes of a workload report steps or checkpoints.
fn has_ranks(frame: &Frame, workload: &Label) -> bool {
    let desc = &training::metrics::INFO.desc;
    points(frame, desc).iter().any(|point| of(desc, point, "workload") == Some(workload))
}

/// Adds the run of a workload, and from the newest frame with its ranks the step and the last checkpoint, at `now` in seconds
/// since 1970.
fn describe([frame, of_ranks]: [&Frame; 2], workload: &Label, now: f64, found: &mut Circumstances) {
    found.workload = Some(workload.as_str().to_owned());
    let run = label(frame, &workload::metrics::INFO.desc, workload, "run");
    let run = run.or_else(|| label(of_ranks, &training::metrics::INFO.desc, workload, "run"));
    found.run = run.map(|run| run.as_str().to_owned());
    let largest = |desc: &'static Desc| {
        let own = points(of_ranks, desc).iter();
        let own = own.filter(|point| of(desc, point, "workload") == Some(workload));
        own.map(|point| point.value).reduce(f64::max)
    };
    found.step = largest(&training::metrics::STEP.desc);
    found.checkpoint_age_seconds =
        largest(&training::metrics::CHECKPOINT_SAVED.desc).map(|saved| (now - saved).max(0.0));
    if found.checkpoint_age_seconds.is_none() {
        // The checkpoint of a program that has ended, in the same shell, is not that of the one that runs.
        return;
    }
    let saved = of_ranks.timeline.entries.iter().rev().find(|entry| {
        entry.kind == EntryKind::Checkpoint && entry.name.as_str() == "saved" && entry.workload == *workload
    });
    if let Some(saved) = saved {
        found.checkpoint_step = saved.step.map(real);
        let detail =
            saved.detail.as_deref().map(|detail| serde_json::from_str(detail.get()).unwrap_or(Value::Null));
        found.checkpoint_path =
            detail.and_then(|detail| Some(escaped(detail["path"].as_str()?).into_owned()));
    }
}

/// The first value of a label of a workload that is not empty.
fn label(frame: &Frame, desc: &'static Desc, workload: &Label, name: &str) -> Option<Label> {
    labels(frame, desc, workload, name).into_iter().next()
}

/// The values of a label of a workload, without empty ones.
fn labels(frame: &Frame, desc: &'static Desc, workload: &Label, name: &str) -> Vec<Label> {
    let own = points(frame, desc).iter().filter(|point| of(desc, point, "workload") == Some(workload));
    own.filter_map(|point| of(desc, point, name)).filter(|value| !value.is_empty()).cloned().collect()
}

fn points<'f>(frame: &'f Frame, desc: &'static Desc) -> &'f [Point] {
    let family = frame.families.iter().find(|family| std::ptr::eq(family.desc, desc));
    family.map_or(&[], |family| &family.points)
}

fn of<'p>(desc: &Desc, point: &'p Point, name: &str) -> Option<&'p Label> {
    point.labels.get(desc.labels.iter().position(|label| *label == name)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::finding::Subject;
    use crate::model::health::Rule;
    use crate::model::outlook::{Growth, Outlook, Rate};
    use crate::model::point::Batch;
    use crate::model::time::Timestamp;
    use crate::model::timeline::{Entry, Timeline};
    use crate::model::units::{Bytes, Count, Flag, Seconds};

    fn rate(bytes_per_second: f64) -> Option<Rate> {
        Some(Rate { bytes_per_second, ..Rate::default() })
    }

    fn forecast(subject: Subject, used: f64, rule: Rule) -> Conclusion {
        let forecast =
            Forecast { used_bytes: used, limit_bytes: 100.0, rate: rate(7.0), rule, ..Forecast::default() };
        Conclusion { subject, forecast: Some(forecast), ..Conclusion::default() }
    }

    fn frame(second: u64, out: Batch, conclusions: Vec<Conclusion>) -> Arc<Frame> {
        let saved = Entry {
            sequence: 1,
            unix_seconds: 3.0,
            kind: EntryKind::Checkpoint,
            workload: "train".into(),
            rank: "0".into(),
            pid: 9,
            name: "saved".into(),
            step: Some(40),
            detail: serde_json::value::to_raw_value(&serde_json::json!({"path": "/ckpt/40"})).ok(),
            ..Entry::default()
        };
        Arc::new(Frame {
            sequence: 1,
            at: Timestamp::from_secs(second),
            families: out.seal().0,
            sources: Vec::new(),
            findings: Vec::new(),
            outlook: Outlook { conclusions, ..Outlook::default() },
            timeline: Arc::new(Timeline { entries: vec![Arc::new(saved)], forgotten: 0 }),
            acknowledged: Arc::default(),
        })
    }

    /// A frame with the job `train` in `/jobs/a`, whose two ranks are at steps 41 and 42.
    fn with_job(conclusions: Vec<Conclusion>) -> Arc<Frame> {
        let mut out = Batch::default();
        let names = |desc: &Desc, known: &[(&str, &str)]| -> Vec<Label> {
            let value =
                |name: &&str| known.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value);
            desc.labels.iter().map(|name| value(name).into()).collect()
        };
        let info = &workload::metrics::INFO;
        let known = [("workload", "train"), ("cgroup", "/jobs/a"), ("run", "alpha")];
        out.put(info, &names(&info.desc, &known), Flag(true));
        let rank = &training::metrics::INFO;
        let known = [("workload", "train"), ("rank", "0"), ("pid", "9"), ("uuid", "GPU-a")];
        out.put(rank, &names(&rank.desc, &known), Flag(true));
        for (rank, step) in [("0", 42), ("1", 41)] {
            out.put(&training::metrics::STEP, &["train".into(), rank.into()], Count(step));
        }
        out.put(
            &training::metrics::CHECKPOINT_SAVED,
            &["train".into(), "0".into()],
            Seconds::new(4.0).unwrap(),
        );
        out.put(&cgroup::metrics::LIMIT, &["/jobs/a".into()], Bytes::new(64));
        frame(10, out, conclusions)
    }

    #[test]
    fn memory_and_job_are_known_after_the_job_is_gone() {
        let group = forecast(Subject::cgroup(&"/jobs".into()), 99.0, Rule::Full);
        let other = forecast(Subject::cgroup(&"/jobs/ab".into()), 100.0, Rule::Full);
        let host = forecast(Subject::host(), 10.0, Rule::None);
        let frames = [with_job(vec![host, group, other]), frame(11, Batch::default(), Vec::new())];
        for about in [
            About { cgroup: "/jobs/a".into(), resource: Some(Resource::Cgroup), ..About::default() },
            About { workload: "train".into(), ..About::default() },
            About { pids: vec!["9".into()], resource: Some(Resource::Cgroup), ..About::default() },
        ] {
            let expected = Circumstances {
                resource: Some("cgroup".to_owned()),
                used_bytes: Some(99.0),
                limit_bytes: Some(100.0),
                growth_bytes_per_second: Some(7.0),
                workload: Some("train".to_owned()),
                run: Some("alpha".to_owned()),
                step: Some(42.0),
                checkpoint_step: Some(40.0),
                checkpoint_path: Some("/ckpt/40".to_owned()),
                checkpoint_age_seconds: Some(7.0),
            };
            assert_eq!(circumstances(&frames, &about), expected, "{about:?}");
        }
    }

    #[test]
    fn a_checkpoint_is_that_of_ranks_that_are_connected_or_were_in_the_frame_before() {
        // The shell is left, or runs another program.
        let alone = |second| {
            let mut out = Batch::new();
            let info = &workload::metrics::INFO;
            let value = |name: &&str| if *name == "workload" { "train" } else { "" };
            let labels: Vec<Label> = info.desc.labels.iter().map(|name| value(name).into()).collect();
            out.put(info, &labels, Flag(true));
            frame(second, out, Vec::new())
        };
        let about = About { workload: "train".into(), ..About::default() };
        let known = |frames: &[Arc<Frame>]| {
            let found = circumstances(frames, &about);
            (found.step, found.checkpoint_step, found.checkpoint_path, found.checkpoint_age_seconds)
        };
        let path = Some("/ckpt/40".to_owned());
        assert_eq!(known(&[with_job(Vec::new()), alone(11)]), (Some(42.0), Some(40.0), path, Some(7.0)));
        assert_eq!(known(&[alone(11), alone(12)]), (None, None, None, None));
    }

    #[test]
    fn what_is_not_known_is_absent() {
        assert_eq!(circumstances(&[], &About::default()), Circumstances::default());
        let unknown = About { workload: "other".into(), ..About::default() };
        assert_eq!(circumstances(&[with_job(Vec::new())], &unknown), Circumstances::default());
        let known = Circumstances { resource: Some("gpu".to_owned()), ..Circumstances::default() };
        let gpu = About { resource: Some(Resource::Gpu), ..unknown };
        let of_others = vec![forecast(Subject::gpu(&"1".into(), &"GPU-b".into()), 99.0, Rule::Full)];
        assert_eq!(circumstances(&[with_job(of_others)], &gpu), known);
    }

    #[test]
    fn a_cgroup_without_a_forecast_has_its_limit_and_the_growth_of_its_workload() {
        let growth = Growth { rate: rate(5.0), ..Growth::default() };
        let subject = Subject::workload(&"train".into());
        let growing = Conclusion { subject, growth: Some(growth), ..Conclusion::default() };
        let about = About { cgroup: "/jobs/a".into(), resource: Some(Resource::Cgroup), ..About::default() };
        let found = circumstances(&[with_job(vec![growing])], &about);
        assert_eq!((found.limit_bytes, found.used_bytes), (Some(64.0), None));
        assert_eq!(found.growth_bytes_per_second, Some(5.0));
    }

    #[test]
    fn an_oom_kill_has_the_memory_of_the_cgroup_that_was_hit_before_the_kill() {
        let group = |path: &str, used, rule, growth| {
            let mut known = forecast(Subject::cgroup(&path.into()), used, rule);
            known.forecast.as_mut().unwrap().rate = rate(growth);
            known
        };
        let above = || group("/jobs", 99.5, Rule::Full, 2.0);
        let before = with_job(vec![group("/jobs/a", 98.0, Rule::NearlyFull, 7.0), above()]);
        let after = with_job(vec![group("/jobs/a", 20.0, Rule::NearlyFull, -3.0), above()]);
        let about = About { cgroup: "/jobs/a".into(), resource: Some(Resource::Cgroup), ..About::default() };
        let found = circumstances(&[before, after], &about);
        assert_eq!((found.used_bytes, found.growth_bytes_per_second), (Some(98.0), Some(7.0)));
    }

    #[test]
    fn a_healthy_resource_did_not_run_short() {
        let about = About { workload: "train".into(), ..About::default() };
        let host = |rule| with_job(vec![forecast(Subject::host(), 10.0, rule)]);
        let found = circumstances(&[host(Rule::None)], &about);
        assert_eq!((found.resource, found.used_bytes, found.limit_bytes), (None, None, None));
        assert_eq!(found.step, Some(42.0));
        assert_eq!(circumstances(&[host(Rule::Full)], &about).resource.as_deref(), Some("host"));
    }

    #[test]
    fn the_reading_of_the_guard_is_taken_instead_of_a_conclusion() {
        let [headroom, total] = [Bytes::new(3), Bytes::new(10)];
        let reading = Some(Reading {
            room: crate::model::room::Room::new(headroom, total),
            fast: Some(2.0),
            slow: Some(1.0),
        });
        let resource = Some(Resource::Cgroup);
        let about = About { workload: "train".into(), resource, reading, ..About::default() };
        let found = circumstances(
            &[with_job(vec![forecast(Subject::cgroup(&"/jobs".into()), 99.0, Rule::Full)])],
            &about,
        );
        let memory = [found.used_bytes, found.limit_bytes, found.growth_bytes_per_second];
        assert_eq!(memory, [7.0, 10.0, 1.0].map(Some));
    }
}
