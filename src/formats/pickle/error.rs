//! Why a pickle was not read, and where.

use std::fmt;

use super::budget::OverBudget;
use super::opcode;

/// A pickle that could not be read: the byte and the operation where reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickleError {
    /// The offset of the operation, in bytes from the start of the file.
    pub offset: usize,
    /// The operation's code, where one was read.
    pub opcode: Option<u8>,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What can be wrong with a pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file is larger than [`super::Limits`] allow.
    #[error("the file has {len} bytes, and at most {limit} are read")]
    FileTooLarge {
        /// Its size, in bytes.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file does not start as a pickle of protocol 2 to 5.
    #[error("not a pickle of protocol 2 to 5{hint}")]
    NotPickle {
        /// What it seems to be instead; empty where nothing is recognized.
        hint: &'static str,
    },
    /// The protocol is not one of 2 to 5.
    #[error("pickle protocol {0}, and only 2 to 5 are read")]
    Protocol(u8),
    /// The file ends inside the operation, or before STOP.
    #[error("the file ends here; it was cut off")]
    CutOff,
    /// An operation that does more than build plain data.
    #[error("refused: it does more than build plain data, and nothing in a pickle is ever executed")]
    Refused,
    /// A byte that no protocol has as an operation.
    #[error("no pickle operation")]
    Unknown,
    /// The operation takes a value, and there is none since the last MARK.
    #[error("takes a value where there is none")]
    NothingThere,
    /// The operation needs a MARK, and there is none.
    #[error("no container is open")]
    NoMark,
    /// The operation adds to something that is not a container of its kind.
    #[error("adds to something that is no {0}")]
    NotA(&'static str),
    /// A dictionary gets a key without a value.
    #[error("a key without a value")]
    OddItems,
    /// A reference to something that was not remembered.
    #[error("refers to value {0}, which was never remembered")]
    Forgotten(u32),
    /// A value is remembered under a number far beyond what the file can hold.
    #[error("remembers a value as number {0}, before the file can have had as many")]
    MemoAhead(u32),
    /// A name of a class or function that is no text.
    #[error("names a class or function by something that is no text")]
    NoName,
    /// An integer of more than 64 bits.
    #[error("an integer of more than 64 bits")]
    LongInteger,
    /// A bound of [`super::Limits`] other than memory.
    #[error("more than {limit} {what}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much is allowed.
        limit: usize,
    },
    /// The bound on memory.
    #[error(transparent)]
    Memory(#[from] OverBudget),
}

impl fmt::Display for PickleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}", self.offset)?;
        match self.opcode {
            Some(code) => match opcode::name(code) {
                Some(name) => write!(f, " ({name}): {}", self.problem),
                None => write!(f, " (0x{code:02x}): {}", self.problem),
            },
            None => write!(f, ": {}", self.problem),
        }
    }
}

impl std::error::Error for PickleError {}
