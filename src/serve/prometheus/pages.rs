//! The rendered forms of the newest frame, each made once and shared by all scrapers.
//!
//! The first that asks renders, those that ask meanwhile wait for it. What a
//! scraper is expected to ask for is rendered when the frame comes, so that
//! it finds it ready. A large frame is rendered on a thread for blocking work,
//! so that it does not hold up other connections.

use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::OnceCell;

use super::encode::{self, Format};
use super::negotiate::Encoding;
use crate::model::frame::Frame;
use crate::model::lock::lock;
use crate::serve::json;

/// Below this many series, rendering takes less than handing it to another thread and back is worth.
const LARGE: usize = 3_000;

/// What a frame is rendered as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// One of the formats of `/metrics`.
    Metrics(Format),
    /// The JSON of `/api/v1/frame`.
    Json,
    /// The JSON of `/api/v1/findings`.
    Findings,
}

impl Form {
    const ALL: [Self; 4] =
        [Self::Metrics(Format::Text), Self::Metrics(Format::OpenMetrics), Self::Json, Self::Findings];

    /// The Content-Type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Metrics(format) => format.content_type(),
            Self::Json | Self::Findings => "application/json",
        }
    }

    const fn place(self) -> usize {
        match self {
            Self::Metrics(Format::Text) => 0,
            Self::Metrics(Format::OpenMetrics) => 1,
            Self::Json => 2,
            Self::Findings => 3,
        }
    }

    fn render(self, frame: &Frame) -> Bytes {
        match self {
            Self::Metrics(format) => encode::encode(&frame.families, format).into(),
            Self::Json => json::encode(frame).into(),
            Self::Findings => json::findings(frame).into(),
        }
    }
}

/// A frame could not be rendered: the renderer panicked, which is a defect.
#[derive(Debug, thiserror::Error)]
#[error("cannot render the frame")]
pub struct RenderError;

/// Keeps the forms of the newest frame.
#[derive(Debug, Default)]
pub struct Pages {
    newest: Mutex<Newest>,
}

#[derive(Debug, Default)]
struct Newest {
    rendered: Option<Arc<Rendered>>,
    /// Frames that came so far.
    frames: u64,
    /// By the place of the form, without and with gzip.
    demand: [[Demand; 2]; 4],
}

/// When one form was asked for, counted in frames.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    last: u64,
    /// Frames between the last two that were asked for; 0 where there were none.
    period: u64,
}

impl Demand {
    fn asked(&mut self, frame: u64) {
        if frame > self.last {
            self.period = if self.last == 0 { 0 } else { frame - self.last };
            self.last = frame;
        }
    }

    /// Whether a scraper that keeps its period asks for this frame, or asked a little early last time.
    fn expects(self, frame: u64) -> bool {
        self.period > 0 && (self.period..=self.period + 1).contains(&frame.saturating_sub(self.last))
    }
}

#[derive(Debug)]
struct Rendered {
    /// Weak, so that a frame nobody looks at is not kept, nor freed in the middle of a scrape;
    /// its address cannot be another frame's as long as this is here.
    frame: Weak<Frame>,
    plain: [OnceCell<Bytes>; 4],
    gzip: [OnceCell<Bytes>; 4],
}

impl Pages {
    /// Nothing rendered yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The body of `frame` in this form and encoding.
    ///
    /// # Errors
    /// [`RenderError`]; the next to ask tries again.
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
            newest.of(frame)
        };
        rendered.get(frame, form, encoding).await
    }

    /// A new frame has come: renders what somebody is expected to ask for.
    pub async fn prepare(&self, frame: &Arc<Frame>) {
        let (rendered, expected) = {
            let mut newest = self.newest();
            newest.frames += 1;
            let frames = newest.frames;
            (newest.of(frame), newest.demand.map(|forms| forms.map(|demand| demand.expects(frames))))
        };
        for form in Form::ALL {
            let [plain, gzip] = expected[form.place()];
            let encodings = [(plain, Encoding::Identity), (gzip, Encoding::Gzip)];
            for (_, encoding) in encodings.into_iter().filter(|(expected, _)| *expected) {
                // Who asks for it tries again, and is told.
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
            let frame = Arc::clone(frame);
            work(frame.series() >= LARGE, move || form.render(&frame))
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
    /// The forms of `frame`; a new frame takes the place of the one before.
    fn of(&mut self, frame: &Arc<Frame>) -> Arc<Rendered> {
        match &self.rendered {
            // By identity, not by number: after a restart of the engine numbers may repeat.
            Some(rendered) if std::ptr::eq(rendered.frame.as_ptr(), Arc::as_ptr(frame)) => {
                Arc::clone(rendered)
            }
            _ => {
                let rendered = Arc::new(Rendered {
                    frame: Arc::downgrade(frame),
                    plain: Default::default(),
                    gzip: Default::default(),
                });
                self.rendered = Some(Arc::clone(&rendered));
                rendered
            }
        }
    }
}

/// Runs `job` here, or on a thread for blocking work where it is `large`.
async fn work(large: bool, job: impl FnOnce() -> Bytes + Send + 'static) -> Result<Bytes, RenderError> {
    if large { tokio::task::spawn_blocking(job).await.map_err(|_| RenderError) } else { Ok(job()) }
}

fn compress(plain: &[u8]) -> Bytes {
    /// Label sets repeat from line to line; text of metrics shrinks to less than this share.
    const SHARE: usize = 8;
    // The fastest level: on 10,000 series the next takes eight times as long for a twentieth less.
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
        let pages = Arc::new(Pages::new());
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
        let pages = Pages::new();
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
    async fn a_new_frame_is_rendered_anew() {
        let pages = Pages::new();
        let form = Form::Metrics(Format::Text);
        let first = pages.get(&frames::large(1, 3), form, Encoding::Identity).await.unwrap();
        let second = pages.get(&frames::large(1, 4), form, Encoding::Identity).await.unwrap();
        assert_ne!(first, second);
    }
}
