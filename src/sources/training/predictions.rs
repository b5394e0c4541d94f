//! What one process predicts of its next phases. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::counts::Wrong;
use super::metrics as m;
use super::rank_identity::RankIdentity;
use crate::formats::messages::{Hello, Prediction as Reported, Size as ReportedSize};
use crate::model::fit::{MOST_PREDICTIONS, Medium, Peak, Phase, Prediction, RankPredictions, Size};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// The predictions of one process, each with its phase and resource.
#[derive(Debug, Default)]
pub struct Predictions(BTreeMap<(Phase, Medium, Option<u16>), Prediction>);

impl Predictions {
    /// Replaces the prediction of the same phase and resource.
    ///
    /// # Errors
    /// The process has [`MOST_PREDICTIONS`] others.
    pub(super) fn add(&mut self, reported: Reported, now: Timestamp) -> Result<(), (Wrong, String)> {
        let Reported { phase, resource, device, certainty, peak, peak_p90, held, measured, step, .. } =
            reported;
        // The parser rejects a message without these.
        let (Some(phase), Some(medium), Some(certainty)) = (phase, resource, certainty) else {
            return Ok(());
        };
        let key = (phase, medium, device);
        if self.0.len() >= MOST_PREDICTIONS && !self.0.contains_key(&key) {
            return Err((Wrong::Excess, format!("more than {MOST_PREDICTIONS} predictions")));
        }
        let peak = peak.map(|p50| Peak { p50: Bytes::new(p50), p90: Bytes::new(peak_p90.unwrap_or(p50)) });
        let prediction = Prediction {
            phase,
            medium,
            device,
            uuid: None,
            gpu: None,
            memory_age: None,
            certainty,
            peak,
            held: held.map(Bytes::new),
            mapped: reported.mapped.map(Bytes::new),
            measured: measured.map(Bytes::new),
            free: reported.free.map(Bytes::new),
            step: step.unwrap_or(0),
            due_step: reported.due_step,
            size: reported.size.and_then(|size| size_of(&size)),
            least: reported.least.unwrap_or(false),
            so_far: reported.so_far.unwrap_or(false),
            basis: Label::printable(&reported.basis.unwrap_or_default()),
            sequence: reported.sequence,
            received: now,
        };
        self.0.insert(key, prediction);
        Ok(())
    }

    /// The predictions, by phase and resource.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Prediction> {
        self.0.values()
    }

    /// Passes the predictions to the analyzers; `past` is what is to be said of earlier runs, `memory_age` the time since the
    /// memory of a device was reported.
    pub(super) fn report(
        &self,
        hello: &Hello,
        identity: &RankIdentity,
        process: Option<ProcessKey>,
        past: Option<&String>,
        memory_age: impl Fn(u16) -> Option<Duration>,
        out: &mut Batch,
    ) {
        if self.0.is_empty() {
            return;
        }
        let located = |prediction: &Prediction| {
            let gpu = prediction.device.and_then(|ordinal| identity.gpu_and_uuid(hello, ordinal));
            let (gpu, uuid) = gpu.cloned().unzip();
            let memory_age = prediction.device.and_then(&memory_age);
            Prediction { gpu, uuid, memory_age, ..prediction.clone() }
        };
        out.facts.predictions.push(RankPredictions {
            process,
            key: identity.key.clone(),
            workload: identity.workload.clone(),
            rank: identity.rank.clone(),
            run: identity.run.clone(),
            past: past.cloned().unwrap_or_default(),
            predictions: self.0.values().map(located).collect(),
        });
    }

    /// Puts the predicted and the measured peaks.
    pub(super) fn put(&self, hello: &Hello, identity: &RankIdentity, out: &mut Batch) {
        let [workload, rank] = identity.labels();
        for ((phase, medium, ordinal), prediction) in &self.0 {
            let gpu = ordinal.and_then(|ordinal| identity.gpu(hello, ordinal)).cloned().unwrap_or_default();
            let labels = [
                workload.clone(),
                rank.clone(),
                phase.label().into(),
                medium.label().into(),
                ordinal.map(Label::from).unwrap_or_default(),
                gpu,
            ];
            let with = |last: &str| -> Vec<Label> { labels.iter().cloned().chain([last.into()]).collect() };
            if let Some(peak) = prediction.peak {
                out.put(&m::PREDICTED_PEAK, &with("p50"), peak.p50);
                out.put(&m::PREDICTED_PEAK, &with("p90"), peak.p90);
            }
            out.put_some(&m::PREDICTION_MEASURED, &labels, prediction.measured);
        }
    }
}

fn size_of(reported: &ReportedSize) -> Option<Size> {
    Some(Size {
        unit: reported.unit?,
        units: reported.units?,
        samples: reported.samples,
        length: reported.length,
        fixed: reported.fixed.unwrap_or(0.0),
        per_unit: reported.per_unit.unwrap_or(0.0),
        per_square: reported.per_square.unwrap_or(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::messages::{Body, parse};
    use crate::model::fit::{Certainty, SizeUnit};

    fn reported(rest: &str) -> Reported {
        let line = format!(r#"{{"type":"prediction",{rest}}}"#);
        match parse(line.as_bytes()).unwrap().body {
            Body::Prediction(prediction) => *prediction,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_prediction_replaces_the_earlier_one_of_its_phase_and_resource() {
        let mut all = Predictions::default();
        let now = Timestamp::from_secs(1);
        for rest in [
            r#""phase":"step","resource":"device","device":"0","certainty":"estimated","peak":9,"peak_p90":12,"held":4"#,
            r#""phase":"step","resource":"host","certainty":"unknown","least":true,"basis":"no\u0007measurement""#,
            r#""phase":"step","resource":"device","device":"0","certainty":"exact","peak":7,"step":3,"due_step":262,"so_far":true,"size":{"unit":"tokens","units":4096,"per_unit":2.5}"#,
        ] {
            all.add(reported(rest), now).unwrap();
        }
        let found: Vec<&Prediction> = all.0.values().collect();
        let [device, host] = found[..] else { panic!("{found:?}") };
        assert_eq!((device.certainty, device.step, device.due_step), (Certainty::Exact, 3, Some(262)));
        assert_eq!(device.peak, Some(Peak { p50: Bytes::new(7), p90: Bytes::new(7) }));
        assert_eq!((device.held, device.so_far, host.least), (None, true, true), "of the last message only");
        let size = device.size.unwrap();
        assert_eq!((size.unit, size.units, size.fixed, size.per_unit), (SizeUnit::Tokens, 4_096, 0.0, 2.5));
        assert_eq!((host.peak, host.basis.as_str()), (None, "no?measurement"));
    }

    #[test]
    fn the_predictions_of_a_process_are_bounded() {
        let mut all = Predictions::default();
        let now = Timestamp::from_secs(1);
        let one = |ordinal: usize| {
            reported(&format!(
                r#""phase":"save","resource":"device","device":"{ordinal}","certainty":"exact","peak":1"#
            ))
        };
        let accepted = (0..100).filter(|ordinal| all.add(one(*ordinal), now).is_ok()).count();
        assert_eq!(accepted, MOST_PREDICTIONS);
        all.add(one(0), now).unwrap();
    }
}
