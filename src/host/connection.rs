//! Identifies the process at the other end of a TCP connection within this host.
//!
//! The kernel lists every socket with its user and inode (proc_pid_net(5)), and
//! the descriptors of every process as links that contain the inode. The reads of both
//! are bounded: on a host with very many sockets or descriptors there is no
//! result rather than a late one.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;

use super::process;

/// Most bytes read of a list: about 27,000 IPv4 sockets.
const MOST_BYTES: u64 = 4 << 20;
/// Most links read to find one socket: tens of milliseconds.
const MOST_LINKS: usize = 1 << 15;

/// One socket in the kernel's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The user who created it.
    pub uid: u32,
    /// Its inode number; 0 if no process holds it any more.
    pub inode: u64,
}

/// The socket through which `peer` is connected to `local`, both on this host; absent if there is none.
///
/// # Errors
/// The operating system's error if neither list can be read.
pub fn socket(proc: &Path, peer: SocketAddr, local: SocketAddr) -> io::Result<Option<Socket>> {
    let wanted = (canonical(peer), canonical(local));
    let mut failed = None;
    let mut read = false;
    // A program may use an IPv6 socket to reach an IPv4 address.
    for name in ["net/tcp", "net/tcp6"] {
        match find(&proc.join("self").join(name), wanted) {
            Ok(Some(socket)) => return Ok(Some(socket)),
            Ok(None) => read = true,
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if !read => Err(error),
        _ => Ok(None),
    }
}

fn find(path: &Path, wanted: (SocketAddr, SocketAddr)) -> io::Result<Option<Socket>> {
    let mut lines = BufReader::with_capacity(64 * 1024, File::open(path)?.take(MOST_BYTES));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? != 0 {
        if let Some((from, to, socket)) = row(&line)
            && (from, to) == wanted
        {
            return Ok(Some(socket));
        }
        line.clear();
    }
    Ok(None)
}

/// Parses a line of `net/tcp` or `net/tcp6`: its own address, the address it is connected to, and the socket.
pub fn row(line: &[u8]) -> Option<(SocketAddr, SocketAddr, Socket)> {
    let text = std::str::from_utf8(line).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let (from, to) = (address(fields.nth(1)?)?, address(fields.next()?)?);
    let uid = fields.nth(4)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some((from, to, Socket { uid, inode }))
}

/// Parses an address as the kernel writes it: 32-bit words in hex, each in native byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word_at = |place: usize| {
        let digits = ip.get(place * 8..place * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::from(word_at(0)?),
        32 => {
            let mut octets = [0; 16];
            for (place, chunk) in octets.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word_at(place)?);
            }
            IpAddr::from(octets)
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

/// The canonical form of an address; scopes and flow labels are not in the kernel's list.
fn canonical(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
        ip @ IpAddr::V4(_) => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Whether an address can only be reached from this host.
pub fn is_loopback(address: SocketAddr) -> bool {
    match canonical(address).ip() {
        IpAddr::V4(ip) => Ipv4Addr::is_loopback(&ip),
        IpAddr::V6(ip) => Ipv6Addr::is_loopback(&ip),
    }
}

/// The process among these that holds a socket; the oldest, because its children may hold it too.
///
/// It must belong to the user who created the socket and have existed at `seen`, when the socket did: a process that
/// received the socket later from another one did not connect. Absent if there is none, if access is denied, or if the
/// limit of links is reached.
pub fn holder(proc: &Path, socket: Socket, among: &[ProcessKey], seen: Timestamp) -> Option<ProcessKey> {
    if socket.inode == 0 {
        return None;
    }
    let mut root = process::ProcRoot::new(proc.to_path_buf());
    root.connect().ok()?;
    let wanted = format!("socket:[{}]", socket.inode);
    let seen = process::ticks(seen.monotonic());
    // Checked before their links are counted: another user's processes cannot use up the limit.
    let own = |key: &ProcessKey| key.start <= seen && root.uid(key.pid).is_ok_and(|uid| uid == socket.uid);
    let mut oldest_first: Vec<ProcessKey> = among.iter().copied().filter(own).collect();
    oldest_first.sort_unstable_by_key(|key| (key.start, key.pid));
    let mut left = MOST_LINKS;
    for key in oldest_first {
        // It ended, or belongs to another user and the daemon is not root.
        let Ok(entries) = std::fs::read_dir(proc.join(key.pid.to_string()).join("fd")) else { continue };
        for entry in entries.flatten() {
            left = left.checked_sub(1)?;
            if std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str()) {
                return Some(key).filter(|key| is_running(&root, *key));
            }
        }
    }
    None
}

/// Whether the process with this key still exists.
fn is_running(root: &process::ProcRoot, key: ProcessKey) -> bool {
    let mut buffer = Vec::new();
    root.read(key.pid, "stat", &mut buffer)
        .is_ok_and(|text| process::stat(text).is_some_and(|stat| stat.start == key.start))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::host::clock;
    use crate::host::process::testing::{Process, Tree};

    const LIST: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        \x20  0: 0100007F:10DD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0\n\
        \x20  1: 0100007F:A1B2 0100007F:10DD 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 20 4 30 10 -1\n\
        \x20  2: 0100007F:10DD 0100007F:A1B2 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1\n";
    const LIST6: &str = "  sl  local_address                         remote_address                        st\n\
        \x20  0: 0000000000000000FFFF00000100007F:A1B3 0000000000000000FFFF00000100007F:10DD 01 00000000:00000000 00:00000000 00000000  1001        0 4712 1 0 20 4 30 10 -1\n\
        \x20  1: 00000000000000000000000001000000:A1B4 00000000000000000000000001000000:10DD 01 00000000:00000000 00:00000000 00000000  1002        0 4713 1 0 20 4 30 10 -1\n";

    fn listed(peer: &str, local: &str) -> Option<Socket> {
        let tree = Tree::new();
        let folder = tree.proc().join("self/net");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("tcp"), LIST).unwrap();
        std::fs::write(folder.join("tcp6"), LIST6).unwrap();
        socket(&tree.proc(), peer.parse().unwrap(), local.parse().unwrap()).unwrap()
    }

    #[test]
    fn the_clients_connection_is_found_for_every_address() {
        let found = |peer, local| listed(peer, local).map(|socket| (socket.uid, socket.inode));
        assert_eq!(found("127.0.0.1:41394", "127.0.0.1:4317"), Some((1000, 4711)));
        assert_eq!(found("127.0.0.1:41395", "127.0.0.1:4317"), Some((1001, 4712)), "through IPv6");
        assert_eq!(found("[::1]:41396", "[::1]:4317"), Some((1002, 4713)));
        assert_eq!(found("127.0.0.1:41394", "127.0.0.1:4318"), None);
        assert!(
            socket(Path::new("/nowhere"), "127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap())
                .is_err()
        );
    }

    #[test]
    fn the_kernels_list_is_parsed() {
        let proc = Path::new("/proc");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        let found = socket(proc, peer, accepted.local_addr().unwrap()).unwrap().unwrap();
        assert_eq!(found.uid, rustix::process::getuid().as_raw());
        let stat = std::fs::read(format!("/proc/{}/stat", std::process::id())).unwrap();
        let own = ProcessKey { pid: std::process::id(), start: process::stat(&stat).unwrap().start };
        let now = clock::now();
        assert_eq!(holder(proc, found, &[own], now), Some(own));
        let earlier = ProcessKey { start: own.start - 1, ..own };
        assert_eq!(holder(proc, found, &[earlier], now), None, "another process has its pid by now");
        assert_eq!(holder(proc, found, &[own], Timestamp::from_secs(0)), None, "it came after the socket");
        let others = Socket { uid: found.uid + 1, ..found };
        assert_eq!(holder(proc, others, &[own], now), None, "another user made it");
        drop(stream);
        assert_eq!(holder(proc, found, &[own], now), None);
    }

    #[test]
    fn the_oldest_holder_is_the_process_that_opened_it() {
        let tree = Tree::new();
        for (pid, start) in [(7, 900), (40, 100), (50, 50)] {
            tree.add(&Process::new(pid, "python").start(start));
            let folder = tree.proc().join(format!("{pid}/fd"));
            std::fs::create_dir_all(&folder).unwrap();
            let inode = if pid == 50 { 1 } else { 4711 };
            std::os::unix::fs::symlink(format!("socket:[{inode}]"), folder.join("3")).unwrap();
        }
        let all: Vec<_> =
            [(7, 900), (40, 100), (50, 50), (60, 1)].map(|(pid, start)| ProcessKey { pid, start }).into();
        let uid = rustix::process::geteuid().as_raw();
        let holder = |inode, among: &[ProcessKey]| {
            holder(&tree.proc(), Socket { uid, inode }, among, clock::now()).map(|key| key.pid)
        };
        assert_eq!(holder(4711, &all), Some(40));
        assert_eq!(holder(4711, &all[..1]), Some(7));
        assert_eq!(holder(0, &all), None);
    }

    #[test]
    fn only_this_host_reaches_loopback() {
        let loopback = |text: &str| is_loopback(text.parse().unwrap());
        assert!(loopback("127.0.0.1:4317") && loopback("127.8.8.8:1") && loopback("[::1]:4317"));
        assert!(loopback("[::ffff:127.0.0.1]:4317"));
        assert!(!loopback("0.0.0.0:4317") && !loopback("[::]:4317") && !loopback("10.0.0.1:4317"));
    }

    proptest::proptest! {
        #[test]
        fn no_line_panics(line in "[ -~]{0,200}", numbers in proptest::collection::vec("[0-9A-F:]{0,40}", 0..14)) {
            let _ = (row(line.as_bytes()), row(numbers.join(" ").as_bytes()));
        }
    }
}
