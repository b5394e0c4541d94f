//! The terminal UI: the node's view model, or a cluster, as a screen of a terminal.
//!
//! Tables, sheets and severity come from [`crate::node_view`] and [`crate::cluster`]. [`State`] changes with data and keys;
//! [`draw()`] writes it into a buffer of cells. Pure: the time and the data go in.

mod data;
mod details;
mod draw;
mod keys;
mod state;
#[cfg(test)]
pub(crate) mod tests;

pub use data::{Data, NodeData, Past, Update};
pub use draw::{Look, draw};
pub use state::{Kind, State};
