//! The open connections, and which of them is closed when the limit is reached.
//!
//! At the limit the connection that has been idle longest is closed, so that idle connections, however many, cannot
//! block a scrape. A connection also counts as idle while its request waits for its body, for other requests, for a
//! reload, or for its HTTP/2 client to accept the response; and, after a second, if its client does not read the
//! response.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::meter::{Meter, Phase};
use crate::model::lock::lock;

/// A client on the same network reads a whole exposition in less time.
const STALLED: Duration = Duration::from_secs(1);

/// The open connections.
#[derive(Debug)]
pub(super) struct Lobby {
    guests: Mutex<Guests>,
    most: usize,
}

#[derive(Debug, Default)]
struct Guests {
    next: u64,
    here: HashMap<u64, Arc<Meter>>,
}

/// Result of admitting a connection.
#[derive(Debug)]
pub(super) enum Admission {
    /// There was a free slot.
    Free(u64),
    /// Another connection was told to close.
    Instead(u64),
    /// Every connection is being served.
    Full,
}

impl Lobby {
    pub(super) fn new(most: usize) -> Self {
        Self { guests: Mutex::default(), most }
    }

    /// Admits one connection.
    pub(super) fn admit(&self, meter: &Arc<Meter>) -> Admission {
        let mut guests = lock(&self.guests);
        let full = guests.here.len() >= self.most;
        if full && !evict(&mut guests) {
            return Admission::Full;
        }
        guests.next += 1;
        let number = guests.next;
        guests.here.insert(number, Arc::clone(meter));
        if full { Admission::Instead(number) } else { Admission::Free(number) }
    }

    /// Closes the connection that has been idle longest; false if none is idle.
    pub(super) fn make_room(&self) -> bool {
        evict(&mut lock(&self.guests))
    }

    pub(super) fn leave(&self, number: u64) {
        lock(&self.guests).here.remove(&number);
    }
}

fn evict(guests: &mut Guests) -> bool {
    let idle = guests.here.iter().filter_map(|(number, meter)| match meter.phase() {
        (Phase::Busy(_), _) => None,
        (Phase::Sending, since) if since.elapsed() < STALLED => None,
        (_, since) => Some((since, *number)),
    });
    let Some((_, number)) = idle.min() else { return false };
    if let Some(meter) = guests.here.remove(&number) {
        meter.evict();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::meter::Times;

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_makes_room() {
        let second = Duration::from_secs(1);
        let meter = || Arc::new(Meter::new(Times { header: second, request: second, idle: second }));
        let lobby = Lobby::new(2);
        let (first, second) = (meter(), meter());
        assert!(matches!(lobby.admit(&first), Admission::Free(1)));
        tokio::time::advance(STALLED).await;
        assert!(matches!(lobby.admit(&second), Admission::Free(2)));
        let request = first.request();
        assert!(matches!(lobby.admit(&meter()), Admission::Instead(3)), "the second, as the first is busy");
        second.evicted().await;
        lobby.leave(3);
        let busy = meter();
        let _request = busy.request();
        assert!(matches!(lobby.admit(&busy), Admission::Free(4)));
        assert!(matches!(lobby.admit(&meter()), Admission::Full));
        drop(request);
        tokio::time::advance(STALLED).await;
        assert!(matches!(lobby.admit(&meter()), Admission::Instead(5)), "the first does not read its answer");
    }
}
