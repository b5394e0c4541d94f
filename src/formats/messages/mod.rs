//! What a training process tells over the job socket, a line at a time.
//!
//! The protocol is written down in `clients/PROTOCOL.md`. Bytes in, a typed
//! [`Message`] or a [`Problem`] that names the key out. What is not understood
//! is ignored, what is missing or `null` is unknown, and every text, list and
//! map is bounded.

mod bodies;
mod fields;
mod scalar;

pub use bodies::{
    Body, Bye, Checkpoint, DeviceMemory, DeviceName, Event, Hello, Mem, Model, Oom, Params, Phase, Step,
};
pub use scalar::{Measure, Recompute, SaveState, Turn};

/// The version of the protocol that is understood here.
pub const VERSION: u64 = 1;

/// The longest line, in bytes, the newline included.
pub const LONGEST: usize = 65_536;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// When it happened, in seconds since 1970 by the sender's clock; absent where the time of arrival counts.
    pub t: Option<f64>,
    /// Lines that the sender could not send, in all.
    pub dropped: Option<u64>,
    /// What it says.
    pub body: Body,
}

/// Why a line says nothing.
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
    /// A key whose value is missing or not what the protocol says.
    #[error("`{key}` {why}")]
    Key {
        /// The key, with the one it is in: `devices.allocated`.
        key: String,
        /// What is wrong with it.
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

/// Reads one line, with or without its newline.
///
/// # Errors
/// What is wrong with it; the next line is not concerned.
pub fn parse(line: &[u8]) -> Result<Message, Problem> {
    if line.len() > LONGEST {
        return Err(Problem::TooLong(line.len()));
    }
    let text = std::str::from_utf8(line).map_err(|error| Problem::Encoding(error.valid_up_to()))?;
    fields::object(text)
}

#[cfg(test)]
mod tests;
