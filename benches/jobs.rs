//! Cost of receiving messages of training jobs: 64 ranks that send 100 messages per second each, for ten seconds.
//!
//! `cargo bench --bench jobs -- [RANKS] [MESSAGES A SECOND] [SECONDS]`. Prints the CPU time of the receiving thread,
//! that of one sample per second, and the lost messages.
#![expect(clippy::print_stdout, reason = "a bench prints its result")]

use std::io::{ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use memwarden::host::roots::Roots;
use memwarden::host::{clock, process};
use memwarden::model::frame::Frame;
use memwarden::model::ids::ProcessKey;
use memwarden::model::outlook::Outlook;
use memwarden::model::point::Batch;
use memwarden::model::source::Source;
use memwarden::sources::{Context, training};
use memwarden::{app, config};
use rustix::time::{ClockId, clock_gettime};

fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1).filter(|text| !text.starts_with("--"));
    let mut number = |otherwise: u64| numbers.next().map_or(Ok(otherwise), |text| text.parse());
    let (ranks, rate, seconds) = (number(64)?, number(100)?, number(10)?);
    ensure!(ranks > 0 && rate > 0 && seconds > 0, "usage: jobs [RANKS] [MESSAGES A SECOND] [SECONDS]");
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("job.sock");
    let mut source = source(&socket)?;
    let mut reporting = Vec::new();
    sample(&mut *source, &mut reporting)?;
    let mut streams = Vec::new();
    for rank in 0..ranks {
        let mut stream = connect(&socket)?;
        stream.set_nonblocking(true)?;
        let hello = format!("{{\"type\":\"hello\",\"v\":1,\"rank\":{rank},\"world\":{ranks}}}\n");
        stream.write_all(hello.as_bytes())?;
        streams.push(stream);
    }
    let thread = thread("job-socket")?;
    let (before, begun) = (spent(&thread)?, clock::now());
    let (mut sampling, mut sent, mut dropped) = (Duration::ZERO, ranks, 0_u64);
    for step in 0..rate * seconds {
        for stream in &mut streams {
            match stream.write(line(step, rate).as_bytes()) {
                Ok(_) => sent += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => dropped += 1,
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        if step % rate == rate - 1 {
            let begun = cpu();
            sample(&mut *source, &mut reporting)?;
            sampling += cpu().saturating_sub(begun);
        }
        let due = Duration::from_secs(1) * u32::try_from(step + 1)? / u32::try_from(rate)?;
        std::thread::sleep(due.saturating_sub(clock::now().since(begun)));
    }
    let took = clock::now().since(begun);
    let receiving = spent(&thread)?.saturating_sub(before);
    // The last messages are received a moment later.
    let mut received = 0.0;
    for _ in 0..50 {
        let frame = sample(&mut *source, &mut reporting)?;
        received = frame
            .families
            .iter()
            .filter(|family| family.desc.name == "memwarden_training_messages_total")
            .flat_map(|family| &family.points)
            .map(|point| point.value)
            .sum();
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        if received >= sent as f64 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{ranks} ranks, {rate} messages a second each, {:.1} s", took.as_secs_f64());
    println!("sent {sent}, received {received}, not taken by the socket {dropped}");
    println!(
        "receiving {:.2} % of a core, {:.2} us of CPU a message",
        100.0 * receiving.as_secs_f64() / took.as_secs_f64(),
        1e6 * receiving.as_secs_f64() / received.max(1.0)
    );
    println!(
        "sampling {:.2} % of a core, once a second",
        100.0 * sampling.as_secs_f64() / took.as_secs_f64()
    );
    Ok(())
}

/// A step, its phases, and sometimes the allocator, as a client sends them.
fn line(step: u64, rate: u64) -> String {
    let at = clock::now().unix().as_secs_f64();
    if step.is_multiple_of(rate) {
        return format!(
            "{{\"type\":\"mem\",\"t\":{at},\"devices\":{{\"0\":{{\"allocated\":61203283968,\"allocated_peak\":66571993088,\"active\":61303283968,\"reserved\":70866960384,\"reserved_peak\":70866960384,\"requested\":60813283968,\"inactive_split\":3221225472,\"releasable\":1073741824,\"largest_free\":536870912,\"retries\":0,\"ooms\":0,\"free\":9663676416,\"total\":85899345920}}}},\"pinned\":4294967296}}\n"
        );
    }
    if step.is_multiple_of(2) {
        return format!(
            "{{\"type\":\"phase\",\"t\":{at},\"name\":\"forward\",\"state\":\"end\",\"seconds\":{},\"count\":{step},\"allocated_peak\":66571993088}}\n",
            step
        );
    }
    format!(
        "{{\"type\":\"step\",\"t\":{at},\"step\":{step},\"seconds\":0.012,\"tokens\":{},\"samples\":{},\"loss\":2.317,\"learning_rate\":0.0003,\"grad_norm\":1.04,\"skipped\":1,\"nan\":0,\"dropped\":0}}\n",
        step * 4096,
        step * 8
    )
}

fn source(socket: &Path) -> anyhow::Result<Box<dyn Source>> {
    let text = format!("sources: {{training: {{socket: {}}}}}", socket.display());
    let config = config::parse_str(&text, Path::new("bench.yaml"), &app::schema(), &[])?;
    let paths = &config.paths;
    let roots = Roots {
        proc: paths.proc.clone(),
        sys: paths.sys.clone(),
        cgroup: paths.cgroup.clone(),
        kmsg: paths.kmsg.clone(),
        passwd: paths.passwd.clone(),
    };
    let context = Context {
        roots: Arc::new(roots),
        worker: None,
        checkpoints: Arc::default(),
        past_runs: Arc::default(),
    };
    Ok((training::REGISTRATION.build)(&config.sources["training"].settings, &context))
}

/// A sample; `reporting` has the processes that reported before it, as in the engine.
fn sample(source: &mut dyn Source, reporting: &mut Vec<ProcessKey>) -> anyhow::Result<Frame> {
    let (at, mut batch) = (clock::now(), Batch::new());
    batch.facts.reporting = std::mem::take(reporting);
    source.sample(at, &mut batch)?;
    let (families, _, facts) = batch.seal();
    reporting.extend(facts.ranks.iter().filter_map(|rank| rank.key));
    let (timeline, outlook) = (facts.timeline, Outlook::default());
    let acknowledged = Default::default();
    Ok(Frame {
        sequence: 1,
        at,
        families,
        sources: Vec::new(),
        findings: Vec::new(),
        outlook,
        timeline,
        acknowledged,
    })
}

fn connect(socket: &Path) -> anyhow::Result<UnixStream> {
    for _ in 0..100 {
        if let Ok(stream) = UnixStream::connect(socket) {
            return Ok(stream);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    anyhow::bail!("no listener at {}", socket.display())
}

/// The folder of the thread with this name.
fn thread(name: &str) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir("/proc/self/task")? {
        let folder = entry?.path();
        if std::fs::read_to_string(folder.join("comm"))?.trim_end() == name {
            return Ok(folder);
        }
    }
    anyhow::bail!("there is no thread {name}")
}

/// CPU time of a thread, in clock ticks: not every kernel keeps a finer account.
fn spent(thread: &Path) -> anyhow::Result<Duration> {
    let bytes = std::fs::read(thread.join("stat"))?;
    let stat = process::stat(&bytes).context("the thread's stat is not understood")?;
    Ok(Duration::from_micros(stat.cpu_ticks * (1_000_000 / process::clock_ticks())))
}

/// CPU time of this thread.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
