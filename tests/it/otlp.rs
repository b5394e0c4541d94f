//! The receiver of what jobs push, in the daemon: it pushes to itself, over both protocols.

use std::time::Duration;

use crate::harness::{Daemon, free_port};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_daemon_that_pushes_to_itself_hears_no_echo() {
    for (protocol, name) in [("grpc", "grpc"), ("http/protobuf", "http")] {
        let port = free_port();
        let daemon = Daemon::start(&[
            "--set",
            "sources.otlp.enabled=true",
            "--set",
            &format!("sources.otlp.listen=127.0.0.1:{port}"),
            "--set",
            "otlp.enabled=true",
            "--set",
            &format!("otlp.endpoint=http://127.0.0.1:{port}"),
            "--set",
            &format!("otlp.protocol={protocol}"),
            "--set",
            "otlp.interval=500ms",
        ]);
        let page = daemon.wait_page("two pushes", SOON, |page| {
            let labels = [("protocol", name), ("outcome", "taken")];
            page.sum("memwarden_otlp_receiver_requests_total", &labels) >= 2.0
        });
        let points = |outcome| page.get("memwarden_otlp_receiver_points_total", &[("outcome", outcome)]);
        assert!(points("unknown").unwrap() > 100.0);
        assert_eq!((points("taken"), points("refused")), (Some(0.0), Some(0.0)));
        // The client may close its connection between two pushes.
        assert!(page.sum("memwarden_otlp_receiver_connections", &[]) <= 1.0);
        assert_eq!(page.sum("memwarden_otlp_receiver_ranks", &[]), 0.0);
        assert_eq!(page.get("memwarden_source_status", &[("source", "otlp"), ("status", "ok")]), Some(1.0));
        assert_eq!(daemon.value("memwarden_otlp_export_failures_total"), Some(0.0));
    }
}
