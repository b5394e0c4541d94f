//! The socket in `/run/systemd/oomd.prekill.hook/` that systemd-oomd (systemd 260) calls before it kills a cgroup.
//!
//! systemd-oomd connects to each socket there for each kill, calls one method, and kills after the replies of all or
//! `PrekillHookTimeoutSec=` (`oomd_prekill_hook` in `src/oom/oomd-util.c`). Each connection has a thread; none of them is
//! waited for by another.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use rustix::event::PollFlags;

use super::run_requests::RunRequests;
use super::users;
use crate::formats::varlink;
use crate::host::local_socket::{self, Access, Bound, failed};
use crate::host::peer;
use crate::host::{clock, poll};
use crate::protection::types::run_request::RunOutcome;

/// Time that a connected client has for its call, and for the next one.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two looks whether the client has disconnected, which systemd-oomd does when its time limit is over.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which a failed accept is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The user of systemd-oomd (`User=` of its unit), which connects by CAP_DAC_OVERRIDE.
const USER: &str = "systemd-oom";
/// Maximum number of connections; further ones are closed, after which systemd-oomd kills without waiting.
const MOST: usize = 16;
/// The stack of a thread in bytes.
const STACK: usize = 128 * 1024;

/// The listening socket; dropping it ends the thread that accepts.
#[derive(Debug)]
pub(super) struct PrekillSocket {
    bound: Bound,
    path: PathBuf,
    ends: Arc<AtomicBool>,
}

impl PrekillSocket {
    /// Listens on `path`, and passes on what is about to be killed; `passwd` is the list of users.
    pub(super) fn listen(
        path: &Path,
        requests: Arc<RunRequests>,
        passwd: &Path,
    ) -> Result<Self, local_socket::Problem> {
        let bound = local_socket::bind(path, Access { mode: 0o600, owner: None })?;
        let listener = bound.listener.try_clone().map_err(failed("serve", path))?;
        listener.set_nonblocking(false).map_err(failed("serve", path))?;
        let (places, passwd) = (Arc::new(()), passwd.to_owned());
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let accept = move || {
            let mut failing = false;
            while !ended.load(Ordering::Acquire) {
                let stream = match listener.accept() {
                    Ok((stream, _)) => stream,
                    // No descriptor or memory is left, which can be so while a cgroup is about to be killed.
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) && !ended.load(Ordering::Acquire) {
                            tracing::warn!(%error, "Cannot accept systemd-oomd; trying again.");
                        }
                        std::thread::sleep(RETRY_INTERVAL);
                        continue;
                    }
                };
                failing = false;
                let (place, requests) = (Arc::clone(&places), Arc::clone(&requests));
                if Arc::strong_count(&places) > MOST + 1 {
                    requests.prekills.outcomes.add(RunOutcome::Busy);
                    continue;
                }
                let passwd = passwd.clone();
                let serve = move || {
                    if may_call(&stream, &passwd) {
                        serve(stream, &requests);
                    } else {
                        requests.prekills.outcomes.add(RunOutcome::Refused);
                    }
                    drop(place);
                };
                if let Err(error) = thread("prekill-call", serve) {
                    tracing::warn!(%error, "Cannot answer systemd-oomd, which kills without waiting for a checkpoint.");
                }
            }
        };
        thread("prekill", accept).map_err(failed("serve", path))?;
        Ok(Self { bound, path: path.to_owned(), ends })
    }

    /// Where it listens.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrekillSocket {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // It fails only for a socket that does not listen.
        let _ = rustix::net::shutdown(&self.bound.listener, rustix::net::Shutdown::Both);
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(run).map(drop)
}

/// Whether the client is root or systemd-oomd.
fn may_call(stream: &UnixStream, passwd: &Path) -> bool {
    let is_oomd = |user| users::numbers(&[USER.to_owned()], passwd).is_ok_and(|known| known.contains(&user));
    peer::peer(stream).is_ok_and(|peer| peer.uid == 0 || is_oomd(peer.uid))
}

/// Answers the calls of one client.
fn serve(mut stream: UnixStream, requests: &RunRequests) {
    let timed = stream.set_read_timeout(Some(CALL_TIMEOUT)).and(stream.set_write_timeout(Some(CALL_TIMEOUT)));
    if timed.is_err() {
        return;
    }
    let mut received = Vec::new();
    while let Some(call) = next_call(&mut stream, &mut received) {
        let reply = match varlink::prekill(&call) {
            Ok(cgroup) => {
                wait(&stream, requests, cgroup);
                varlink::DONE
            }
            Err(refused) => {
                requests.prekills.outcomes.add(RunOutcome::Invalid);
                refused.reply()
            }
        };
        // A client that has disconnected has killed meanwhile.
        if reply.is_empty() || stream.write_all(reply).is_err() {
            return;
        }
    }
}

/// The next call without its NUL byte; absent at the end of the connection, or for a call that is too long or late.
fn next_call(stream: &mut UnixStream, received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut part = [0; 1024];
    let begun = clock::now();
    loop {
        if let Some(end) = received.iter().position(|byte| *byte == 0) {
            let rest = received.split_off(end + 1);
            let mut call = std::mem::replace(received, rest);
            call.pop();
            return Some(call);
        }
        let read = stream.read(&mut part).ok().filter(|read| *read > 0)?;
        received.extend_from_slice(part.get(..read)?);
        if received.len() > varlink::LONGEST || clock::now().since(begun) > CALL_TIMEOUT {
            return None;
        }
    }
}

/// Waits until the jobs in a cgroup have saved, or need not be waited for, or the client has disconnected.
fn wait(stream: &UnixStream, requests: &RunRequests, cgroup: String) {
    let Some(answer) = requests.notify_prekill(cgroup) else { return };
    while answer.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if poll::events(stream, PollFlags::RDHUP, Duration::ZERO).is_ok_and(|events| !events.is_empty()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_answered_call_by_call_and_the_file_is_removed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook/memwarden");
        let (requests, nobody): (Arc<RunRequests>, _) = (Arc::default(), Path::new("/nonexistent"));
        let socket = PrekillSocket::listen(&path, Arc::clone(&requests), nobody).unwrap();
        assert_eq!(socket.path(), path);
        let call = |text: &str| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
            // In parts, as a stream may arrive.
            for part in text.as_bytes().chunks(20) {
                // A call that is refused ends the connection.
                if stream.write_all(part).is_err() {
                    break;
                }
            }
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut reply = Vec::new();
            let _ = stream.read_to_end(&mut reply);
            String::from_utf8(reply).unwrap()
        };
        let notify = r#"{"method":"io.systemd.oom.Prekill.Notify","parameters":{"cgroup":"/none"}}"#;
        let done = std::str::from_utf8(varlink::DONE).unwrap();
        assert_eq!(call(&format!("{notify}\0")), done);
        assert_eq!(call(&format!("{notify}\0{notify}\0{notify}")), done.repeat(2));
        assert!(call("{\"method\":\"a.B\"}\0").contains("MethodNotFound"));
        assert_eq!(call(&format!("x\0{notify}\0")), "");
        assert_eq!(call(&"x".repeat(varlink::LONGEST + 1)), "");
        let outcomes: Vec<_> = requests.prekills.outcomes.all().filter(|(_, count)| *count > 0).collect();
        assert_eq!(outcomes, [(RunOutcome::NoJob, 3), (RunOutcome::Invalid, 2)]);
        assert!(PrekillSocket::listen(&path, Arc::clone(&requests), nobody).is_err(), "it is taken");
        drop(socket);
        assert!(!path.exists());
        drop(PrekillSocket::listen(&path, requests, nobody).unwrap());
    }
}
