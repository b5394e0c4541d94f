//! The series of a frame by metric.

use foldhash::{HashMap, HashMapExt as _};

use crate::model::desc::Desc;
use crate::model::frame::Frame;
use crate::model::label::Label;
use crate::model::point::{Family, Point};

/// The families of a frame by name.
#[derive(Debug)]
pub(super) struct Lookup<'f>(HashMap<&'static str, &'f Family>);

#[derive(Clone, Copy, Debug)]
pub(super) struct MetricRow<'f> {
    desc: &'static Desc,
    point: &'f Point,
}

impl<'f> MetricRow<'f> {
    /// A label's value; empty where there is none.
    pub(super) fn label(&self, name: &str) -> &'f str {
        self.get(name).map_or("", |label| label.as_str())
    }

    /// The value of a label; absent where the metric has no such label.
    pub(super) fn get(&self, name: &str) -> Option<&'f Label> {
        self.point.label(self.desc, name)
    }

    pub(super) fn value(&self) -> f64 {
        self.point.value
    }
}

impl<'f> Lookup<'f> {
    /// The series of `frame`.
    pub(super) fn of(frame: &'f Frame) -> Self {
        let mut families = HashMap::with_capacity(frame.families.len());
        families.extend(frame.families.iter().map(|family| (family.desc.name, family)));
        Self(families)
    }

    pub(super) fn rows(&self, desc: &Desc) -> impl Iterator<Item = MetricRow<'f>> + use<'f> {
        let family = self.0.get(desc.name).copied();
        family
            .into_iter()
            .flat_map(|family| family.points.iter().map(|point| MetricRow { desc: family.desc, point }))
    }

    /// Every series of a metric whose value is above 0: those that say what is so now.
    pub(super) fn current(&self, desc: &Desc) -> impl Iterator<Item = MetricRow<'f>> + use<'f> {
        self.rows(desc).filter(|row| row.value() > 0.0)
    }

    /// The value of the only series of a metric without labels.
    pub(super) fn value(&self, desc: &Desc) -> Option<f64> {
        self.rows(desc).next().map(|row| row.value())
    }
}
