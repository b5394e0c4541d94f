//! Listening sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

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

fn no_such_family(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}
