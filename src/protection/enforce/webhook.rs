//! Calls web services for the executor, on a thread with a runtime of its own: a dead server holds nobody up.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::executor::Errand;
use crate::host::clock;
use crate::protection::words::step::{Finished, Outcome, Place, Step, StepDone, StepError, Ticket, Work};

/// Calls that wait for their turn.
const WAITING: usize = 32;
/// A service that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is read of an answer, in bytes.
const LARGEST: usize = 4096;

/// Posts JSON to `http://` addresses.
#[derive(Debug)]
pub struct Webhooks {
    calls: SyncSender<(Ticket, String, String)>,
    ended: Receiver<Finished>,
}

/// Whether an address can be called.
///
/// # Errors
/// Why not, as a sentence for people.
pub fn check(url: &str) -> anyhow::Result<http::Uri> {
    let shown = Place(url);
    let uri: http::Uri = url.parse().with_context(|| format!("{shown} is no address"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => Ok(uri),
        (Some("https"), _) => bail!("{shown}: https is not supported; use a relay on this host"),
        _ => bail!("{shown}: write http://HOST:PORT/PATH"),
    }
}

impl Webhooks {
    /// Starts the thread; it ends with this.
    ///
    /// # Errors
    /// The operating system's, where it gives no thread or no runtime.
    pub fn start() -> io::Result<Self> {
        let (calls, inbox) = sync_channel(WAITING);
        let (report, ended) = sync_channel(2 * WAITING);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || serve(&runtime, &inbox, &report);
        std::thread::Builder::new().name("webhooks".to_owned()).spawn(serve)?;
        Ok(Self { calls, ended })
    }
}

impl Errand for Webhooks {
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
    inbox: &Receiver<(Ticket, String, String)>,
    report: &SyncSender<Finished>,
) {
    for (ticket, url, body) in inbox {
        let begun = clock::now();
        let answer = runtime.block_on(async { tokio::time::timeout(PATIENCE, post(&url, body)).await });
        let micros = u64::try_from(clock::now().since(begun).as_micros()).unwrap_or(u64::MAX);
        let answer = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {} s", PATIENCE.as_secs())));
        let mut finished = match answer {
            Ok(said) => {
                let done = StepDone { outcome: Outcome::Done, processes: 0, micros };
                let mut finished = Finished::new(ticket, Ok(done));
                finished.said = said.into();
                finished
            }
            Err(error) => {
                let what = format!("{}: {error:#}", Place(&url)).chars().take(300).collect::<String>();
                Finished::new(ticket, Err(StepError::Outside { what: what.into() }))
            }
        };
        if finished.said.len() > LARGEST {
            finished.said = "".into();
        }
        // Nobody asks any more where the report is full.
        let _ = report.try_send(finished);
    }
}

async fn post(url: &str, body: String) -> anyhow::Result<String> {
    let request = http::Request::post(check(url)?)
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::USER_AGENT, concat!("memwarden/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(Bytes::from(body)))?;
    // One client a call: nothing is kept open for the next incident.
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let answer = client.request(request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let said = body.map_or_else(
        |_| String::new(),
        |body| String::from_utf8_lossy(&body.to_bytes()).replace(|c: char| c.is_control(), " "),
    );
    if !status.is_success() {
        bail!("it answers {status}: {}", said.chars().take(200).collect::<String>());
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::words::step::{Stage, TargetId};
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
        let mut webhooks = Webhooks::start().unwrap();
        let url = url.unwrap_or(&own);
        let work = Work::Webhook { url: url.into(), body: "{\"a\":1}".into() };
        assert!(webhooks.begin(Ticket(4), &Step { target: TargetId(0), stage: Stage::Warn, work }));
        let finished = webhooks.ended.recv_timeout(Duration::from_secs(30)).unwrap();
        let heard = if url == own { heard.join().unwrap() } else { String::new() };
        (finished, heard)
    }

    #[test]
    fn a_service_is_told_and_its_answer_kept() {
        let (finished, heard) = call("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nnoted", None);
        assert!(heard.starts_with("POST /hook?x=1 HTTP/1.1\r\n"), "{heard}");
        assert!(heard.to_lowercase().contains("content-type: application/json"));
        assert_eq!((finished.ticket, &*finished.said), (Ticket(4), "noted"));
        assert_eq!(finished.result.unwrap().outcome, Outcome::Done);
    }

    #[test]
    fn a_service_that_refuses_or_is_none_is_a_failed_step() {
        let (finished, _) = call("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", None);
        let error = finished.result.unwrap_err().to_string();
        assert!(error.ends_with("it answers 503 Service Unavailable: busy"), "{error}");
        let (finished, _) = call("", Some("http://127.0.0.1:1/"));
        assert!(finished.result.unwrap_err().to_string().starts_with("http://127.0.0.1:1: "));
        for url in ["https://a/", "ftp://a/", "a b", "/x"] {
            assert!(check(url).is_err(), "{url}");
        }
    }
}
