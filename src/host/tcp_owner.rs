//! The user at the other end of a TCP connection within this host, as the kernel's socket diagnosis states it (sock_diag(7)).

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h) and `NLM_F_REQUEST` (linux/netlink.h).
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
/// `IPPROTO_TCP` and `TCP_ESTABLISHED`.
const TCP: u8 = 6;
const ESTABLISHED: u8 = 1;
/// Lengths of `struct nlmsghdr`, of it with `struct inet_diag_req_v2`, and with `struct inet_diag_msg` (linux/inet_diag.h).
const HEADER: usize = 16;
const QUESTION: usize = HEADER + 56;
const ANSWER: usize = HEADER + 72;

/// The user whose socket `peer` is, for a connection that reached `local`; absent where the other end is on another host, or is not
/// known: the kernel states user 0 for a socket that its process has closed.
pub fn user(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    let is_here = peer.ip().to_canonical().is_loopback() || peer.ip() == local.ip();
    if is_here { ask(&question(peer, local)).ok().and_then(|answer| stated(&answer)) } else { None }
}

/// The question for the socket that is bound to `from` and connected to `to`.
fn question(from: SocketAddr, to: SocketAddr) -> [u8; QUESTION] {
    let (source, target) = (from.ip().to_canonical(), to.ip().to_canonical());
    let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut message = Vec::with_capacity(QUESTION);
    message.extend(u32::try_from(QUESTION).unwrap_or_default().to_ne_bytes());
    message.extend([BY_FAMILY, REQUEST].map(u16::to_ne_bytes).concat());
    message.extend([0; 8]);
    message.extend([u8::try_from(family.as_raw()).unwrap_or_default(), TCP, 0, 0]);
    // In every state.
    message.extend(u32::MAX.to_ne_bytes());
    message.extend([from.port(), to.port()].map(u16::to_be_bytes).concat());
    for address in [source, target] {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes = address.octets(),
        }
        message.extend(bytes);
    }
    // On any interface, with any cookie.
    message.extend([0; 4]);
    message.extend([u8::MAX; 8]);
    let mut whole = [0; QUESTION];
    whole.copy_from_slice(&message);
    whole
}

/// The kernel's answer, which is there once the question has been sent.
fn ask(question: &[u8]) -> io::Result<[u8; ANSWER]> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
    rustix::net::sendto(&socket, question, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; ANSWER];
    rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    Ok(answer)
}

/// The user in an answer about a socket that a process holds.
fn stated(answer: &[u8; ANSWER]) -> Option<u32> {
    let number = |place: usize| Some(u32::from_ne_bytes(answer.get(place..place + 4)?.try_into().ok()?));
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    let [user, inode] = [number(ANSWER - 8)?, number(ANSWER - 4)?];
    (kind == BY_FAMILY && answer[HEADER + 1] == ESTABLISHED && inode != 0).then_some(user)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_user_of_a_connection_from_this_host_is_known() {
        let own = rustix::process::geteuid().as_raw();
        for (listen, to) in [("127.0.0.1", "127.0.0.1"), ("[::1]", "[::1]"), ("[::]", "127.0.0.1")] {
            // Not every machine has IPv6.
            let Ok(listener) = TcpListener::bind(format!("{listen}:0")) else { continue };
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect(format!("{to}:{port}")).unwrap();
            let (stream, peer) = listener.accept().unwrap();
            let local = stream.local_addr().unwrap();
            assert_eq!(user(local, peer), Some(own), "{listen}");
            drop(client);
            assert_eq!(user(local, peer), None, "a closed socket is nobody's, not root's");
        }
        let [local, other] = ["192.0.2.1:9", "192.0.2.2:7"].map(|address| address.parse().unwrap());
        assert_eq!(user(local, other), None);
    }

    #[test]
    fn an_answer_that_is_none_states_nobody() {
        assert_eq!(stated(&[0; ANSWER]), None);
        assert_eq!(stated(&[u8::MAX; ANSWER]), None);
    }
}
