//! A reader of pickles that executes nothing and uses a bounded amount of memory.
//!
//! Only the opcodes that build plain data are implemented, so there is no code path from a file to a call. Values are
//! stored in one arena and refer to each other by number. A value is never copied, so cycles and "billion laughs" take
//! memory in proportion to their bytes. Nothing recurses.

mod arena;
mod budget;
mod error;
mod machine;
mod opcode;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub use arena::{Arena, Id, Items, Pairs, Value};
pub(crate) use budget::bytes_of;
pub use budget::{Budget, Limits, OverBudget};
pub use error::{PickleError, Problem};
pub use machine::read;
