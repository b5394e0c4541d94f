//! The threads on which workers carry out steps for the guard, which decides on other jobs meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::Thread;
use std::time::Duration;

use super::ArmError;
use super::reach::{Mode, NotSignalled};
use super::release::ReleaseQueue;
use super::worker::{Reached, Worker};
use crate::host::task::{self, Task};
use crate::host::{clock, priority};
use crate::model::time::Timestamp;
use crate::protection::types::scope::{Exempt, Scope};
use crate::protection::types::step::{HANG_TIMEOUT, TargetId, Ticket, Touched, Work};

/// Number of threads that kill and do not hang, and with it of users whose jobs are ended at the same time; as many carry out
/// the other steps, which therefore delay no kill.
const THREADS: usize = 4;
/// Maximum number of threads of each kind, including those that hang.
const MAX_THREADS: usize = 16;
/// Time after which starting a thread that is missing is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A step for a thread.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) id: TargetId,
    pub(super) scope: Arc<Scope>,
    pub(super) work: Work,
    /// The ticket of the step.
    pub(super) ticket: Ticket,
    /// The ticket of an end that is reported later.
    pub(super) later: Ticket,
}

/// An order that was carried out.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) order: Order,
    pub(super) result: Result<Reached, NotSignalled>,
}

type Sent = (Box<Worker>, Order, Thread);

/// What a test has in place of a thread.
#[cfg(test)]
pub(super) type TestThread = (Receiver<Sent>, SyncSender<(Box<Worker>, Reply)>);

#[derive(Debug)]
struct PoolThread {
    orders: SyncSender<Sent>,
    replies: Receiver<(Box<Worker>, Reply)>,
    /// Its worker; absent while it carries out an order, or after it has panicked.
    idle: Option<Box<Worker>>,
    /// The ticket of its last order.
    ticket: Option<Ticket>,
    /// The ticket of the end of its last order that is reported later.
    later: Option<Ticket>,
    /// Whether it carries out kills, or all other steps.
    kills: bool,
    /// Since when it carries out an order.
    busy: Option<Timestamp>,
}

impl PoolThread {
    fn hangs(&self, now: Timestamp) -> bool {
        self.busy.is_some_and(|since| now.since(since) >= HANG_TIMEOUT)
    }
}

/// What a thread is started with.
#[derive(Debug)]
pub(super) struct Equipment {
    pub(super) proc: Box<Path>,
    pub(super) cgroup: Box<Path>,
    pub(super) exempt: Exempt,
    pub(super) releases: ReleaseQueue,
    pub(super) hurry: Arc<AtomicBool>,
}

impl Equipment {
    fn start(&self, kills: bool) -> Result<PoolThread, ArmError> {
        let Self { proc, cgroup, exempt, releases, hurry } = self;
        let mut worker = Worker::new(Mode::Enforce, proc, cgroup, exempt.clone(), releases.clone())?;
        worker.hurry = Arc::clone(hurry);
        let worker = Box::new(worker);
        let (orders, inbox) = sync_channel(1);
        let (report, replies) = sync_channel(1);
        task::start("steps", Orders { inbox, report }).map_err(ArmError::Thread)?;
        Ok(PoolThread { orders, replies, idle: Some(worker), ticket: None, later: None, kills, busy: None })
    }
}

/// The threads; none where the caller carries out all steps.
#[derive(Debug, Default)]
pub(super) struct Pool {
    threads: Vec<PoolThread>,
    equipment: Option<Equipment>,
    /// When starting a missing thread was tried last.
    tried: Option<Timestamp>,
}

impl Pool {
    /// Starts the threads, which end when this is dropped.
    pub(super) fn start(equipment: Equipment) -> Result<Self, ArmError> {
        let threads = (0..2 * THREADS).map(|place| equipment.start(place < THREADS));
        Ok(Self {
            threads: threads.collect::<Result<_, ArmError>>()?,
            equipment: Some(equipment),
            tried: None,
        })
    }

    /// Whether there are threads for kills, or for other steps.
    pub(super) fn has_threads(&self, kills: bool) -> bool {
        self.threads.iter().any(|thread| thread.kills == kills)
    }

    /// Whether one of them is free.
    pub(super) fn has_room(&self, kills: bool) -> bool {
        self.threads.iter().any(|thread| thread.kills == kills && thread.idle.is_some())
    }

    /// Hands an order over; false where no thread is free. The thread wakes the caller when it has carried it out.
    pub(super) fn take(&mut self, order: Order) -> bool {
        let kills = order.work.kills();
        let free = |thread: &&mut PoolThread| thread.kills == kills && thread.idle.is_some();
        let Some(thread) = self.threads.iter_mut().find(free) else { return false };
        let Some(worker) = thread.idle.take() else { return false };
        let (ticket, later) = (order.ticket, order.later);
        let sent = thread.orders.try_send((worker, order, std::thread::current())).is_ok();
        (thread.ticket, thread.later) = (sent.then_some(ticket), sent.then_some(later));
        // A thread that takes no order has panicked, and is replaced by the next poll.
        thread.busy = Some(clock::now());
        sent
    }

    /// Calls `visit` with each order that was carried out since the last call, and with the ticket of each whose thread has
    /// panicked. A thread that has panicked or hangs is replaced.
    pub(super) fn poll(&mut self, now: Timestamp, mut visit: impl FnMut(Result<Reply, Ticket>)) {
        self.threads.retain_mut(|thread| {
            if thread.busy.is_none() {
                return true;
            }
            match thread.replies.try_recv() {
                Ok((worker, reply)) => {
                    (thread.idle, thread.busy) = (Some(worker), None);
                    visit(Ok(reply));
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    thread.ticket.into_iter().for_each(|ticket| visit(Err(ticket)));
                    return false;
                }
            }
            true
        });
        self.replace(now);
    }

    /// Starts the threads that are missing.
    fn replace(&mut self, now: Timestamp) {
        let Some(equipment) = &self.equipment else { return };
        for kills in [true, false] {
            let own = || self.threads.iter().filter(|thread| thread.kills == kills);
            let working = own().filter(|thread| !thread.hangs(now)).count();
            let missing = THREADS.saturating_sub(working).min(MAX_THREADS.saturating_sub(own().count()));
            if missing == 0 || self.tried.is_some_and(|tried| now.since(tried) < RETRY_INTERVAL) {
                continue;
            }
            let started: Result<Vec<_>, ArmError> = (0..missing).map(|_| equipment.start(kills)).collect();
            match started {
                Ok(threads) => self.threads.extend(threads),
                Err(_) => self.tried = Some(now),
            }
        }
    }

    /// Whether an order has not been carried out whose end has this ticket.
    pub(super) fn awaits(&self, later: Ticket) -> bool {
        self.threads.iter().any(|thread| thread.busy.is_some() && thread.later == Some(later))
    }

    /// Replaces the first thread that is free by the test.
    #[cfg(test)]
    pub(super) fn replace_first(&mut self, kills: bool) -> TestThread {
        let (orders, inbox) = sync_channel(1);
        let (report, replies) = sync_channel(1);
        let idle = |thread: &&mut PoolThread| thread.kills == kills && thread.idle.is_some();
        let first = self.threads.iter_mut().find(idle).expect("a thread");
        (first.orders, first.replies) = (orders, replies);
        (inbox, report)
    }

    /// The processes that an order reached, until its thread has another.
    pub(super) fn touched(&self, ticket: Ticket) -> &[Touched] {
        let thread = self.threads.iter().find(|thread| thread.ticket == Some(ticket));
        thread.and_then(|thread| thread.idle.as_ref()).map_or(&[], |worker| &worker.touched)
    }
}

/// The work of a thread.
struct Orders {
    inbox: Receiver<Sent>,
    report: SyncSender<(Box<Worker>, Reply)>,
}

impl Task for Orders {
    fn begin(&self) {
        // The guard logs where it may not be raised.
        let _ = priority::go_first();
    }

    fn step(&mut self, wait: bool) -> bool {
        let Some((mut worker, order, caller)) = task::next(&self.inbox, wait) else { return false };
        let result = worker.carry_out(&order.scope, &order.work, order.later);
        // The guard has ended where it cannot be sent.
        let _ = self.report.try_send((worker, Reply { order, result }));
        caller.unpark();
        true
    }
}
