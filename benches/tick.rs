//! What one tick and one encoding cost, on fixed input.
//!
//! `cargo bench --bench tick -- 20` runs that many ticks on a node with 2,000
//! processes, `-- encode 20` encodes 10,000 series that often. The GPU source
//! is off. `benches/instructions` counts instructions of the same.
#![expect(clippy::print_stdout, reason = "a bench prints its result")]

mod node;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use memwarden::engine::Engine;
use memwarden::events::Events;
use memwarden::exposition::prometheus::{Format, encode};
use memwarden::model::desc::{Desc, Metric as _};
use memwarden::model::frame::Frame;
use memwarden::model::label::Label;
use memwarden::model::point::{Family, Point};
use memwarden::model::source::Status;
use memwarden::model::time::Timestamp;
use memwarden::sources::{Context, REGISTRY};
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
    let text = "sources: {gpu: {enabled: false}}";
    let config = config::parse_str(text, Path::new("bench.yaml"), &app::schema(), &[])?;
    let context = Context { roots: Arc::new(node.roots()), worker: None };
    let mut engine = Engine::new(REGISTRY, &config, context, Arc::new(Events::new()));
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

/// A source that fails would make a cheap tick.
fn check(frame: &Frame) -> anyhow::Result<()> {
    for report in &frame.sources {
        let why = report.why.as_deref().unwrap_or_default();
        ensure!(report.status == Status::Ok, "{} is {:?}: {why}", report.source, report.status);
    }
    Ok(())
}

fn encoding(count: u32) {
    let families = series();
    let (begun, mut length) = (cpu(), 0);
    for _ in 0..count {
        length = encode_once(&families).len();
    }
    let took = cpu().saturating_sub(begun) / count;
    let series: usize = families.iter().map(|family| family.points.len()).sum();
    println!("series {series}, bytes {length}, {:.3} ms of CPU an encoding", 1e3 * took.as_secs_f64());
}

/// By its name callgrind knows when to count.
#[inline(never)]
fn tick(engine: &mut Engine, at: Timestamp) -> Arc<Frame> {
    let frame = engine.tick(at);
    // Something after the call: a call in tail position is a jump, whose end callgrind does not see.
    black_box(&frame);
    frame
}

/// By its name callgrind knows when to count.
#[inline(never)]
fn encode_once(families: &[Family]) -> String {
    let text = encode(families, Format::OpenMetrics);
    black_box(&text);
    text
}

mod metrics {
    use memwarden::model::units::{Bytes, Count, Ratio, Seconds};

    memwarden::metrics! {
        /// A share, with a fraction.
        pub SHARE: Gauge<Ratio> = "memwarden_bench_share_ratio" {workload, kind, user, gpu};
        /// A size, whole and large.
        pub SIZE: Gauge<Bytes> = "memwarden_bench_size_bytes" {workload, kind, user, gpu};
        /// A time, with a fraction.
        pub TIME: Counter<Seconds> = "memwarden_bench_time_seconds_total" {workload, kind, user, gpu};
        /// A count, whole and small.
        pub COUNT: Counter<Count> = "memwarden_bench_things_total" {workload, kind, user, gpu}.counting("{thing}");
    }
}

/// 10,000 of them: what the encoder is given changes only with this file.
fn series() -> Vec<Family> {
    vec![
        family(metrics::SHARE.desc(), |n| f64::from(n) / 2_500.0),
        family(metrics::SIZE.desc(), |n| 4_096.0 * f64::from(1_000_000 + n)),
        family(metrics::TIME.desc(), |n| 0.01 * f64::from(100_003 * n % 10_000_019)),
        family(metrics::COUNT.desc(), |n| f64::from(n % 100)),
    ]
}

fn family(desc: &'static Desc, value: impl Fn(u32) -> f64) -> Family {
    let points = (0..2_500_u32).map(|n| {
        let workload = Label::from(format!("job_{}", 1_000 + n));
        let labels = [workload, "slurm".into(), "owner".into(), (n % 8).into()];
        Point { labels: labels.into(), value: value(n) }
    });
    Family { desc, points: points.collect() }
}

/// User and system time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
