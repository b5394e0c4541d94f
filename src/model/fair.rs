//! Divides a bounded number of slots between users.
//!
//! Max-min fairness: every user gets as many slots as it requests, up to the highest level at which all fit. A user
//! that requests few is never refused because another requests many.

use std::collections::BTreeMap;
use std::hash::Hash;

/// Marks which of `owners`, in their order, get one of `most` slots.
///
/// The first entries of each user take precedence; slots that cannot be divided evenly go to the users that request
/// most.
///
/// ```
/// use memwarden::model::fair;
/// // User 1 requests four of three slots, user 2 one.
/// assert_eq!(fair::divide(&[1, 1, 1, 1, 2], 3), [true, true, false, false, true]);
/// ```
pub fn divide<U: Ord + Copy>(owners: &[U], most: usize) -> Vec<bool> {
    if owners.len() <= most {
        return vec![true; owners.len()];
    }
    let mut left = shares(owners, most);
    let place = |owner: &U| {
        let left = left.get_mut(owner)?;
        *left = left.checked_sub(1)?;
        Some(())
    };
    owners.iter().map(place).map(|given| given.is_some()).collect()
}

/// Marks which of `requested`, in their order, get a place when each takes its given number of `most` slots.
///
/// Each user has the share that [`divide`] would give it. Slots that remain because an entry is larger than the rest
/// of its user's share go to the first entries that fit.
///
/// ```
/// use memwarden::model::fair;
/// // User 1 requests four times two of seven slots, user 2 once three.
/// let requested = [(1, 2), (1, 2), (1, 2), (1, 2), (2, 3)];
/// assert_eq!(fair::divide_sizes(&requested, 7), [true, true, false, false, true]);
/// ```
pub fn divide_sizes<U: Ord + Copy>(requested: &[(U, usize)], most: usize) -> Vec<bool> {
    let mut users = BTreeMap::<U, usize>::new();
    for (owner, size) in requested {
        let sum = users.entry(*owner).or_default();
        *sum = sum.saturating_add(*size);
    }
    let mut left = levels(users, most);
    let mut rest = most;
    let within = |left: &mut usize, size: usize, rest: &mut usize| {
        let fits = size <= *left && size <= *rest;
        if fits {
            *left -= size;
            *rest -= size;
        }
        fits
    };
    let mut given: Vec<bool> = requested
        .iter()
        .map(|(owner, size)| left.get_mut(owner).is_some_and(|left| within(left, *size, &mut rest)))
        .collect();
    for ((_, size), given) in requested.iter().zip(&mut given).filter(|(_, given)| !**given) {
        let mut left = rest;
        *given = within(&mut left, *size, &mut rest);
    }
    given
}

/// Number of slots of each user.
fn shares<U: Ord + Copy>(owners: &[U], most: usize) -> BTreeMap<U, usize> {
    let mut requested = BTreeMap::<U, usize>::new();
    for owner in owners {
        *requested.entry(*owner).or_default() += 1;
    }
    levels(requested, most)
}

/// Number of slots of each user, by requested number.
fn levels<U: Ord + Copy>(mut requested: BTreeMap<U, usize>, most: usize) -> BTreeMap<U, usize> {
    let mut ascending: Vec<(usize, U)> =
        requested.iter().map(|(owner, requested)| (*requested, *owner)).collect();
    ascending.sort_unstable();
    let (mut left, mut users) = (most, ascending.len());
    for (request, owner) in ascending {
        let given = request.min(left / users);
        requested.insert(owner, given);
        left -= given;
        users -= 1;
    }
    requested
}

/// The indexes of `owners` in round-robin order of their users: the first of each user, then the second of each.
///
/// ```
/// use memwarden::model::fair;
/// assert_eq!(fair::turns([1, 1, 1, 2]), [0, 3, 1, 2]);
/// ```
pub fn turns<U: Ord + Copy>(owners: impl IntoIterator<Item = U>) -> Vec<usize> {
    let mut had = BTreeMap::<U, usize>::new();
    let turn = |owner| {
        let had = had.entry(owner).or_default();
        *had += 1;
        *had
    };
    let turns: Vec<usize> = owners.into_iter().map(turn).collect();
    let mut order: Vec<usize> = (0..turns.len()).collect();
    order.sort_by_key(|place| turns[*place]);
    order
}

/// Result of a user's request for another slot of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<U> {
    /// A slot is free.
    Free,
    /// The table is full, and this other user exceeds its share: one of its slots can be taken.
    TakeFrom(U),
    /// The table is full, and no other user has more slots than this user would have.
    Refused,
}

/// Number of slots of a table that each user holds.
#[derive(Clone, Debug)]
pub struct Shares<U> {
    most: usize,
    total: usize,
    held: BTreeMap<U, usize>,
}

impl<U: Ord + Copy + Hash> Shares<U> {
    /// A table of `most` free slots.
    pub const fn new(most: usize) -> Self {
        Self { most, total: 0, held: BTreeMap::new() }
    }

    /// Whether `user` can get another slot.
    pub fn request(&self, user: U) -> Answer<U> {
        if self.total < self.most {
            return Answer::Free;
        }
        let after = self.of(user) + 1;
        let largest = self.held.iter().max_by_key(|(_, held)| **held);
        match largest {
            Some((owner, held)) if *owner != user && *held > after => Answer::TakeFrom(*owner),
            _ => Answer::Refused,
        }
    }

    /// Records that `user` took a slot.
    pub fn take(&mut self, user: U) {
        *self.held.entry(user).or_default() += 1;
        self.total += 1;
    }

    /// Records that `user` released a slot.
    pub fn release(&mut self, user: U) {
        let Some(held) = self.held.get_mut(&user) else { return };
        *held -= 1;
        self.total -= 1;
        if *held == 0 {
            self.held.remove(&user);
        }
    }

    /// Number of slots that `user` holds.
    pub fn of(&self, user: U) -> usize {
        self.held.get(&user).copied().unwrap_or_default()
    }

    /// Total number of slots.
    pub const fn most(&self) -> usize {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_user_with_many_entries_leaves_a_place_for_a_user_with_one() {
        let owners: Vec<u32> = std::iter::repeat_n(7, 70).chain([9]).collect();
        let kept = divide(&owners, 64);
        assert!(kept[70]);
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 64);
    }

    #[test]
    fn a_full_table_evicts_from_the_user_with_the_most() {
        let mut shares = Shares::new(4);
        for _ in 0..4 {
            assert_eq!(shares.request(7), Answer::Free);
            shares.take(7);
        }
        assert_eq!(shares.request(7), Answer::Refused);
        assert_eq!(shares.request(9), Answer::TakeFrom(7));
        shares.release(7);
        shares.take(9);
        assert_eq!(shares.request(9), Answer::TakeFrom(7));
        shares.release(7);
        shares.take(9);
        assert_eq!((shares.request(9), shares.request(7)), (Answer::Refused, Answer::Refused));
    }

    #[test]
    fn unused_capacity_of_a_user_goes_to_another() {
        // Each has a share of ten: what takes fifteen does not fit, and the places go to the other.
        let requested = [(7, 8), (7, 8), (9, 15), (7, 8)];
        assert_eq!(divide_sizes(&requested, 20), [true, true, false, false]);
        assert_eq!(divide_sizes(&[(9, 21), (7, 1)], 20), [false, true]);
        assert_eq!(divide_sizes(&[(9, usize::MAX), (9, usize::MAX), (7, 0)], 20), [false, false, true]);
    }

    proptest! {
        #[test]
        fn sizes_of_one_are_divided_as_places_are(
            owners in proptest::collection::vec(0_u32..6, 0..60),
            most in 0_usize..40,
        ) {
            let requested: Vec<(u32, usize)> = owners.iter().map(|owner| (*owner, 1)).collect();
            prop_assert_eq!(divide_sizes(&requested, most), divide(&owners, most));
        }

        #[test]
        fn all_places_are_used_and_no_user_has_less_than_a_user_who_requested_less(
            owners in proptest::collection::vec(0_u32..6, 0..60),
            most in 0_usize..40,
        ) {
            let kept = divide(&owners, most);
            let count = |user: u32, only: bool| {
                owners.iter().zip(&kept).filter(|(owner, kept)| **owner == user && (!only || **kept)).count()
            };
            prop_assert_eq!(kept.iter().filter(|kept| **kept).count(), owners.len().min(most));
            for one in 0..6 {
                for other in 0..6 {
                    // A user with entries left out has at least as many as any other, minus one.
                    if count(one, true) < count(one, false) {
                        prop_assert!(count(one, true) + 1 >= count(other, true));
                    }
                }
            }
        }
    }
}
