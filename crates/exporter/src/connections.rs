//! The open connections, and which of them is closed when the limit is reached.
//!
//! At the limit, of the client with the most connections the one that has been idle longest is closed, so that the connections of one
//! client, however many, take neither the places of others nor those of a scrape. Root's are closed last, and it has some places
//! beyond the limit. A connection also counts as idle while its request waits for its body, for other requests, for a
//! reload, or for its HTTP/2 client to accept the response; and, after a second, if its client does not read the
//! response.
//!
//! A connection holds memory until its task has ended, so that none is accepted while too many are still being closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::meter::{Meter, Phase};
use crate::model::lock::lock;

/// A client on the same network reads a whole exposition in less time.
const STALLED: Duration = Duration::from_secs(1);
/// Connections of root beyond the limit, where all others are being served.
const OF_ROOT: usize = 8;
/// Connections beyond the limit that are still being closed, from which on none is accepted.
const CLOSING: usize = 32;

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Root, or the user of the daemon, over the socket of commands.
    Root,
    /// Another user, over that socket.
    User(u32),
    /// A host, over TCP.
    Address(IpAddr),
}

#[derive(Debug)]
pub struct Connections {
    open: Mutex<OpenConnections>,
    most: usize,
    left: Notify,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    all: HashMap<u64, OpenConnection>,
    /// The number of connections of each owner that were not told to close.
    owners: HashMap<Owner, usize>,
}

#[derive(Debug)]
struct OpenConnection {
    meter: Arc<Meter>,
    /// Absent once it was told to close.
    owner: Option<Owner>,
}

impl Connections {
    pub fn new(most: usize) -> Self {
        Self { open: Mutex::default(), most, left: Notify::new() }
    }

    /// Waits until another connection can be accepted: until those that were told to close have done so.
    pub async fn room(&self) {
        loop {
            let mut left = pin!(self.left.notified());
            left.as_mut().enable();
            if lock(&self.open).all.len() < self.most + CLOSING {
                return;
            }
            left.await;
        }
    }

    /// The number of a new connection, absent where every connection is being served; and whether the limit is reached,
    /// so that it takes the place of another.
    pub fn admit(&self, meter: &Arc<Meter>, owner: Owner) -> (Option<u64>, bool) {
        let mut open = lock(&self.open);
        let live: usize = open.owners.values().sum();
        let full = live >= self.most;
        let most = if owner == Owner::Root { self.most + OF_ROOT } else { self.most };
        if full && !open.evict(Some(owner)) && live >= most {
            return (None, full);
        }
        open.next += 1;
        let number = open.next;
        open.all.insert(number, OpenConnection { meter: Arc::clone(meter), owner: Some(owner) });
        *open.owners.entry(owner).or_default() += 1;
        (Some(number), full)
    }

    /// Closes a connection that is idle; false if none is.
    pub fn make_room(&self) -> bool {
        lock(&self.open).evict(None)
    }

    pub fn leave(&self, number: u64) {
        let mut open = lock(&self.open);
        let known = open.all.remove(&number);
        if let Some(owner) = known.and_then(|known| known.owner) {
            open.forget(owner);
        }
        self.left.notify_waiters();
    }
}

impl OpenConnections {
    /// Tells an idle connection to close, for one of `newcomer`; false if none is idle.
    fn evict(&mut self, newcomer: Option<Owner>) -> bool {
        let idle = self.all.iter().filter_map(|(number, known)| {
            let owner = known.owner?;
            let since = match known.meter.phase() {
                (Phase::Busy(_), _) => return None,
                (Phase::Sending, since) if since.elapsed() < STALLED => return None,
                (_, since) => since,
            };
            let count = self.owners.get(&owner).copied().unwrap_or(0) + usize::from(newcomer == Some(owner));
            let count = if owner == Owner::Root { 0 } else { count };
            Some((std::cmp::Reverse(count), since, *number))
        });
        let Some((.., number)) = idle.min() else { return false };
        let Some(known) = self.all.get_mut(&number) else { return false };
        known.meter.evict();
        let owner = known.owner.take();
        owner.into_iter().for_each(|owner| self.forget(owner));
        true
    }

    /// One connection less of an owner.
    fn forget(&mut self, owner: Owner) {
        if let Some(count) = self.owners.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Times;

    fn meter() -> Arc<Meter> {
        let second = Duration::from_secs(1);
        Arc::new(Meter::new(Times { header: second, request: second, idle: second }))
    }

    const ADA: Owner = Owner::User(1000);

    #[tokio::test(start_paused = true)]
    async fn the_connections_of_one_user_take_no_place_of_another() {
        let connections = Connections::new(3);
        let (scraper, root) = (meter(), meter());
        let host = Owner::Address([10, 0, 0, 1].into());
        assert_eq!(connections.admit(&scraper, host).0, Some(1));
        assert_eq!(connections.admit(&root, Owner::Root).0, Some(2));
        let mut last = meter();
        assert_eq!(connections.admit(&last, ADA).0, Some(3));
        for number in 4..100 {
            tokio::time::advance(STALLED).await;
            let next = meter();
            assert_eq!(connections.admit(&next, ADA), (Some(number), true));
            // The user's own, although those of the others have been idle for longer.
            last.evicted().await;
            connections.leave(number - 1);
            last = next;
        }
        let _requests = [scraper.request(), root.request(), last.request()];
        assert_eq!(connections.admit(&meter(), ADA).0, None, "all are being served");
        assert_eq!(connections.admit(&meter(), Owner::Root).0, Some(100), "root has places beyond the limit");
    }

    #[tokio::test(start_paused = true)]
    async fn none_is_accepted_while_too_many_are_being_closed() {
        let connections = Connections::new(1);
        let accepted = |number: usize| {
            (0..number).for_each(|_| {
                connections.admit(&meter(), ADA);
            })
        };
        accepted(1 + CLOSING);
        let room = || tokio::time::timeout(Duration::from_secs(9), connections.room());
        assert!(room().await.is_err(), "each of them holds memory");
        connections.leave(1);
        assert!(room().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_makes_room() {
        let connections = Connections::new(2);
        let (first, second) = (meter(), meter());
        assert_eq!(connections.admit(&first, ADA), (Some(1), false));
        tokio::time::advance(STALLED).await;
        assert_eq!(connections.admit(&second, ADA), (Some(2), false));
        let request = first.request();
        assert_eq!(connections.admit(&meter(), ADA), (Some(3), true), "the second, as the first is busy");
        second.evicted().await;
        connections.leave(3);
        let busy = meter();
        let _request = busy.request();
        assert_eq!(connections.admit(&busy, ADA), (Some(4), false));
        assert_eq!(connections.admit(&meter(), ADA), (None, true));
        drop(request);
        tokio::time::advance(STALLED).await;
        assert_eq!(connections.admit(&meter(), ADA), (Some(5), true), "the first does not read its answer");
    }
}
