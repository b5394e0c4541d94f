//! Who a client of a connection is: over TCP its address, over the socket of commands its user.

use std::net::Ipv4Addr;
use std::sync::Arc;

use memwarden_exporter::connection::{AdmittedConnection, Shared, plain, serve_tcp};
pub(super) use memwarden_exporter::connection::{Client, stopped};
use tokio::sync::watch;

use super::connections::Owner;
use super::jobs;
use super::listen::Stream;
use super::routes::Routes;
use crate::host::peer::peer;
use crate::model::subordinate::payer;

/// Whose share of connections a connection takes; absent where its client is not known.
pub(super) fn owner(stream: &Stream) -> Option<Owner> {
    Some(match stream {
        Stream::Local(stream) => match peer(stream).ok()?.uid {
            uid if jobs::sees_all(uid) => Owner::Root,
            uid => Owner::User(payer(uid)),
        },
        Stream::Tcp(stream) => Owner::Address(stream.peer_addr().ok()?.ip().to_canonical()),
    })
}

/// Serves one connection to its end.
pub(super) async fn serve(
    stream: Stream,
    admitted: AdmittedConnection<Routes>,
    shared: Arc<Shared<Routes>>,
    shutdown: watch::Receiver<bool>,
) {
    match stream {
        Stream::Tcp(stream) => serve_tcp(stream, admitted, shared, shutdown).await,
        Stream::Local(stream) => {
            let Ok(peer) = peer(&stream) else { return };
            let local = Ipv4Addr::LOCALHOST.into();
            let client = Client { local, uid: Some(peer.uid), certificate: false, owner: admitted.owner };
            plain(stream, client, Arc::clone(&admitted.meter), shared, shutdown).await;
        }
    }
}
