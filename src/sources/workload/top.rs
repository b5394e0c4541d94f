//! Selects the largest processes of each workload, and sums the others.

use crate::model::units::Bytes;

/// A process to choose from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Its workload's number; 0 for none.
    pub(super) workload: u32,
    pub(super) rss: Bytes,
    /// Whether it was exposed at the previous sample.
    pub(super) shown: bool,
    /// Its index in the table.
    pub(super) place: usize,
}

/// The selection of one workload.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) workload: u32,
    /// Indices in the table, the largest first.
    pub(super) places: Vec<usize>,
    pub(super) others: u64,
    pub(super) others_rss: Bytes,
}

/// Selects up to `most(workload)` processes of each workload.
///
/// A process that is exposed is replaced only by one that is an eighth larger: otherwise data loaders of
/// the same size would alternate, each time with new series.
pub(super) fn choose(mut candidates: Vec<Candidate>, most: impl Fn(u32) -> usize) -> Vec<Chosen> {
    let weight = |candidate: &Candidate| {
        let rss = candidate.rss.get();
        if candidate.shown { rss.saturating_add(rss / 8) } else { rss }
    };
    candidates.sort_unstable_by(|one, other| {
        let order = one.workload.cmp(&other.workload).then(weight(other).cmp(&weight(one)));
        order.then(one.place.cmp(&other.place))
    });
    let groups = candidates.chunk_by(|one, other| one.workload == other.workload);
    groups
        .map(|group| {
            let workload = group[0].workload;
            let (shown, others) = group.split_at(most(workload).min(group.len()));
            let mut shown = shown.to_vec();
            shown.sort_by_key(|candidate| std::cmp::Reverse(candidate.rss));
            Chosen {
                workload,
                places: shown.iter().map(|candidate| candidate.place).collect(),
                others: others.len() as u64,
                others_rss: others.iter().map(|candidate| candidate.rss).sum(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(workload: u32, rss: u64, shown: bool, place: usize) -> Candidate {
        Candidate { workload, rss: Bytes::new(rss), shown, place }
    }

    #[test]
    fn the_shown_stay_until_clearly_exceeded() {
        let choose_one = |rss| choose(vec![candidate(1, 800, true, 0), candidate(1, rss, false, 1)], |_| 1);
        assert_eq!(choose_one(900)[0].places, [0]);
        assert_eq!(choose_one(901)[0].places, [1]);
    }

    proptest::proptest! {
        #[test]
        fn shown_and_others_add_up(
            sizes in proptest::collection::vec((0_u32..4, 0_u64..1000, proptest::bool::ANY), 0..60),
            most in 0_usize..6,
        ) {
            let candidates: Vec<_> = sizes.iter().enumerate()
                .map(|(place, (workload, rss, shown))| candidate(*workload, *rss, *shown, place)).collect();
            for chosen in choose(candidates.clone(), |_| most) {
                let of = || candidates.iter().filter(|one| one.workload == chosen.workload);
                let shown: u64 = chosen.places.iter().map(|place| candidates[*place].rss.get()).sum();
                let total: u64 = of().map(|one| one.rss.get()).sum();
                proptest::prop_assert_eq!(shown + chosen.others_rss.get(), total);
                proptest::prop_assert_eq!(chosen.places.len() as u64 + chosen.others, of().count() as u64);
                proptest::prop_assert!(chosen.places.len() <= most);
            }
        }
    }
}
