//! Waits for one descriptor (poll(2)).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Those of the `wanted` events that a descriptor has, and its hang-up and errors. Waits for at most this time until there are some;
/// none also where the wait was interrupted.
pub fn events(fd: impl AsFd, wanted: PollFlags, within: Duration) -> io::Result<PollFlags> {
    let mut asked = [PollFd::from_borrowed_fd(fd.as_fd(), wanted)];
    let within = Timespec::try_from(within).map_err(io::Error::other)?;
    match poll(&mut asked, Some(&within)) {
        Ok(_) => Ok(asked[0].revents()),
        Err(rustix::io::Errno::INTR) => Ok(PollFlags::empty()),
        Err(error) => Err(error.into()),
    }
}
