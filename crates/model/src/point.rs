//! The points of one tick, grouped in families and added by the sources.
//!
//! A value that is not finite, a second point of one series, and series beyond the budget of their metric are dropped and
//! counted, so that no frame has them. A value that could not be read is not put at all.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use foldhash::HashMapExt as _;
use foldhash::HashSetExt as _;

use super::desc::{Desc, Histogram, INFINITE, Metric, SUM};
use super::facts::Facts;
use super::frame::Frame;
use super::histogram::Buckets;
use super::label::Label;
use super::names::named;
use super::units::{Count, Unit};

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Point {
    /// Label values, in the order of [`Desc::labels`]; shared with the same series of the previous tick.
    pub labels: Arc<[Label]>,
    /// The value, always finite.
    pub value: f64,
}

impl Point {
    /// The value of a label by its name; absent where the metric of the point has no such label.
    pub fn label(&self, desc: &Desc, name: &str) -> Option<&Label> {
        self.labels.get(desc.labels.iter().position(|own| *own == name)?)
    }
}

/// The points of a metric. By name: a test's frame has declarations of its own.
pub fn points<'f>(families: &'f [Family], desc: &Desc) -> &'f [Point] {
    let family = families.iter().find(|family| family.desc.name == desc.name);
    family.map_or(&[], |family| &family.points)
}

/// All points of one metric in one frame.
#[derive(Debug)]
pub struct Family {
    pub desc: &'static Desc,
    /// Its points; no two have the same labels once the batch is sealed.
    pub points: Vec<Point>,
    /// The places of the points, of which there were as many when it was made.
    index: OnceLock<(usize, Places)>,
}

/// The index of the first point with each labels.
type Places = foldhash::HashMap<Arc<[Label]>, usize>;

impl Family {
    pub const fn new(desc: &'static Desc, points: Vec<Point>) -> Self {
        Self { desc, points, index: OnceLock::new() }
    }

    /// The value of the first point with these labels. An analyzer asks for each series of a family, of which users can make
    /// thousands: these are found by an index.
    pub fn value(&self, labels: &[Label]) -> Option<f64> {
        /// Fewer points are compared faster than they are indexed.
        const FEW: usize = 16;
        if self.points.len() > FEW {
            let (count, index) = self.index.get_or_init(|| (self.points.len(), self.places()));
            if *count == self.points.len() {
                return index.get(labels).map(|place| self.points[*place].value);
            }
        }
        self.points.iter().find(|point| *point.labels == *labels).map(|point| point.value)
    }

    fn places(&self) -> Places {
        let mut places = Places::with_capacity(self.points.len());
        for (place, point) in self.points.iter().enumerate() {
            places.entry(Arc::clone(&point.labels)).or_insert(place);
        }
        places
    }
}

named! {
    /// Why a point was dropped from the frame.
    pub enum Dropped {
        /// The metric's series budget was used up.
        Budget = "budget",
        /// Another point has the same labels.
        Duplicate = "duplicate",
        NotFinite = "not_finite",
        /// The number of label values is not the number of labels: a defect of the source.
        Labels = "labels",
    }
}

/// How many points of the previous tick are compared with a new one to reuse its labels: up to this many minus one
/// may have disappeared.
const AHEAD: usize = 4;

/// Position of a family in the points of the previous tick.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// Index of the family in the previous frame.
    place: Option<usize>,
    /// The first of its points that has not reappeared.
    next: usize,
    /// How many have reappeared.
    met: usize,
}

/// Collects the points of one tick.
#[derive(Debug, Default)]
pub struct Batch {
    families: Vec<Family>,
    /// By index of the family in this batch.
    before: Vec<Before>,
    /// The frame of the previous tick.
    last: Option<Arc<Frame>>,
    /// Position in `families` by the address of the declaration.
    places: foldhash::HashMap<usize, usize>,
    dropped: HashMap<(&'static str, Dropped), u64>,
    /// Facts that sources exchange with each other and the engine.
    pub facts: Facts,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with capacity for the points of an earlier tick, whose labels it reuses: most ticks have the
    /// same series in the same order.
    pub fn like(last: Arc<Frame>) -> Self {
        let places = foldhash::HashMap::with_capacity(last.families.len());
        let mut batch = Self { places, ..Self::default() };
        for (place, Family { desc, points, .. }) in last.families.iter().enumerate() {
            let at = batch.family(desc);
            batch.families[at].points.reserve_exact(points.len());
            batch.before[at].place = Some(place);
        }
        batch.last = Some(last);
        batch
    }

    /// Adds one point. Labels are given in the order of the declaration.
    pub fn put<M: Metric>(&mut self, metric: &'static M, labels: &[Label], value: M::Unit) {
        self.add(metric.desc(), labels, value.value());
    }

    /// Adds one point if there is a value.
    pub fn put_some<M: Metric>(&mut self, metric: &'static M, labels: &[Label], value: Option<M::Unit>) {
        if let Some(value) = value {
            self.put(metric, labels, value);
        }
    }

    /// Adds a complete histogram or nothing. Labels are given in the order of the declaration, without `le`.
    pub fn put_histogram<U: Unit, const FROM: i32, const COUNT: usize>(
        &mut self,
        metric: &'static Histogram<U>,
        labels: &[Label],
        buckets: &Buckets<FROM, COUNT>,
    ) {
        let desc = metric.desc();
        let at = self.family(desc);
        if self.families[at].points.len() + COUNT + 2 > desc.budget {
            self.count_dropped(desc, Dropped::Budget, COUNT as u64 + 2);
            return;
        }
        let mut all = labels.to_vec();
        all.push(INFINITE.into());
        let mut add = |le: &str, value: f64| {
            if let Some(last) = all.last_mut() {
                *last = le.into();
            }
            self.add(desc, &all, value);
        };
        for (bound, count) in buckets.cumulative() {
            // With a fraction, as Prometheus servers write it: exports that are not rewritten must have the same
            // text.
            add(&format!("{bound:?}"), Count(count).value());
        }
        add(INFINITE, Count(buckets.count()).value());
        add(SUM, buckets.sum());
    }

    /// Adds a point by declaration; [`Batch::put`] is the typed way.
    pub fn add(&mut self, desc: &'static Desc, labels: &[Label], value: f64) {
        let reason = if labels.len() != desc.labels.len() {
            Some(Dropped::Labels)
        } else if value.is_finite() {
            None
        } else {
            Some(Dropped::NotFinite)
        };
        if let Some(reason) = reason {
            self.count_dropped(desc, reason, 1);
            return;
        }
        let at = self.family(desc);
        if self.families[at].points.len() >= desc.budget {
            self.count_dropped(desc, Dropped::Budget, 1);
            return;
        }
        let labels = self.met(at, labels).unwrap_or_else(|| labels.into());
        self.families[at].points.push(Point { labels, value });
    }

    /// The same labels from the previous tick, if it has them.
    fn met(&mut self, at: usize, labels: &[Label]) -> Option<Arc<[Label]>> {
        let before = &mut self.before[at];
        let points = &self.last.as_ref()?.families[before.place?].points;
        let near = points.iter().skip(before.next).take(AHEAD);
        let ahead = near.clone().position(|point| *point.labels == *labels)?;
        let met = points.get(before.next + ahead)?;
        before.next += ahead + 1;
        before.met += 1;
        Some(Arc::clone(&met.labels))
    }

    /// Removes repeated series and returns the families and what was dropped, by metric name and reason.
    pub fn seal(mut self) -> (Vec<Family>, HashMap<(&'static str, Dropped), u64>, Facts) {
        for (family, known) in self.families.iter_mut().zip(&self.before) {
            let before = family.points.len();
            // Every point matches a different one of the previous tick, in which no two were equal.
            if known.met == before {
                continue;
            }
            // Duplicates are rare, and borrowed labels avoid copies.
            let mut seen: foldhash::HashSet<&[Label]> = foldhash::HashSet::with_capacity(before);
            let first: Vec<bool> = family.points.iter().map(|point| seen.insert(&point.labels)).collect();
            if first.contains(&false) {
                let mut first = first.into_iter();
                family.points.retain(|_| first.next().unwrap_or(true));
                let repeated = (before - family.points.len()) as u64;
                *self.dropped.entry((family.desc.name, Dropped::Duplicate)).or_default() += repeated;
            }
        }
        self.families.retain_mut(|family| {
            // Nobody looks up the points of a frame one by one.
            family.index = OnceLock::new();
            !family.points.is_empty()
        });
        (self.families, self.dropped, self.facts)
    }

    pub fn absorb(&mut self, other: Self) {
        for family in other.families {
            let at = self.family(family.desc);
            for Point { labels, value } in family.points {
                let labels = self.met(at, &labels).unwrap_or(labels);
                self.families[at].points.push(Point { labels, value });
            }
        }
        for (what, count) in other.dropped {
            *self.dropped.entry(what).or_default() += count;
        }
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// Number of points dropped so far because a budget was exhausted.
    pub fn over_budget(&self) -> u64 {
        self.dropped
            .iter()
            .filter(|((_, reason), _)| *reason == Dropped::Budget)
            .map(|(_, count)| count)
            .sum()
    }

    fn family(&mut self, desc: &'static Desc) -> usize {
        let (families, before) = (&mut self.families, &mut self.before);
        *self.places.entry(std::ptr::from_ref(desc).addr()).or_insert_with(|| {
            families.push(Family::new(desc, Vec::new()));
            before.push(Before::default());
            families.len() - 1
        })
    }

    fn count_dropped(&mut self, desc: &'static Desc, reason: Dropped, by: u64) {
        *self.dropped.entry((desc.name, reason)).or_default() += by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desc::Gauge;
    use crate::units::{Count, Ratio};

    static SMALL: Gauge<Count> = Gauge::<Count>::new("memwarden_small", "x", &["a"]).budget(2);
    static SHARE: Gauge<Ratio> = Gauge::new("memwarden_share_ratio", "x", &[]);

    static MANY: Gauge<Count> = Gauge::<Count>::new("memwarden_many", "x", &["a"]);

    #[test]
    fn the_values_of_many_series_are_found_by_an_index_and_those_of_few_without_one() {
        for (count, indexed) in [(10_u32, false), (500, true)] {
            let mut batch = Batch::new();
            for n in 0..count {
                batch.put(&MANY, &[n.into()], Count(u64::from(n)));
            }
            // The first of two counts until the second is removed.
            batch.put(&MANY, &[3_u32.into()], Count(77));
            let value = |batch: &Batch, n: u32| batch.families()[0].value(&[n.into()]);
            for n in 0..count {
                assert_eq!(value(&batch, n), Some(f64::from(n)));
            }
            assert_eq!(value(&batch, count), None);
            assert_eq!(batch.families()[0].index.get().is_some(), indexed);
            // A series that is added later is found too.
            batch.put(&MANY, &[count.into()], Count(1));
            assert_eq!(value(&batch, count), Some(1.0));
            let (families, ..) = batch.seal();
            assert!(families[0].index.get().is_none(), "a frame has no index");
        }
    }

    #[test]
    fn series_beyond_the_budget_are_counted() {
        let mut batch = Batch::new();
        for n in 0..5_u32 {
            batch.put(&SMALL, &[n.into()], Count(1));
        }
        batch.put_some(&SHARE, &[], None);
        batch.add(&SHARE.desc, &[], f64::NAN);
        batch.add(&SHARE.desc, &["extra".into()], 1.0);
        let (families, dropped, _) = batch.seal();
        assert_eq!(families.len(), 1);
        assert_eq!(families[0].points.len(), 2);
        assert_eq!(dropped[&("memwarden_small", Dropped::Budget)], 3);
        assert_eq!(dropped[&("memwarden_share_ratio", Dropped::NotFinite)], 1);
        assert_eq!(dropped[&("memwarden_share_ratio", Dropped::Labels)], 1);
    }

    #[test]
    fn a_histogram_is_complete_or_absent() {
        static TIMES: Histogram<Ratio> =
            Histogram::<Ratio>::new("memwarden_share_ratio", "x", &["a", "le"]).budget(7);
        let mut buckets = Buckets::<0, 2>::default();
        buckets.observe(1.5);
        buckets.observe(7.0);
        let mut batch = Batch::new();
        batch.put_histogram(&TIMES, &["x".into()], &buckets);
        batch.put_histogram(&TIMES, &["y".into()], &buckets);
        let (families, dropped, _) = batch.seal();
        let points: Vec<_> =
            families[0].points.iter().map(|point| (point.labels[1].as_str(), point.value)).collect();
        assert_eq!(points, [("1.0", 0.0), ("2.0", 1.0), ("+Inf", 2.0), ("sum", 8.5)]);
        assert_eq!(dropped[&("memwarden_share_ratio", Dropped::Budget)], 4);
    }

    fn frame(batch: Batch) -> Arc<Frame> {
        let (families, ..) = batch.seal();
        let (sources, findings, outlook, timeline, acknowledged) = Default::default();
        let at = crate::time::Timestamp::from_secs(1);
        Arc::new(Frame { sequence: 1, at, families, sources, findings, outlook, timeline, acknowledged })
    }

    #[test]
    fn labels_are_reused_from_the_previous_tick() {
        static MANY: Gauge<Count> = Gauge::<Count>::new("memwarden_many", "x", &["a"]);
        let filled = |mut batch: Batch, names: &[u32]| {
            for name in names {
                batch.put(&MANY, &[(*name).into()], Count(1));
            }
            frame(batch)
        };
        let before = filled(Batch::new(), &[1, 2, 3, 4, 5, 6, 7, 8]);
        // Series 2 has disappeared, 9 is new, 8 has another position.
        let after = filled(Batch::like(Arc::clone(&before)), &[1, 8, 3, 4, 9, 5, 6, 7]);
        let same = |point: &Point| {
            let known = &before.families[0].points;
            known.iter().any(|other| Arc::ptr_eq(&other.labels, &point.labels))
        };
        let shown: Vec<_> =
            after.families[0].points.iter().map(|point| (point.labels[0].as_str(), same(point))).collect();
        assert_eq!(
            shown,
            ["1", "8", "3", "4", "9", "5", "6", "7"].map(|name| (name, name != "8" && name != "9"))
        );
        // Duplicates are found at the start and at the end.
        for names in [[1, 1, 3], [1, 3, 1], [9, 9, 1]] {
            let mut batch = Batch::like(Arc::clone(&before));
            for name in names {
                batch.put(&MANY, &[name.into()], Count(1));
            }
            let (families, dropped, _) = batch.seal();
            assert_eq!(families[0].points.len(), 2, "{names:?}");
            assert_eq!(dropped[&("memwarden_many", Dropped::Duplicate)], 1);
        }
    }

    #[test]
    fn a_repeated_series_is_dropped_and_counted() {
        let mut batch = Batch::new();
        batch.put(&SMALL, &["x".into()], Count(1));
        batch.put(&SMALL, &["x".into()], Count(2));
        let (families, dropped, _) = batch.seal();
        assert_eq!(families[0].points.len(), 1);
        assert_eq!(dropped[&("memwarden_small", Dropped::Duplicate)], 1);
    }
}
