//! Which ranks of a job receive the checkpoint signal, where the configuration states which must.
//!
//! Only processes that are known to be ranks receive it, never launchers, and never processes that a rank has started,
//! such as workers of data loaders: a signal ends many of them.

use std::collections::BTreeMap;

use super::victim::{Asked, Family, MOST, ProcessInfo, Roster, above};
use crate::model::ids::ProcessKey;
use crate::options::presets::AskedRanks;

/// The ranks that launchers have started or that have reported their number, with their global number where it is known.
pub type KnownRanks = BTreeMap<ProcessKey, Option<u32>>;

impl Roster {
    /// Asks only these ranks for a checkpoint; with `None` the roster stays as it is.
    #[must_use]
    pub fn asking(self, processes: &[ProcessInfo], known: &KnownRanks, who: Option<AskedRanks>) -> Self {
        match who {
            Some(who) => Self { ask: asked(processes, known, who), ..self },
            None => self,
        }
    }
}

/// The ranks that receive the signal, by number.
///
/// A process that uses a GPU or is connected to the job socket is a rank, unless one of its ancestors is. A process that
/// a launcher has started as a rank is one where no process below it is: it may be a script that starts the program.
fn asked(processes: &[ProcessInfo], known: &KnownRanks, who: AskedRanks) -> Vec<Asked> {
    let family = Family::new(processes);
    let above = |place: usize| above(&family.parent, place);
    let strong: Vec<usize> = (0..processes.len())
        .filter(|place| processes[*place].rank && !above(*place).any(|above| processes[above].rank))
        .collect();
    let is_above_strong = |place: usize| strong.iter().any(|rank| above(*rank).any(|above| above == place));
    let started = (0..processes.len()).filter(|place| {
        known.contains_key(&processes[*place].key)
            && !strong.contains(place)
            && !is_above_strong(*place)
            && !above(*place).any(|above| processes[above].rank || known.contains_key(&processes[above].key))
    });
    let number = |place: usize| {
        std::iter::once(place).chain(above(place)).find_map(|place| *known.get(&processes[place].key)?)
    };
    let mut ranks: Vec<(Option<u32>, ProcessKey)> =
        strong.iter().copied().chain(started).map(|place| (number(place), processes[place].key)).collect();
    // Unknown numbers come last.
    ranks.sort_by_key(|(number, key)| (number.is_none(), *number, *key));
    ranks.truncate(MOST);
    if who == AskedRanks::First {
        ranks.retain(|(number, _)| *number == Some(0));
    }
    let asked = ranks.iter().enumerate().map(|(turn, (_, key))| {
        // The next one is asked only where the one before could not be.
        let before = turn.checked_sub(1).and_then(|before| u16::try_from(before).ok());
        Asked { key: *key, above: before.filter(|_| who == AskedRanks::Any) }
    });
    asked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::Bytes;
    use crate::options::target::Victims;

    /// A launcher (10), two ranks (12, 13) with a worker each (14, 15); those of `gpu` use a GPU.
    fn job(gpu: &[u32]) -> Vec<ProcessInfo> {
        [(10, 1), (12, 10), (13, 10), (14, 12), (15, 13)]
            .map(|(pid, parent)| ProcessInfo {
                key: ProcessKey { pid, start: u64::from(pid) },
                parent,
                resident: Bytes::new(1 << 20),
                group: None,
                rank: gpu.contains(&pid),
            })
            .to_vec()
    }

    #[track_caller]
    fn check(gpu: &[u32], started: &[(u32, Option<u32>)], who: AskedRanks, expected: &[(u32, Option<u16>)]) {
        let processes = job(gpu);
        let known = started
            .iter()
            .map(|(pid, number)| (ProcessKey { pid: *pid, start: u64::from(*pid) }, *number))
            .collect();
        let roster = Roster::new(&processes, Victims::Whole, None).asking(&processes, &known, Some(who));
        let asked: Vec<_> = roster.ask.iter().map(|asked| (asked.key.pid, asked.above)).collect();
        assert_eq!(asked, expected);
    }

    #[test]
    fn launchers_and_workers_are_never_asked() {
        let numbered = [(12, Some(4)), (13, Some(0))];
        check(&[], &[], AskedRanks::All, &[]);
        check(&[12, 13, 14], &[], AskedRanks::All, &[(12, None), (13, None)]);
        check(&[], &numbered, AskedRanks::All, &[(13, None), (12, None)]);
        check(&[], &numbered, AskedRanks::Any, &[(13, None), (12, Some(0))]);
        check(&[12, 13], &numbered, AskedRanks::First, &[(13, None)]);
        check(&[12, 13], &[(12, Some(4))], AskedRanks::First, &[]);
        check(&[], &[(10, Some(0)), (12, Some(0))], AskedRanks::All, &[(10, None)]);
    }

    #[test]
    fn a_script_that_starts_a_rank_gives_it_its_number() {
        check(&[12, 13], &[(10, Some(0))], AskedRanks::First, &[(12, None), (13, None)]);
        check(&[14], &[(12, Some(0)), (13, Some(1))], AskedRanks::All, &[(14, None), (13, None)]);
    }
}
