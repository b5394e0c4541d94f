//! What `sources.otlp` can be told.

use std::net::SocketAddr;
use std::time::Duration;

use crate::host::connection::is_loopback;
use crate::model::setting::{Opt, OptKind, Settings, seconds};

static LISTEN: Opt = Opt {
    key: "listen",
    help: "Where jobs push: addresses of loopback, both of OTLP's protocols at each. Nothing but loopback is allowed.",
    kind: OptKind::Texts,
    default: "[\"127.0.0.1:4317\", \"127.0.0.1:4318\"]",
};
static CONNECTIONS: Opt = Opt {
    key: "connections",
    help: "The most connections at once, and half as many of one user. Beyond them, a user who has fewer takes the place of the newest of who has most; others are turned away and counted.",
    kind: OptKind::Count(2, 4_096),
    default: "64",
};
static MOST: Opt = Opt {
    key: "most",
    help: "The most ranks that are remembered. Beyond them, a user who has fewer takes the place of the newest of who has most; the points of others are refused and counted.",
    kind: OptKind::Count(1, 10_000),
    default: "256",
};
static STALE_AFTER: Opt = Opt {
    key: "stale_after",
    help: "How long after its last push a rank's series end. OpenTelemetry pushes once a minute where a job sets nothing.",
    kind: seconds(1, 86_400),
    default: "150s",
};

/// Every option.
pub(super) static OPTIONS: &[&Opt] = &[&LISTEN, &CONNECTIONS, &MOST, &STALE_AFTER];

/// The options, read.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Where to listen.
    pub(super) listen: Vec<SocketAddr>,
    /// Connections at once.
    pub(super) connections: usize,
    /// Ranks that are remembered.
    pub(super) most: usize,
    /// How long a rank may be silent.
    pub(super) stale_after: Duration,
}

impl Rules {
    /// Reads checked settings.
    pub(super) fn read(settings: &Settings) -> Self {
        let count = |opt| usize::try_from(settings.count(opt)).unwrap_or(usize::MAX);
        Self {
            listen: settings.texts(&LISTEN).iter().filter_map(|text| text.parse().ok()).collect(),
            connections: count(&CONNECTIONS),
            most: count(&MOST),
            stale_after: settings.duration(&STALE_AFTER),
        }
    }
}

/// What is wrong with values that are each of the right kind.
pub(super) fn check(settings: &Settings) -> Vec<(String, String)> {
    let texts = settings.texts(&LISTEN);
    let mut wrong = Vec::new();
    if texts.is_empty() {
        wrong.push(("listen".to_owned(), "there is no address to listen at".to_owned()));
    }
    for (place, text) in texts.iter().enumerate() {
        let problem = match text.parse::<SocketAddr>() {
            Err(_) => "is no address with a port, such as 127.0.0.1:4317",
            // What comes from elsewhere has no process here, so that anybody could tell anything of any job.
            Ok(address) if !is_loopback(address) => "is not loopback, and only this host's jobs may push",
            Ok(_) if texts[..place].contains(text) => "is there twice",
            Ok(_) => continue,
        };
        wrong.push((format!("listen[{place}]"), format!("`{text}` {problem}")));
    }
    wrong
}
