//! The order in which connections are read, and how much is read in one round.
//!
//! Users take turns, then the processes of a user, then the connections of a
//! process: one turn is one read. Within each level, the one that was read the
//! longest time ago comes first, so that what exceeds the budget of a round comes
//! first in the next. However many connections a user keeps full, a connection of
//! another user waits for one read per turn of each user, and not for all of them.

use std::collections::VecDeque;

use crate::model::ids::ProcessKey;

/// A connection that can be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// The user whose connection limit it counts against.
    pub(super) user: u32,
    /// The process; all connections of a user whose process is not verified count as one process.
    pub(super) process: Option<ProcessKey>,
    /// The connection.
    pub(super) number: u64,
    /// The number of its last read, counted over all connections.
    pub(super) last_read: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// Its cost, deducted from the budget.
    pub(super) cost: usize,
    /// Whether there may be more to read.
    pub(super) more: bool,
}

/// The connections of one process, each with its number of reads in this round.
type Process = VecDeque<(u64, usize)>;

/// Reads `ready` in turns, each connection at most `most` times, until nothing is left or the reads have cost `budget`.
///
/// The last read may exceed the budget. Returns whether all permitted reads were done.
pub(super) fn take_turns(
    ready: Vec<Ready>,
    most: usize,
    budget: usize,
    mut read: impl FnMut(u64) -> Read,
) -> bool {
    let mut users = by_user(ready);
    let mut spent = 0;
    while let Some(mut processes) = users.pop_front() {
        let Some(mut connections) = processes.pop_front() else { continue };
        let Some((number, before)) = connections.pop_front() else { continue };
        if spent >= budget {
            return false;
        }
        let Read { cost, more } = read(number);
        spent += cost;
        if more && before + 1 < most {
            connections.push_back((number, before + 1));
        }
        if !connections.is_empty() {
            processes.push_back(connections);
        }
        if !processes.is_empty() {
            users.push_back(processes);
        }
    }
    true
}

/// The connections by process by user, at each level ordered by the time of the last read.
fn by_user(ready: Vec<Ready>) -> VecDeque<VecDeque<Process>> {
    let last = |reads: &[Ready]| reads.iter().map(|ready| ready.last_read).max();
    let users = groups(ready, |ready| ready.user, last);
    let processes = |user| {
        groups(user, |ready| ready.process, last).into_iter().map(|mut process| {
            process.sort_unstable_by_key(|ready| (ready.last_read, ready.number));
            process.into_iter().map(|ready| (ready.number, 0)).collect()
        })
    };
    users.into_iter().map(|user| processes(user).collect()).collect()
}

/// Groups by key, ordered by the result of `order`.
fn groups<K: Ord, O: Ord>(
    mut ready: Vec<Ready>,
    key: impl Fn(&Ready) -> K,
    order: impl Fn(&[Ready]) -> O,
) -> Vec<Vec<Ready>> {
    ready.sort_by_key(&key);
    let mut groups: Vec<Vec<Ready>> =
        ready.chunk_by(|one, other| key(one) == key(other)).map(<[Ready]>::to_vec).collect();
    groups.sort_by_key(|group| order(group));
    groups
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn ready(user: u32, pid: u32, number: u64, last_read: u64) -> Ready {
        Ready { user, process: Some(ProcessKey { pid, start: 1 }), number, last_read }
    }

    /// The order in which connections are read if each read costs 1.
    fn order(all: &[Ready], budget: usize) -> Vec<u64> {
        let mut order = Vec::new();
        take_turns(all.to_vec(), 1, budget, |number| {
            order.push(number);
            Read { cost: 1, more: false }
        });
        order
    }

    #[test]
    fn users_take_turns_then_processes_then_connections() {
        let all = [
            ready(1002, 20, 1, 0),
            ready(1002, 20, 2, 0),
            ready(1002, 20, 3, 0),
            ready(1002, 21, 4, 0),
            ready(1001, 10, 5, 0),
        ];
        assert_eq!(order(&all, 100), [5, 1, 4, 2, 3]);
        assert_eq!(order(&all, 2), [5, 1]);
        assert!(order(&all, 0).is_empty() && order(&[], 100).is_empty());
    }

    #[test]
    fn the_connection_read_longest_ago_is_first() {
        let all =
            [ready(1001, 10, 1, 9), ready(1002, 20, 2, 8), ready(1002, 20, 3, 2), ready(1002, 21, 4, 7)];
        assert_eq!(order(&all, 100), [4, 1, 3, 2]);
    }

    #[test]
    fn a_full_connection_is_read_again_after_the_others() {
        let all = [ready(1001, 10, 1, 0), ready(1001, 10, 2, 0), ready(1002, 20, 3, 0)];
        let mut order = Vec::new();
        let done = take_turns(all.to_vec(), 2, 100, |number| {
            order.push(number);
            Read { cost: 30, more: number != 2 }
        });
        // The fourth read uses up the budget; the first connection could have been read once more.
        assert_eq!((done, order.as_slice()), (false, &[1, 3, 2, 3][..]));
    }

    #[test]
    fn many_full_connections_do_not_delay_another_user_by_a_round() {
        // The cost of reading a full connection, with a budget of 16 of them.
        let read = |number| Read { cost: if number == 1_000 { 1 } else { 16 }, more: number != 1_000 };
        let mut last_read = BTreeMap::new();
        let mut reads = 0;
        for round in 0..100 {
            let mut all: Vec<Ready> = (0..500)
                .map(|number| (1002, number))
                .map(|(user, number)| ready(user, 20, number, last_read.get(&number).copied().unwrap_or(0)))
                .collect();
            // Alice's message arrives after the others were read for a while.
            if round == 50 {
                all.push(ready(1001, 10, 1_000, reads));
            }
            let mut received = false;
            take_turns(all, 4, 256, |number| {
                reads += 1;
                last_read.insert(number, reads);
                received |= number == 1_000;
                read(number)
            });
            assert_eq!(received, round == 50, "in the round in which it came");
        }
        // All were read equally often: 16 reads per round of 500 connections.
        assert!((0..500).all(|number| last_read[&number] + 500 > reads), "{last_read:?}");
    }

    #[test]
    fn a_process_with_many_connections_leaves_another_of_the_same_user_its_turn() {
        let mut all: Vec<Ready> = (0..500).map(|number| ready(1001, 20, number, 0)).collect();
        all.push(ready(1001, 21, 1_000, 9_999));
        assert_eq!(order(&all, 2), [0, 1_000]);
    }

    proptest! {
        #[test]
        fn the_rounds_until_a_user_is_read_do_not_depend_on_connections_of_others(
            others in proptest::collection::vec((1_u32..4, 0_u32..3), 0..200),
            budget in 4_usize..20,
        ) {
            let mut last_read = BTreeMap::<u64, u64>::new();
            let mut reads = 0;
            let own = 9_999;
            let mut rounds = 0;
            // All others are ready in each round, and were so before.
            for warm in 0..20 {
                let with_own = warm >= 10;
                let all = others.iter().zip(0_u64..).map(|((user, pid), number)| (*user, *pid, number));
                // A new connection counts as read when it is created.
                let all = all.chain(with_own.then_some((9, 9, own)));
                let all: Vec<Ready> = all.map(|(user, pid, number)| {
                    ready(user, pid, number, last_read.get(&number).copied().unwrap_or(reads))
                }).collect();
                take_turns(all, 1, budget, |number| {
                    reads += 1;
                    last_read.insert(number, reads);
                    Read { cost: 1, more: true }
                });
                if with_own {
                    rounds += 1;
                    if last_read.contains_key(&own) {
                        break;
                    }
                }
            }
            // There are at most four users, and at least as many reads in a round.
            prop_assert_eq!(rounds, 1);
        }
    }
}
