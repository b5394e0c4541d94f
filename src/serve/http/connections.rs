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

#[derive(Debug)]
pub(super) struct Connections {
    open: Mutex<OpenConnections>,
    most: usize,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    meters: HashMap<u64, Arc<Meter>>,
}

impl Connections {
    pub(super) fn new(most: usize) -> Self {
        Self { open: Mutex::default(), most }
    }

    /// The number of a new connection, absent where every connection is being served; and whether the limit is reached,
    /// so that it takes the place of another.
    pub(super) fn admit(&self, meter: &Arc<Meter>) -> (Option<u64>, bool) {
        let mut open = lock(&self.open);
        let full = open.meters.len() >= self.most;
        if full && !evict(&mut open) {
            return (None, full);
        }
        open.next += 1;
        let number = open.next;
        open.meters.insert(number, Arc::clone(meter));
        (Some(number), full)
    }

    /// Closes the connection that has been idle longest; false if none is idle.
    pub(super) fn make_room(&self) -> bool {
        evict(&mut lock(&self.open))
    }

    pub(super) fn leave(&self, number: u64) {
        lock(&self.open).meters.remove(&number);
    }
}

fn evict(open: &mut OpenConnections) -> bool {
    let idle = open.meters.iter().filter_map(|(number, meter)| match meter.phase() {
        (Phase::Busy(_), _) => None,
        (Phase::Sending, since) if since.elapsed() < STALLED => None,
        (_, since) => Some((since, *number)),
    });
    let Some((_, number)) = idle.min() else { return false };
    if let Some(meter) = open.meters.remove(&number) {
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
        let connections = Connections::new(2);
        let (first, second) = (meter(), meter());
        assert_eq!(connections.admit(&first), (Some(1), false));
        tokio::time::advance(STALLED).await;
        assert_eq!(connections.admit(&second), (Some(2), false));
        let request = first.request();
        assert_eq!(connections.admit(&meter()), (Some(3), true), "the second, as the first is busy");
        second.evicted().await;
        connections.leave(3);
        let busy = meter();
        let _request = busy.request();
        assert_eq!(connections.admit(&busy), (Some(4), false));
        assert_eq!(connections.admit(&meter()), (None, true));
        drop(request);
        tokio::time::advance(STALLED).await;
        assert_eq!(connections.admit(&meter()), (Some(5), true), "the first does not read its answer");
    }
}
