//! Remembers the XID errors of GPUs that need an operator until something was done about them.
//!
//! # What it says
//! One critical finding for each GPU that has reported an XID whose severity is critical ([`crate::model::xid`]), with its
//! meaning and what to do. XIDs that a job causes are not among them. The state of the hardware of each GPU takes account of
//! these XIDs, also of acknowledged ones (`hardware`).
//!
//! # When it ends
//! When the GPU was reset: its driver has begun to count its energy or its uncorrected ECC errors anew. When the node was
//! restarted: the state of the analyzers is of one boot. An acknowledgement changes the severity to info; it ends when the GPU
//! reports another such XID.

mod hardware;
pub mod metrics;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Registration;
use crate::model::acknowledged::ProblemId;
use crate::model::analyzer::{Analysis, Analyzer, SavedState, View};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::health::Health;
use crate::model::label::Label;
use crate::model::point::Point;
use crate::model::time::Timestamp;
use crate::model::units::Flag;
use crate::model::xid::{self, KNOWN};
use crate::sources::gpu::metrics::{ECC_ERRORS, ENERGY, XID_ERRORS};

/// Registration of the `xid` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "xid",
    about: "Remembers XID errors that need an operator until the GPU is reset, the node restarts, or they are acknowledged.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_| Box::new(Xids::default()))
};

/// Most GPUs with an unresolved XID: those of a node, and some that were replaced.
const MOST: usize = 128;

#[derive(Debug, Default)]
struct Xids {
    unresolved: Vec<Unresolved>,
    /// The events of each GPU and XID that were seen before, by UUID, or index of a GPU without one, and XID, since the daemon
    /// started.
    seen: BTreeMap<(Label, Label, u32), f64>,
}

/// The unresolved XIDs of one GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Unresolved {
    gpu: Label,
    uuid: Label,
    /// In seconds since 1970.
    since: f64,
    /// The events of each XID.
    xids: BTreeMap<u32, f64>,
    /// What the driver has counted of the GPU since it was loaded, or the GPU reset.
    energy: f64,
    uncorrected: f64,
}

impl Analyzer for Xids {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let unix = now.unix().as_secs_f64();
        self.forget_reset(view, &mut out.unacknowledged);
        for point in view.points(&XID_ERRORS) {
            let [gpu, uuid, xid, severity] = &*point.labels else { continue };
            let is_critical = Health::of_word(severity.as_str()) == Health::Critical;
            let Some(xid) = xid.as_str().parse().ok().filter(|_| is_critical) else { continue };
            self.identify(gpu, uuid);
            let index = if uuid.is_empty() { gpu.clone() } else { Label::default() };
            let seen = self.seen.insert((index, uuid.clone(), xid), point.value).unwrap_or(0.0);
            if point.value > seen {
                out.unacknowledged.extend(self.record((gpu, uuid), xid, point.value - seen, unix));
            }
        }
        for own in &self.unresolved {
            let id = own.id();
            let acknowledged = view.acknowledged(&id, Health::Critical) && !out.unacknowledged.contains(&id);
            for xid in own.xids.keys() {
                let labels = [own.gpu.clone(), own.uuid.clone(), (*xid).into()];
                out.batch.put(&metrics::UNRESOLVED, &labels, Flag(!acknowledged));
            }
            out.findings.push(own.finding(acknowledged));
        }
        let has_xid = |gpu: &Label, uuid: &Label| self.unresolved.iter().any(|own| own.is_of(gpu, uuid));
        hardware::put(view, has_xid, &mut out.batch);
    }

    fn save(&self) -> Option<SavedState> {
        let kept = self.unresolved.clone();
        Some(Box::new(move |out| serde_json::to_writer(out, &kept)))
    }

    fn restore(&mut self, saved: &str) -> Result<(), serde_json::Error> {
        // What was reported since the start of the daemon is newer.
        for own in serde_json::from_str::<Vec<Unresolved>>(saved)? {
            if self.unresolved.len() < MOST && !self.unresolved.iter().any(|known| known.uuid == own.uuid) {
                self.unresolved.push(own);
            }
        }
        Ok(())
    }
}

impl Xids {
    /// Removes the XIDs of each GPU that was reset since the last tick: its driver counts anew.
    fn forget_reset(&mut self, view: &View<'_>, forgotten: &mut Vec<ProblemId>) {
        self.unresolved.retain_mut(|own| {
            // The driver may give it another index after the reset.
            let value = |points: &[Point], more: &[&str]| {
                let is_its = |point: &&Point| {
                    let [gpu, uuid, rest @ ..] = &*point.labels else { return false };
                    *uuid == own.uuid
                        && (!uuid.is_empty() || *gpu == own.gpu)
                        && rest.iter().map(Label::as_str).eq(more.iter().copied())
                };
                points.iter().find(is_its).map(|point| point.value)
            };
            let energy = value(view.points(&ENERGY), &[]);
            let uncorrected = value(view.points(&ECC_ERRORS), &["uncorrected", "volatile"]);
            // A value that cannot be read says nothing.
            let counted = [(&mut own.energy, energy), (&mut own.uncorrected, uncorrected)];
            let goes_on = counted
                .into_iter()
                .all(|(before, now)| now.is_none_or(|now| std::mem::replace(before, now) <= now));
            if !goes_on {
                forgotten.push(own.id());
            }
            goes_on
        });
    }

    /// A GPU that had no UUID yet is the one that has it now at its index.
    fn identify(&mut self, gpu: &Label, uuid: &Label) {
        let nameless = Label::default();
        if *uuid == nameless {
            return;
        }
        for own in self.unresolved.iter_mut().filter(|own| own.gpu == *gpu && own.uuid == nameless) {
            own.uuid = uuid.clone();
        }
        let of_gpu = |(key, events): (&(Label, Label, u32), &f64)| {
            (key.0 == *gpu && key.1 == nameless).then_some((key.2, *events))
        };
        let before: Vec<(u32, f64)> = self.seen.iter().filter_map(of_gpu).collect();
        for (xid, events) in before {
            self.seen.remove(&(gpu.clone(), nameless.clone(), xid));
            self.seen.insert((nameless.clone(), uuid.clone(), xid), events);
        }
    }

    /// Records events; returns whose they are, unless there are too many GPUs.
    fn record(
        &mut self,
        (gpu, uuid): (&Label, &Label),
        xid: u32,
        events: f64,
        unix: f64,
    ) -> Option<ProblemId> {
        let place = self.unresolved.iter().position(|own| own.is_of(gpu, uuid));
        let place = place.unwrap_or(self.unresolved.len());
        if place == MOST {
            return None;
        }
        if place == self.unresolved.len() {
            let (gpu, uuid) = (gpu.clone(), uuid.clone());
            let xids = BTreeMap::new();
            self.unresolved.push(Unresolved { gpu, uuid, since: unix, xids, energy: 0.0, uncorrected: 0.0 });
        }
        let own = &mut self.unresolved[place];
        *own.xids.entry(xid).or_default() += events;
        own.gpu = gpu.clone();
        Some(own.id())
    }
}

impl Unresolved {
    fn is_of(&self, gpu: &Label, uuid: &Label) -> bool {
        self.uuid == *uuid && (self.gpu == *gpu || !uuid.is_empty())
    }

    fn id(&self) -> ProblemId {
        ProblemId::new(REGISTRATION.name, Subject::gpu(&self.gpu, &self.uuid))
    }

    fn finding(&self, acknowledged: bool) -> Finding {
        let told: Vec<String> =
            self.xids.keys().map(|xid| format!("XID {xid}: {}", xid::meaning(*xid))).collect();
        let (severity, state) =
            if acknowledged { (Severity::Info, "acknowledged") } else { (Severity::Critical, "unresolved") };
        let known = KNOWN.iter().rfind(|known| self.xids.contains_key(&known.xid));
        Finding {
            analyzer: REGISTRATION.name,
            subject: Subject::gpu(&self.gpu, &self.uuid),
            state,
            severity,
            since_unix_seconds: self.since,
            summary: format!("GPU {} reported {}.", self.gpu, told.join("; ")),
            evidence: vec![Evidence { what: "xid_events", value: self.xids.values().sum() }],
            advice: known.map_or("", |known| known.advice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::acknowledged::{Acknowledged, Acknowledgement};
    use crate::model::point::Batch;
    use crate::model::units::{Count, Joules};

    /// One tick in which a GPU has these counts of XIDs, and this energy.
    fn tick(xids: &mut Xids, second: u64, counts: &[(u32, u64)], energy: f64) -> Analysis {
        tick_of(xids, second, &[("0", "GPU-0", counts, energy)])
    }

    /// A GPU: index, UUID, counts of XIDs, energy.
    type Gpu<'a> = (&'a str, &'a str, &'a [(u32, u64)], f64);

    /// One tick with these GPUs.
    fn tick_of(xids: &mut Xids, second: u64, gpus: &[Gpu<'_>]) -> Analysis {
        acknowledged_tick(xids, second, gpus, &Acknowledged::default())
    }

    /// One tick with these GPUs and acknowledged problems.
    fn acknowledged_tick(xids: &mut Xids, second: u64, gpus: &[Gpu<'_>], known: &Acknowledged) -> Analysis {
        let mut batch = Batch::new();
        for (gpu, uuid, counts, energy) in gpus {
            let labels: [Label; 2] = [(*gpu).into(), (*uuid).into()];
            for (xid, count) in *counts {
                let [gpu, uuid] = labels.clone();
                let severity = xid::severity(*xid).label().into();
                batch.put(&XID_ERRORS, &[gpu, uuid, (*xid).into(), severity], Count(*count));
            }
            batch.put_some(&ENERGY, &labels, Joules::new(*energy));
        }
        let mut out = Analysis::default();
        let view = View::new(batch.families()).with_acknowledged(known);
        xids.analyze(&view, Timestamp::from_secs(second), &mut out);
        out
    }

    fn told(out: &Analysis) -> Vec<(Health, String)> {
        let of = |finding: &Finding| (finding.severity.into(), finding.summary.clone());
        out.findings.iter().map(of).collect()
    }

    fn acknowledged(gpu: &str, uuid: &str) -> Acknowledged {
        let id = ProblemId::new("xid", Subject::gpu(&gpu.into(), &uuid.into()));
        let mut known = Acknowledged::default();
        known.add(id, Health::Critical, Acknowledgement::default());
        known
    }

    #[test]
    fn what_needs_an_operator_stays_critical_until_the_gpu_is_reset() {
        let mut xids = Xids::default();
        assert!(told(&tick(&mut xids, 1, &[(31, 4), (43, 1), (13, 1), (45, 1), (48, 0)], 10.0)).is_empty());
        let expected =
            "GPU 0 reported XID 48: double-bit ECC error in GPU memory, which cannot be corrected.";
        let critical = vec![(Health::Critical, expected.to_owned())];
        assert_eq!(told(&tick(&mut xids, 2, &[(48, 1)], 20.0)), critical);
        let later = tick(&mut xids, 100_000, &[(48, 1)], 30.0);
        assert_eq!(told(&later), critical);
        assert_eq!(later.findings[0].advice, "drain the node and reset the GPU");
        assert!(told(&tick(&mut xids, 100_001, &[(48, 1)], 0.5)).is_empty(), "its driver counts anew");
        assert!(told(&tick(&mut xids, 100_002, &[(48, 1)], 1.5)).is_empty(), "and the event is an old one");
    }

    #[test]
    fn an_acknowledgement_lasts_until_the_next_event_and_over_a_restart() {
        let mut xids = Xids::default();
        tick(&mut xids, 1, &[(62, 1)], 10.0);
        let mut text = Vec::new();
        xids.save().unwrap()(&mut text).unwrap();
        let mut after = Xids::default();
        after.restore(&String::from_utf8(text).unwrap()).unwrap();
        let mut tick = |second, counts: &[(u32, u64)], known: &Acknowledged| {
            acknowledged_tick(&mut after, second, &[("0", "GPU-0", counts, 20.0)], known)
        };
        let (of_it, of_another) = (acknowledged("0", "GPU-0"), acknowledged("0", "GPU-1"));
        let out = tick(90, &[(62, 0)], &of_another);
        assert_eq!(out.findings[0].severity, Severity::Critical, "it is not that one");
        let out = tick(91, &[(62, 0)], &of_it);
        assert_eq!((out.findings[0].severity, out.findings[0].state), (Severity::Info, "acknowledged"));
        assert_eq!(out.batch.families()[0].points[0].value, 0.0);
        assert!(out.unacknowledged.is_empty());
        let out = tick(92, &[(62, 1), (79, 1)], &of_it);
        let [(health, text)] = &told(&out)[..] else { panic!() };
        assert!(*health == Health::Critical && text.contains("; XID 79: "), "{text}");
        assert!(out.batch.families()[0].points.iter().map(|point| point.value).eq([1.0, 1.0]));
        assert!(of_it.ids().eq([&out.unacknowledged[0]]));
    }

    #[test]
    fn gpus_without_a_uuid_are_apart_and_keep_their_xids_when_they_have_one() {
        let mut xids = Xids::default();
        for second in 1..4 {
            let out = tick_of(&mut xids, second, &[("0", "", &[(79, 1)], 1.0), ("1", "", &[(79, 0)], 1.0)]);
            assert_eq!(told(&out).len(), 1);
            assert_eq!(out.findings[0].evidence[0].value, 1.0, "it is the same event in each tick");
        }
        let known = acknowledged("0", "");
        let gpus: [Gpu<'_>; 2] = [("0", "GPU-a", &[(79, 1)], 1.0), ("1", "GPU-b", &[(79, 0)], 1.0)];
        let out = acknowledged_tick(&mut xids, 4, &gpus, &known);
        assert_eq!(told(&out).len(), 1, "it is not told again of the GPU that is identified now");
        assert!(told(&out)[0].0 < Health::Critical, "and the acknowledgement stays");
        // After a reset the driver counts anew, at another index.
        let out = acknowledged_tick(&mut xids, 5, &[("1", "GPU-a", &[(79, 1)], 0.1)], &known);
        assert!(told(&out).is_empty() && !out.unacknowledged.is_empty());
    }
}
