//! Tests of the whole: tables, shipped files, and the binary as a user runs it.

#![expect(
    clippy::unwrap_used,
    clippy::tests_outside_test_module,
    clippy::print_stdout,
    reason = "the whole crate is tests"
)]

mod analyzers;
mod attacks;
mod check;
mod config;
mod daemon;
mod database;
mod demo;
mod dist;
mod docs;
mod doctor;
mod ends;
mod example;
mod failures;
mod fit_gpu;
mod gpu;
mod gpu_run;
mod harness;
mod hooks;
mod incidents;
mod kubernetes;
mod lab;
mod layers;
mod logs;
mod ml_py;
mod msrv;
mod otlp;
mod otlp_backends;
mod otlp_parity;
mod pages;
mod past_runs;
mod perf_logs;
mod plot;
mod prometheus;
mod protection;
mod real_nvml;
mod receiver;
mod report;
mod revision;
mod runs;
mod shipped;
mod skip;
mod slurm;
mod snapshot;
mod tables;
mod terminal;
mod tmux;
mod top;
mod training;
mod training_job;
mod unit;
mod unseen;
mod upgrade;
mod what_if;
mod zoo;

/// The folder of the sources.
const TREE: &str = env!("CARGO_MANIFEST_DIR");
