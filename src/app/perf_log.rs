//! Performance logs of jobs, written by a thread of their own: a disk that hangs holds up nobody.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use crate::config;
use crate::exposition::Frames;
use crate::exposition::perf_log::files::Writer;
use crate::model::frame::Frame;

/// The running thread and the task that brings it frames.
#[derive(Debug)]
pub(super) struct PerfLog {
    feeder: tokio::task::JoinHandle<()>,
    ended: Receiver<()>,
}

impl PerfLog {
    /// Starts writing, where the configuration names a folder.
    pub(super) fn start(config: &config::PerfLog, frames: &Frames) -> Option<Self> {
        let writer = Writer::new(config)?;
        // A frame that finds the thread busy is passed over: the next has the newest step.
        let (send, receive) = sync_channel(1);
        let (end, ended) = sync_channel(1);
        let run = move || {
            write(writer, &receive);
            // Nobody may be waiting.
            let _ = end.send(());
        };
        if let Err(error) = std::thread::Builder::new().name("perf-log".to_owned()).spawn(run) {
            tracing::error!(%error, "No performance logs are written.");
            return None;
        }
        Some(Self { feeder: tokio::spawn(feed(frames.clone(), send)), ended })
    }

    /// Writes the last summaries, within `deadline`.
    pub(super) fn stop(self, deadline: Duration) {
        self.feeder.abort();
        let _ = self.ended.recv_timeout(deadline);
    }
}

impl Drop for PerfLog {
    fn drop(&mut self) {
        self.feeder.abort();
    }
}

async fn feed(mut frames: Frames, send: SyncSender<Arc<Frame>>) {
    while frames.changed().await.is_ok() {
        let frame = frames.borrow_and_update().clone();
        if let Some(frame) = frame
            && let Err(TrySendError::Disconnected(_)) = send.try_send(frame)
        {
            return;
        }
    }
}

fn write(mut writer: Writer, frames: &Receiver<Arc<Frame>>) {
    let mut failing = false;
    while let Ok(frame) = frames.recv() {
        match writer.take(&frame) {
            Ok(()) if std::mem::take(&mut failing) => tracing::info!("Performance logs are written again."),
            Ok(()) => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    let error = format!("{:#}", anyhow::Error::new(error));
                    tracing::warn!(
                        error,
                        "A performance log cannot be written; trying again at the next row."
                    );
                }
            }
        }
    }
    if let Err(error) = writer.finish() {
        let error = format!("{:#}", anyhow::Error::new(error));
        tracing::warn!(error, "The last summary of a performance log is not written.");
    }
}
