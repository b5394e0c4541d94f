//! Tests of pushing with in-process collectors of both transports.

mod collector;
mod conventions;
mod failures;
mod logs;
mod names;
mod secure;
mod settings;
mod values;
mod world;
