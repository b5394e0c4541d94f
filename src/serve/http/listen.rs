//! Listening sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use crate::host::connection;

/// Time between two attempts to bind an address that is in use.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Connections that the kernel queues until they are accepted; the standard library's 128 are fewer than a burst of
/// scrapers, and the others would wait a second for their retry.
const BACKLOG: i32 = 1024;

/// A socket that listens on `address`.
///
/// The standard library sets `SO_REUSEADDR`, so a restart need not wait for old connections.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = match TcpListener::bind(address) {
        // A host without IPv6 cannot bind `[::]`; "all addresses" are then those of IPv4.
        Err(error) if address.ip().is_unspecified() && address.is_ipv6() && no_such_family(&error) => {
            TcpListener::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()))
        }
        bound => bound,
    }?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The user whose socket listens on the port of `address`; absent where it is not found.
pub(super) fn user(proc: &Path, address: SocketAddr) -> Option<u32> {
    let everywhere: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    // A listening socket is connected to no address and port 0.
    let mut pairs = [address.ip()].into_iter().chain(everywhere).flat_map(|ip| {
        everywhere.map(|nobody| (SocketAddr::new(ip, address.port()), SocketAddr::new(nobody, 0)))
    });
    pairs.find_map(|(own, peer)| connection::socket(proc, own, peer).ok().flatten()).map(|socket| socket.uid)
}

fn no_such_family(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}
