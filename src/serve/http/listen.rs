//! Listening sockets, of TCP and of commands on this node.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use crate::host::connection;
use crate::host::local_socket::{self, Access, Bound, Problem};

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

/// A connection of a client.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(tokio::net::TcpStream),
    Local(tokio::net::UnixStream),
}

/// A socket on which clients connect.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(tokio::net::TcpListener),
    Local(tokio::net::UnixListener),
}

impl Listener {
    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            Self::Local(listener) => listener.accept().await.map(|(stream, _)| Stream::Local(stream)),
        }
    }
}

/// The socket of commands on this node; its file is removed when it is dropped. All users may connect.
pub(super) fn bind_local(path: &Path) -> Result<Bound, Problem> {
    let bound = local_socket::bind(path, Access { mode: 0o666, owner: None })?;
    rustix::net::listen(&bound.listener, BACKLOG).map_err(|error| Problem::System {
        what: "listen on",
        path: path.to_owned(),
        error: error.into(),
    })?;
    Ok(bound)
}

/// The user whose socket listens on the port of `address`; absent where it is not found.
pub(super) fn user(proc: &Path, address: SocketAddr) -> Option<u32> {
    let everywhere: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    // A listening socket is connected to no address and port 0.
    let mut pairs = [address.ip()].into_iter().chain(everywhere).flat_map(|ip| {
        everywhere.map(|nobody| (SocketAddr::new(ip, address.port()), SocketAddr::new(nobody, 0)))
    });
    pairs.find_map(|(own, peer)| connection::user(proc, own, peer).ok().flatten())
}

fn no_such_family(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}
