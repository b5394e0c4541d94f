//! The edges of the machine that a simulation has in place of the kernel's, on the thread that plays it.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;

use super::task::Task;
use crate::model::time::Timestamp;

/// What a simulated machine does where memwarden calls the kernel.
pub(crate) trait Edges {
    /// The clock.
    fn now(&self) -> Timestamp;
    /// The thread waits for at most this time.
    fn wait(&self, longest: Duration);
    /// A thread begins, which the simulation steps.
    fn start(&self, name: &'static str, task: Box<dyn Task>);
    /// How many bytes of a write reach the disk, and the error that the writer gets.
    fn write(&self, length: usize) -> (usize, io::Result<()>);
    /// A handle of the process that has this pid now.
    fn open(&self, pid: u32) -> Result<u64, Errno>;
    /// The users of a process, where this kernel reports them by the handle.
    fn users(&self, process: u64) -> Option<[u32; 3]>;
    /// A signal to a process.
    fn send(&self, process: u64, signal: u8) -> Result<(), Errno>;
    /// Whether a process has ended.
    fn ended(&self, process: u64) -> bool;
    /// Whether a process has this pid.
    fn exists(&self, pid: u32) -> bool;
    /// A write to a file of the cgroup with this inode.
    fn write_group(&self, inode: u64, name: &str, bytes: &[u8]) -> Result<(), Errno>;
}

thread_local! {
    static EDGES: RefCell<Option<Rc<dyn Edges>>> = const { RefCell::new(None) };
}

/// The simulated machine of this thread, if it plays one.
pub(crate) fn edges() -> Option<Rc<dyn Edges>> {
    EDGES.with_borrow(Clone::clone)
}

/// Exchanges the simulated machine of this thread.
pub(crate) fn simulate(edges: Option<Rc<dyn Edges>>) -> Option<Rc<dyn Edges>> {
    EDGES.replace(edges)
}
