//! Messages that a training process sends over the job socket, one per line.
//!
//! The protocol is documented in `clients/PROTOCOL.md`. Bytes in, a typed [`Message`] or a [`Problem`] that names the
//! key out. Unknown keys are ignored, a missing or `null` value is unknown, and every text, list and map is bounded.

mod bodies;
mod fields;
mod scalar;

pub use bodies::{
    Body, Bye, Checkpoint, DeviceMemory, DeviceName, Event, Hello, Mem, Model, Oom, Params, Phase, Step,
};
pub use scalar::{Measure, Recompute, SaveState, Turn};

/// The supported version of the protocol.
pub const VERSION: u64 = 1;

/// Maximum length of a line in bytes, including the newline.
pub const LONGEST: usize = 65_536;

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
        /// The key, with the key that contains it: `devices.allocated`.
        key: String,
        why: String,
    },
}

impl Problem {
    /// Every kind, so that their counters start at zero.
    pub const KINDS: [&'static str; 4] = ["length", "encoding", "json", "key"];

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
    fields::object(text)
}

#[cfg(test)]
mod tests;
