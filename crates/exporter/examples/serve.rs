//! An exporter of one metric: `cargo run -p memwarden-exporter --example serve [web.yml]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use memwarden_exporter::answer::{Answer, Sent};
use memwarden_exporter::auth::Verdict;
use memwarden_exporter::connection::{Client, HttpLimit, Service, Shared, serve_tcp};
use memwarden_exporter::connections::{Connections, Owner};
use memwarden_exporter::encode::encode;
use memwarden_exporter::meter::{self, Times};
use memwarden_exporter::negotiate;
use memwarden_exporter::web_config::WebConfig;
use memwarden_model::point::Batch;
use memwarden_model::units::Seconds;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

memwarden_model::metrics! {
    /// Time since the exporter was started.
    pub UPTIME: Gauge<Seconds> = "example_uptime_seconds" {};
}

#[derive(Debug)]
struct Exporter {
    web: WebConfig,
    began: Instant,
}

impl Exporter {
    /// The response to a request, after the checks of the web-config file.
    async fn page(&self, headers: &HeaderMap, open: &meter::Request, owner: Owner) -> Answer {
        let Ok(rules) = self.web.current() else {
            return Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The web-config file is invalid.");
        };
        match rules.users.check(headers, open, owner).await {
            Verdict::Welcome if self.web.within_rate() => {
                let mut batch = Batch::new();
                batch.put(&UPTIME, &[], Seconds::from(self.began.elapsed()));
                let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
                let format = negotiate::format(accept, true);
                Answer::page(format.content_type(), encode(batch.families(), format).into())
            }
            Verdict::Stranger => Answer::text(StatusCode::UNAUTHORIZED, "Unauthorized.")
                .with(header::WWW_AUTHENTICATE, "Basic realm=\"example\""),
            _ => Answer::text(StatusCode::TOO_MANY_REQUESTS, "Too many requests."),
        }
    }
}

impl Service for Exporter {
    fn web_config(&self) -> &WebConfig {
        &self.web
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        open: meter::Request,
        client: Client,
    ) -> Response<Sent> {
        let http2 = request.version() == Version::HTTP_2;
        self.page(request.headers(), &open, client.owner).await.finish(open, false, http2)
    }

    fn limited(&self, _limit: HttpLimit) {}

    fn answered(&self, _status: u16) {}
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let web = match std::env::args().nth(1) {
        Some(path) => WebConfig::read(Path::new(&path))?,
        None => WebConfig::none(),
    };
    let seconds = Duration::from_secs;
    let shared = Arc::new(Shared {
        times: Times { header: seconds(10), request: seconds(30), idle: seconds(120) },
        connections: Connections::new(64),
        service: Exporter { web, began: Instant::now() },
    });
    let (_stop, stopped) = watch::channel(false);
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 9999))).await?;
    loop {
        shared.connections.room().await;
        let (stream, client) = listener.accept().await?;
        if let Some(admitted) = shared.admit(Owner::Address(client.ip())) {
            tokio::spawn(serve_tcp(stream, admitted, Arc::clone(&shared), stopped.clone()));
        }
    }
}
