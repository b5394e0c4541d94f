//! Calls web services for the executor, on a thread with its own runtime, so that an unresponsive server blocks no
//! other thread.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use http_body_util::Full;

use super::executor::BackgroundExecutor;
use crate::host::http_client::{self, HttpClient, HttpError};
use crate::host::tls::Trust;
use crate::model::error_chain::error_chain;
use crate::protection::types::step::{
    Finished, Outcome, ServiceAddress, Step, StepDone, StepError, Ticket, Work,
};

/// Capacity of the queue of calls.
const QUEUE: usize = 32;
/// Time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that are read of a response.
const LARGEST: usize = 4096;

/// Posts JSON to `http://` and `https://` addresses.
#[derive(Debug)]
pub struct Webhooks {
    calls: SyncSender<(Ticket, String, String)>,
    ended: Receiver<Finished>,
}

impl Webhooks {
    /// Starts the thread, which ends when this is dropped. An `https` service must be certified by `trust`, which is
    /// read again for each call.
    pub fn start(trust: Trust) -> io::Result<Self> {
        let (calls, inbox) = sync_channel(QUEUE);
        let (report, ended) = sync_channel(2 * QUEUE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || serve(&runtime, &trust, &inbox, &report);
        std::thread::Builder::new().name("webhooks".to_owned()).spawn(serve)?;
        Ok(Self { calls, ended })
    }
}

impl BackgroundExecutor for Webhooks {
    fn begin(&mut self, ticket: Ticket, step: &Step) -> bool {
        let Work::Webhook { url, body } = &step.work else { return false };
        self.calls.try_send((ticket, url.as_ref().to_owned(), body.as_ref().to_owned())).is_ok()
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        finished.extend(self.ended.try_iter());
    }
}

fn serve(
    runtime: &tokio::runtime::Runtime,
    trust: &Trust,
    inbox: &Receiver<(Ticket, String, String)>,
    report: &SyncSender<Finished>,
) {
    for (ticket, url, body) in inbox {
        let answer = runtime.block_on(post(trust, &url, body));
        let result = match &answer {
            Ok(_) => Ok(StepDone { outcome: Outcome::Done, processes: 0 }),
            Err(error) => {
                let what = format!("{}: {error}", ServiceAddress(&url));
                Err(StepError::Outside { what: what.chars().take(300).collect() })
            }
        };
        let output = answer.ok().filter(|output| output.len() <= LARGEST).unwrap_or_default().into();
        // A full report channel means that the result is no longer needed.
        let _ = report.try_send(Finished { ticket, result, output });
    }
}

/// The answer of a service, or why it could not be called, or did not accept the call.
async fn post(trust: &Trust, url: &str, body: String) -> Result<String, String> {
    let failed = |error: HttpError| match error {
        HttpError::Certificate(_) => {
            format!("{error}; protection.webhook_certificate can name its authority")
        }
        error => error_chain(&error),
    };
    let uri = http_client::address(url).map_err(|why| format!("the address {why}"))?;
    let request = http::Request::post(uri.clone())
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::USER_AGENT, concat!("memwarden/", env!("CARGO_PKG_VERSION")))
        .body(Full::from(body))
        .map_err(|error| format!("the request cannot be built: {error}"))?;
    // One client per call: no connection is kept open until the next incident.
    let client = HttpClient::new(&uri, trust, LARGEST, CALL_TIMEOUT).map_err(failed)?;
    let (status, body) = client.exchange(request).await.map_err(failed)?;
    let text = body.map_or_else(
        |_| String::new(),
        |body| String::from_utf8_lossy(&body).replace(|c: char| c.is_control(), " "),
    );
    if !status.is_success() {
        return Err(format!("it answers {status}: {}", text.chars().take(200).collect::<String>()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::types::rung::State;
    use crate::protection::types::step::TargetId;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    /// Calls a service that answers so; tells the end and what the service heard.
    fn call(answer: &'static str, url: Option<&str>) -> (Finished, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = format!("http://{}/hook?x=1", listener.local_addr().unwrap());
        let heard = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut text = Vec::new();
            let mut buffer = [0; 4096];
            while !text.ends_with(b"{\"a\":1}") {
                let read = stream.read(&mut buffer).unwrap();
                text.extend_from_slice(&buffer[..read]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(text).unwrap()
        });
        let mut webhooks = Webhooks::start(Trust::of(None)).unwrap();
        let url = url.unwrap_or(&own);
        let work = Work::Webhook { url: url.into(), body: "{\"a\":1}".into() };
        assert!(webhooks.begin(Ticket(4), &Step { target: TargetId(0), stage: State::Warn, work }));
        let finished = webhooks.ended.recv_timeout(Duration::from_secs(30)).unwrap();
        let heard = if url == own { heard.join().unwrap() } else { String::new() };
        (finished, heard)
    }

    #[test]
    fn a_service_is_called_and_its_answer_kept() {
        let (finished, heard) = call("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nnoted", None);
        assert!(heard.starts_with("POST /hook?x=1 HTTP/1.1\r\n"), "{heard}");
        assert!(heard.to_lowercase().contains("content-type: application/json"));
        assert_eq!((finished.ticket, &*finished.output), (Ticket(4), "noted"));
        assert_eq!(finished.result.unwrap().outcome, Outcome::Done);
    }

    #[test]
    fn a_service_that_refuses_or_is_none_is_a_failed_step() {
        let (finished, _) = call("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", None);
        let error = finished.result.unwrap_err().to_string();
        assert!(error.ends_with("it answers 503 Service Unavailable: busy"), "{error}");
        let (finished, _) = call("", Some("http://127.0.0.1:1/"));
        assert!(finished.result.unwrap_err().to_string().starts_with("http://127.0.0.1:1: "));
        for url in ["ftp://a/", "a b", "/x"] {
            assert!(http_client::address(url).is_err(), "{url}");
        }
    }

    /// A service with a certificate of an authority of its own, which answers one call; its address.
    fn secure(folder: &std::path::Path) -> String {
        use std::sync::Arc;

        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        use tokio_rustls::rustls::pki_types::PrivateKeyDer;
        use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned, crypto};

        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(folder.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), stream);
            let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
            while !text.ends_with(b"{\"a\":1}") {
                match stream.read(&mut buffer) {
                    Ok(read) if read > 0 => text.extend_from_slice(&buffer[..read]),
                    // The client hangs up on a certificate that it does not trust.
                    _ => return,
                }
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nnoted").unwrap();
        });
        format!("https://localhost:{port}/hook?key=s3cret")
    }

    fn called(trust: Trust, url: &str) -> Finished {
        let mut webhooks = Webhooks::start(trust).unwrap();
        let work = Work::Webhook { url: url.into(), body: "{\"a\":1}".into() };
        assert!(webhooks.begin(Ticket(4), &Step { target: TargetId(0), stage: State::Warn, work }));
        webhooks.ended.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    #[test]
    fn an_https_service_is_called_where_its_authority_is_trusted() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ca = folder.path().join("ca.pem");
        let url = secure(folder.path());
        let finished = called(Trust::File(ca.clone()), &url);
        assert_eq!((finished.result.unwrap().outcome, &*finished.output), (Outcome::Done, "noted"));

        secure(other.path());
        let url = secure(folder.path());
        let refused = called(Trust::File(other.path().join("ca.pem")), &url).result.unwrap_err().to_string();
        assert!(refused.contains("the server's certificate is not trusted: "), "{refused}");
        assert!(refused.ends_with("; protection.webhook_certificate can name its authority"), "{refused}");
        assert!(!refused.contains("s3cret"), "{refused}");

        // The name in the address must be one of the certificate's.
        let url = secure(folder.path()).replace("localhost", "127.0.0.1");
        let refused = called(Trust::File(ca), &url).result.unwrap_err().to_string();
        assert!(refused.contains("the server's certificate is not trusted: "), "{refused}");

        let missing = Trust::File(folder.path().join("none.pem"));
        let refused = called(missing, "https://localhost:1/").result.unwrap_err().to_string();
        assert!(refused.contains("cannot read ") && refused.contains("none.pem"), "{refused}");
    }
}
