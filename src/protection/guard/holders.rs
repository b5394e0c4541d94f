//! Says who holds the memory where the end of a target's job would not give back what is lacking.

use std::collections::BTreeSet;

use crate::model::facts::{Facts, HeldMemory};
use crate::model::format;
use crate::model::outlook::Outlook;
use crate::model::units::{Bytes, Unit as _};
use crate::protection::policy::{Condition, Truth};
use crate::protection::status::{Names, Report};

/// Most holders that are named.
const MOST: usize = 3;

/// The jobs of which it was said, by their serial numbers.
#[derive(Debug, Default)]
pub(super) struct Unhelped(BTreeSet<u64>);

impl Unhelped {
    /// Logs each job whose end has begun not to help.
    pub(super) fn tell(&mut self, report: &Report, names: &Names, outlook: &Outlook, facts: &Facts) {
        let mut now = BTreeSet::new();
        for (place, slot) in report.slots.iter().enumerate() {
            let Some(slot) =
                slot.as_ref().filter(|slot| slot.conditions.get(Condition::Helps) == Truth::NotMet)
            else {
                continue;
            };
            now.insert(slot.serial);
            let name = names.slots.get(place).and_then(Option::as_ref);
            if let Some(name) =
                name.filter(|name| name.serial == slot.serial && !self.0.contains(&slot.serial))
            {
                let target = names.targets.get(slot.target).map_or("", |(target, _)| target.as_str());
                tracing::warn!(
                    target_name = target,
                    workload = name.workload.as_str(),
                    held_by = holders(outlook, facts),
                    "A level is crossed, and ending the job would not give back what is lacking: it is not ended."
                );
            }
        }
        self.0 = now;
    }
}

/// The largest holders of the host's memory that are known, with their amounts: workloads, files in tmpfs, the kernel, pools of huge
/// pages, and the ARC of ZFS.
fn holders(outlook: &Outlook, facts: &Facts) -> String {
    let known =
        outlook.conclusions.iter().filter_map(|known| Some((known, known.forecast.as_ref()?.used_bytes)));
    let mut all: Vec<(f64, String)> = known
        .filter(|(known, _)| known.subject.resource.as_str() == "workload")
        .map(|(known, used)| (used, format!("{:#}", known.subject)))
        .collect();
    all.extend(
        facts
            .tmpfs
            .iter()
            .flat_map(|table| &table.file_systems)
            .filter(|files| files.used > Bytes::ZERO)
            .map(|files| {
                let workload =
                    files.workload.as_ref().map_or_else(String::new, |own| format!(" of {}", own.name));
                // They are read where it is nearly full.
                let most = files.owners.iter().max_by_key(|(_, bytes)| *bytes);
                let owner = most.map_or_else(String::new, |(user, bytes)| {
                    format!(", most of user {user}: {}", format::bytes(bytes.value()))
                });
                (files.used.value(), format!("files in {}{workload}{owner}", files.mount))
            }),
    );
    let HeldMemory { kernel, huge_pages, arc } = facts.held_memory;
    for (held, who) in [(kernel, "the kernel"), (huge_pages, "pools of huge pages"), (arc, "the ARC of ZFS")]
    {
        all.extend(held.filter(|held| *held > Bytes::ZERO).map(|held| (held.value(), who.to_owned())));
    }
    all.sort_by(|one, other| other.0.total_cmp(&one.0));
    let named = all.iter().take(MOST).map(|(used, who)| format!("{who} ({})", format::bytes(*used)));
    let named: Vec<_> = named.collect();
    if named.is_empty() { "not known".to_owned() } else { named.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::model::facts::{Tmpfs, TmpfsTable};
    use crate::model::time::Timestamp;

    #[test]
    fn files_in_memory_are_named_with_their_owner() {
        let files = Tmpfs {
            device: "0:9".into(),
            workload: None,
            mount: "/dev/shm".into(),
            size: Bytes::new(4 << 30),
            used: Bytes::new(3 << 30),
            owners: vec![(1001, Bytes::new(1 << 30)), (1002, Bytes::new(2 << 30))],
        };
        let table = TmpfsTable {
            read_at: Timestamp::from_secs(1),
            file_systems: vec![files],
            of_process: Default::default(),
            of_workload: Default::default(),
            left_out: BTreeMap::new(),
        };
        let held_memory = HeldMemory { kernel: Some(Bytes::new(1 << 30)), ..HeldMemory::default() };
        let facts = Facts { tmpfs: Some(table.into()), held_memory, ..Facts::default() };
        assert_eq!(
            holders(&Outlook::default(), &facts),
            "files in /dev/shm, most of user 1002: 2.0 GiB (3.0 GiB), the kernel (1.0 GiB)"
        );
        assert_eq!(holders(&Outlook::default(), &Facts::default()), "not known");
    }
}
