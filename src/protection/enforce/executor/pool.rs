//! The threads on which workers carry out steps for the guard, which decides on other jobs meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::Thread;

use super::ArmError;
use super::reach::{Mode, NotSignalled};
use super::release::{ReleaseQueue, micros};
use super::worker::{Reached, Worker};
use crate::host::{clock, priority};
use crate::protection::types::scope::{Exempt, Scope};
use crate::protection::types::step::{TargetId, Ticket, Touched, Work};

/// Number of threads, and with it of users whose jobs are ended at the same time.
const THREADS: usize = 4;

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
    pub(super) micros: u64,
}

type Sent = (Box<Worker>, Order, Thread);

#[derive(Debug)]
struct PoolThread {
    orders: SyncSender<Sent>,
    replies: Receiver<(Box<Worker>, Reply)>,
    /// Its worker; absent while it carries out an order, or after it has panicked.
    idle: Option<Box<Worker>>,
    /// The ticket of its last order.
    ticket: Option<Ticket>,
    /// Whether it carries out an order.
    busy: bool,
}

/// The threads; none where the caller carries out all steps.
#[derive(Debug, Default)]
pub(super) struct Pool(Vec<PoolThread>);

impl Pool {
    /// Starts the threads, which end when this is dropped.
    ///
    /// # Errors
    /// If one cannot be started.
    pub(super) fn start(
        proc: &Path,
        cgroup: &Path,
        exempt: &Exempt,
        releases: &ReleaseQueue,
    ) -> Result<Self, ArmError> {
        let start = |_| {
            let worker = Worker::new(Mode::Enforce, proc, cgroup, exempt.clone(), releases.clone())?;
            let (orders, inbox) = sync_channel(1);
            let (report, replies) = sync_channel(1);
            std::thread::Builder::new()
                .name("steps".to_owned())
                .spawn(move || serve(&inbox, &report))
                .map_err(ArmError::Thread)?;
            Ok(PoolThread { orders, replies, idle: Some(Box::new(worker)), ticket: None, busy: false })
        };
        Ok(Self((0..THREADS).map(start).collect::<Result<_, ArmError>>()?))
    }

    /// Whether there are threads.
    pub(super) const fn has_threads(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether a thread is free.
    pub(super) fn has_room(&self) -> bool {
        self.0.iter().any(|thread| thread.idle.is_some())
    }

    /// Hands an order over; false where no thread is free. The thread wakes the caller when it has carried it out.
    pub(super) fn take(&mut self, order: Order) -> bool {
        let Some(thread) = self.0.iter_mut().find(|thread| thread.idle.is_some()) else { return false };
        let Some(worker) = thread.idle.take() else { return false };
        thread.ticket = Some(order.ticket);
        thread.busy = thread.orders.try_send((worker, order, std::thread::current())).is_ok();
        thread.busy
    }

    /// Calls `visit` with each order that was carried out since the last call, and with the ticket of each whose thread has
    /// panicked.
    pub(super) fn poll(&mut self, mut visit: impl FnMut(Result<Reply, Ticket>)) {
        for thread in self.0.iter_mut().filter(|thread| thread.busy) {
            match thread.replies.try_recv() {
                Ok((worker, reply)) => {
                    thread.idle = Some(worker);
                    visit(Ok(reply));
                }
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => {
                    thread.ticket.into_iter().for_each(|ticket| visit(Err(ticket)))
                }
            }
            thread.busy = false;
        }
    }

    /// The processes that an order reached, until its thread has another.
    pub(super) fn touched(&self, ticket: Ticket) -> &[Touched] {
        let thread = self.0.iter().find(|thread| thread.ticket == Some(ticket));
        thread.and_then(|thread| thread.idle.as_ref()).map_or(&[], |worker| &worker.touched)
    }
}

fn serve(inbox: &Receiver<Sent>, report: &SyncSender<(Box<Worker>, Reply)>) {
    // The guard logs where it may not be raised.
    let _ = priority::go_first();
    for (mut worker, order, caller) in inbox {
        let begun = clock::now();
        let result = worker.carry_out(&order.scope, &order.work, order.later);
        let micros = micros(clock::now().since(begun));
        // The guard has ended where it cannot be sent.
        let _ = report.try_send((worker, Reply { order, result, micros }));
        caller.unpark();
    }
}
