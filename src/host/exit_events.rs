//! The exit status of every process of the host, from the kernel's process events connector
//! (drivers/connector/cn_proc.c, `CONFIG_PROC_EVENTS`).
//!
//! Only the parent of a process learns its exit status from wait(2). The connector reports it to others: to every user since
//! Linux 6.6, before with `CAP_NET_ADMIN`, and in the initial network namespace only.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::clock;

/// `CN_IDX_PROC` and `CN_VAL_PROC` (linux/connector.h); the index is also the number of the multicast group.
const PROC: u32 = 1;
/// `PROC_EVENT_EXIT` (linux/cn_proc.h).
const EXIT: u32 = 0x8000_0000;
/// `PROC_CN_MCAST_LISTEN` and `PROC_CN_MCAST_IGNORE`.
const LISTEN: u32 = 1;
const IGNORE: u32 = 2;
/// Lengths of `struct nlmsghdr` and `struct cn_msg`.
const NETLINK_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// Bytes that the kernel may queue between two reads, about 4,000 events.
const QUEUE: usize = 4 << 20;
/// Inode of the initial pid namespace (`PROC_PID_INIT_INO`): the pids in events are those of this namespace.
const INITIAL: &str = "pid:[4026531836]";

fn namespace(proc: &Path) -> io::Result<PathBuf> {
    let own = std::fs::read_link(proc.join("self/ns/pid"));
    own.or_else(|_| std::fs::read_link(proc.join("1/ns/pid")))
}

/// Whether the pids of this process file system can be those of the initial pid namespace: not where it is known that they are others.
pub fn is_initial_namespace(proc: &Path) -> bool {
    namespace(proc).map_or(true, |namespace| namespace.as_os_str() == INITIAL)
}

/// Whether the pids that this process file system lists are those of the initial pid namespace, as far as is known: it can be
/// that of the host, in a container with another namespace.
pub fn lists_initial_namespace(proc: &Path) -> bool {
    std::fs::read_link(proc.join("1/ns/pid"))
        .map_or_else(|_| is_initial_namespace(proc), |namespace| namespace.as_os_str() == INITIAL)
}

/// The end of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitEvent {
    /// Its thread id.
    pub tid: u32,
    /// The pid of its process.
    pub pid: u32,
    /// The status as wait(2) has it.
    pub status: i32,
    /// When, after boot.
    pub at: Duration,
}

/// A subscription to the ends of all processes.
#[derive(Debug)]
pub struct ExitEvents {
    socket: OwnedFd,
}

impl ExitEvents {
    /// Subscribes; `proc` is the process file system whose pids the caller knows.
    ///
    /// # Errors
    /// A kernel without the connector, a network or pid namespace other than the initial one, or missing rights.
    pub fn open(proc: &Path) -> io::Result<Self> {
        Self::with_queue(proc, QUEUE)
    }

    fn with_queue(proc: &Path, queue: usize) -> io::Result<Self> {
        if namespace(proc)?.as_os_str() != INITIAL {
            let why = "not in the initial pid namespace, whose pids the kernel's process events have";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            flags,
            Some(netlink::CONNECTOR),
        )?;
        // Without CAP_NET_ADMIN the limit of the system holds.
        if sockopt::set_socket_recv_buffer_size_force(&socket, queue).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, queue)?;
        }
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, PROC))?;
        // Before Linux 6.6 the kernel ignores a request with a filter, and delivers events of all kinds.
        for request in [&[LISTEN][..], &[LISTEN, EXIT]] {
            rustix::net::send(&socket, &subscription(request), SendFlags::empty())?;
        }
        Ok(Self { socket })
    }

    /// Passes on at most `most` queued events, the oldest first, and returns whether the kernel dropped some because the queue was
    /// full.
    ///
    /// # Errors
    /// The socket cannot be read.
    pub fn drain(&mut self, most: usize, mut each: impl FnMut(ExitEvent)) -> io::Result<bool> {
        let mut buffer = [0_u8; 256];
        let mut has_lost = false;
        for _ in 0..most {
            match rustix::net::recvfrom(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((length, _, sender)) => {
                    // Messages of the kernel come from port 0.
                    let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
                    if sender.is_some_and(|sender| sender.pid() == 0) {
                        let found = event(buffer.get(..length).unwrap_or_default());
                        let found = found.map(|event| ExitEvent { at: clock::after_boot(event.at), ..event });
                        found.into_iter().for_each(&mut each);
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::NOBUFS) => has_lost = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(has_lost)
    }
}

/// Before Linux 6.6 the kernel counts subscriptions, and does not notice that a socket is closed: it would make events for
/// nobody until the next boot.
impl Drop for ExitEvents {
    fn drop(&mut self) {
        // Nothing else is left to do where it fails.
        let _ = rustix::net::send(&self.socket, &subscription(&[IGNORE]), SendFlags::empty());
    }
}

/// The message that subscribes.
fn subscription(request: &[u32]) -> Vec<u8> {
    let body: Vec<u8> = request.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let total = u32::try_from(NETLINK_HEADER + CONNECTOR_HEADER + body.len()).expect("a few words");
    let length = u16::try_from(body.len()).expect("a few words");
    let mut message = Vec::new();
    // struct nlmsghdr: length, type, flags, sequence number, port.
    message.extend(total.to_ne_bytes());
    message.extend(DONE.to_ne_bytes());
    message.extend([0; 10]);
    // struct cn_msg: index, value, sequence number, acknowledgement, length, flags.
    message.extend([PROC, PROC, 0, 0].iter().flat_map(|word| word.to_ne_bytes()));
    message.extend(length.to_ne_bytes());
    message.extend([0; 2]);
    message.extend(body);
    message
}

/// The event in a message; nothing if it is another one, or truncated.
fn event(message: &[u8]) -> Option<ExitEvent> {
    let word = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    if word(NETLINK_HEADER)? != PROC || word(NETLINK_HEADER + 4)? != PROC {
        return None;
    }
    // struct proc_event: kind, CPU, nanoseconds; then thread, process, status, signal to the parent.
    let body = NETLINK_HEADER + CONNECTOR_HEADER;
    if word(body)? != EXIT {
        return None;
    }
    let at = u64::from_ne_bytes(message.get(body + 8..body + 16)?.try_into().ok()?);
    let status = i32::from_ne_bytes(message.get(body + 24..body + 28)?.try_into().ok()?);
    Some(ExitEvent { tid: word(body + 16)?, pid: word(body + 20)?, status, at: Duration::from_nanos(at) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test starts processes whose ends are reported")]
    fn the_status_of_a_process_is_reported() {
        let mut events = match ExitEvents::open(Path::new("/proc")) {
            Ok(events) => events,
            Err(error) => {
                eprintln!("skipped: no process events here: {error}");
                return;
            }
        };
        let mut expected = Vec::new();
        for (script, status) in [("exit 3", 0x300), ("kill -9 $$", 9), ("true", 0)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            child.wait().unwrap();
            expected.push((child.id(), status));
        }
        let (mut found, begun) = (Vec::new(), clock::now());
        while clock::now().since(begun) < Duration::from_secs(10) {
            let keep = |event: ExitEvent| found.push((event.tid, event.status));
            events.drain(10_000, keep).unwrap();
            if expected.iter().all(|one| found.contains(one)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{expected:?} are not in {found:?}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test starts processes whose ends are reported")]
    fn events_that_did_not_fit_into_the_queue_are_reported_as_lost() {
        let Ok(mut events) = ExitEvents::with_queue(Path::new("/proc"), 1) else {
            eprintln!("skipped: no process events here");
            return;
        };
        for _ in 0..50 {
            Command::new("true").status().unwrap();
        }
        assert!(events.drain(10_000, |_| {}).unwrap());
        // A subscription that was cancelled gets no event.
        let ignore = subscription(&[IGNORE]);
        rustix::net::send(&events.socket, &ignore, SendFlags::empty()).unwrap();
        events.drain(10_000, |_| {}).unwrap();
        let child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        drop(child.wait_with_output());
        events.drain(10_000, |event| assert_ne!(event.pid, pid)).unwrap();
    }

    #[test]
    fn other_and_truncated_messages_are_no_events() {
        let mut message = vec![0_u8; NETLINK_HEADER + CONNECTOR_HEADER + 40];
        let put = |message: &mut Vec<u8>, at: usize, word: u32| {
            message[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        };
        let body = NETLINK_HEADER + CONNECTOR_HEADER;
        for (at, word) in
            [(16, PROC), (20, PROC), (body, EXIT), (body + 16, 8), (body + 20, 7), (body + 24, 9)]
        {
            put(&mut message, at, word);
        }
        assert_eq!(event(&message), Some(ExitEvent { tid: 8, pid: 7, status: 9, at: Duration::ZERO }));
        for length in 0..body + 28 {
            assert_eq!(event(&message[..length]), None, "{length}");
        }
        put(&mut message, body, 1);
        assert_eq!(event(&message), None);
    }
}
