//! What an analyzer states about a subject.

use std::borrow::Cow;

use super::label::Label;
use super::printable::escaped;

/// What a statement is about; what does not apply is empty and is left out wherever it is shown.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Subject {
    /// What it is: `host`, `zone`, `cgroup`, `gpu`, `workload`, `process`, `gpu_process`, `rank`, `allocator`,
    /// `limit`.
    pub resource: Label,
    /// The cgroup's path.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub cgroup: Label,
    /// The GPU's index.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub gpu: Label,
    /// The GPU's UUID.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub uuid: Label,
    /// The workload.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub workload: Label,
    /// The pid.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub pid: Label,
    /// The zone of the host's memory, as `node/zone`.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub zone: Label,
    /// The limit of memwarden.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub limit: Label,
    /// The user id.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub user: Label,
}

impl Subject {
    /// The host itself.
    pub fn host() -> Self {
        Self { resource: "host".into(), ..Self::default() }
    }

    /// A zone of the host's memory.
    pub fn zone(node: &Label, zone: &Label) -> Self {
        Self { resource: "zone".into(), zone: format!("{node}/{zone}").into(), ..Self::default() }
    }

    /// A cgroup, by its path.
    pub fn cgroup(path: &Label) -> Self {
        Self { resource: "cgroup".into(), cgroup: path.clone(), ..Self::default() }
    }

    /// A GPU, by its index and UUID.
    pub fn gpu(gpu: &Label, uuid: &Label) -> Self {
        Self { resource: "gpu".into(), gpu: gpu.clone(), uuid: uuid.clone(), ..Self::default() }
    }

    /// A workload, by its name.
    pub fn workload(name: &Label) -> Self {
        Self { resource: "workload".into(), workload: name.clone(), ..Self::default() }
    }

    /// A process of a workload.
    pub fn process(workload: &Label, pid: &Label) -> Self {
        Self { resource: "process".into(), workload: workload.clone(), pid: pid.clone(), ..Self::default() }
    }

    /// A process on a GPU.
    pub fn gpu_process(gpu: &Label, uuid: &Label, pid: &Label) -> Self {
        Self {
            resource: "gpu_process".into(),
            gpu: gpu.clone(),
            uuid: uuid.clone(),
            pid: pid.clone(),
            ..Self::default()
        }
    }

    /// The allocator of a process of a workload, on one GPU, whose index is empty where it is not known.
    pub fn allocator(workload: &Label, pid: &Label, gpu: &Label) -> Self {
        Self { resource: "allocator".into(), gpu: gpu.clone(), ..Self::process(workload, pid) }
    }

    /// A rank of a workload, by its pid, which is empty where it is not known.
    pub fn rank(workload: &Label, pid: &Label) -> Self {
        Self { resource: "rank".into(), ..Self::process(workload, pid) }
    }

    /// A limit of memwarden, and the user whose things it leaves out where it has one.
    pub fn limit(limit: &'static str, user: Option<u32>) -> Self {
        let user = user.map_or_else(Label::default, |user| user.to_string().into());
        Self { resource: "limit".into(), limit: limit.into(), user, ..Self::default() }
    }

    /// The same with every name as it can be shown.
    #[must_use]
    pub fn printable(mut self) -> Self {
        let Self { resource, cgroup, gpu, uuid, workload, pid, zone, limit, user } = &mut self;
        for label in [resource, cgroup, gpu, uuid, workload, pid, zone, limit, user] {
            if let Cow::Owned(text) = escaped(label.as_str()) {
                *label = text.into();
            }
        }
        self
    }

    /// Label values in the order of the labels that every analyzer's metrics begin with:
    /// resource, cgroup, gpu, uuid, workload, pid.
    pub fn labels(&self) -> [Label; 6] {
        let Self { resource, cgroup, gpu, uuid, workload, pid, .. } = self.clone();
        [resource, cgroup, gpu, uuid, workload, pid]
    }

    /// Those labels and one more.
    pub fn labels_and(&self, last: impl Into<Label>) -> [Label; 7] {
        let [resource, cgroup, gpu, uuid, workload, pid] = self.labels();
        [resource, cgroup, gpu, uuid, workload, pid, last.into()]
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.resource.as_str())?;
        let parts = [
            ("", &self.zone),
            ("", &self.cgroup),
            ("", &self.gpu),
            ("", &self.workload),
            ("pid ", &self.pid),
            ("", &self.limit),
            ("user ", &self.user),
        ];
        for (name, value) in parts.into_iter().filter(|(_, value)| !value.is_empty()) {
            write!(f, " {name}{value}")?;
        }
        Ok(())
    }
}

/// How much a finding should worry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Somebody should look at it.
    Warning,
    /// Memory is about to run out, or is lost for good.
    Critical,
}

impl Severity {
    /// Every severity, so that their counts start at zero.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Critical];

    /// The value of the `severity` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// One number that a finding rests on.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Evidence {
    /// What it is, with its unit as the last word: `growth_bytes_per_second`.
    pub what: &'static str,
    /// How much, finite.
    pub value: f64,
}

/// An analyzer's statement about a subject, in force at the frame's time.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Finding {
    /// The analyzer's name in the registry.
    pub analyzer: &'static str,
    /// What it is about.
    pub subject: Subject,
    /// The state it found, in the analyzer's own words, such as `leaking`.
    pub state: &'static str,
    /// How much it should worry.
    pub severity: Severity,
    /// When the state began, in seconds since 1970.
    pub since_unix_seconds: f64,
    /// One sentence for people.
    pub summary: String,
    /// The numbers it rests on.
    pub evidence: Vec<Evidence>,
    /// What can be done, one sentence; empty where there is nothing to do.
    pub advice: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_apply_is_not_shown() {
        let subject = Subject::gpu(&"3".into(), &"GPU-7".into());
        assert_eq!(subject.to_string(), "gpu 3");
        let json = serde_json::to_string(&subject).unwrap();
        assert_eq!(json, r#"{"resource":"gpu","gpu":"3","uuid":"GPU-7"}"#);
        assert_eq!(serde_json::from_str::<Subject>(&json).unwrap(), subject);
        assert_eq!(Subject::process(&"a".into(), &"9".into()).to_string(), "process a pid 9");
    }
}
