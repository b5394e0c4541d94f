//! Identifies the user of a TCP socket of this host.
//!
//! The kernel lists every socket with its user (proc_pid_net(5)). The read is bounded: on a host with very many sockets
//! there is no result rather than a late one.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Most bytes read of a list: about 27,000 IPv4 sockets.
const MOST_BYTES: u64 = 4 << 20;

/// The user who created the socket at `own` that is connected to `peer`; absent if there is none.
///
/// # Errors
/// The operating system's error if neither list can be read.
pub fn user(proc: &Path, own: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let wanted = (canonical(own), canonical(peer));
    let mut failed = None;
    let mut read = false;
    // A program may use an IPv6 socket to reach an IPv4 address.
    for name in ["net/tcp", "net/tcp6"] {
        match find(&proc.join("self").join(name), wanted) {
            Ok(Some(user)) => return Ok(Some(user)),
            Ok(None) => read = true,
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if !read => Err(error),
        _ => Ok(None),
    }
}

fn find(path: &Path, wanted: (SocketAddr, SocketAddr)) -> io::Result<Option<u32>> {
    let mut lines = BufReader::with_capacity(64 * 1024, File::open(path)?.take(MOST_BYTES));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? != 0 {
        if let Some((from, to, user)) = row(&line)
            && (from, to) == wanted
        {
            return Ok(Some(user));
        }
        line.clear();
    }
    Ok(None)
}

/// Parses a line of `net/tcp` or `net/tcp6`: its own address, the address it is connected to, and its user.
fn row(line: &[u8]) -> Option<(SocketAddr, SocketAddr, u32)> {
    let text = std::str::from_utf8(line).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let (from, to) = (address(fields.nth(1)?)?, address(fields.next()?)?);
    let user = fields.nth(4)?.parse().ok()?;
    Some((from, to, user))
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

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::host::process::testing::Tree;

    const LIST: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        \x20  0: 0100007F:10DD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0\n\
        \x20  1: 0100007F:A1B2 0100007F:10DD 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 20 4 30 10 -1\n\
        \x20  2: 0100007F:10DD 0100007F:A1B2 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1\n";
    const LIST6: &str = "  sl  local_address                         remote_address                        st\n\
        \x20  0: 0000000000000000FFFF00000100007F:A1B3 0000000000000000FFFF00000100007F:10DD 01 00000000:00000000 00:00000000 00000000  1001        0 4712 1 0 20 4 30 10 -1\n\
        \x20  1: 00000000000000000000000001000000:A1B4 00000000000000000000000001000000:10DD 01 00000000:00000000 00:00000000 00000000  1002        0 4713 1 0 20 4 30 10 -1\n";

    fn listed(own: &str, peer: &str) -> Option<u32> {
        let tree = Tree::new();
        let folder = tree.proc().join("self/net");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("tcp"), LIST).unwrap();
        std::fs::write(folder.join("tcp6"), LIST6).unwrap();
        user(&tree.proc(), own.parse().unwrap(), peer.parse().unwrap()).unwrap()
    }

    #[test]
    fn the_user_of_a_connection_is_found_for_every_address() {
        assert_eq!(listed("127.0.0.1:41394", "127.0.0.1:4317"), Some(1000));
        assert_eq!(listed("127.0.0.1:41395", "127.0.0.1:4317"), Some(1001), "through IPv6");
        assert_eq!(listed("[::1]:41396", "[::1]:4317"), Some(1002));
        assert_eq!(listed("127.0.0.1:41394", "127.0.0.1:4318"), None);
        let (own, peer) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        assert!(user(Path::new("/nowhere"), own, peer).is_err());
    }

    #[test]
    fn the_kernels_list_is_parsed() {
        let proc = Path::new("/proc");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        let found = user(proc, peer, accepted.local_addr().unwrap()).unwrap();
        assert_eq!(found, Some(rustix::process::getuid().as_raw()));
        drop(stream);
    }

    proptest::proptest! {
        #[test]
        fn no_line_panics(line in "[ -~]{0,200}", numbers in proptest::collection::vec("[0-9A-F:]{0,40}", 0..14)) {
            let _ = (row(line.as_bytes()), row(numbers.join(" ").as_bytes()));
        }
    }
}
