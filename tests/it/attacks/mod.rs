//! Attacks of an unprivileged user of the node, run against the binary as such a user would.
//!
//! Each needs root, to become that user; where it is missing the test says that it was skipped.

mod connections;
mod files;
mod flood;
mod guard;
mod identity;
mod limits;
mod load;
mod people;
mod runs;
mod sampler;
mod served;
