//! Routing: checks requests and answers them.
//!
//! Order of the checks: valid web-config file, rate limit, site, user, path, method, sender, body size, and for requests that
//! take work a free slot. A request waits for a slot up to half of its time limit, so that a burst of scrapes is
//! served rather than refused; health checks need no slot.

mod lifecycle;

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::acknowledge::{self, Acknowledge};
use super::alerts;
use super::answer::{Answer, Sent, stopping};
use super::auth::Verdict;
use super::connection::Client;
use super::ends;
use super::freshness::Freshness;
use super::gate::Gate;
use super::incidents;
use super::jobs;
use super::meter;
use super::past_runs;
use super::route::Route;
use super::run_requests;
use super::views::{self, Asked, Now, Views, What};
use super::web_config::WebConfig;
use super::{Reload, Setup};

use crate::engine::Frames;
use crate::events::{Events, HttpLimit};
use crate::job_summary::Ledger;
use crate::model::frame::Frame;
use crate::model::timeline::Viewer;
use crate::past_runs::PastRuns;
use crate::protection::types::alert::ReceiveAlerts;
use crate::protection::types::incidents::Incidents;
use crate::protection::types::run_request::ReceiveRunRequests;
use crate::serve::page::View;
use crate::serve::prometheus::negotiate;
use crate::serve::prometheus::pages::{Form, Pages};
use crate::serve::{history, page, timeline};
use memwarden_exporter::connection::Service;

/// Maximum body of a request that needs none; it is read and discarded so that the connection can be reused.
const BODY: usize = 4 * 1024;

/// KiB of answers that are made for one client, and that clients have not read, together.
const ANSWERS: usize = 16 << 10;
/// KiB of an answer from which on it counts.
const SMALL: u32 = 16;
/// Messages of Alertmanager that are read at the same time.
const BODIES: usize = 4;

/// Answers requests.
pub(super) struct Routes {
    frames: Frames,
    pages: Pages,
    views: Arc<Views>,
    /// Held while a page is rendered.
    rendering: tokio::sync::Mutex<()>,
    freshness: Freshness,
    started: tokio::time::Instant,
    stale_after: watch::Receiver<Duration>,
    openmetrics: bool,
    reload: Option<Box<dyn Reload>>,
    acknowledge: Box<dyn Acknowledge>,
    alerts: Arc<dyn ReceiveAlerts>,
    run_requests: Arc<dyn ReceiveRunRequests>,
    gate: Gate,
    incidents: watch::Receiver<Option<Arc<dyn Incidents>>>,
    jobs: Arc<Ledger>,
    past_runs: Arc<PastRuns>,
    places: Semaphore,
    /// KiB of answers to one client each that were not read yet.
    answers: Arc<Semaphore>,
    /// Held while a large body is read.
    bodies: Semaphore,
    request_timeout: Duration,
    header_timeout: Duration,
    events: Arc<Events>,
    web_config: WebConfig,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").finish_non_exhaustive()
    }
}

/// How the client is authenticated.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The client is a listed user.
    user: bool,
    /// The client has a certificate of a CA that the web-config file names.
    certificate: bool,
}

impl Known {
    /// Whether the web-config file authenticates the client.
    const fn client(self) -> bool {
        self.user || self.certificate
    }
}

impl Service for Routes {
    fn web_config(&self) -> &WebConfig {
        &self.web_config
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        open: meter::Request,
        client: Client,
    ) -> Response<Sent> {
        let head = request.method() == Method::HEAD;
        let http2 = request.version() == http::Version::HTTP_2;
        // Creating a response may take three quarters of the request's time; the rest is for sending it.
        let answer = match timeout(self.request_timeout * 3 / 4, self.guarded(request, &open, client)).await {
            Ok(answer) => answer,
            Err(_) => {
                self.events.http_limited(HttpLimit::Time);
                Answer::text(StatusCode::SERVICE_UNAVAILABLE, "The response was not ready in time.").closing()
            }
        };
        self.events.http_answered(answer.code());
        answer.finish(open, head, http2)
    }

    fn limited(&self, limit: HttpLimit) {
        self.events.http_limited(limit);
    }

    fn answered(&self, status: u16) {
        self.events.http_answered(status);
    }
}

impl Routes {
    pub(super) fn new(setup: Setup, web_config: WebConfig) -> Self {
        Self {
            frames: setup.frames,
            pages: Pages::with_names(setup.compatibility, setup.host_name.as_deref()),
            views: Arc::new(Views::new(setup.host_name.clone())),
            rendering: tokio::sync::Mutex::new(()),
            freshness: Freshness::default(),
            started: tokio::time::Instant::now(),
            stale_after: setup.stale_after,
            openmetrics: setup.web.openmetrics,
            reload: setup.web.enable_lifecycle.then_some(setup.reload),
            acknowledge: setup.acknowledge,
            alerts: setup.alerts,
            run_requests: setup.run_requests,
            gate: Gate::new(&setup.web.allowed_hosts, setup.host_name),
            incidents: setup.incidents,
            jobs: setup.jobs,
            past_runs: setup.past_runs,
            places: Semaphore::new(setup.web.max_requests.min(Semaphore::MAX_PERMITS)),
            answers: Arc::new(Semaphore::new(ANSWERS)),
            bodies: Semaphore::new(BODIES),
            request_timeout: setup.web.request_timeout,
            header_timeout: setup.web.header_timeout,
            events: setup.events,
            web_config,
        }
    }

    pub(super) async fn note(&self, frame: Option<&Arc<Frame>>) {
        if let Some(frame) = frame {
            self.freshness.age(frame);
            self.events.history_recorded(self.views.record(frame));
            self.pages.prepare(frame).await;
        }
    }

    async fn guarded(&self, request: Request<Incoming>, open: &meter::Request, client: Client) -> Answer {
        let rules = match self.web_config.current() {
            Ok(rules) => rules,
            Err(_) => {
                return Answer::text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "The web-config file is invalid; see the log.",
                )
                .closing();
            }
        };
        if !self.web_config.within_rate() {
            return self.too_many();
        }
        let (parts, body) = request.into_parts();
        if let Some(refusal) = self.gate.refusal(&parts, client.local) {
            return refusal;
        }
        let listed = rules.users.anybody();
        // Root reads over the socket without a password, and is no listed user.
        let local_root = client.uid.is_some_and(jobs::sees_all);
        let user = listed && !local_root;
        let known = Known { user, certificate: client.certificate && rules.verifies };
        let verdict = match client.uid {
            Some(_) if local_root => Verdict::Welcome,
            Some(_) if rules.verifies && !listed => Verdict::Stranger,
            _ => rules.users.check(&parts.headers, open, client.owner).await,
        };
        let mut answer = match verdict {
            Verdict::Welcome => self.routed(parts, body, open, client, known).await,
            Verdict::Stranger => Answer::text(StatusCode::UNAUTHORIZED, "Unauthorized.")
                .with(header::WWW_AUTHENTICATE, "Basic realm=\"memwarden\", charset=\"UTF-8\"")
                .closing(),
            Verdict::Crowded => self.too_many(),
        };
        for (name, value) in &rules.headers {
            answer.set(name.clone(), value.clone());
        }
        answer
    }

    fn too_many(&self) -> Answer {
        self.events.http_limited(HttpLimit::Rate);
        Answer::text(StatusCode::TOO_MANY_REQUESTS, "Too many requests.").closing()
    }

    async fn routed(
        &self,
        parts: Parts,
        body: Incoming,
        open: &meter::Request,
        client: Client,
        known: Known,
    ) -> Answer {
        let route = Route::of(parts.uri.path(), parts.uri.query().unwrap_or_default());
        // No byte of the body of a request that is refused is read.
        let refused = |answer: Answer| if body.is_end_stream() { answer } else { answer.closing() };
        let Some(route) = route else {
            return refused(Answer::text(StatusCode::NOT_FOUND, "Page not found."));
        };
        if !route.allows(&parts.method) {
            let sentence = format!("This page accepts only {}.", route.allow());
            let answer = Answer::text(StatusCode::METHOD_NOT_ALLOWED, sentence);
            return refused(answer.with(header::ALLOW, route.allow()));
        }
        let (mut most, mut _place) = (BODY, None);
        if matches!(route, Route::Alerts) {
            if let Err(refusal) = alerts::admit(&self.alerts, known.user, &parts.headers).await {
                return refusal;
            }
            let _waits = open.waits();
            (most, _place) = (alerts::BODY, self.bodies.acquire().await.ok());
        }
        let body = match self.read(body, open, most).await {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        match route {
            Route::Healthy => return self.healthy(),
            Route::Ready => return self.ready(),
            Route::Reload => return self.reloaded(open).await,
            Route::Alerts => return alerts::answer(&self.alerts, body).await,
            Route::RunCheckpoint(run) => {
                return run_requests::answer(
                    &self.run_requests,
                    run,
                    parts.uri.path(),
                    known.certificate,
                    &parts.headers,
                    body,
                )
                .await;
            }
            Route::Acknowledge => {
                let node = || self.views.node(&self.now(), true);
                return acknowledge::answer(&*self.acknowledge, client, &parts.headers, &body, node);
            }
            Route::Part(kind, text) => {
                return Answer::page(kind, text.into())
                    .with(header::CONTENT_SECURITY_POLICY, page::NOTHING_ALLOWED)
                    .with(header::CACHE_CONTROL, "no-cache");
            }
            Route::Page(_)
            | Route::Node
            | Route::History
            | Route::Metrics
            | Route::Frame
            | Route::Findings
            | Route::Timeline
            | Route::Incidents(_)
            | Route::Job(_)
            | Route::PastRuns
            | Route::Ends => {}
        }
        let place = {
            let _waits = open.waits();
            timeout(self.request_timeout / 2, self.places.acquire()).await
        };
        // The slot is released before the response is sent: sending a shared buffer takes no work.
        let Ok(Ok(_place)) = place else {
            self.events.http_limited(HttpLimit::Requests);
            return Answer::text(StatusCode::SERVICE_UNAVAILABLE, "Too many requests at once.")
                .with(header::RETRY_AFTER, "1");
        };
        // The others are made for one client.
        let is_shared =
            matches!(route, Route::Page(_) | Route::Node | Route::Metrics | Route::Frame | Route::Findings);
        let viewer = jobs::viewer(client, known.client());
        let answer = match route {
            Route::Page(view) => self.view(view, &parts, known.client(), viewer).await,
            Route::Node => self.rendered(What::Node, &parts, viewer).await,
            Route::History => self.history(parts.uri.query().unwrap_or_default()).await,
            Route::Timeline => self.timeline(parts.uri.query().unwrap_or_default(), viewer),
            Route::Metrics => {
                let accept = values(&parts.headers, header::ACCEPT);
                let format = negotiate::format(accept, self.openmetrics);
                self.page(Form::Metrics(format), &parts.headers).await
            }
            Route::Findings => self.page(Form::Findings, &parts.headers).await,
            Route::Ends => {
                let frame = self.frames.borrow().clone();
                ends::answer(frame.as_deref(), client, known.client())
            }
            Route::PastRuns => past_runs::answer(&self.past_runs, client, known.client()),
            Route::Job(job) => jobs::answer(&self.jobs, &job, client, known.client()),
            Route::Incidents(wanted) => {
                let store = self.incidents.borrow().clone();
                incidents::answer(store, wanted, known.client()).await
            }
            Route::Frame => self.page(Form::Json, &parts.headers).await,
            // Answered above.
            Route::Healthy
            | Route::Ready
            | Route::Reload
            | Route::Alerts
            | Route::RunCheckpoint(_)
            | Route::Acknowledge
            | Route::Part(..) => Answer::text(StatusCode::NOT_FOUND, "Page not found."),
        };
        if is_shared { answer } else { self.bounded(answer, client) }
    }

    /// The answer to one client, within the memory of all such answers that were not read yet; root's are not bounded.
    fn bounded(&self, answer: Answer, client: Client) -> Answer {
        let kib = u32::try_from(answer.length() / 1024).unwrap_or(u32::MAX);
        if kib < SMALL || client.uid.is_some_and(jobs::sees_all) {
            return answer;
        }
        match Arc::clone(&self.answers).try_acquire_many_owned(kib) {
            Ok(permit) => answer.holding(permit),
            Err(_) => {
                self.events.http_limited(HttpLimit::Requests);
                Answer::text(StatusCode::SERVICE_UNAVAILABLE, "Too many answers are not read yet.")
                    .with(header::RETRY_AFTER, "1")
            }
        }
    }

    /// Reads a body within the limit.
    ///
    /// # Errors
    /// A response, if the body is refused.
    async fn read(&self, body: Incoming, open: &meter::Request, most: usize) -> Result<Vec<u8>, Answer> {
        // Only the client can end this wait, so the connection can be evicted meanwhile.
        let _waits = open.waits();
        match timeout(self.header_timeout, Limited::new(body, most).collect()).await {
            Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                self.events.http_limited(HttpLimit::Size);
                let sentence = format!("The body must not exceed {most} bytes.");
                Err(Answer::text(StatusCode::PAYLOAD_TOO_LARGE, sentence).closing())
            }
            Ok(Err(_)) => Err(Answer::text(StatusCode::BAD_REQUEST, "The body is incomplete.").closing()),
            Err(_) => {
                self.events.http_limited(HttpLimit::Time);
                Err(Answer::text(StatusCode::REQUEST_TIMEOUT, "The body was not received in time.").closing())
            }
        }
    }

    async fn page(&self, form: Form, headers: &http::HeaderMap) -> Answer {
        let Some(frame) = self.frame() else {
            return no_sample();
        };
        let encoding = negotiate::encoding(values(headers, header::ACCEPT_ENCODING));
        let Ok(body) = self.pages.get(&frame, form, encoding).await else {
            tracing::error!(sequence = frame.sequence, "The frame could not be rendered.");
            return Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The sample could not be rendered.");
        };
        let answer = Answer::page(form.content_type(), body).with(header::VARY, "Accept, Accept-Encoding");
        match encoding {
            negotiate::Encoding::Gzip => answer.with(header::CONTENT_ENCODING, "gzip"),
            negotiate::Encoding::Identity => answer,
        }
    }

    /// Created for each request: two requests rarely have the same parameters.
    fn timeline(&self, query: &str, viewer: Viewer) -> Answer {
        let filter = match timeline::Filter::parse(query) {
            Ok(filter) => filter,
            Err(sentence) => return Answer::text(StatusCode::BAD_REQUEST, sentence),
        };
        let Some(frame) = self.frame() else {
            return no_sample();
        };
        Answer::page("application/json", timeline::encode(&frame, &filter, viewer).into())
    }

    /// The newest frame and its age.
    fn now(&self) -> Now {
        let frame = self.frame();
        let age = frame.as_ref().map_or(Duration::ZERO, |frame| self.freshness.age(frame));
        Now { frame, age, stale_after: *self.stale_after.borrow(), uptime: self.started.elapsed() }
    }

    /// A page. Pages are rendered on a thread for blocking work, and those of incidents wait for a disk.
    async fn view(&self, view: View, parts: &Parts, known: bool, viewer: Viewer) -> Answer {
        let range = page::range(parts.uri.query().unwrap_or_default());
        if !view.needs_incidents() {
            return self.rendered(What::Page(view, range), parts, viewer).await;
        }
        let (views, now) = (Arc::clone(&self.views), self.now());
        let store = self.incidents.borrow().clone();
        let render = move || {
            let shown = views::incidents_for(store.as_deref(), &view, known);
            views.with_incidents(&view, &now, range, shown)
        };
        stopping(tokio::task::spawn_blocking(render).await)
    }

    async fn rendered(&self, what: What, parts: &Parts, viewer: Viewer) -> Answer {
        let asked = Asked { what, is_whole: viewer == Viewer::All };
        let (views, now) = (Arc::clone(&self.views), self.now());
        let encoding = negotiate::encoding(values(&parts.headers, header::ACCEPT_ENCODING));
        let tag =
            parts.headers.get(header::IF_NONE_MATCH).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        if let Some(answer) = views.ready(&asked, &now, encoding, tag.as_deref()) {
            return answer;
        }
        // One thread renders for all who wait: more would take memory, and wait for each other.
        let _turn = self.rendering.lock().await;
        if let Some(answer) = views.ready(&asked, &now, encoding, tag.as_deref()) {
            return answer;
        }
        stopping(tokio::task::spawn_blocking(move || views.answer(&asked, &now, encoding)).await)
    }

    async fn history(&self, query: &str) -> Answer {
        let wanted = match history::Wanted::parse(query) {
            Ok(wanted) => wanted,
            Err(sentence) => return Answer::text(StatusCode::BAD_REQUEST, sentence),
        };
        let (views, now) = (Arc::clone(&self.views), self.now());
        let _turn = self.rendering.lock().await;
        match tokio::task::spawn_blocking(move || views.history(&wanted, &now)).await {
            Ok(Some(json)) => Answer::page("application/json", json.into()),
            Ok(None) => Answer::text(StatusCode::NOT_FOUND, "No history is kept of this subject."),
            Err(_) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The history could not be rendered."),
        }
    }

    fn frame(&self) -> Option<Arc<Frame>> {
        self.frames.borrow().clone()
    }
}

/// The answer before the first sample.
fn no_sample() -> Answer {
    Answer::text(StatusCode::SERVICE_UNAVAILABLE, "No sample has been taken yet.")
        .with(header::RETRY_AFTER, "1")
}

/// The values of a header that are valid text.
fn values(headers: &http::HeaderMap, name: header::HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok())
}
