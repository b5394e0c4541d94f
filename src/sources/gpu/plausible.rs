//! Takes values that cannot be true out of a sample, before anything reads it.

use super::field::Field;
use super::protocol::{Memory, Reason, Refusal, Sample};

/// The call succeeded but returned an impossible value.
const IMPLAUSIBLE: Refusal = Refusal { reason: Reason::Implausible, code: 0 };

const MEMORY: [Field; 4] = [Field::MemoryTotal, Field::MemoryUsed, Field::MemoryFree, Field::MemoryReserved];

/// Makes a refusal of each value that cannot be true.
pub(super) fn check(sample: &mut Sample) {
    let refused = &mut sample.refused;
    bound(&mut sample.values, refused);
    let total = sample.values.iter().find(|(field, _)| *field == Field::MemoryTotal).map(|(_, total)| *total);
    let is_wrong = |&(field, amount): &(Field, u64)| {
        MEMORY.contains(&field) && total.is_some_and(|total| total == 0 || amount > total)
    };
    if sample.values.iter().any(is_wrong) {
        // Which of them is wrong is not known.
        take_out(&mut sample.values, refused, |field, _| MEMORY.contains(&field));
    }
    let most = total.filter(|total| *total > 0).unwrap_or(Field::MemoryTotal.most());
    for process in sample.processes.iter_mut().flatten() {
        if process.memory.take_if(|memory| *memory > most).is_some() {
            refuse(refused, Field::Processes);
        }
        for share in [&mut process.sm, &mut process.encoder, &mut process.decoder] {
            if share.take_if(|share| *share > 100).is_some() {
                refuse(refused, Field::ProcessUtilization);
            }
        }
    }
    sample.polled.take_if(|polled| polled.used > most);
    for link in &mut sample.links {
        bound(&mut link.values, refused);
    }
    for instance in &mut sample.instances {
        bound(&mut instance.values, &mut instance.refused);
        if instance.memory.take_if(|memory| !is_true(memory)).is_some() {
            refuse(&mut instance.refused, Field::MemoryUsed);
        }
    }
}

fn is_true(memory: &Memory) -> bool {
    let parts = [memory.used, memory.free, memory.reserved.unwrap_or(0)];
    (1..=Field::MemoryTotal.most()).contains(&memory.total) && parts.iter().all(|part| *part <= memory.total)
}

fn bound(values: &mut Vec<(Field, u64)>, refused: &mut Vec<(Field, Refusal)>) {
    take_out(values, refused, |field, value| value > field.most());
}

fn take_out(
    values: &mut Vec<(Field, u64)>,
    refused: &mut Vec<(Field, Refusal)>,
    is_wrong: impl Fn(Field, u64) -> bool,
) {
    for (field, _) in values.extract_if(.., |(field, value)| is_wrong(*field, *value)) {
        refuse(refused, field);
    }
}

fn refuse(refused: &mut Vec<(Field, Refusal)>, field: Field) {
    if !refused.contains(&(field, IMPLAUSIBLE)) {
        refused.push((field, IMPLAUSIBLE));
    }
}
