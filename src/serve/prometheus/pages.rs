//! The rendered forms of the newest frame, each rendered once and shared by all scrapers.
//!
//! The first request renders a form, concurrent requests wait for it. A form that a scraper is expected to request is
//! rendered when the frame arrives, so that it is ready. A large frame is rendered on a thread for blocking work, so
//! that it does not delay other connections.

use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::OnceCell;

use super::dcgm::Dcgm;
use super::encode::{self, Format};
use super::negotiate::Encoding;
use crate::config::Compatibility;
use crate::model::frame::Frame;
use crate::model::lock::lock;
use crate::serve::json;

/// Below this many series, rendering is cheaper than a switch to another thread.
const LARGE: usize = 3_000;

/// Form that a frame is rendered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    Metrics(Format),
    /// The JSON of `/api/v1/frame`.
    Json,
    /// The JSON of `/api/v1/findings`.
    Findings,
}

impl Form {
    const ALL: [Self; 4] =
        [Self::Metrics(Format::Text), Self::Metrics(Format::OpenMetrics), Self::Json, Self::Findings];

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Metrics(format) => format.content_type(),
            Self::Json | Self::Findings => "application/json",
        }
    }

    /// Its place in [`Self::ALL`].
    fn place(self) -> usize {
        Self::ALL.iter().position(|own| *own == self).unwrap_or_default()
    }

    fn render(self, frame: &Frame, dcgm: Option<&Dcgm>) -> Bytes {
        match self {
            Self::Metrics(format) => encode::encode_with(&frame.families, format, |out| {
                if let Some(dcgm) = dcgm {
                    dcgm.write(&frame.families, format, out);
                }
            })
            .into(),
            Self::Json => json::encode(frame).into(),
            Self::Findings => json::findings(frame).into(),
        }
    }
}

/// A frame could not be rendered: the renderer panicked, which is a defect.
#[derive(Debug, thiserror::Error)]
#[error("cannot render the frame")]
pub struct RenderError;

/// Caches the forms of the newest frame.
#[derive(Debug, Default)]
pub struct Pages {
    newest: Mutex<Newest>,
    /// The names of dcgm-exporter, if `/metrics` has them too.
    dcgm: Option<Arc<Dcgm>>,
}

#[derive(Debug, Default)]
struct Newest {
    rendered: Option<Arc<Rendered>>,
    /// Number of frames so far.
    frames: u64,
    /// By index of the form, without and with gzip.
    demand: [[Demand; 2]; 4],
}

/// When one form was last requested, counted in frames.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    last: u64,
    /// Frames between the last two requests; 0 before the second.
    period: u64,
}

impl Demand {
    fn asked(&mut self, frame: u64) {
        if frame > self.last {
            self.period = if self.last == 0 { 0 } else { frame - self.last };
            self.last = frame;
        }
    }

    /// Whether a scraper with a constant period requests this frame, or requested slightly early the last time.
    fn expects(self, frame: u64) -> bool {
        self.period > 0 && (self.period..=self.period + 1).contains(&frame.saturating_sub(self.last))
    }
}

#[derive(Debug)]
struct Rendered {
    /// Weak, so that an unused frame is neither kept nor freed in the middle of a scrape; no other frame can have its
    /// address while this exists.
    frame: Weak<Frame>,
    plain: [OnceCell<Bytes>; 4],
    gzip: [OnceCell<Bytes>; 4],
    dcgm: Option<Arc<Dcgm>>,
}

impl Pages {
    /// An empty cache of forms in which `/metrics` also has these names of other exporters.
    pub fn with_names(names: Compatibility, host_name: Option<&str>) -> Self {
        Self { dcgm: names.dcgm.then(|| Arc::new(Dcgm::new(host_name))), ..Self::default() }
    }

    /// The body of `frame` in this form and encoding.
    ///
    /// # Errors
    /// [`RenderError`]; the next request tries again.
    pub async fn get(
        &self,
        frame: &Arc<Frame>,
        form: Form,
        encoding: Encoding,
    ) -> Result<Bytes, RenderError> {
        let rendered = {
            let mut newest = self.newest();
            let frames = newest.frames;
            newest.demand[form.place()][usize::from(encoding == Encoding::Gzip)].asked(frames);
            newest.of(frame, self.dcgm.as_ref())
        };
        rendered.get(frame, form, encoding).await
    }

    /// Renders the forms of a new frame that are expected to be requested.
    pub async fn prepare(&self, frame: &Arc<Frame>) {
        let (rendered, expected) = {
            let mut newest = self.newest();
            newest.frames += 1;
            let frames = newest.frames;
            (
                newest.of(frame, self.dcgm.as_ref()),
                newest.demand.map(|forms| forms.map(|demand| demand.expects(frames))),
            )
        };
        for form in Form::ALL {
            let [plain, gzip] = expected[form.place()];
            let encodings = [(plain, Encoding::Identity), (gzip, Encoding::Gzip)];
            for (_, encoding) in encodings.into_iter().filter(|(expected, _)| *expected) {
                // A request for this form tries again and gets the error.
                let _ = rendered.get(frame, form, encoding).await;
            }
        }
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        lock(&self.newest)
    }
}

impl Rendered {
    async fn get(&self, frame: &Arc<Frame>, form: Form, encoding: Encoding) -> Result<Bytes, RenderError> {
        let plain = self.plain[form.place()].get_or_try_init(|| {
            let (frame, dcgm) = (Arc::clone(frame), self.dcgm.clone());
            work(frame.series() >= LARGE, move || form.render(&frame, dcgm.as_deref()))
        });
        let plain = plain.await?.clone();
        if encoding == Encoding::Identity {
            return Ok(plain);
        }
        let gzip = self.gzip[form.place()]
            .get_or_try_init(|| work(frame.series() >= LARGE, move || compress(&plain)));
        Ok(gzip.await?.clone())
    }
}

impl Newest {
    /// The forms of `frame`; a new frame replaces the previous one.
    fn of(&mut self, frame: &Arc<Frame>, dcgm: Option<&Arc<Dcgm>>) -> Arc<Rendered> {
        match &self.rendered {
            // Compared by identity, not by number: numbers may repeat after a restart of the engine.
            Some(rendered) if std::ptr::eq(rendered.frame.as_ptr(), Arc::as_ptr(frame)) => {
                Arc::clone(rendered)
            }
            _ => {
                let rendered = Arc::new(Rendered {
                    frame: Arc::downgrade(frame),
                    plain: Default::default(),
                    gzip: Default::default(),
                    dcgm: dcgm.cloned(),
                });
                self.rendered = Some(Arc::clone(&rendered));
                rendered
            }
        }
    }
}

/// Runs `job` on this thread, or on a thread for blocking work if it is `large`.
async fn work(large: bool, job: impl FnOnce() -> Bytes + Send + 'static) -> Result<Bytes, RenderError> {
    if large { tokio::task::spawn_blocking(job).await.map_err(|_| RenderError) } else { Ok(job()) }
}

/// Compresses a body with gzip.
pub fn compress(plain: &[u8]) -> Bytes {
    /// Label sets repeat from line to line; the text of metrics is compressed to less than 1/8.
    const SHARE: usize = 8;
    // The fastest level: for 10,000 series the next level takes eight times as long and saves 5 %.
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / SHARE), Compression::fast());
    let written = encoder.write_all(plain).and_then(|()| encoder.finish());
    written.expect("writing to memory cannot fail").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::tests::frames;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn concurrent_scrapers_share_one_rendering() {
        let pages = Arc::new(Pages::default());
        let frame = frames::large(1, 5_000);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (pages, frame) = (Arc::clone(&pages), Arc::clone(&frame));
            tasks.spawn(async move {
                pages.get(&frame, Form::Metrics(Format::Text), Encoding::Gzip).await.unwrap().as_ptr().addr()
            });
        }
        let addresses: std::collections::HashSet<usize> = tasks.join_all().await.into_iter().collect();
        assert_eq!(addresses.len(), 1, "one buffer for all");
    }

    #[tokio::test]
    async fn what_a_scraper_will_ask_for_is_ready_before_it_asks() {
        let pages = Pages::default();
        let (form, encoding) = (Form::Metrics(Format::OpenMetrics), Encoding::Gzip);
        let mut ready = Vec::new();
        for second in 1..=14 {
            let frame = frames::large(second, 3);
            pages.prepare(&frame).await;
            let rendered = pages.newest().rendered.clone().unwrap();
            assert!(rendered.gzip[Form::Json.place()].get().is_none(), "nobody asks for it");
            if rendered.gzip[form.place()].get().is_some() {
                ready.push(second);
            }
            // Every third second, and from the tenth on no more.
            if second % 3 == 1 && second < 10 {
                pages.get(&frame, form, encoding).await.unwrap();
            }
        }
        assert_eq!(ready, [7, 10, 11]);
    }

    #[tokio::test]
    async fn a_new_frame_is_rendered_again() {
        let pages = Pages::default();
        let form = Form::Metrics(Format::Text);
        let first = pages.get(&frames::large(1, 3), form, Encoding::Identity).await.unwrap();
        let second = pages.get(&frames::large(1, 4), form, Encoding::Identity).await.unwrap();
        assert_ne!(first, second);
    }
}
