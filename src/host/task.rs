//! Threads that wait for work and do it, step by step.

use std::io;

/// The work of a thread.
pub trait Task: Send {
    /// Called once on the thread, before the first step.
    fn begin(&self) {}

    /// Does what is next; waits for it where `wait` is set. False at the end, and without waiting where there is nothing to do.
    fn step(&mut self, wait: bool) -> bool;
}

/// Starts a thread that ends with its task.
pub fn start(name: &'static str, mut task: impl Task + 'static) -> io::Result<()> {
    #[cfg(test)]
    if let Some(edges) = super::testing::edges() {
        edges.start(name, Box::new(task));
        return Ok(());
    }
    let work = move || {
        task.begin();
        while task.step(true) {}
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Takes the next message for a task; nothing where its senders are dropped, or where none is there and it does not wait.
pub fn next<T>(messages: &std::sync::mpsc::Receiver<T>, wait: bool) -> Option<T> {
    if wait { messages.recv().ok() } else { messages.try_recv().ok() }
}
