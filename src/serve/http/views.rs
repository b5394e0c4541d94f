//! The pages: each view of the newest frame is rendered once and shared by all who watch it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use foldhash::HashMap;
use http::{StatusCode, header};

use super::answer::Answer;
use crate::history::rings::Range;
use crate::model::frame::Frame;
use crate::model::lock::lock;
use crate::model::timeline::Viewer;
use crate::node_view::events::Recorder;
use crate::node_view::{NodeView, Situation};
use crate::protection::types::incident::Incident;
use crate::protection::types::incidents::{self, IncidentError, Incidents, RECORD};
use crate::serve::history::Wanted;
use crate::serve::json;
use crate::serve::page::{self, Content, IncidentsShown, View};
use crate::serve::prometheus::negotiate::Encoding;
use crate::serve::prometheus::pages::compress;

/// Maximum number of rendered pages that are kept for one frame.
const MOST_PAGES: usize = 32;
/// Number of frames without a request after which rendered pages are freed.
const IDLE: u32 = 10;

/// What is asked for, and whether with the words of the jobs: without them, all users of the node share one rendering.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub(super) what: What,
    pub(super) is_whole: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    Page(View, Range),
    /// The model of the node as JSON.
    Node,
}

#[derive(Clone, Debug)]
struct Rendered {
    found: bool,
    body: Bytes,
}

#[derive(Debug, Default)]
struct Newest {
    /// Identifies the frame: its sequence number and its time.
    frame: Option<(u64, Duration)>,
    /// Without the words of the jobs, and with them.
    nodes: [Option<Arc<NodeView>>; 2],
    pages: HashMap<(Asked, bool), Rendered>,
    /// Frames since the last request.
    idle: u32,
}

/// The state of the frame for a page.
#[derive(Clone, Debug)]
pub(super) struct Now {
    pub(super) frame: Option<Arc<Frame>>,
    pub(super) age: Duration,
    /// The age from which sampling counts as stalled.
    pub(super) stale_after: Duration,
    /// Time since the server began.
    pub(super) uptime: Duration,
}

impl Now {
    fn stale(&self) -> bool {
        self.age > self.stale_after
    }

    /// Identifies the frame for caches; absent while a page would say how old it is.
    fn key(&self) -> Option<(u64, Duration)> {
        let frame = self.frame.as_ref().filter(|_| !self.stale())?;
        Some((frame.sequence, frame.at.monotonic()))
    }

    /// The entity tag of what is rendered from the frame.
    fn tag(&self) -> Option<String> {
        self.key().map(|(sequence, at)| format!("\"{sequence:x}-{:x}\"", at.as_nanos()))
    }
}

/// Renders pages.
#[derive(Debug)]
pub(super) struct Views {
    recorder: Mutex<Recorder>,
    newest: Mutex<Newest>,
    host_name: Option<String>,
}

impl Views {
    pub(super) fn new(host_name: Option<String>) -> Self {
        Self { recorder: Mutex::default(), newest: Mutex::default(), host_name }
    }

    /// Adds a frame to the recent past; returns the number of its series that exceed the limit.
    pub(super) fn record(&self, frame: &Frame) -> usize {
        let omitted = {
            let mut recorder = self.recorder();
            recorder.record(frame);
            recorder.recent.omitted()
        };
        let mut newest = lock(&self.newest);
        newest.idle = newest.idle.saturating_add(1);
        if newest.idle == IDLE {
            *newest = Newest { idle: IDLE, ..Newest::default() };
        }
        omitted
    }

    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        lock(&self.recorder)
    }

    /// The response where nothing must be rendered for it; `tag` is the entity tag that the client has. Never waits.
    pub(super) fn ready(
        &self,
        asked: &Asked,
        now: &Now,
        encoding: Encoding,
        tag: Option<&str>,
    ) -> Option<Answer> {
        let own = now.tag()?;
        if Some(own.as_str()) == tag {
            return Some(Answer::empty(StatusCode::NOT_MODIFIED));
        }
        let gzip = encoding == Encoding::Gzip;
        let rendered = {
            let newest = self.newest.try_lock().ok()?;
            newest.pages.get(&(asked.clone(), gzip)).filter(|_| newest.frame == now.key()).cloned()?
        };
        Some(Self::tagged(rendered, asked, now, gzip))
    }

    /// The response, rendered where it is not.
    pub(super) fn answer(&self, asked: &Asked, now: &Now, encoding: Encoding) -> Answer {
        let gzip = encoding == Encoding::Gzip;
        let rendered = self.rendered(asked, now, gzip);
        Self::tagged(rendered, asked, now, gzip)
    }

    fn tagged(rendered: Rendered, asked: &Asked, now: &Now, gzip: bool) -> Answer {
        let own = now.tag();
        let answer = finished(rendered.body, rendered.found, matches!(asked.what, What::Node), gzip);
        match own.and_then(|own| own.try_into().ok()) {
            Some(own) => answer.with_value(header::ETAG, own),
            None => answer,
        }
    }

    /// The response with incidents, which belong to no frame.
    pub(super) fn with_incidents(
        &self,
        view: &View,
        now: &Now,
        range: Range,
        shown: IncidentsShown,
    ) -> Answer {
        let node = self.node(now, !matches!(shown, IncidentsShown::Refused));
        let recorder = &*self.recorder();
        let page =
            page::page(view, &Content { node: &node, recorder, range, uptime: now.uptime, incidents: shown });
        finished(page.html.into(), page.found, false, false)
    }

    /// `/api/v1/history`; absent where there is no history of what is asked for.
    pub(super) fn history(&self, wanted: &Wanted, now: &Now) -> Option<Vec<u8>> {
        let node = self.node(now, false);
        wanted.encode(&node, &self.recorder())
    }

    fn rendered(&self, asked: &Asked, now: &Now, gzip: bool) -> Rendered {
        let key = now.key();
        let slot = (asked.clone(), gzip);
        // Held while rendering, so that tabs that ask at the same time share one rendering.
        let mut newest = lock(&self.newest);
        if newest.frame != key || key.is_none() {
            *newest = Newest { frame: key, ..Newest::default() };
        }
        newest.idle = 0;
        if let Some(known) = newest.pages.get(&slot) {
            return known.clone();
        }
        let slot_of_node = &mut newest.nodes[usize::from(asked.is_whole)];
        let node = slot_of_node.get_or_insert_with(|| Arc::new(self.view(now, asked.is_whole)));
        let node = Arc::clone(node);
        let (body, found) = match &asked.what {
            What::Node => (json::write(Vec::new(), &*node), true),
            What::Page(view, range) => {
                let (recorder, incidents) = (&*self.recorder(), IncidentsShown::Unasked);
                let (range, uptime) = (*range, now.uptime);
                let page = page::page(view, &Content { node: &node, recorder, range, uptime, incidents });
                (page.html.into_bytes(), page.found)
            }
        };
        let body = if gzip { compress(&body) } else { body.into() };
        let rendered = Rendered { found, body };
        // What does not exist can have any name.
        if found && newest.pages.len() < MOST_PAGES {
            newest.pages.insert(slot, rendered.clone());
        }
        rendered
    }

    /// The node at this moment.
    pub(super) fn node(&self, now: &Now, is_whole: bool) -> Arc<NodeView> {
        let known = {
            let newest = lock(&self.newest);
            newest.nodes[usize::from(is_whole)]
                .clone()
                .filter(|_| newest.frame.is_some() && newest.frame == now.key())
        };
        known.unwrap_or_else(|| Arc::new(self.view(now, is_whole)))
    }

    fn view(&self, now: &Now, is_whole: bool) -> NodeView {
        let recorder = self.recorder();
        let situation = Situation {
            host_name: self.host_name.as_deref(),
            age_seconds: now.age.as_secs_f64(),
            stale_after: now.stale_after.as_secs_f64(),
            last_holders: Some(&recorder.last_holders),
            viewer: if is_whole { Viewer::All } else { Viewer::Stranger },
        };
        NodeView::of(now.frame.as_deref(), &situation)
    }
}

fn finished(body: Bytes, found: bool, json: bool, gzip: bool) -> Answer {
    let kind = if json { "application/json" } else { "text/html; charset=utf-8" };
    let status = if found { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let answer = Answer::page(kind, body)
        .with_status(status)
        .with(header::CONTENT_SECURITY_POLICY, page::CONTENT_SECURITY_POLICY)
        .with(header::REFERRER_POLICY, "no-referrer")
        .with(header::CACHE_CONTROL, "no-store")
        .with(header::VARY, "Accept-Encoding");
    if gzip { answer.with(header::CONTENT_ENCODING, "gzip") } else { answer }
}

/// Reads the incidents that a view shows; `known` is whether the client is authenticated. May block on a disk.
pub(super) fn incidents_for(store: Option<&dyn Incidents>, view: &View, known: bool) -> IncidentsShown {
    if !known {
        return IncidentsShown::Refused;
    }
    match view {
        View::Incident(id) => match store.map(|store| store.file(id, RECORD)) {
            Some(Ok(record)) => match serde_json::from_slice::<Incident>(&record) {
                Ok(incident) => IncidentsShown::Record(Some(Box::new(incident))),
                Err(error) => {
                    tracing::warn!(%error, "The record of an incident is damaged.");
                    IncidentsShown::Unreadable
                }
            },
            Some(Err(IncidentError::Io { source, .. })) if source.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%source, "An incident cannot be read.");
                IncidentsShown::Unreadable
            }
            Some(Err(_)) | None => IncidentsShown::Record(None),
        },
        _ => match store.map(incidents::entries) {
            Some(Ok(entries)) => IncidentsShown::List(entries),
            Some(Err(error)) => {
                tracing::warn!(%error, "The incidents cannot be read.");
                IncidentsShown::Unreadable
            }
            None => IncidentsShown::List(Vec::new()),
        },
    }
}
