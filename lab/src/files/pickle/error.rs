//! Errors of pickles, with their location.

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
    pub problem: Problem,
}

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
        /// The apparent file format; empty where unknown.
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
    /// A byte that is not an operation in any protocol.
    #[error("unknown pickle operation")]
    Unknown,
    /// The operation takes a value, and there is none above the last MARK.
    #[error("takes a value from an empty stack")]
    NothingThere,
    /// The operation needs a MARK, and there is none.
    #[error("no container is open")]
    NoMark,
    /// The operation adds to something that is not a container of its kind.
    #[error("adds to a value that is not of type {0}")]
    NotA(&'static str),
    /// A dictionary gets a key without a value.
    #[error("dictionary key without a value")]
    OddItems,
    /// A reference to a memo entry that does not exist.
    #[error("refers to memo entry {0}, which does not exist")]
    Forgotten(u32),
    /// A memo entry with a number above the possible number of values in the file.
    #[error("stores memo entry {0}, which exceeds the number of values in the file")]
    MemoAhead(u32),
    /// An integer of more than 64 bits.
    #[error("an integer of more than 64 bits")]
    LongInteger,
    /// A bound of [`super::Limits`] other than memory.
    #[error("more than {limit} {what}")]
    Limit {
        /// The limited quantity.
        what: &'static str,
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
