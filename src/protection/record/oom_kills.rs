//! Incidents of the kernel's OOM killer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use super::circumstances::About;
use super::killed::JobPids;
use crate::host::cgroup_path::{self, Place};
use crate::host::subordinate::Subordinates;
use crate::model::facts::{OomScope, OomVictim};
use crate::model::finding::Finding;
use crate::model::frame::Frame;
use crate::model::label::Label;
use crate::model::units::Bytes;
use crate::protection::policy::Resource;
use crate::protection::types::incident::{Cause, Incident, Sample, Statement, name};
use crate::sources::{kmsg, memory};

/// The number of OOM kills so far.
#[derive(Debug)]
pub(super) struct OomKills {
    /// Absent before the first frame with the counter, whose value is from before the start.
    kills: Option<u64>,
    subordinates: Subordinates,
}

/// The subject of the host, shared by thousands of samples.
static HOST: LazyLock<Label> = LazyLock::new(|| "host".into());

/// The host's memory in a frame.
pub(super) fn host(frame: &Frame) -> Option<Sample> {
    let bytes = |name: &str| frame.value(name, &[]).map(bytes);
    let used = bytes(memory::metrics::USED.desc.name);
    let limit = bytes(memory::metrics::TOTAL.desc.name);
    (used.is_some() || limit.is_some()).then(|| Sample { at: frame.at, subject: HOST.clone(), used, limit })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes came from a whole number")]
fn bytes(value: f64) -> Bytes {
    Bytes::new(value.max(0.0) as u64)
}

impl OomKills {
    pub(super) fn new(passwd: &Path) -> Self {
        Self { kills: None, subordinates: Subordinates::new(passwd) }
    }

    /// The incidents of what the OOM killer killed since the last frame: one for each cgroup of victims, and one of those that the log
    /// does not name. With `only`, those of processes of these jobs.
    pub(super) fn look(&mut self, frame: &Frame, only: Option<&JobPids>) -> Vec<Incident> {
        let Some(counted) = family(frame, kmsg::metrics::OOM_KILLS.desc.name) else { return Vec::new() };
        let kills = bytes(counted.points.iter().map(|point| point.value).sum()).get();
        let Some(before) = self.kills.replace(kills).filter(|before| kills > *before) else {
            return Vec::new();
        };
        let mut of_groups: BTreeMap<_, Vec<&OomVictim>> = BTreeMap::new();
        let pid = |victim: &OomVictim| victim.process.map(|process| process.pid).or(victim.pid);
        let is_meant =
            |victim: &&OomVictim| only.is_none_or(|jobs| pid(victim).is_some_and(|pid| jobs.contains(pid)));
        for victim in frame.outlook.oom_victims.iter().filter(is_meant) {
            of_groups.entry((&victim.cgroup, &victim.limit_cgroup)).or_default().push(victim);
        }
        let mut incidents: Vec<Incident> = of_groups
            .into_values()
            .filter_map(|victims| {
                let last = victims.last()?;
                Some(incident(frame, victims.len() as u64, Some(last), &self.subordinates))
            })
            .collect();
        let unnamed = (kills - before).saturating_sub(frame.outlook.oom_victims.len() as u64);
        if unnamed > 0 && only.is_none() {
            incidents.push(incident(frame, unnamed, None, &self.subordinates));
        }
        incidents
    }
}

fn family<'f>(frame: &'f Frame, name: &str) -> Option<&'f crate::model::point::Family> {
    frame.families.iter().find(|family| family.desc.name == name)
}

fn incident(frame: &Frame, kills: u64, victim: Option<&OomVictim>, subordinates: &Subordinates) -> Incident {
    let cgroup = victim.map_or("", |victim| victim.cgroup.as_str());
    let about = if cgroup.is_empty() { "oom" } else { cgroup };
    let unix = frame.at.unix().as_secs_f64();
    let statement = |finding: &Finding| Statement {
        analyzer: finding.analyzer.to_owned(),
        subject: finding.subject.clone(),
        summary: finding.summary.clone(),
    };
    Incident {
        id: name(frame.at, about),
        cause: Cause::KernelOom,
        user: victim.and_then(|victim| victim.uid).map(|uid| subordinates.owner(uid, frame.at)),
        target: cgroup.to_owned(),
        began_unix_seconds: unix,
        ended_unix_seconds: Some(unix),
        victim: victim.cloned(),
        kills,
        findings: frame.findings.iter().map(statement).collect(),
        ..Incident::default()
    }
}

/// What the record of a kill is about.
pub(super) fn about(kill: &Incident) -> About {
    let Some(victim) = &kill.victim else { return About::default() };
    let is_limited = !victim.limit_cgroup.is_empty();
    About {
        workload: victim.workload.clone(),
        pids: victim.pid.map(Label::from).into_iter().collect(),
        cgroup: if is_limited { &victim.limit_cgroup } else { &victim.cgroup }.clone(),
        resource: match victim.scope {
            OomScope::Cgroup => Some(Resource::Cgroup),
            OomScope::Host => Some(Resource::Host),
            OomScope::Nodes => Some(Resource::Nodes),
            OomScope::Request | OomScope::PageFault => None,
        },
        reading: None,
    }
}

/// The part of a cgroup's path that stays when its container or unit is started again: the path of the pod, otherwise the
/// path without what container runtimes and systemd-run put into its last name. Names that people or schedulers give are
/// kept whole: `/jobs/1` is not `/jobs/2`.
pub(super) fn lasting(path: &str) -> String {
    /// Container runtimes abbreviate ids to no fewer hexadecimal digits.
    const SHORTEST_ID: usize = 12;
    if let Place::Pod { path, .. } = cgroup_path::place(path) {
        return path.to_owned();
    }
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    // `run-r8f3a0c.scope`, `run-p12-i7.scope` (systemd-run(1)).
    let is_run = name.starts_with("run-") && (name.ends_with(".scope") || name.ends_with(".service"));
    let is_id = |word: &&str| {
        let is_hex = word.len() >= SHORTEST_ID && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_number = is_run && word.bytes().skip(1).all(|byte| byte.is_ascii_hexdigit());
        is_hex || is_number
    };
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    if !words.clone().any(|word| is_id(&word)) {
        return path.to_owned();
    }
    let named: Vec<&str> = words.filter(|word| !is_id(word)).collect();
    format!("{above}/{}", named.join("-"))
}

/// Adds a later kill in the same cgroup to a record: their number, the last victim and the time. Returns whether the same
/// memory was exhausted.
pub(super) fn add_kill(record: &mut Incident, kill: &Incident) -> bool {
    let of = |incident: &Incident| {
        let victim = incident.victim.as_ref()?;
        Some((victim.scope, lasting(victim.limit_cgroup.as_str())))
    };
    if of(record) != of(kill) {
        return false;
    }
    record.kills += kill.kills;
    record.last_victim.clone_from(&kill.victim);
    record.ended_unix_seconds = kill.ended_unix_seconds;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::point::Batch;
    use crate::model::time::Timestamp;
    use crate::model::units::Count;
    use crate::protection::types::summary::summary;

    fn frame(second: u64, kills: Option<u64>) -> Frame {
        let mut out = Batch::default();
        if let Some(kills) = kills {
            out.put(&kmsg::metrics::OOM_KILLS, &["cgroup".into()], Count(kills));
            out.put(&kmsg::metrics::OOM_KILLS, &["host".into()], Count(0));
        }
        out.put(&memory::metrics::TOTAL, &[], Bytes::new(100));
        let at = Timestamp::from_secs(second);
        Frame {
            sequence: 1,
            at,
            families: out.seal().0,
            sources: Vec::new(),
            findings: Vec::new(),
            outlook: crate::model::outlook::Outlook::default(),
            timeline: std::sync::Arc::default(),
            acknowledged: std::sync::Arc::default(),
        }
    }

    fn victim(pid: u32, cgroup: &str) -> OomVictim {
        OomVictim {
            pid: Some(pid),
            comm: "python3".into(),
            uid: Some(1000),
            cgroup: cgroup.into(),
            limit_cgroup: "/jobs".into(),
            scope: OomScope::Cgroup,
            workload: "a".into(),
            resident: [Some(Bytes::new(2 << 30)), None, None],
            ..OomVictim::default()
        }
    }

    #[test]
    fn each_job_with_victims_has_an_incident_of_its_own() {
        let mut oom_kills = OomKills::new(Path::new("/none"));
        let mut look = |second, kills, victims: &[OomVictim]| {
            let mut frame = frame(second, kills);
            frame.outlook.oom_victims = victims.to_vec();
            oom_kills.look(&frame, None)
        };
        assert_eq!(look(1, None, &[]), []);
        assert_eq!(look(2, Some(3), &[]), [], "what was before us is not ours to tell");
        assert_eq!(look(3, Some(3), &[]), []);
        let of = [victim(70, "/jobs/a"), victim(80, "/jobs/b"), victim(77, "/jobs/a")];
        let incidents = look(4, Some(7), &of);
        let shown = |incident: &Incident| (incident.id.clone(), incident.kills);
        let expected = [("jobs-a", 2), ("jobs-b", 1), ("oom", 1)];
        let expected = expected.map(|(of, kills)| (format!("19700101T000004.000Z-{of}"), kills));
        assert_eq!(incidents.iter().map(shown).collect::<Vec<_>>(), expected);
        let [a, _, unnamed] = &incidents[..] else { unreachable!() };
        assert_eq!(summary(a), "The kernel killed python3 (pid 77): a cgroup's memory was exhausted.");
        assert_eq!((a.target.as_str(), a.user), ("/jobs/a", Some(1000)));
        assert_eq!(a.victim.as_ref(), Some(&of[2]));
        assert_eq!(summary(unnamed), "The kernel killed a process: which memory was exhausted is not known.");
        assert_eq!(look(5, Some(7), &[]), []);
    }

    #[test]
    fn kills_of_others_are_no_incidents_of_a_run() {
        let mut oom_kills = OomKills::new(Path::new("/none"));
        let mut jobs = JobPids::default();
        let own = [crate::model::ids::ProcessKey { pid: 70, start: 1 }];
        jobs.record(Timestamp::from_secs(2), std::iter::once((&Label::from("run"), None, &own[..])));
        let mut look = |second, kills, victims: &[OomVictim]| {
            let mut frame = frame(second, Some(kills));
            frame.outlook.oom_victims = victims.to_vec();
            let incidents = oom_kills.look(&frame, Some(&jobs));
            incidents.iter().map(|incident| incident.victim.as_ref()?.pid).collect::<Vec<_>>()
        };
        assert_eq!(look(2, 0, &[]), []);
        assert_eq!(look(3, 3, &[victim(70, "/jobs/a"), victim(80, "/jobs/b")]), [Some(70)]);
    }

    #[test]
    fn the_lasting_part_of_a_path_names_no_container_and_no_number() {
        let pod = "/kubepods.slice/kubepods-pod1a2b3c4d_0000_1111_2222_0123456789ab.slice";
        let container = |digit: &str| format!("{pod}/cri-containerd-{}.scope", digit.repeat(64));
        assert_eq!([lasting(&container("a")), lasting(&container("b"))], [pod, pod]);
        let docker = |digit: &str| format!("/system.slice/docker-{}.scope", digit.repeat(32));
        assert_eq!(lasting(&docker("0a")), "/system.slice/docker-scope");
        assert_eq!(lasting("/user.slice/run-r8f3a0c.scope"), "/user.slice/run-scope");
        assert_eq!(lasting("/user.slice/run-p12-i7.scope"), "/user.slice/run-scope");
        // Those that people name are different.
        let of_people = [
            "/s/web.service",
            "/s/a.service",
            "/s/train3.service",
            "/s/job_1/step_0",
            "/jobs",
            "",
            "/jobs/j1",
            "/jobs/j2",
            "/s/1",
            "/s/2",
            "/u/session-2.scope",
            "/u/session-3.scope",
        ];
        let kept: std::collections::BTreeSet<String> = of_people.into_iter().map(lasting).collect();
        assert_eq!(kept.len(), of_people.len());
    }

    #[test]
    fn the_host_is_a_sample() {
        let sample = host(&frame(1, None)).unwrap();
        assert_eq!((sample.used, sample.limit), (None, Some(Bytes::new(100))));
    }
}
