//! Configuration keys of the `otlp` source.

use std::net::SocketAddr;
use std::time::Duration;

use crate::host::connection::is_loopback;

crate::options! {
    /// The options of the source.
    pub(super) struct Options {
        /// Loopback addresses to listen on; each accepts OTLP over both gRPC and HTTP. Other addresses are refused.
        listen: Vec<String> = ["127.0.0.1:4317", "127.0.0.1:4318"];
        /// Maximum number of connections; one user may have half of them. At the limit, a new connection of a user with
        /// fewer connections replaces the newest one of the user with the most; other connections are refused and
        /// counted.
        max_connections: usize = 64 in 2..=4096;
        /// Maximum number of ranks. At the limit, a new rank of a user with fewer ranks replaces the newest one of the
        /// user with the most; points of other ranks are refused and counted.
        max_ranks: usize = 256 in 1..=10000;
        /// Time after its last push at which the metrics of a rank expire. OpenTelemetry pushes once a minute by
        /// default.
        stale_after: Duration = 150s in 1s..=1d;
    }
}

impl Options {
    /// Errors in values that have the right type.
    pub(super) fn check(&self) -> Vec<(String, String)> {
        let mut wrong = Vec::new();
        if self.listen.is_empty() {
            wrong.push(("listen".to_owned(), "must contain at least one address".to_owned()));
        }
        for (place, text) in self.listen.iter().enumerate() {
            let problem = match text.parse::<SocketAddr>() {
                Err(_) => "is not an address with a port, such as 127.0.0.1:4317",
                // A peer on another host has no process here, so that it could report anything about any job.
                Ok(address) if !is_loopback(address) => {
                    "is not a loopback address; only jobs on this host may push"
                }
                Ok(_) if self.listen[..place].contains(text) => "is listed twice",
                Ok(_) => continue,
            };
            wrong.push((format!("listen[{place}]"), format!("`{text}` {problem}")));
        }
        wrong
    }
}
