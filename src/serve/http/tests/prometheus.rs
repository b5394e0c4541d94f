//! The real Prometheus scrapes: in the clear, and over mutual TLS with a password.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::Instant;

use super::client::{again, get};
use super::tls::Authority;
use super::{PATIENCE, Running, web};

struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it on `address`; nothing where it is not installed.
#[expect(clippy::disallowed_methods, reason = "the reference is another program")]
fn start(folder: &Path, address: SocketAddr) -> Option<Prometheus> {
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    child.ok().map(Prometheus)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_scrapes_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("test");
    let (server, client) = (authority.server(), authority.server());
    let hash = bcrypt::hash("secret", 4).unwrap();
    for (name, text) in [
        ("ca.pem", authority.pem()),
        ("cert.pem", server.0),
        ("key.pem", server.1),
        ("client.pem", client.0),
        ("client-key.pem", client.1),
        (
            "web.yml",
            format!(
                "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n  \
                 client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n\
                 basic_auth_users:\n  prometheus: {hash}\n"
            ),
        ),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let plain = Running::start(web());
    let secured = Running::with_web_config(folder.path().join("web.yml"));
    let config = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n\
         - job_name: plain\n  static_configs: [{{targets: ['{}']}}]\n\
         - job_name: secured\n  scheme: https\n  basic_auth: {{username: prometheus, password: secret}}\n  \
         tls_config: {{ca_file: ca.pem, cert_file: client.pem, key_file: client-key.pem, server_name: localhost}}\n  \
         static_configs: [{{targets: ['{}']}}]\n",
        plain.address, secured.address
    );
    std::fs::write(folder.path().join("prometheus.yml"), config).unwrap();
    // An address of loopback that nothing else uses.
    let free = std::net::TcpListener::bind("127.83.0.1:0").unwrap().local_addr().unwrap();
    let Some(_prometheus) = start(folder.path(), free) else {
        crate::skip::skip("prometheus is not installed");
        return;
    };
    let query = "/api/v1/query?query=memwarden_workload_cpu_seconds_total";
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "no sample of both jobs in time");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let Ok(mut stream) = tokio::net::TcpStream::connect(free).await else { continue };
        let Some(answer) = again(&mut stream, &get(query, "")).await else { continue };
        let Ok(answer) = serde_json::from_slice::<serde_json::Value>(&answer.body) else { continue };
        let Some(found) = answer["data"]["result"].as_array() else { continue };
        if found.len() == 2 {
            assert!(found.iter().all(|series| series["value"][1] == "1.5"), "{answer}");
            break;
        }
    }
    assert_eq!(secured.count("memwarden_http_requests_total", "4xx"), 0.0);
}
