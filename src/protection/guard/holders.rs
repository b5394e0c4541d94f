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
                    "A level is crossed, and ending the job would not give back what is lacking: nothing is done."
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
        .filter(|(known, _)| matches!(known.subject.resource.as_str(), "workload" | "tmpfs"))
        .map(|(known, used)| (used, format!("{:#}", known.subject)))
        .collect();
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
