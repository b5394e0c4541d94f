//! Who a client of a connection is: its user, or over TCP from another host its address.

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
use crate::host::tcp_owner;
use crate::model::subordinate::payer;

/// Whose share of connections a connection takes; absent where its client is not known.
pub(super) fn owner(stream: &Stream) -> Option<Owner> {
    Some(match stream {
        Stream::Local(stream) => of_user(peer(stream).ok()?.uid),
        Stream::Tcp(stream) => {
            let peer = stream.peer_addr().ok()?;
            let user = tcp_owner::user(stream.local_addr().ok()?, peer);
            user.map_or(Owner::Address(peer.ip().to_canonical()), of_user)
        }
    })
}

fn of_user(uid: u32) -> Owner {
    if jobs::sees_all(uid) { Owner::Root } else { Owner::User(payer(uid)) }
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
