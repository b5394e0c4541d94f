//! Incidents of jobs of which another program killed a process, by the typed [`End`] of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::model::ends::{End, EndCause, EndEvidence};
use crate::model::frame::Frame;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::protection::types::incident::{Cause, Circumstances, Incident, name};

/// A job: the name of its target, and its user where the target names a job.
type Owner = (Label, Option<u32>);

/// The jobs of the processes that were lately members of one, by pid.
#[derive(Debug, Default)]
pub struct JobPids(HashMap<u32, (Timestamp, Owner)>);

/// The same for the thread that writes it and the one that reads it.
pub type SharedJobPids = Arc<Mutex<JobPids>>;

impl JobPids {
    /// Whether a process of a job has this pid, or had it a moment ago.
    pub(super) fn contains(&self, pid: u32) -> bool {
        self.0.contains_key(&pid)
    }

    /// Takes the processes of each job in this tick.
    pub fn record<'k>(
        &mut self,
        now: Timestamp,
        jobs: impl Iterator<Item = (&'k Label, Option<u32>, &'k [ProcessKey])>,
    ) {
        /// Longer than an end waits for the rest of the kernel log.
        const REMEMBERED: Duration = Duration::from_secs(60);
        /// Most processes that are remembered after they have ended, and most of one job.
        const MOST: usize = 65_536;
        const MOST_OF_JOB: usize = 1_024;
        let has_room = self.0.len() < MOST;
        self.0.retain(|_, (seen, _)| has_room && now.since(*seen) < REMEMBERED);
        for (target, user, processes) in jobs {
            let owner = || (now, (target.clone(), user));
            self.0.extend(processes.iter().take(MOST_OF_JOB).map(|process| (process.pid, owner())));
        }
    }
}

/// The ends by SIGKILL that have been recorded.
#[derive(Debug, Default)]
pub(super) struct KilledJobs {
    /// The ends of the last frame; absent before the first one.
    known: Option<Arc<[Arc<End>]>>,
    began_unix_seconds: f64,
    /// When an incident of each job was last recorded.
    reported: BTreeMap<Owner, Timestamp>,
}

impl KilledJobs {
    /// The incidents of ends by SIGKILL of another program, one for each job, and none where there has just been one.
    pub(super) fn record(&mut self, frame: &Frame, jobs: &JobPids) -> Vec<Incident> {
        /// Time that a job with many processes takes to end after the first one.
        const REPORT_INTERVAL: Duration = Duration::from_secs(30);
        self.reported.retain(|_, reported| frame.at.since(*reported) < REPORT_INTERVAL);
        let ends = &frame.outlook.ends;
        let Some(known) = self.known.replace(Arc::clone(ends)) else {
            self.began_unix_seconds = frame.at.unix().as_secs_f64();
            return Vec::new();
        };
        let mut incidents = Vec::new();
        for end in ends.iter().filter(|end| is_killed(end) && end.unix_seconds >= self.began_unix_seconds) {
            let is_it = |old: &Arc<End>| old.pid == end.pid && old.unix_seconds == end.unix_seconds;
            let Some((_, owner)) = jobs.0.get(&end.pid).filter(|_| !known.iter().any(is_it)) else {
                continue;
            };
            if self.reported.insert(owner.clone(), frame.at).is_none() {
                incidents.push(incident(frame.at, owner, end));
            }
        }
        incidents
    }
}

/// Whether another program ended it by SIGKILL, or a process that it had started.
fn is_killed(end: &End) -> bool {
    /// `SIGKILL`.
    const KILL: i32 = 9;
    let by_kill =
        |seen: &EndEvidence| matches!(seen, EndEvidence::Status(status) if status.signal() == Some(KILL));
    end.cause == EndCause::Killed && end.evidence.iter().any(by_kill)
}

fn incident(at: Timestamp, (target, user): &Owner, end: &End) -> Incident {
    let text = |label: &Label| Some(label.to_string()).filter(|text| !text.is_empty());
    Incident {
        id: name(at, &format!("{target}-{}", end.pid)),
        cause: Cause::Killed,
        user: *user,
        target: target.to_string(),
        began_unix_seconds: end.unix_seconds,
        ended_unix_seconds: Some(end.unix_seconds),
        summary: format!("Process {} of {target} was ended by SIGKILL.", end.pid),
        circumstances: Circumstances {
            workload: text(&end.workload),
            run: text(&end.run),
            #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^53")]
            step: end.step.map(|step| step as f64),
            #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^53")]
            checkpoint_step: end.checkpoint_step.map(|step| step as f64),
            checkpoint_age_seconds: end.checkpoint_age_seconds,
            ..Circumstances::default()
        },
        end: Some(Box::new(end.clone())),
        ..Incident::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ends::{ExitStatus, Sender};
    use crate::model::outlook::Outlook;

    fn frame(second: u64, ends: &[End]) -> Frame {
        Frame {
            sequence: 1,
            at: Timestamp::from_secs(second),
            families: Vec::new(),
            sources: Vec::new(),
            findings: Vec::new(),
            outlook: Outlook { ends: ends.iter().cloned().map(Arc::new).collect(), ..Outlook::default() },
            timeline: Arc::default(),
            acknowledged: Arc::default(),
        }
    }

    fn end(pid: u32, unix_seconds: f64, cause: EndCause, signal: i32) -> End {
        let sender = Sender { pid: 99, comm: "bash".into(), user_id: Some(7) };
        let evidence = vec![EndEvidence::Status(ExitStatus::Signal(signal)), EndEvidence::SentBy(sender)];
        End { pid, unix_seconds, cause, evidence, step: Some(5), run: "alpha".into(), ..End::default() }
    }

    #[test]
    fn jobs_that_start_processes_all_the_time_take_bounded_memory() {
        let mut jobs = JobPids::default();
        for second in 0..59 {
            let first = second * 4_000;
            let processes: Vec<_> = (first..first + 4_000).map(|pid| ProcessKey { pid, start: 1 }).collect();
            let own = |name: u64| (Label::from(name), Some(7));
            let owners: Vec<_> = (0..4).map(own).collect();
            let parts =
                owners.iter().zip(processes.chunks(1_000)).map(|((name, user), own)| (name, *user, own));
            jobs.record(Timestamp::from_secs(second.into()), parts);
            assert!(jobs.0.len() < 65_536 + 4_000 && jobs.0.contains_key(&(first + 3_999)));
        }
    }

    #[test]
    fn a_job_that_another_program_kills_is_one_incident_that_names_the_sender() {
        let mut jobs = JobPids::default();
        let processes = [5, 6, 7].map(|pid| ProcessKey { pid, start: 1 });
        jobs.record(Timestamp::from_secs(8), [(&"job".into(), Some(7), &processes[..])].into_iter());
        let mut killed = KilledJobs::default();
        let mut record = |second, ends: &[End]| killed.record(&frame(second, ends), &jobs);
        let old = end(5, 3.0, EndCause::Killed, 9);
        assert_eq!(record(7, std::slice::from_ref(&old)), []);
        let others = [
            old.clone(),
            // Restored from the daemon before.
            end(6, 4.0, EndCause::Killed, 9),
            end(6, 8.0, EndCause::Killed, 15),
            end(7, 8.0, EndCause::Memwarden, 9),
            end(8, 8.0, EndCause::Killed, 9),
        ];
        assert_eq!(record(9, &others), [], "no job, no SIGKILL, or protection itself");
        let kills = [old, end(6, 9.0, EndCause::Killed, 9), end(7, 9.0, EndCause::Killed, 9)];
        let [incident] = &record(10, &kills)[..] else { panic!() };
        assert_eq!((incident.id.as_str(), incident.cause), ("19700101T000010.000Z-job-6", Cause::Killed));
        assert_eq!((incident.user, incident.end.as_deref()), (Some(7), Some(&kills[1])));
        assert_eq!(incident.summary, "Process 6 of job was ended by SIGKILL.");
        let known = &incident.circumstances;
        assert_eq!((known.run.as_deref(), known.step), (Some("alpha"), Some(5.0)));
        assert_eq!(record(11, &kills), [], "it is known");
        assert_eq!(record(12, &[end(5, 12.0, EndCause::Killed, 9)]), [], "of the same job");
        assert_eq!(record(60, &[end(5, 60.0, EndCause::Killed, 9)]).len(), 1);
    }
}
