//! Threads with their own descriptor table, for reads that can hang forever.
//!
//! A read of a FUSE file whose server has received the request and does not respond waits in state D, which `SIGKILL`
//! does not end. Meanwhile a thread that shares the descriptors of its process keeps all of them open:
//! a listening socket keeps its port, a lock its file, and the next daemon can get neither. Reads of processes
//! (`host/process/readers.rs`) need no such thread: `SIGKILL` ends the wait for the locks that they need
//! (`mmap_read_lock_killable` since Linux 5.3).

mod raw;

use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::clock;

/// Starts a thread that has only the standard descriptors of this process.
///
/// `run` must open every file that it uses, and must not exchange descriptors with other threads: the numbers refer to
/// other files there. Before Linux 5.9, or if a seccomp filter denies the call, the thread shares the descriptors like
/// any other.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(error) = raw::leave_descriptors() {
            tracing::debug!(%error, "Cannot give a thread its own descriptor table; it shares the descriptors of the process.");
        }
        run();
    })
}

/// Waits until a thread has ended, at most this long, because its work may hang; false if it has not.
pub fn ended(thread: &JoinHandle<()>, deadline: Duration) -> bool {
    let begun = clock::now();
    while !thread.is_finished() {
        if clock::now().since(begun) > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd as _;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn the_thread_has_the_standard_descriptors_only_and_this_one_keeps_its_own() {
        let kept = fs::File::open("/proc/self/stat").unwrap();
        let shown = format!("/proc/thread-self/fd/{}", kept.as_raw_fd());
        assert!(fs::symlink_metadata(&shown).is_ok());
        let (sender, receiver) = channel();
        let path = shown.clone();
        let thread = spawn("apart", move || {
            let still = fs::symlink_metadata(&path).is_ok();
            let opened = fs::read_to_string("/proc/self/comm").unwrap();
            sender.send((still, opened.is_empty())).unwrap();
        });
        let thread = thread.unwrap();
        if raw::leave_descriptors_is_known() {
            assert_eq!(receiver.recv().unwrap(), (false, false));
        }
        thread.join().unwrap();
        assert!(fs::symlink_metadata(&shown).is_ok());
        assert!(kept.metadata().is_ok());
    }
}
