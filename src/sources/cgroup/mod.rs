//! Memory of cgroups: v1, v2 and hybrid hierarchies.
//!
//! A walk finds the cgroups, and the largest are selected ([`walk`], [`select`]);
//! their files stay open and are read at each tick ([`files`], [`group`]);
//! [`bounds`] computes limit and headroom, [`expose`] makes points. In a hybrid
//! hierarchy, v2's pressure is not added to v1's cgroups: the same path may
//! contain different processes in each.

pub mod bounds;
pub mod expose;
pub mod files;
pub mod glob;
pub mod group;
pub mod hugetlb;
pub mod metrics;
pub mod options;
pub mod parse;
pub mod reading;
pub mod select;
#[cfg(test)]
mod tests;
pub mod walk;

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::bounds::Bounds;
use self::expose::RepeatedLabels;
use self::files::Reader;
use self::group::Group;
use self::hugetlb::Hugetlb;
use self::options::Options;
use self::reading::Reading;
use self::walk::Walk;
use crate::host::cgroup::{Hierarchy, Version, memory_hierarchy};
use crate::host::process::descriptor_limit;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::shortage::Shortage;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag};
use crate::sources::Registration;

pub static REGISTRATION: Registration = Registration {
    name: "cgroup",
    about: "Memory usage, limits and events of cgroups, from the memory controller of cgroup v1 or v2.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings, context| {
        let allowance = (descriptor_limit() / SHARE_OF_DESCRIPTORS).min(MOST_DESCRIPTORS);
        let hugetlb = Hugetlb::new(&context.roots);
        Box::new(Cgroups {
            hugetlb,
            ..Cgroups::new(Options::read(settings), context.roots.cgroup.clone(), allowance)
        })
    })
};

/// One in this many of the daemon's file descriptors may be used for cgroups.
const SHARE_OF_DESCRIPTORS: usize = 4;

/// Ten files of each of 400 cgroups.
const MOST_DESCRIPTORS: usize = 4_000;

#[derive(Default)]
struct Cgroups {
    options: Options,
    place: PathBuf,
    /// Number of descriptors that may be kept.
    descriptors: usize,
    hierarchy: Option<Hierarchy>,
    walk: Option<Walk>,
    walk_begun: Option<Timestamp>,
    walk_error: Option<SourceError>,
    /// Whether a walk of this hierarchy was completed.
    is_surveyed: bool,
    /// Number of cgroups that are not exposed, and of those not visited, by owner.
    omitted: BTreeMap<u32, u64>,
    unvisited: BTreeMap<u32, u64>,
    /// Ordered by folder, so that each one comes after its ancestors.
    groups: Vec<Group>,
    /// The owners of exposed cgroups, except root.
    users: Arc<BTreeMap<Label, u32>>,
    reader: Reader,
    repeated_labels: RepeatedLabels,
    hugetlb: Hugetlb,
}

impl Cgroups {
    fn new(options: Options, place: PathBuf, descriptors: usize) -> Self {
        Self { options, place, descriptors, ..Self::default() }
    }

    /// Finds the hierarchy if it is not known or no longer exists.
    fn locate(&mut self) -> Result<Hierarchy, SourceError> {
        if let Some(hierarchy) = &self.hierarchy
            && !self.groups.is_empty()
        {
            return Ok(hierarchy.clone());
        }
        let found = match memory_hierarchy(&self.place) {
            Ok(Ok(hierarchy)) => hierarchy,
            Ok(Err(why)) => return Err(SourceError::unavailable(why)),
            Err((path, error)) => return Err(crate::host::fs::failed(&path, &error)),
        };
        (self.walk, self.walk_begun, self.walk_error, self.is_surveyed) = (None, None, None, false);
        Ok(self.hierarchy.insert(found).clone())
    }

    /// Continues the walk, or begins one that is due.
    fn survey(&mut self, hierarchy: &Hierarchy, at: Timestamp) {
        let is_due = self.walk_begun.is_none_or(|begun| at.since(begun) >= self.options.rescan_interval);
        if self.walk.is_none() && is_due {
            self.walk = Some(Walk::new(hierarchy.clone(), self.options.depth));
            self.walk_begun = Some(at);
        }
        let Some(mut walk) = self.walk.take() else { return };
        let is_finished = walk.step();
        // The first walk exposes what it has found so far, rather than nothing for some ticks.
        if is_finished || !self.is_surveyed {
            self.adopt(&walk, hierarchy);
        }
        if is_finished {
            self.is_surveyed = true;
            self.hugetlb.find(&self.groups, hierarchy.version);
        } else {
            self.walk = Some(walk);
        }
    }

    /// Adopts the result of a walk; cgroups that remain keep their descriptors.
    fn adopt(&mut self, walk: &Walk, hierarchy: &Hierarchy) {
        let mut before: HashMap<PathBuf, Group> =
            self.groups.drain(..).map(|group| (group.files.dir.clone(), group)).collect();
        let chosen = select::choose(&walk.found, &self.options, |dir| {
            before.get(dir).is_some_and(|group| group.shown)
        });
        let wanted = select::with_parents(&chosen, &hierarchy.root);
        let mut groups: Vec<Group> = walk
            .found
            .iter()
            .filter(|found| wanted.contains(&found.dir))
            .map(|found| {
                before
                    .remove(&found.dir)
                    .unwrap_or_else(|| Group::new(hierarchy.version, found.dir.clone(), &found.path))
            })
            .collect();
        groups.sort_unstable_by(|one, other| by_bytes(&one.files.dir, &other.files.dir));
        for group in &mut groups {
            group.shown = false;
            group.files.forget_absent();
        }
        let mut users = BTreeMap::new();
        for found in &chosen.shown {
            if let Ok(place) = groups.binary_search_by(|group| by_bytes(&group.files.dir, &found.dir)) {
                groups[place].shown = true;
                if found.user != 0 {
                    users.insert(groups[place].label.clone(), found.user);
                }
            }
        }
        self.users = users.into();
        self.omitted = chosen.omitted;
        self.unvisited.clone_from(&walk.unvisited);
        self.walk_error.clone_from(&walk.error);
        self.groups = groups;
    }

    /// Reads every cgroup; removed ones are dropped.
    fn read(&mut self) -> Vec<Reading> {
        let kept: usize = self.groups.iter().map(|group| group.files.kept()).sum();
        self.reader.allowance = self.descriptors.saturating_sub(kept);
        let mut readings = Vec::with_capacity(self.groups.len());
        let reader = &mut self.reader;
        self.groups.retain_mut(|group| match group.read(reader) {
            Ok(reading) => {
                readings.push(reading);
                true
            }
            Err(files::Gone) => false,
        });
        readings
    }

    fn put(&self, readings: &[Reading], out: &mut Batch) {
        let swap = out.facts.group_swap;
        let is_v1 = self.hierarchy.as_ref().is_some_and(|hierarchy| hierarchy.version == Version::V1);
        let host = Bounds::none(if is_v1 { swap.v1 } else { swap.v2 });
        let mut all: Vec<Bounds> = Vec::with_capacity(readings.len());
        for (group, reading) in self.groups.iter().zip(readings) {
            let bounds = self.above(group, &all, host).below(reading);
            all.push(bounds);
            if group.shown {
                expose::put(out, &self.repeated_labels, &group.label, reading, &bounds);
            }
            // A limit applies to the exposed cgroups below it, whether it is exposed or not.
            if group.shown || group.is_root || group.limits_devices() {
                expose::put_devices(out, &group.label, &group.devices);
            }
        }
    }
}

impl Cgroups {
    /// The limits of the parent of `group`; `before` are the limits of the cgroups sorted before it, `host` those above all.
    fn above(&self, group: &Group, before: &[Bounds], host: Bounds) -> Bounds {
        if group.is_root {
            return host;
        }
        let parent =
            group.files.dir.parent().and_then(|parent| {
                self.groups.binary_search_by(|other| by_bytes(&other.files.dir, parent)).ok()
            });
        match parent.and_then(|place| Some((&self.groups[place], before.get(place)?))) {
            Some((parent, bounds)) if parent.limits_below => *bounds,
            Some(_) => host,
            None => Bounds::UNKNOWN,
        }
    }
}

/// The order of the cgroups: that of the bytes of their paths, in which a parent comes before its children. The order of
/// [`Path`] compares component by component, at several times the cost.
fn by_bytes(one: &Path, other: &Path) -> Ordering {
    one.as_os_str().cmp(other.as_os_str())
}

impl Source for Cgroups {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let hierarchy = self.locate()?;
        self.survey(&hierarchy, at);
        self.reader.error = self.walk_error.clone();
        let readings = self.read();
        self.put(&readings, out);
        self.hugetlb.put(out);
        out.facts.cgroup_users = Arc::clone(&self.users);
        out.put(&metrics::HIERARCHY, &[hierarchy.version.label().into()], Flag(true));
        let omitted = self.omitted.values().chain(self.unvisited.values());
        out.put(&metrics::OMITTED, &[], Count(omitted.fold(0, |sum, more| sum.saturating_add(*more))));
        // The host has many services of its own: `most` is meant to select the largest of them.
        let omitted = self.omitted.iter().filter(|(user, _)| **user != 0);
        let most = self.options.max_cgroups;
        out.facts.shortages.extend(Shortage::of_users("cgroups", most, omitted));
        out.facts.shortages.extend(Shortage::of_users("cgroup_walk", walk::PER_WALK, &self.unvisited));
        let absent = self.reader.absent.take();
        self.reader.error.take().or(absent).map_or(Ok(()), Err)
    }
}
