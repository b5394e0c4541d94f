//! Memory protection: what is done when memory runs out, to whom, and the record of it.
//!
//! [`options`] say what may happen, [`policy`] decides when, [`plan`] to whom
//! and in which steps; these are pure: what is observed, and the time, are
//! arguments. [`guard`] is the thread that runs them. [`enforce`] is the only
//! code that signals, kills, freezes or starts a hook, and checks each process
//! itself immediately before. [`record`] has the audit log and the incidents.
//! [`words`] are the types that all of them share.

pub mod words;

pub mod policy;

pub mod options;
pub mod plan;

pub mod enforce;
pub mod record;

pub mod guard;

pub mod metrics;
pub mod status;
