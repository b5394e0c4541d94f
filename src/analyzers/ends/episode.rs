//! Processes of one workload that end together.

use std::sync::Arc;

use super::classify::{Classified, Level};
use super::observed::{Gpu, Observed, Recent, SIGKILL};
use crate::model::analyzer::View;
use crate::model::desc::Desc;
use crate::model::ends::{End, EndCause, EndEvidence, ExitStatus, OomKill};
use crate::model::facts::{OwnLimits, ProcessRow, ReportedRank, Workload};
use crate::model::finding::Subject;
use crate::model::fit::Verdict;
use crate::model::frame::Frame;
use crate::model::ids::{ProcessKey, within};
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, TICKS, real};
use crate::sources::cgroup::metrics::LIMIT;
use crate::sources::huge_pages::metrics::{FREE, RESERVED};
use crate::sources::workload::metrics::HUGE;

/// Seconds after the last end of a process of the workload, and at most after the first one, at which the cause is stated.
const SETTLE: f64 = 0.9;
const SETTLE_MOST: f64 = 1.5;
/// Seconds for which a cause waits for the rest of the kernel log: ten times the tasks of a large host.
const BEHIND_MOST: f64 = 30.0;
/// Most processes of one episode that are remembered.
const MOST_MEMBERS: usize = 256;
/// Seconds by which a process can have started later than computed: the kernel states the boot time in whole seconds.
const BOOT: f64 = 1.0;
/// Bytes from which the end of a process that reported as no rank is stated.
const LARGE: Bytes = Bytes::new(256 << 20);

/// A process that has ended.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) key: ProcessKey,
    pub(super) comm: Label,
    /// Whether it is the process of Slurm that started the program.
    pub(super) is_supervisor: bool,
    /// Whether it calls itself `memwarden`, as `memwarden run` does: its command explains the end.
    pub(super) is_wrapper: bool,
    /// Its own limits; that of CPU time only where it can have reached it.
    pub(super) limits: OwnLimits,
    /// The pid of its parent, and whether that was of its workload.
    pub(super) parent: u32,
    pub(super) is_parent_own: bool,
    /// Resident memory in the last sample.
    pub(super) rss: Bytes,
    pub(super) cgroup: Option<Label>,
    /// The label of its rank; absent where it reported as none.
    pub(super) rank: Option<Label>,
    /// Its run, by its client; empty where that told none.
    pub(super) run: Label,
}

/// Whether it is Slurm's process that started the program: that it lives, or succeeds, says nothing of the program.
pub(super) fn is_supervisor(row: &ProcessRow) -> bool {
    row.uid == 0 && row.comm.as_str() == "slurmstepd"
}

/// Whether it calls itself as `memwarden run` does.
pub(super) fn is_wrapper(row: &ProcessRow) -> bool {
    row.comm.as_str() == "memwarden"
}

/// A process that has ended, why, and the step that it had completed and the phase in which it ended.
pub(super) type Explained<'m> = (&'m Member, Classified, (Option<u64>, Label));

/// Processes of one workload that end together.
#[derive(Debug)]
pub(super) struct Episode {
    pub(super) workload: Arc<Workload>,
    pub(super) members: Vec<Member>,
    /// Number of all processes that ended.
    count: u64,
    /// The last frame before.
    frame: Option<Arc<Frame>>,
    first: Timestamp,
    last: Timestamp,
}

impl Episode {
    pub(super) fn new(workload: &Arc<Workload>, frame: Option<Arc<Frame>>, now: Timestamp) -> Self {
        Self { workload: Arc::clone(workload), members: Vec::new(), count: 0, frame, first: now, last: now }
    }

    pub(super) fn add(&mut self, member: Member, now: Timestamp) {
        self.count += 1;
        self.last = now;
        if self.members.len() < MOST_MEMBERS {
            self.members.push(member);
            return;
        }
        // Ranks and large processes explain the others.
        let order = |member: &Member| (member.rank.is_some(), member.rss);
        let least = self.members.iter_mut().min_by_key(|known| order(known));
        if let Some(least) = least.filter(|least| order(least) < order(&member)) {
            *least = member;
        }
    }

    /// Number of all processes that ended.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The pid of the nearest process above that did not end with it.
    pub(super) fn parent_of(&self, member: &Member) -> u32 {
        self.above(member).last().unwrap_or(member).parent
    }

    /// Whether all is known that will be.
    pub(super) fn is_due(&self, now: Timestamp, log_is_behind: bool) -> bool {
        let since = |then: Timestamp| now.since(then).as_secs_f64();
        let is_settled = since(self.last) >= SETTLE || since(self.first) >= SETTLE_MOST;
        is_settled && (!log_is_behind || since(self.first) >= BEHIND_MOST)
    }

    /// The level of a resource in the frame before.
    fn level(&self, wanted: impl Fn(&Subject) -> bool) -> Option<Level> {
        let frame = self.frame.as_ref()?;
        let levels =
            frame.outlook.conclusions.iter().filter(|known| wanted(&known.subject)).filter_map(|known| {
                let forecast = known.forecast.as_ref()?;
                Some(Level {
                    resource: known.subject.clone(),
                    used: forecast.used_bytes,
                    limit: forecast.limit_bytes,
                })
            });
        levels.max_by(|one, other| (one.used / one.limit).total_cmp(&(other.used / other.limit)))
    }

    /// When its first process was last seen alive, and when its end was seen.
    pub(super) fn between(&self) -> (Timestamp, Timestamp) {
        (self.frame.as_ref().map_or(self.first, |frame| frame.at), self.first)
    }

    pub(super) fn host_level(&self) -> Option<Level> {
        self.level(|subject| subject.resource.as_str() == "host")
    }

    /// The fullest of these GPUs, and of the limits on device memory of the cgroup and those above.
    pub(super) fn gpu_level(&self, gpus: &[Gpu], group: &Label) -> Option<Level> {
        self.level(|subject| match subject.resource.as_str() {
            "gpu" => gpus.iter().any(|(_, uuid)| *uuid == subject.uuid),
            "device_memory" => within(group.as_str(), subject.cgroup.as_str()),
            _ => false,
        })
    }

    /// Whether a pool of huge pages had none left that was not promised; absent where the workload mapped none.
    pub(super) fn huge_pages(&self) -> Option<bool> {
        let frame = self.frame.as_ref()?;
        let mapped = frame.value(HUGE.desc.name, &[("workload", self.workload.name.as_str())]);
        mapped.filter(|mapped| *mapped > 0.0)?;
        let pools = |desc: &'static Desc| frame.families.iter().filter(move |own| own.desc.name == desc.name);
        let mut free = pools(&FREE.desc).flat_map(|family| &family.points);
        let is_used_up =
            |size: &str, free: f64| free <= frame.value(RESERVED.desc.name, &[("size", size)]).unwrap_or(0.0);
        Some(free.any(|point| is_used_up(point.labels[0].as_str(), point.value)))
    }

    /// That its workload leaked, in the frame before.
    pub(super) fn leak(&self) -> Option<EndEvidence> {
        let workload = Subject::workload(&self.workload.name);
        let mut known = self.frame.iter().flat_map(|frame| &frame.outlook.conclusions);
        let own =
            known.find(|known| known.subject == workload)?.growth.as_ref().filter(|growth| growth.leaks())?;
        Some(EndEvidence::Leak { bytes_per_second: own.bytes_per_second() })
    }

    /// The cgroup that was hit, which was full; where none is known, the fullest on the path of `group`.
    pub(super) fn cgroup_level(
        &self,
        view: &View<'_>,
        group: &Label,
        hit: Option<&OomKill>,
    ) -> Option<Level> {
        let hit = hit.map(|kill| &kill.limit_cgroup).filter(|path| !path.is_empty());
        if let Some(path) = hit {
            let resource = Subject::cgroup(path);
            let labels = std::slice::from_ref(path);
            let before = self
                .frame
                .as_ref()
                .and_then(|frame| frame.value(LIMIT.desc.name, &[("cgroup", path.as_str())]));
            let limit = before.or_else(|| view.value(&LIMIT, labels));
            return limit.map(|limit| Level { resource, used: limit, limit });
        }
        self.level(|subject| {
            subject.resource.as_str() == "cgroup" && within(group.as_str(), subject.cgroup.as_str())
        })
    }

    /// Whether the daemon said in the frame before that a phase of this process will not fit.
    pub(super) fn will_not_fit(&self, pid: u32) -> bool {
        let pid = Label::from(pid);
        let fits = self.frame.iter().flat_map(|frame| &frame.outlook.fits);
        fits.into_iter().any(|fit| fit.pid == pid && fit.verdict == Verdict::WillNotFit)
    }

    /// When the first of the ranks started that ended with a process or are connected, or the process itself where there is none,
    /// in seconds since 1970, with the `boot` of the host. A program that ran before in the same shell is none of them.
    pub(super) fn began(&self, member: &Member, ranks: &[ReportedRank], boot: u64) -> f64 {
        let ended = self.members.iter().filter(|own| own.rank.is_some()).map(|own| own.key);
        let connected = ranks.iter().filter(|rank| rank.workload == self.workload.name);
        let first = ended.chain(connected.filter_map(|rank| rank.key)).map(|key| key.start).min();
        real(boot) + real(first.unwrap_or(member.key.start)) / TICKS + BOOT
    }

    /// The end, as it is published; `began` is absent where the boot time is not known.
    pub(super) fn end(
        &self,
        number: u64,
        (member, found, (step, phase)): Explained<'_>,
        (observed, began): (Option<&Observed>, Option<f64>),
        is_whole: bool,
    ) -> End {
        let unix = self.first.unix().as_secs_f64();
        let at = self.first.monotonic().as_secs_f64();
        let last_saved = observed.and_then(|known| known.saved_unix);
        let saved = last_saved.filter(|saved| began.is_none_or(|began| *saved >= began));
        let of_another = last_saved.is_some() && saved.is_none();
        let lost = observed.filter(|known| !known.gpus.is_empty() && found.cause != EndCause::Finished);
        let lost = lost.and_then(|known| {
            let start = if of_another { began } else { known.started_unix };
            let since = unix - saved.or(start)?;
            Some(since.max(0.0) * real(known.gpus.len() as u64))
        });
        let curve = observed.iter().flat_map(|known| &known.curve).map(|(then, rss, gpu)| {
            #[expect(clippy::cast_possible_truncation, reason = "seconds of the last minutes")]
            let before = (at - then) as f32;
            (before, *rss, *gpu)
        });
        let run_of_workload = observed.map(|known| known.run.clone()).unwrap_or_default();
        End {
            number,
            unix_seconds: unix,
            workload: self.workload.name.clone(),
            run: if member.run.is_empty() { run_of_workload } else { member.run.clone() },
            rank: member.rank.clone().unwrap_or_default(),
            user_id: self.workload.user,
            pid: member.key.pid,
            comm: member.comm.clone(),
            processes: self.count,
            is_whole,
            retry: found.retry(),
            cause: found.cause,
            probability: found.probability,
            settles: found.settles.into(),
            used_bytes: found.level.as_ref().map(|level| level.used),
            limit_bytes: found.level.as_ref().map(|level| level.limit),
            resource: found.level.map(|level| level.resource),
            other: found.other,
            evidence: found.evidence,
            phase,
            step,
            checkpoint_step: observed.and_then(|known| known.saved_step).filter(|_| !of_another),
            checkpoint_age_seconds: saved.map(|saved| (unix - saved).max(0.0)),
            lost_gpu_seconds: lost,
            curve: curve.collect(),
        }
    }

    /// Whether the program of which it was a part sent it the signal that ended it.
    fn is_ended_by_own(&self, member: &Member, found: &Classified) -> bool {
        let senders = found.evidence.iter().filter_map(|seen| match seen {
            EndEvidence::SentBy(sender) => Some(sender.pid),
            _ => None,
        });
        let mut others = senders.filter(|pid| *pid != member.key.pid);
        let is_parent = |pid| pid == member.parent && member.is_parent_own;
        others.any(|pid| is_parent(pid) || self.members.iter().any(|own| own.key.pid == pid))
    }

    /// Those of the processes above that ended with it, the nearest first.
    pub(super) fn above<'e>(&'e self, member: &'e Member) -> impl Iterator<Item = &'e Member> {
        let parent = |child: &&Member| self.members.iter().find(|own| own.key.pid == child.parent);
        std::iter::successors(Some(member), parent).skip(1).take(self.members.len())
    }

    /// Whether SIGKILL ended it because a process above had ended by itself: the kernel kills the others of the pid namespace of that,
    /// before its end is reported, and supervisors those that it left.
    pub(super) fn is_left_over(&self, member: &Member, found: &Classified, recent: &Recent) -> bool {
        let is_of_other = |seen: &EndEvidence| matches!(seen, EndEvidence::SentBy(_));
        let may_be = matches!(found.cause, EndCause::Killed | EndCause::Unknown)
            && recent.status_of(member.key) == Some(ExitStatus::Signal(SIGKILL))
            && !found.evidence.iter().any(is_of_other);
        let mut ended = self.above(member).filter_map(|own| match recent.status_of(own.key)? {
            ExitStatus::Code(code) => Some((own, code)),
            ExitStatus::Signal(_) => None,
        });
        may_be
            && ended.any(|(own, code)| {
                // It can also have ended because of this kill: launchers of ranks fail then, and shells with 128 + SIGKILL.
                let is_reason = code == 128 + SIGKILL || (code != 0 && member.rank.is_some());
                (own.limits.is_init && !is_reason) || recent.ended_before(own.key, member.key)
            })
    }

    /// Whether an end is stated: that of a workload or of a rank, and of another process if a signal ended it that programs do not
    /// send to their own helpers, or if it held much memory.
    pub(super) fn is_notable(&self, member: &Member, found: &Classified, is_whole: bool) -> bool {
        /// SIGHUP, SIGINT, SIGPIPE and SIGTERM.
        const ORDINARY: [i32; 4] = [1, 2, 13, 15];
        let by_signal = found.evidence.iter().any(|seen| match seen {
            EndEvidence::Status(ExitStatus::Signal(signal)) => !ORDINARY.contains(signal),
            EndEvidence::KernelLog(_) => true,
            _ => false,
        });
        is_whole
            || member.rank.is_some()
            || (by_signal && !self.is_ended_by_own(member, found))
            || (member.rss >= LARGE && found.cause != EndCause::Finished)
    }

    /// Whether it did not end by a signal with which launchers end the others.
    pub(super) fn is_first(&self, member: &Member, found: &Classified) -> bool {
        let is_kill = |seen: &EndEvidence| {
            matches!(
                seen,
                EndEvidence::Status(ExitStatus::Signal(9)) | EndEvidence::ChildSignal { signal: 9, .. }
            )
        };
        match found.cause {
            EndCause::Finished => false,
            EndCause::Killed | EndCause::Unknown => {
                found.evidence.iter().any(is_kill) && !self.is_ended_by_own(member, found)
            }
            _ => true,
        }
    }
}
