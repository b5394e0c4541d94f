//! The open connections, and which of them is closed when the limit is reached.
//!
//! At the limit, of the client with the most connections the one that has been idle longest is closed, so that the connections of one
//! client, however many, take neither the places of others nor those of a scrape. Root's are closed last, and it has some places
//! beyond the limit. A connection also counts as idle while its request waits for its body, for other requests, for a
//! reload, or for its HTTP/2 client to accept the response; and, after a second, if its client does not read the
//! response.
//!
//! Serving one client takes at most a part of a processor: beyond it, its connections are not served for a while.
//!
//! A connection holds memory until its task has ended, so that none is accepted while too many are still being closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::meter::{Meter, Phase};
use crate::model::lock::lock;

/// A client on the same network reads a whole exposition in less time.
const STALLED: Duration = Duration::from_secs(1);
/// Connections of root beyond the limit, where all others are being served.
const OF_ROOT: usize = 8;
/// Connections beyond the limit that are still being closed, from which on none is accepted.
const CLOSING: usize = 32;

/// The share of a processor that serving one client other than root may take, and the seconds that it may take at once.
const SHARE: f64 = 0.1;
const AT_ONCE: f64 = 2.0;
/// Clients from which on those that are within their share are forgotten.
const CLIENTS: usize = 1024;

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Root, or the user of the daemon, on this host.
    Root,
    /// Another user of this host.
    User(u32),
    /// Another host, or one whose user is not known, over TCP.
    Address(IpAddr),
}

#[derive(Debug)]
pub struct Connections {
    open: Mutex<OpenConnections>,
    most: usize,
    left: Notify,
    /// The seconds that serving each client has taken beyond its share, and when that was computed.
    used: Mutex<HashMap<Owner, (f64, Instant)>>,
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
        Self { open: Mutex::default(), most, left: Notify::new(), used: Mutex::default() }
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

    /// Counts the time that serving a client has taken; the result is the time for which its connection is not served.
    pub fn charge(&self, owner: Owner, took: Duration) -> Duration {
        if owner == Owner::Root {
            return Duration::ZERO;
        }
        let (mut all, now) = (lock(&self.used), Instant::now());
        let left = |(used, at): (f64, Instant)| used - SHARE * now.duration_since(at).as_secs_f64();
        if all.len() >= CLIENTS {
            all.retain(|_, known| left(*known) > 0.0);
        }
        let known = all.entry(owner).or_insert((0.0, now));
        *known = (left(*known).max(0.0) + took.as_secs_f64(), now);
        Duration::from_secs_f64((known.0 - AT_ONCE).max(0.0) / SHARE)
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
    async fn who_takes_more_than_its_share_of_a_processor_waits() {
        let (connections, second) = (Connections::new(1), Duration::from_secs(1));
        assert_eq!([2, 1].map(|took| connections.charge(ADA, took * second).as_secs()), [0, 10]);
        assert_eq!(connections.charge(Owner::User(1001), second), Duration::ZERO);
        assert_eq!(connections.charge(Owner::Root, 99 * second), Duration::ZERO);
        tokio::time::advance(10 * second).await;
        assert_eq!(connections.charge(ADA, Duration::ZERO), Duration::ZERO);
        // Each request of 10 ms of a client that asks as often as it can.
        let (mut waited, took) = (Duration::ZERO, Duration::from_millis(10));
        for _ in 0..1000 {
            let wait = connections.charge(ADA, took);
            tokio::time::advance(took + wait).await;
            waited += took + wait;
        }
        let share = 10.0 / waited.as_secs_f64();
        assert!((share - SHARE).abs() < 0.01, "{share}");
        for number in 0..2048 {
            connections.charge(Owner::User(number), took);
            tokio::time::advance(took).await;
        }
        assert!(lock(&connections.used).len() <= CLIENTS);
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
