//! What the crates leave out of their results, noted while a push runs.
//!
//! opentelemetry-otlp tells a partial success over gRPC only in a log event
//! of its own. A subscriber set for the time of the poll reads it there, and
//! keeps the other events of the crates out of the daemon's log.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// The last remark about the push that runs now.
#[derive(Clone, Debug, Default)]
pub(super) struct Remark(Arc<Mutex<Option<String>>>);

impl Remark {
    pub(super) fn set(&self, text: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The collector took the push but for some points.
    pub(super) fn partial(&self, rejected: &str, message: &str) {
        self.set(Some(format!("the collector refused {rejected} points of the push: {message}")));
    }

    /// A subscriber that notes partial successes here.
    pub(super) fn listener(&self) -> Dispatch {
        Dispatch::new(Listener(self.clone()))
    }
}

struct Listener(Remark);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.name().ends_with(".PartialSuccess")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(Level::WARN.into())
    }

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        self.0.partial(&words.rejected, &words.message);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Words {
    rejected: String,
    message: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "rejected_data_points" => self.rejected = format!("{value:?}"),
            "error_message" => self.message = format!("{value:?}"),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "error_message" {
            self.message = value.chars().filter(|character| !character.is_control()).take(200).collect();
        }
    }
}
