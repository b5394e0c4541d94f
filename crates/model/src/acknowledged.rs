//! Which problem is which, and which problems an operator has acknowledged.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::finding::Subject;
use super::health::Health;
use super::label::Label;

/// The identity of a problem: the same in every sample while the problem lasts, and after a restart of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProblemId {
    /// What is wrong: `memory` (runs out or leaks), `status` (does not respond), `steps`, `protection`, `unknown`, or the
    /// analyzer whose finding it is.
    pub kind: Label,
    pub subject: Subject,
}

impl ProblemId {
    pub fn new(kind: &str, subject: Subject) -> Self {
        Self { kind: kind.into(), subject }
    }

    /// Whether `other` is this problem: also where its GPU had no UUID yet.
    pub fn is(&self, other: &Self) -> bool {
        let nameless = || Subject { uuid: Label::default(), ..other.subject.clone() };
        self == other
            || (self.subject.uuid.is_empty() && self.kind == other.kind && self.subject == nameless())
    }
}

/// The name by which an operator acknowledges it: `xid/gpu/3`. It has only letters, digits and `._:@-/`, so that it can be pasted
/// into a shell; other characters are `_`, so that two problems can have one name.
impl fmt::Display for ProblemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "._:@-/".contains(letter);
        let safe =
            |text: &str| text.chars().map(|own| if plain(own) { own } else { '_' }).collect::<String>();
        let Subject {
            resource,
            cgroup,
            gpu,
            uuid: _,
            workload,
            pid,
            mount,
            device_region,
            zone,
            limit,
            user,
            source,
            phase,
        } = &self.subject;
        f.write_str(&safe(self.kind.as_str()))?;
        let parts =
            [resource, zone, cgroup, gpu, workload, pid, mount, device_region, limit, user, source, phase];
        parts
            .into_iter()
            .filter(|part| !part.is_empty())
            .try_for_each(|part| write!(f, "/{}", safe(part.as_str()).trim_start_matches('/')))
    }
}

/// Who has acknowledged a problem, and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// The name of the operator.
    pub by: String,
    /// In seconds since 1970.
    pub unix_seconds: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Acknowledged(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    id: ProblemId,
    /// How bad the problem was when it was acknowledged.
    health: Health,
    acknowledgement: Acknowledgement,
}

/// Maximum number of acknowledged problems; the oldest is forgotten for another one.
const MOST: usize = 200;

impl Acknowledged {
    /// Adds a problem that is as bad as `health`, in place of its earlier acknowledgement.
    pub fn add(&mut self, id: ProblemId, health: Health, acknowledgement: Acknowledgement) {
        self.remove(&id);
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push(Entry { id, health, acknowledgement });
    }

    /// Forgets the acknowledgement of a problem.
    pub fn remove(&mut self, id: &ProblemId) {
        self.0.retain(|entry| !entry.id.is(id));
    }

    /// The acknowledgement of a problem that is as bad as `health` now; absent where it is worse than when it was acknowledged.
    pub fn of(&self, id: &ProblemId, health: Health) -> Option<&Acknowledgement> {
        let entry = self.0.iter().find(|entry| entry.id.is(id))?;
        (health <= entry.health).then_some(&entry.acknowledgement)
    }

    pub fn ids(&self) -> impl Iterator<Item = &ProblemId> {
        self.0.iter().map(|entry| &entry.id)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_pasted_into_a_shell() {
        let hostile = ProblemId::new("memory", Subject::workload(&"a;$(x) 'b'\n".into()));
        assert_eq!(hostile.to_string(), "memory/workload/a___x___b__");
        let gpu = ProblemId::new("xid", Subject::gpu(&"3".into(), &"GPU-7".into()));
        assert_eq!(gpu.to_string(), "xid/gpu/3");
        let cgroup = ProblemId::new("exhaustion", Subject::cgroup(&"/a/b".into()));
        assert_eq!(cgroup.to_string(), "exhaustion/cgroup/a/b");
    }

    #[test]
    fn an_acknowledgement_holds_while_a_problem_is_not_worse() {
        let id =
            |number: usize| ProblemId::new("memory", Subject::workload(&number.to_string().as_str().into()));
        let mut known = Acknowledged::default();
        for number in 0..=MOST {
            known.add(id(number), Health::Warning, Acknowledgement::default());
        }
        assert!(known.of(&id(0), Health::Warning).is_none(), "the oldest was forgotten");
        assert!(known.of(&id(1), Health::Unknown).is_some() && known.of(&id(1), Health::Critical).is_none());
        known.add(id(1), Health::Critical, Acknowledgement::default());
        assert!(known.of(&id(1), Health::Critical).is_some());
        assert_eq!(known.ids().count(), MOST);
        known.remove(&id(1));
        assert!(known.of(&id(1), Health::Warning).is_none());
    }
}
