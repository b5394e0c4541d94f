//! Divides a bounded number of slots between users.
//!
//! Max-min fairness: every user gets as many slots as it requests, up to the highest level at which all fit. A user
//! that requests few is never refused because another requests many. A user who has the ids of a range in `/etc/subuid` has one
//! share for all of them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::label::Label;
use super::subordinate;

/// By what something is divided.
pub trait Share: Ord + Copy {
    /// Whose share it takes.
    #[must_use]
    fn payer(self) -> Self {
        self
    }
}

/// A user id.
impl Share for u32 {
    fn payer(self) -> Self {
        subordinate::payer(self)
    }
}

impl Share for i32 {}
impl Share for u64 {}
impl Share for usize {}
impl Share for &Label {}
impl Share for &str {}

impl<S: Share> Share for Option<S> {
    fn payer(self) -> Self {
        self.map(S::payer)
    }
}

/// Marks which of `owners`, in their order, get one of `most` slots.
///
/// The first entries of each user take precedence; slots that cannot be divided evenly go to the users that request
/// most.
///
/// ```
/// use memwarden_model::fair;
/// // User 1 requests four of three slots, user 2 one.
/// assert_eq!(fair::divide(&[1, 1, 1, 1, 2], 3), [true, true, false, false, true]);
/// ```
pub fn divide<U: Share>(owners: &[U], most: usize) -> Vec<bool> {
    if owners.len() <= most {
        return vec![true; owners.len()];
    }
    let mut left = shares(owners, most);
    let place = |owner: &U| {
        let left = left.get_mut(&owner.payer())?;
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
/// use memwarden_model::fair;
/// // User 1 requests four times two of seven slots, user 2 once three.
/// let requested = [(1, 2), (1, 2), (1, 2), (1, 2), (2, 3)];
/// assert_eq!(fair::divide_sizes(&requested, 7), [true, true, false, false, true]);
/// ```
pub fn divide_sizes<U: Share>(requested: &[(U, usize)], most: usize) -> Vec<bool> {
    let mut users = BTreeMap::<U, usize>::new();
    for (owner, size) in requested {
        let sum = users.entry(owner.payer()).or_default();
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
        .map(|(owner, size)| left.get_mut(&owner.payer()).is_some_and(|left| within(left, *size, &mut rest)))
        .collect();
    for ((_, size), given) in requested.iter().zip(&mut given).filter(|(_, given)| !**given) {
        let mut left = rest;
        *given = within(&mut left, *size, &mut rest);
    }
    given
}

/// Number of slots of each user.
fn shares<U: Share>(owners: &[U], most: usize) -> BTreeMap<U, usize> {
    let mut requested = BTreeMap::<U, usize>::new();
    for owner in owners {
        *requested.entry(owner.payer()).or_default() += 1;
    }
    levels(requested, most)
}

/// Number of slots of each user, by requested number.
fn levels<U: Share>(mut requested: BTreeMap<U, usize>, most: usize) -> BTreeMap<U, usize> {
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
/// use memwarden_model::fair;
/// assert_eq!(fair::turns([1, 1, 1, 2]), [0, 3, 1, 2]);
/// ```
pub fn turns<U: Share>(owners: impl IntoIterator<Item = U>) -> Vec<usize> {
    let mut had = BTreeMap::<U, usize>::new();
    let turn = |owner: U| {
        let had = had.entry(owner.payer()).or_default();
        *had += 1;
        *had
    };
    let turns: Vec<usize> = owners.into_iter().map(turn).collect();
    let mut order: Vec<usize> = (0..turns.len()).collect();
    order.sort_by_key(|place| turns[*place]);
    order
}

/// A bounded table of entries, each of a user: a user that holds few is never refused because another holds many.
#[derive(Clone, Debug)]
pub struct Table<U, K, V> {
    most: usize,
    entries: BTreeMap<K, (U, V)>,
    held: BTreeMap<U, usize>,
}

/// Result of a user's request for another slot of a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room<U, K, V> {
    Free,
    /// The table was full, and another user exceeded its share: this entry of it was removed.
    Evicted(U, K, V),
    /// The table is full, and no other user holds more slots than this user would.
    Refused,
}

impl<U: Share, K: Ord + Clone, V> Table<U, K, V> {
    /// A table of `most` free slots.
    pub const fn new(most: usize) -> Self {
        Self { most, entries: BTreeMap::new(), held: BTreeMap::new() }
    }

    /// Makes room for one more entry of `user`. If the table is full, this removes the entry with the least `order` of the
    /// user that holds most.
    pub fn make_room<O: PartialOrd>(&mut self, user: U, order: impl Fn(&K, &V) -> O) -> Room<U, K, V> {
        let user = user.payer();
        if self.len() < self.most {
            return Room::Free;
        }
        let after = self.of(user) + 1;
        match self.held.iter().max_by_key(|(_, held)| **held).map(|(owner, held)| (*owner, *held)) {
            Some((owner, held)) if owner != user && held > after => match self.evict(owner, order) {
                Some((key, value)) => Room::Evicted(owner, key, value),
                None => Room::Refused,
            },
            _ => Room::Refused,
        }
    }

    /// Removes the entry of `user` with the least `order`; absent if the user has none.
    pub fn evict<O: PartialOrd>(&mut self, user: U, order: impl Fn(&K, &V) -> O) -> Option<(K, V)> {
        let user = user.payer();
        let own = self.entries.iter().filter(|(_, (owner, _))| *owner == user);
        let own = own.map(|(key, (_, value))| (order(key, value), key));
        let first = own.min_by(|(one, _), (other, _)| one.partial_cmp(other).unwrap_or(Ordering::Equal));
        let key = first.map(|(_, key)| key.clone())?;
        self.remove(&key).map(|value| (key, value))
    }

    /// Adds an entry, for which [`Table::make_room`] has made room, or replaces the one of this key.
    pub fn insert(&mut self, user: U, key: K, value: V) {
        self.remove(&key);
        let user = user.payer();
        *self.held.entry(user).or_default() += 1;
        self.entries.insert(key, (user, value));
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (user, value) = self.entries.remove(key)?;
        release(&mut self.held, user);
        Some(value)
    }

    /// Removes the entries that are not to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        let held = &mut self.held;
        self.entries.retain(|key, (user, value)| {
            let kept = keep(key, value);
            if !kept {
                release(held, *user);
            }
            kept
        });
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// The entry of a key, to change it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (_, value))| (key, value))
    }

    /// The entries with their users, by key.
    pub fn owned(&self) -> impl Iterator<Item = (U, &K, &V)> {
        self.entries.iter().map(|(key, (user, value))| (*user, key, value))
    }

    /// The entries, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The entries, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut().map(|(_, value)| value)
    }

    /// Number of slots that `user` holds.
    pub fn of(&self, user: U) -> usize {
        self.held.get(&user.payer()).copied().unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn release<U: Ord>(held: &mut BTreeMap<U, usize>, user: U) {
    if let Entry::Occupied(mut slots) = held.entry(user) {
        *slots.get_mut() -= 1;
        if *slots.get() == 0 {
            slots.remove();
        }
    }
}

/// Divides `items`, in their order, as [`divide`] does: those that get one of `most` slots, and the others.
pub fn split<T, U: Share>(items: Vec<T>, most: usize, owner: impl Fn(&T) -> U) -> (Vec<T>, Vec<T>) {
    let owners: Vec<U> = items.iter().map(owner).collect();
    let mut given = divide(&owners, most).into_iter();
    items.into_iter().partition(|_| given.next() == Some(true))
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_user_with_many_entries_leaves_a_place_for_a_user_with_one() {
        let owners: Vec<u32> = std::iter::repeat_n(7, 70).chain([9]).collect();
        let kept = divide(&owners, 64);
        assert!(kept[70]);
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 64);
    }

    /// The newest entry, which has the largest key, goes first.
    fn newest(key: &u32, (): &()) -> Reverse<u32> {
        Reverse(*key)
    }

    #[test]
    fn a_full_table_evicts_from_the_user_with_the_most() {
        let mut table = Table::new(4);
        for key in 0..4 {
            assert_eq!(table.make_room(7, newest), Room::Free);
            table.insert(7, key, ());
        }
        assert_eq!(table.make_room(7, newest), Room::Refused);
        for (key, evicted) in [(4, 3), (5, 2)] {
            assert_eq!(table.make_room(9, newest), Room::Evicted(7, evicted, ()));
            table.insert(9, key, ());
        }
        assert_eq!((table.make_room(9, newest), table.make_room(7, newest)), (Room::Refused, Room::Refused));
        assert_eq!((table.of(7), table.of(9), table.len()), (2, 2, 4));
    }

    #[test]
    fn unused_capacity_of_a_user_goes_to_another() {
        // Each has a share of ten: what takes fifteen does not fit, and the places go to the other.
        let requested = [(7, 8), (7, 8), (9, 15), (7, 8)];
        assert_eq!(divide_sizes(&requested, 20), [true, true, false, false]);
        assert_eq!(divide_sizes(&[(9, 21), (7, 1)], 20), [false, true]);
        assert_eq!(divide_sizes(&[(9, usize::MAX), (9, usize::MAX), (7, 0)], 20), [false, false, true]);
    }

    #[test]
    fn the_ids_of_a_range_have_the_share_of_their_user_in_everything_that_is_divided() {
        const FIRST: u32 = 3_000_000_000;
        const OWNER: u32 = 61_003;
        const OTHER: u32 = 61_001;
        let ids = subordinate::SubordinateIds::new(vec![(FIRST, 300, OWNER)]);
        subordinate::publish(&ids.into());
        let many: Vec<u32> = (FIRST..FIRST + 300).chain(std::iter::repeat_n(OTHER, 50)).collect();
        let of_other = |kept: &[bool]| kept[300..].iter().filter(|kept| **kept).count();
        assert_eq!(of_other(&divide(&many, 64)), 32);
        let sizes: Vec<(u32, usize)> = many.iter().map(|user| (*user, 1)).collect();
        assert_eq!(of_other(&divide_sizes(&sizes, 64)), 32);
        assert_eq!(split(many.clone(), 64, |user| *user).0.iter().filter(|user| **user == OTHER).count(), 32);
        assert_eq!(turns(many.iter().copied())[..4], [0, 300, 1, 301]);
        let mut table = Table::new(64);
        for (key, user) in (0..).zip(many) {
            if table.make_room(user, newest) != Room::Refused {
                table.insert(user, key, ());
            }
        }
        assert_eq!((table.of(OTHER), table.of(FIRST + 7), table.of(OWNER)), (32, 32, 32));
    }

    proptest! {
        #[test]
        fn a_table_is_bounded_and_counts_its_entries(
            steps in proptest::collection::vec((0_u32..4, 0_u32..30, 0_u8..4), 0..200),
            most in 1_usize..12,
        ) {
            let mut table = Table::new(most);
            let mut expected = BTreeMap::new();
            for (user, key, step) in steps {
                match step {
                    0 => {
                        prop_assert_eq!(table.remove(&key).is_some(), expected.remove(&key).is_some());
                    }
                    1 => {
                        table.retain(|kept, ()| kept % 3 != key % 3);
                        expected.retain(|kept, _| kept % 3 != key % 3);
                    }
                    _ => {
                        let held = |user| expected.values().filter(|owner| **owner == user).count();
                        let largest = (0..4).map(held).max().unwrap_or_default();
                        let room = table.contains_key(&key) || match table.make_room(user, newest) {
                            Room::Free => expected.len() < most,
                            Room::Evicted(other, evicted, ()) => {
                                prop_assert!(held(other) == largest && largest > held(user) + 1);
                                prop_assert_eq!(expected.remove(&evicted), Some(other));
                                true
                            }
                            Room::Refused => {
                                // Only a user of the largest share, or one below it, is refused.
                                prop_assert!(expected.len() == most && largest <= held(user) + 1);
                                false
                            }
                        };
                        if room {
                            table.insert(user, key, ());
                            expected.insert(key, user);
                        }
                    }
                }
                prop_assert!(table.len() <= most && table.iter().map(|(key, ())| key).eq(expected.keys()));
                for user in 0..4 {
                    prop_assert_eq!(table.of(user), expected.values().filter(|owner| **owner == user).count());
                }
            }
        }

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
