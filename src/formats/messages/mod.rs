//! Messages that a training process sends over the job socket, one per line.
//!
//! The protocol is documented in `clients/PROTOCOL.md`. Bytes in, a typed [`Message`] or a [`Problem`] that names the
//! key out. Unknown keys are ignored, a missing or `null` value is unknown, and every text, list and map is bounded.

mod bodies;
mod values;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use values::{object, plain, real, whole};

pub use bodies::{
    Body, Bye, Checkpoint, DeviceMemory, DeviceName, Event, Evidence, Grown, Hello, Mem, Model, Oom, Params,
    Phase, Prediction, Size, Step,
};
pub use values::{Measure, Turn};

/// Maximum length of a line in bytes, including the newline.
pub const LONGEST: usize = 65_536;

/// Maximum length of a key or a cause in an error, in characters.
const CAUSE: usize = 160;

#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Time of the message in seconds since 1970, by the sender's clock; absent where the time of receipt applies.
    pub t: Option<f64>,
    /// Total number of lines that the sender dropped.
    pub dropped: Option<u64>,
    pub body: Body,
}

/// Why a line is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// More than [`LONGEST`] bytes.
    #[error("a line of {0} bytes is longer than {LONGEST}")]
    TooLong(usize),
    /// Not UTF-8.
    #[error("byte {0} of the line is not UTF-8")]
    Encoding(usize),
    /// Not one JSON object.
    #[error("the line is not a JSON object: {0}")]
    Json(String),
    /// A key whose value is missing or does not conform to the protocol.
    #[error("`{key}` {why}")]
    Key {
        /// The key, with the keys that contain it: `devices.0.allocated`.
        key: String,
        why: String,
    },
}

impl Problem {
    /// The value of the `kind` label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::TooLong(_) => "length",
            Self::Encoding(_) => "encoding",
            Self::Json(_) => "json",
            Self::Key { .. } => "key",
        }
    }
}

/// Parses one line, with or without its newline.
///
/// # Errors
/// [`Problem`]; the next line can still be parsed.
pub fn parse(line: &[u8]) -> Result<Message, Problem> {
    if line.len() > LONGEST {
        return Err(Problem::TooLong(line.len()));
    }
    let text = std::str::from_utf8(line).map_err(|error| Problem::Encoding(error.valid_up_to()))?;
    let Envelope { kind, t, dropped } = read(text)?;
    let body = Body::read(&kind.ok_or_else(|| missing("type"))?, text)?;
    match &body {
        Body::Hello(hello) if hello.v.is_none() => Err(missing("v")),
        Body::Step(step) if step.step.is_none() => Err(missing("step")),
        Body::Phase(phase) if phase.name.is_none() => Err(missing("name")),
        Body::Phase(phase) if phase.state.is_none() => Err(missing("state")),
        Body::Event(event) if event.name.is_none() => Err(missing("name")),
        Body::Checkpoint(checkpoint) if checkpoint.state.is_none() => Err(missing("state")),
        Body::Prediction(prediction) => match prediction.defect() {
            Some(problem) => Err(problem),
            None => Ok(Message { t, dropped, body }),
        },
        _ => Ok(Message { t, dropped, body }),
    }
}

/// The keys that every message may have.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Envelope {
    #[serde(rename = "type", deserialize_with = "plain")]
    kind: Option<String>,
    #[serde(deserialize_with = "real")]
    t: Option<f64>,
    #[serde(deserialize_with = "whole")]
    dropped: Option<u64>,
}

fn missing(key: &str) -> Problem {
    Problem::Key { key: key.to_owned(), why: "is missing".to_owned() }
}

/// Reads the keys of `T`, and ignores the others.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut from = serde_json::Deserializer::from_str(text);
    match object(&mut from).and_then(|found| from.end().map(|()| found)) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Problem::Json("it is null".to_owned())),
        Err(error) => Err(problem::<T>(&error, text)),
    }
}

/// The cause without its position, which is of no use. A line is read a second time for the key of its error only if it
/// has one.
fn problem<T: DeserializeOwned>(error: &serde_json::Error, text: &str) -> Problem {
    let cause = error.to_string();
    let why = short(cause.rsplit_once(" at line ").map_or(&*cause, |(why, _)| why));
    let mut track = serde_path_to_error::Track::new();
    let mut from = serde_json::Deserializer::from_str(text);
    let again = object::<_, T>(serde_path_to_error::Deserializer::new(&mut from, &mut track));
    match track.path() {
        path if error.is_data() && again.is_err() && path.iter().len() > 0 => {
            Problem::Key { key: short(&path.to_string()), why }
        }
        _ => Problem::Json(why),
    }
}

/// A text that may quote the input, with a bounded length and without control characters.
fn short(text: &str) -> String {
    let kept: String =
        text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).take(CAUSE).collect();
    if kept.len() < text.len() { kept + "…" } else { kept }
}

#[cfg(test)]
mod tests;
