//! The types that deciding, enforcing and recording share. Pure data.

pub mod alert;
pub mod audit;
pub mod hostlist;
pub mod incident;
pub mod incidents;
pub mod marker;
mod place;
pub mod run_request;
pub mod rung;
pub mod scope;
pub mod step;
mod step_error;
