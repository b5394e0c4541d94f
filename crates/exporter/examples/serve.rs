//! An exporter of one metric: `cargo run -p memwarden-exporter --example serve [web.yml]`.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use memwarden_exporter::answer::{Answer, Sent};
use memwarden_exporter::auth::Verdict;
use memwarden_exporter::connections::{Connections, Owner};
use memwarden_exporter::encode::encode;
use memwarden_exporter::meter::{self, Meter, Metered, Times};
use memwarden_exporter::negotiate;
use memwarden_exporter::web_config::WebConfig;
use memwarden_model::point::Batch;
use memwarden_model::units::Seconds;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

mod metrics {
    use memwarden_model::units::Seconds;

    memwarden_model::metrics! {
        /// Time since the exporter was started.
        pub UPTIME: Gauge<Seconds> = "example_uptime_seconds" {};
    }
}

/// The exposition, in the text format that the client prefers.
fn page(headers: &HeaderMap, uptime: Duration) -> Answer {
    let mut batch = Batch::new();
    batch.put(&metrics::UPTIME, &[], Seconds::from(uptime));
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = negotiate::format(accept, true);
    Answer::page(format.content_type(), encode(batch.families(), format).into())
}

/// The response to a request, after the checks of the web-config file.
async fn answer(
    request: &Request<Incoming>,
    open: &meter::Request,
    web: &WebConfig,
    owner: Owner,
    uptime: Duration,
) -> Answer {
    let Ok(rules) = web.current() else {
        return Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The web-config file is invalid.");
    };
    match rules.users.check(request.headers(), open, owner).await {
        Verdict::Welcome if web.within_rate() => page(request.headers(), uptime),
        Verdict::Stranger => Answer::text(StatusCode::UNAUTHORIZED, "Unauthorized.")
            .with(header::WWW_AUTHENTICATE, "Basic realm=\"example\""),
        _ => Answer::text(StatusCode::TOO_MANY_REQUESTS, "Too many requests."),
    }
}

/// Serves one connection within its deadline.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    meter: &Arc<Meter>,
    web: &Arc<WebConfig>,
    owner: Owner,
    began: tokio::time::Instant,
) {
    let answer = |request: Request<Incoming>| {
        let (open, web) = (meter.request(), Arc::clone(web));
        async move {
            let http2 = request.version() == Version::HTTP_2;
            let answer = answer(&request, &open, &web, owner, began.elapsed()).await;
            Ok::<Response<Sent>, Infallible>(answer.finish(open, false, http2))
        }
    };
    let io = TokioIo::new(Metered::new(stream, Arc::clone(meter)));
    let builder = auto::Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection(io, service_fn(answer));
    let late = async {
        while tokio::time::Instant::now() < meter.deadline() {
            tokio::time::sleep_until(meter.deadline()).await;
        }
    };
    tokio::select! {
        _ = connection => {}
        () = late => {}
        () = meter.evicted() => {}
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let web = Arc::new(match std::env::args().nth(1) {
        Some(path) => WebConfig::read(Path::new(&path))?,
        None => WebConfig::none(),
    });
    let connections = Arc::new(Connections::new(64));
    let seconds = Duration::from_secs;
    let times = Times { header: seconds(10), request: seconds(30), idle: seconds(120) };
    let began = tokio::time::Instant::now();
    let listener = TcpListener::bind(SocketAddr::from((IpAddr::V4(Ipv4Addr::LOCALHOST), 9999))).await?;
    loop {
        connections.room().await;
        let (stream, client) = listener.accept().await?;
        let (owner, meter) = (Owner::Address(client.ip()), Arc::new(Meter::new(times)));
        let (Some(number), _) = connections.admit(&meter, owner) else { continue };
        let (web, connections) = (Arc::clone(&web), Arc::clone(&connections));
        tokio::spawn(async move {
            match web.tls() {
                None => serve(stream, &meter, &web, owner, began).await,
                Some(tls) => {
                    meter.handshake();
                    let accepted = tokio_rustls::TlsAcceptor::from(tls.config).accept(stream);
                    if let Ok(Ok(stream)) = tokio::time::timeout(times.header, accepted).await {
                        meter.established(stream.get_ref().1.alpn_protocol() == Some(b"h2"));
                        serve(stream, &meter, &web, owner, began).await;
                    }
                }
            }
            connections.leave(number);
        });
    }
}
