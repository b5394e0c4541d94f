//! The containers whose cgroups a frame has, with the attributes of the semantic conventions.
//!
//! One push is of one resource, the daemon. What identifies a container is an attribute of its points, as `process.pid` is of
//! those of a process: with a resource for each container, Prometheus would receive series that differ in nothing, because it
//! makes labels only of the attributes of points.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;

use super::stream::attribute;
use crate::catalog::workload::INFO;
use crate::host::cgroup_path::{Place, place};
use crate::model::frame::Frame;
use crate::model::label::Label;
use crate::model::point::{Point, points};

/// The workloads that are pods or containers, by the UID of the pod or the id of the container, which the source `workload`
/// has verified.
pub(super) struct Containers<'f>(BTreeMap<&'f str, &'f Point>);

/// A label of the point of a workload.
fn label<'f>(info: &'f Point, name: &str) -> &'f str {
    info.label(&INFO.desc, name).map_or("", Label::as_str)
}

impl<'f> Containers<'f> {
    pub(super) fn of(frame: &'f Frame) -> Self {
        let all = points(&frame.families, &INFO.desc).iter();
        let by_id = all.filter_map(|info| match label(info, "kind") {
            "pod" => Some((label(info, "pod_uid"), info)),
            "container" => Some((label(info, "container_id"), info)),
            _ => None,
        });
        Self(by_id.collect())
    }

    /// Adds the attributes of the container whose cgroup `point` is of; false where it is the cgroup of something else, such as
    /// one that a container made.
    pub(super) fn describe(&self, point: &Point, out: &mut Vec<KeyValue>) -> bool {
        let Some(cgroup) = point.labels.first().map(Label::as_str) else { return false };
        let place = place(cgroup);
        let (owner, id, path) = match &place {
            Place::Pod { uid, container: Some(id), path } => (uid.as_str(), *id, *path),
            Place::Container { id, path } => (*id, *id, *path),
            _ => return false,
        };
        let Some(info) = self.0.get(owner) else { return false };
        // In a cgroup namespace, the kernel shows the paths of processes relative to the own one.
        let is_its = path.ends_with(label(info, "cgroup").trim_start_matches("/.."));
        if !is_its || !cgroup.rsplit('/').next().is_some_and(|name| name.contains(id)) {
            return false;
        }
        // The name of the container is that of the workload's largest one.
        let name = if label(info, "container_id") == id { label(info, "container") } else { "" };
        let attributes = [
            ("container.id", id),
            ("k8s.container.name", name),
            ("k8s.namespace.name", label(info, "namespace")),
            ("k8s.pod.name", label(info, "pod")),
            ("k8s.pod.uid", label(info, "pod_uid")),
        ];
        let known = attributes.into_iter().filter(|(_, value)| !value.is_empty());
        out.extend(known.map(|(key, value)| attribute(key, Value::StringValue(value.to_owned()))));
        true
    }
}
