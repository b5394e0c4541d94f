//! Threads with descriptors of their own, for files that can hang for good.
//!
//! A read of a FUSE file whose server has taken the request and does not answer is waited for in state D, and `SIGKILL`
//! does not end that. As long as it lasts, a thread that shares the descriptors of its process keeps all of them open:
//! a listening socket keeps its port, a lock its file, and the next daemon can have neither. The reads of processes
//! (`host/process/readers.rs`) need no such thread: the locks that they wait for are given up after `SIGKILL`
//! (`mmap_read_lock_killable` since Linux 5.3).

mod raw;

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that has none of the descriptors of this process but the standard ones.
///
/// `run` opens every file that it uses, and neither takes one along nor passes one on: the numbers mean other files
/// there. Before Linux 5.9, or where a filter of system calls refuses it, the thread shares the descriptors as others
/// do.
///
/// # Errors
/// The operating system's, where it gives no thread.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(error) = raw::leave_descriptors() {
            tracing::debug!(%error, "A thread shares the descriptors of this process.");
        }
        run();
    })
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
        let (tell, told) = channel();
        let theirs = shown.clone();
        let thread = spawn("apart", move || {
            let still = fs::symlink_metadata(&theirs).is_ok();
            let opened = fs::read_to_string("/proc/self/comm").unwrap();
            tell.send((still, opened.is_empty())).unwrap();
        });
        let thread = thread.unwrap();
        if raw::leave_descriptors_is_known() {
            assert_eq!(told.recv().unwrap(), (false, false));
        }
        thread.join().unwrap();
        assert!(fs::symlink_metadata(&shown).is_ok());
        assert!(kept.metadata().is_ok());
    }
}
