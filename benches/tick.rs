//! Cost of one tick and one encoding, on fixed input.
//!
//! `cargo bench --bench tick -- 20` runs 20 ticks on a node with 2,000 processes, `-- encode 20` encodes 10,000 series
//! 20 times. The sources of GPUs and of training jobs are off. `benches/instructions` counts the instructions of both.
#![expect(clippy::print_stdout, reason = "a bench prints its result")]

mod node;
mod series;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use memwarden::engine::{EVERYTHING, Engine};
use memwarden::events::Events;
use memwarden::model::frame::Frame;
use memwarden::model::point::Family;
use memwarden::model::source::Status;
use memwarden::model::time::Timestamp;
use memwarden::serve::prometheus::{Format, encode};
use memwarden::sources::Context;
use memwarden::{app, config, host};
use node::Node;
use rustix::time::{ClockId, clock_gettime};

fn main() -> anyhow::Result<()> {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|text| !text.starts_with("--")).collect();
    let (encodes, count) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (false, "20"),
        ["encode"] => (true, "20"),
        ["encode", count] => (true, count),
        [count] => (false, count),
        _ => anyhow::bail!("usage: tick [encode] [COUNT]"),
    };
    let count: u32 = count.parse().context("COUNT is a number")?;
    ensure!(count > 0, "COUNT is at least 1");
    if encodes {
        encoding(count);
        Ok(())
    } else {
        ticks(count)
    }
}

fn ticks(count: u32) -> anyhow::Result<()> {
    let node = Node::new().context("cannot write the fixture")?;
    host::process::descriptor_limit();
    let text = "sources: {gpu: {enabled: false}, training: {enabled: false}}";
    let config = config::parse_str(text, Path::new("bench.yaml"), &app::schema(), &[])?;
    let context = Context {
        roots: Arc::new(node.roots()),
        worker: None,
        checkpoints: Arc::default(),
        past_runs: Arc::default(),
    };
    let mut engine = Engine::new(EVERYTHING, &config, context, Arc::new(Events::new()));
    let (mut first, mut rest, mut series) = (Duration::ZERO, Duration::ZERO, 0);
    for second in 1..=u64::from(count) {
        node.work(second).context("cannot write the fixture")?;
        let begun = cpu();
        let frame = tick(&mut engine, Timestamp::from_secs(second));
        let took = cpu().saturating_sub(begun);
        if second == 1 {
            first = took;
        } else {
            rest += took;
        }
        check(&frame)?;
        series = frame.series();
    }
    let each = rest / (count - 1).max(1);
    println!("processes {}, series {series}", node::PROCESSES);
    println!("first tick {:.3} ms of CPU", 1e3 * first.as_secs_f64());
    println!("each of the next {} {:.3} ms of CPU", count - 1, 1e3 * each.as_secs_f64());
    Ok(())
}

/// A failing source would make a tick cheap. Logs and snapshots are unavailable because the configuration names none;
/// Kubernetes, Slurm and drm until their threads have looked for a kubelet, a slurmstepd and GPUs.
fn check(frame: &Frame) -> anyhow::Result<()> {
    for report in &frame.sources {
        let why = report.why.as_deref().unwrap_or_default();
        let unused = ["logs", "snapshots", "kubernetes", "slurm", "drm"].contains(&report.source)
            && report.status == Status::Unavailable;
        ensure!(unused || report.status == Status::Ok, "{} is {:?}: {why}", report.source, report.status);
    }
    Ok(())
}

fn encoding(count: u32) {
    let families = series::families();
    let (begun, mut length) = (cpu(), 0);
    for _ in 0..count {
        length = encode_once(&families).len();
    }
    let took = cpu().saturating_sub(begun) / count;
    let series: usize = families.iter().map(|family| family.points.len()).sum();
    println!("series {series}, bytes {length}, {:.3} ms of CPU an encoding", 1e3 * took.as_secs_f64());
}

/// callgrind counts between entry and exit of this function.
#[inline(never)]
fn tick(engine: &mut Engine, at: Timestamp) -> Arc<Frame> {
    let frame = engine.tick(at);
    // A statement after the call: a call in tail position is a jump, whose end callgrind does not detect.
    black_box(&frame);
    frame
}

/// callgrind counts between entry and exit of this function.
#[inline(never)]
fn encode_once(families: &[Family]) -> String {
    let text = encode(families, Format::OpenMetrics);
    black_box(&text);
    text
}

/// User and system time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
