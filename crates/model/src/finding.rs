//! Findings: statements of an analyzer about a subject.

use std::sync::LazyLock;

use super::health::Health;
use super::label::Label;

/// The subject of a finding; fields that do not apply are empty and not displayed.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Subject {
    /// The type: `host`, `zone`, `cgroup`, `gpu`, `gpu_instance`, `workload`, `process`, `gpu_process`, `rank`, `allocator`, `outside_allocator`, `shm`, `disk`,
    /// `tmpfs`, `device_memory`, `limit`, `source`.
    pub resource: Label,
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub cgroup: Label,
    /// The GPU's index.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub gpu: Label,
    /// The GPU's UUID, or that of a MIG instance.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub uuid: Label,
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub workload: Label,
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub pid: Label,
    /// The mount point of a tmpfs; its workload is empty for one of the host.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub mount: Label,
    /// A region of device memory, as the controller `dmem` of cgroup v2 names it, or the number of a GPU instance.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub device_region: Label,
    /// The zone of the host's memory, as `node/zone`.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub zone: Label,
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub limit: Label,
    /// The user id.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub user: Label,
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub source: Label,
    /// The phase of a rank that is still to come.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub phase: Label,
}

/// Who can bring a subject of a type into a bad state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The machine, or all users together.
    Node,
    /// One user, by filling or making what belongs to it or what all may write.
    User,
    /// One process, by stating it over the job socket.
    Statement,
}

/// The types of subjects, and who can cause their state; a new one has its line here and in [`Subject::resource`].
const RESOURCES: [(&str, Cause); 19] = [
    ("host", Cause::Node),
    ("zone", Cause::Node),
    ("cgroup", Cause::User),
    ("gpu", Cause::User),
    ("gpu_instance", Cause::User),
    ("workload", Cause::User),
    ("process", Cause::User),
    ("gpu_process", Cause::User),
    ("rank", Cause::Statement),
    ("allocator", Cause::Statement),
    ("outside_allocator", Cause::Statement),
    ("shm", Cause::User),
    ("disk", Cause::User),
    ("tmpfs", Cause::User),
    ("device_memory", Cause::User),
    ("memory_high", Cause::User),
    ("numa_nodes", Cause::User),
    ("limit", Cause::User),
    ("source", Cause::Node),
];

/// The label of a type. All subjects of a type share it, so that comparing them costs no comparison of text.
fn resource(name: &'static str) -> Label {
    static SHARED: LazyLock<[Label; RESOURCES.len()]> =
        LazyLock::new(|| RESOURCES.map(|(name, _)| name.into()));
    let place = RESOURCES.iter().position(|(known, _)| *known == name);
    place.map_or_else(|| name.into(), |place| SHARED[place].clone())
}

impl Subject {
    /// A subject of each type, of which no more is known.
    pub fn of_each_type() -> [Self; RESOURCES.len()] {
        RESOURCES.map(|(name, _)| Self::place(name))
    }

    /// Who can cause its state: a user, for a type that is not known.
    pub fn cause(&self) -> Cause {
        let known = RESOURCES.iter().find(|(name, _)| *name == self.resource.as_str());
        known.map_or(Cause::User, |(_, cause)| *cause)
    }

    pub fn host() -> Self {
        Self { resource: resource("host"), ..Self::default() }
    }

    /// A resource of this type of which no more is known.
    pub fn place(name: &'static str) -> Self {
        Self { resource: resource(name), ..Self::default() }
    }

    /// A zone of the host's memory.
    pub fn zone(node: &Label, zone: &Label) -> Self {
        Self { resource: resource("zone"), zone: format!("{node}/{zone}").into(), ..Self::default() }
    }

    pub fn cgroup(path: &Label) -> Self {
        Self { resource: resource("cgroup"), cgroup: path.clone(), ..Self::default() }
    }

    /// A GPU, by its index and UUID.
    pub fn gpu(gpu: &Label, uuid: &Label) -> Self {
        Self { resource: resource("gpu"), gpu: gpu.clone(), uuid: uuid.clone(), ..Self::default() }
    }

    /// A GPU instance of MIG, by the UUID of its first device and its number on the GPU.
    pub fn gpu_instance(gpu: &Label, uuid: &Label, number: &Label) -> Self {
        Self { resource: resource("gpu_instance"), device_region: number.clone(), ..Self::gpu(gpu, uuid) }
    }

    pub fn workload(name: &Label) -> Self {
        Self { resource: resource("workload"), workload: name.clone(), ..Self::default() }
    }

    pub fn process(workload: &Label, pid: &Label) -> Self {
        Self {
            resource: resource("process"),
            workload: workload.clone(),
            pid: pid.clone(),
            ..Self::default()
        }
    }

    pub fn gpu_process(gpu: &Label, uuid: &Label, pid: &Label) -> Self {
        Self {
            resource: resource("gpu_process"),
            gpu: gpu.clone(),
            uuid: uuid.clone(),
            pid: pid.clone(),
            ..Self::default()
        }
    }

    /// The allocator of a process of a workload, on one GPU, whose index is empty where it is not known.
    pub fn allocator(workload: &Label, pid: &Label, gpu: &Label) -> Self {
        Self { resource: resource("allocator"), gpu: gpu.clone(), ..Self::process(workload, pid) }
    }

    /// The memory of a process of a workload on a GPU that its allocators did not reserve.
    pub fn outside_allocator(workload: &Label, pid: &Label, (gpu, uuid): (&Label, &Label)) -> Self {
        let resource = resource("outside_allocator");
        Self { resource, workload: workload.clone(), ..Self::gpu_process(gpu, uuid, pid) }
    }

    /// A rank of a workload, by its pid, which is empty where it is not known.
    pub fn rank(workload: &Label, pid: &Label) -> Self {
        Self { resource: resource("rank"), ..Self::process(workload, pid) }
    }

    pub fn tmpfs(workload: &Label, mount: &Label) -> Self {
        let (resource, workload, mount) = (resource("tmpfs"), workload.clone(), mount.clone());
        Self { resource, workload, mount, ..Self::default() }
    }

    /// A region of device memory within a cgroup.
    pub fn device_memory(cgroup: &Label, device_region: &Label) -> Self {
        let resource = resource("device_memory");
        Self { resource, device_region: device_region.clone(), cgroup: cgroup.clone(), ..Self::default() }
    }

    /// The memory of a cgroup up to its `memory.high`, above which the kernel throttles its processes.
    pub fn memory_high(cgroup: &Label) -> Self {
        Self { resource: resource("memory_high"), ..Self::cgroup(cgroup) }
    }

    /// The NUMA nodes that a workload may use, where these are not all; their numbers are separated by commas.
    pub fn numa_nodes(workload: &Label, nodes: &Label) -> Self {
        Self { resource: resource("numa_nodes"), zone: nodes.clone(), ..Self::workload(workload) }
    }

    /// A limit of memwarden, and the user whose entries it leaves out, if it is per user.
    pub fn limit(limit: &'static str, user: Option<u32>) -> Self {
        let user = user.map_or_else(Label::default, |user| user.to_string().into());
        Self { resource: resource("limit"), limit: limit.into(), user, ..Self::default() }
    }

    pub fn source(name: &'static str) -> Self {
        Self { resource: resource("source"), source: name.into(), ..Self::default() }
    }

    /// Label values in the order of the labels that every analyzer's metrics begin with:
    /// resource, cgroup, gpu, uuid, workload, pid, mount, device_region.
    pub fn labels(&self) -> [Label; 8] {
        let Self { resource, cgroup, gpu, uuid, workload, pid, mount, device_region, .. } = self.clone();
        [resource, cgroup, gpu, uuid, workload, pid, mount, device_region]
    }

    /// The same labels followed by `last`.
    pub fn labels_and(&self, last: impl Into<Label>) -> [Label; 9] {
        let [resource, cgroup, gpu, uuid, workload, pid, mount, device_region] = self.labels();
        [resource, cgroup, gpu, uuid, workload, pid, mount, device_region, last.into()]
    }
}

/// A name, such as `gpu 3` and `process 9 of train`; with `{:#}` as in a sentence, such as `the host` and `GPU 3`.
impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_sentence = f.alternate();
        let word = match self.resource.as_str() {
            "host" if is_sentence => "the host",
            "allocator" if is_sentence => "the allocator",
            "gpu" if is_sentence => "GPU",
            "gpu_instance" => "MIG instance",
            // The memory is named before it.
            "outside_allocator" if is_sentence => "process",
            "gpu_process" => "process",
            "outside_allocator" => "memory outside the allocator",
            "device_memory" => "device memory",
            "memory_high" => "memory.high of",
            "numa_nodes" if self.zone.as_str().contains(',') => "NUMA nodes",
            "numa_nodes" => "NUMA node",
            name => name,
        };
        f.write_str(word)?;
        let within = !self.pid.is_empty() || !self.mount.is_empty() || !self.zone.is_empty();
        let gpu = match (word, is_sentence) {
            ("gpu" | "GPU", _) => "",
            (_, true) => "on GPU ",
            (_, false) => "on gpu ",
        };
        let parts = [
            ("", &self.zone),
            ("", &self.cgroup),
            ("", &self.device_region),
            ("", &self.mount),
            (if word == "process" { "" } else { "of process " }, &self.pid),
            (if within { "of " } else { "" }, &self.workload),
            (gpu, &self.gpu),
            ("", &self.limit),
            ("of user ", &self.user),
            ("", &self.source),
            ("in phase ", &self.phase),
        ];
        for (name, value) in parts.into_iter().filter(|(_, value)| !value.is_empty()) {
            write!(f, " {name}{value}")?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Info,
    /// Requires attention.
    Warning,
    /// Memory is about to be exhausted, or a device is lost.
    Critical,
}

impl Severity {
    /// Every severity, so that their counts start at zero.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Critical];

    pub const fn label(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => Health::Warning.label(),
            Self::Critical => Health::Critical.label(),
        }
    }
}

/// One value that a finding is based on.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Evidence {
    /// Name of the value, ending in its unit: `growth_bytes_per_second`.
    pub what: &'static str,
    /// The value; always finite.
    pub value: f64,
}

/// An analyzer's statement about a subject, active at the frame's time.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Finding {
    /// The analyzer's name in the registry.
    pub analyzer: &'static str,
    pub subject: Subject,
    /// The state of the subject, a term of the analyzer such as `leaking`.
    pub state: &'static str,
    pub severity: Severity,
    /// When the state began, in seconds since 1970.
    pub since_unix_seconds: f64,
    pub summary: String,
    /// The values that the finding is based on.
    pub evidence: Vec<Evidence>,
    /// What can be done, one sentence; empty where no action is required.
    pub advice: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inapplicable_fields_are_not_shown() {
        let subject = Subject::gpu(&"3".into(), &"GPU-7".into());
        assert_eq!(subject.to_string(), "gpu 3");
        let json = serde_json::to_string(&subject).unwrap();
        assert_eq!(json, r#"{"resource":"gpu","gpu":"3","uuid":"GPU-7"}"#);
        assert_eq!(serde_json::from_str::<Subject>(&json).unwrap(), subject);
        assert_eq!(format!("{subject:#}, {:#}", Subject::host()), "GPU 3, the host");
        let instance = Subject::gpu_instance(&"3".into(), &"MIG-7".into(), &"9".into());
        assert_eq!(format!("{instance:#}"), "MIG instance 9 on GPU 3");
        assert_eq!(Subject::process(&"a".into(), &"9".into()).to_string(), "process 9 of a");
        let allocator = Subject::allocator(&"a".into(), &"9".into(), &"3".into());
        assert_eq!(allocator.to_string(), "allocator of process 9 of a on gpu 3");
        assert_eq!(Subject::tmpfs(&"a".into(), &"/dev/shm".into()).to_string(), "tmpfs /dev/shm of a");
        assert_eq!(Subject::numa_nodes(&"a".into(), &"1,3".into()).to_string(), "NUMA nodes 1,3 of a");
        assert_eq!(Subject::memory_high(&"/a".into()).to_string(), "memory.high of /a");
    }
}
