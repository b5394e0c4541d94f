//! Configuration keys of the `otlp` source.

use std::net::SocketAddr;
use std::time::Duration;

use crate::host::connection::is_loopback;
use crate::model::setting::{Opt, OptKind, Settings, seconds};

static LISTEN: Opt = Opt {
    key: "listen",
    help: "Loopback addresses to listen on; each accepts OTLP over both gRPC and HTTP. Other addresses are refused.",
    kind: OptKind::Texts,
    default: "[\"127.0.0.1:4317\", \"127.0.0.1:4318\"]",
};
static CONNECTIONS: Opt = Opt {
    key: "max_connections",
    help: "Maximum number of connections; one user may have half of them. At the limit, a new connection of a user with fewer connections replaces the newest one of the user with the most; other connections are refused and counted.",
    kind: OptKind::Count(2, 4_096),
    default: "64",
};
static MOST: Opt = Opt {
    key: "max_ranks",
    help: "Maximum number of ranks. At the limit, a new rank of a user with fewer ranks replaces the newest one of the user with the most; points of other ranks are refused and counted.",
    kind: OptKind::Count(1, 10_000),
    default: "256",
};
static STALE_AFTER: Opt = Opt {
    key: "stale_after",
    help: "Time after its last push at which the metrics of a rank expire. OpenTelemetry pushes once a minute by default.",
    kind: seconds(1, 86_400),
    default: "150s",
};

pub(super) static OPTIONS: &[&Opt] = &[&LISTEN, &CONNECTIONS, &MOST, &STALE_AFTER];

#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) listen: Vec<SocketAddr>,
    /// Maximum number of connections.
    pub(super) max_connections: usize,
    /// Maximum number of ranks.
    pub(super) max_ranks: usize,
    /// Time without a push after which a rank expires.
    pub(super) stale_after: Duration,
}

impl Rules {
    pub(super) fn read(settings: &Settings) -> Self {
        let count = |opt| usize::try_from(settings.count(opt)).unwrap_or(usize::MAX);
        Self {
            listen: settings.texts(&LISTEN).iter().filter_map(|text| text.parse().ok()).collect(),
            max_connections: count(&CONNECTIONS),
            max_ranks: count(&MOST),
            stale_after: settings.duration(&STALE_AFTER),
        }
    }
}

/// Errors in values that have the right type.
pub(super) fn check(settings: &Settings) -> Vec<(String, String)> {
    let texts = settings.texts(&LISTEN);
    let mut wrong = Vec::new();
    if texts.is_empty() {
        wrong.push(("listen".to_owned(), "must contain at least one address".to_owned()));
    }
    for (place, text) in texts.iter().enumerate() {
        let problem = match text.parse::<SocketAddr>() {
            Err(_) => "is not an address with a port, such as 127.0.0.1:4317",
            // A peer on another host has no process here, so that it could report anything about any job.
            Ok(address) if !is_loopback(address) => {
                "is not a loopback address; only jobs on this host may push"
            }
            Ok(_) if texts[..place].contains(text) => "is listed twice",
            Ok(_) => continue,
        };
        wrong.push((format!("listen[{place}]"), format!("`{text}` {problem}")));
    }
    wrong
}
