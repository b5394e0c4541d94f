//! Memory protection: what decides whether a job is ended.
//!
//! [`options`](mod@options) configure it, [`policy`] decides when to act, [`plan`] on which processes and in which steps; [`types`]
//! has the types that all of them share. Pure: observations and the time are arguments. The program reads the
//! observations and carries out the steps.

pub mod types;

pub mod policy;

pub mod options;
pub mod plan;

use memwarden_model::{self as model, choice, options, words};
