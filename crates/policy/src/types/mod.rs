//! The types that deciding, enforcing and recording share. Pure data.

pub mod alert;
pub mod audit;
pub mod hostlist;
pub mod incident;
pub mod incidents;
pub mod marker;
pub mod reason;
pub mod run_request;
pub mod rung;
pub mod scope;
mod service_address;
pub mod step;
mod step_error;
pub mod summary;
mod touched;
