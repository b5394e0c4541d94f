//! The users of subjects, for limits that are divided between users.

use std::collections::HashMap;

use crate::model::analyzer::View;
use crate::model::facts::Facts;
use crate::model::finding::Subject;
use crate::model::label::Label;

/// The users of one tick's subjects.
#[derive(Debug)]
pub(super) struct Users<'v> {
    facts: Option<&'v Facts>,
    workloads: HashMap<&'v Label, u32>,
}

impl<'v> Users<'v> {
    /// The users of this tick's subjects.
    pub(super) fn new(view: &View<'v>) -> Self {
        let facts = view.facts();
        let workloads = facts.map_or(&[][..], |facts| &facts.workload_of);
        let workloads =
            workloads.iter().map(|member| (&member.workload.name, member.workload.user)).collect();
        Self { facts, workloads }
    }

    /// The user of the workload, the cgroup or the process; root for the host's own subjects, and where the user is
    /// unknown.
    pub(super) fn of(&self, subject: &Subject) -> u32 {
        let workload = self.workloads.get(&subject.workload).copied();
        let cgroup = || self.facts?.cgroup_users.get(&subject.cgroup).copied();
        let process = || {
            let pid = subject.pid.as_str().parse().ok()?;
            self.facts?.processes.as_ref()?.get(pid).map(|row| row.uid)
        };
        let user = workload.or_else(cgroup).or_else(process).unwrap_or(0);
        // Ids of user namespaces have no share of their own.
        self.facts.map_or(user, |facts| facts.subordinates.owner(user))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::model::facts::{Membership, ProcessRow, ProcessTable, Workload};
    use crate::model::ids::ProcessKey;

    #[test]
    fn a_subject_is_of_the_user_of_its_workload_cgroup_or_process() {
        let key = ProcessKey { pid: 9, start: 1 };
        let mut member = Membership::named(key, "job");
        member.workload = Arc::new(Workload { user: 61_001, ..(*member.workload).clone() });
        let row = ProcessRow { parent: 1, uid: 61_003, ..ProcessRow::new(key, "python".into()) };
        let facts = Facts {
            workload_of: vec![member],
            cgroup_users: Arc::new(BTreeMap::from([("/delegated".into(), 61_002)])),
            processes: Some(Arc::new(ProcessTable { rows: vec![row], boot: None })),
            ..Facts::default()
        };
        let view = View::new(&[]).with_facts(&facts);
        let users = Users::new(&view);
        let (gpu, uuid) = (&"0".into(), &"GPU-0".into());
        let cases = [
            (Subject::workload(&"job".into()), 61_001),
            (Subject::process(&"job".into(), &"9".into()), 61_001),
            (Subject::cgroup(&"/delegated".into()), 61_002),
            (Subject::gpu_process(gpu, uuid, &"9".into()), 61_003),
            (Subject::gpu_process(gpu, uuid, &"10".into()), 0),
            (Subject::cgroup(&"/system.slice".into()), 0),
            (Subject::host(), 0),
        ];
        for (subject, user) in cases {
            assert_eq!(users.of(&subject), user, "{subject}");
            assert_eq!(Users::new(&View::new(&[])).of(&subject), 0, "{subject}");
        }
    }
}
