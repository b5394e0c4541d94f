//! When memory runs out, what is done about it, and to whom: decided here, done in `host`.
//!
//! [`policy`] decides from what is observed; everything here is pure.

pub mod policy;
