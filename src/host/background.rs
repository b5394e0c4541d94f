//! Threads that read for a source, because a read can hang or take long.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::model::source::SourceError;

/// A thread and what it shares with its source. When this is dropped, the thread ends at its next [`Stopped::pause`].
#[derive(Debug)]
pub struct Background<S> {
    pub shared: Arc<S>,
    _stop: Sender<()>,
}

/// Tells a thread that its source was dropped.
#[derive(Debug)]
pub struct Stopped(Receiver<()>);

impl Stopped {
    /// Waits; false if the thread must end.
    pub fn pause(&self, time: Duration) -> bool {
        self.0.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }
}

impl<S> Background<S> {
    pub fn start(
        shared: S,
        start: impl FnOnce(Arc<S>, Stopped) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let shared = Arc::new(shared);
        start(Arc::clone(&shared), Stopped(stopped))?;
        Ok(Self { shared, _stop: stop })
    }

    /// What is shared with the thread, which is started at the first call. `purpose` says for the error what the thread does.
    ///
    /// # Errors
    /// The error of the source if no thread can be created; the next call tries again.
    pub fn of<'b>(
        background: &'b mut Option<Self>,
        purpose: &str,
        start: impl FnOnce(Arc<S>, Stopped) -> io::Result<JoinHandle<()>>,
    ) -> Result<&'b S, SourceError>
    where
        S: Default,
    {
        let running = match background.take() {
            Some(running) => running,
            None => Self::start(S::default(), start).map_err(|error| {
                SourceError::io(format_args!("cannot create the thread that {purpose}"), &error)
            })?,
        };
        Ok(&background.insert(running).shared)
    }
}
