//! The types that deciding, enforcing and recording share. Pure data.

pub mod audit;
pub mod incident;
pub mod scope;
pub mod step;
