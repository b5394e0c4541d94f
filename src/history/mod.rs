//! Bounded histories for display: the recent past of the node's series, and rolling peaks.

pub mod peaks;
pub mod recent;
pub mod rings;
