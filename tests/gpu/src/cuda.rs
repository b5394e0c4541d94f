//! Programs that allocate memory through CUDA's driver API. Each runs in a process of its own, prints one JSON object a line,
//! and ends when its standard input ends.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde_json::json;

use crate::arguments::Arguments;
use crate::library::{Buffer, Driver};

/// cuda.h's `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// A context on one GPU.
struct Context {
    driver: Driver,
    device: usize,
}

impl Context {
    fn open(library: &str, ordinal: usize) -> anyhow::Result<Self> {
        let mut context = Self { driver: Driver::open(library)?, device: ordinal };
        context.call("cuInit", &[0])?;
        let mut device = Buffer::new(4);
        context.call("cuDeviceGet", &[device.address(), ordinal])?;
        context.device = usize::try_from(device.u32_at(0))?;
        let mut handle = Buffer::new(8);
        context.call("cuDevicePrimaryCtxRetain", &[handle.address(), context.device])?;
        context.call("cuCtxSetCurrent", &[usize::try_from(handle.u64_at(0))?])?;
        Ok(context)
    }

    fn call(&self, function: &str, arguments: &[usize]) -> anyhow::Result<()> {
        match self.code(function, arguments)? {
            0 => Ok(()),
            code => anyhow::bail!("{function} returned {code}"),
        }
    }

    fn code(&self, function: &str, arguments: &[usize]) -> anyhow::Result<u32> {
        let outcome = self.driver.call(function, arguments);
        Ok(outcome.with_context(|| format!("the library has no {function}"))?.code)
    }

    /// The address of new memory, which has been written to; `None` where the GPU has no more.
    fn allocate(&self, size: usize) -> anyhow::Result<Option<usize>> {
        let mut pointer = Buffer::new(8);
        match self.code("cuMemAlloc_v2", &[pointer.address(), size])? {
            0 => {}
            OUT_OF_MEMORY => return Ok(None),
            code => anyhow::bail!("cuMemAlloc_v2 returned {code}"),
        }
        let address = usize::try_from(pointer.u64_at(0))?;
        self.call("cuMemsetD8_v2", &[address, 1, size])?;
        Ok(Some(address))
    }

    fn free(&self, address: usize) -> anyhow::Result<()> {
        self.call("cuMemFree_v2", &[address])
    }

    /// Free and total memory.
    fn info(&self) -> anyhow::Result<(u64, u64)> {
        let (mut free, mut total) = (Buffer::new(8), Buffer::new(8));
        self.call("cuMemGetInfo_v2", &[free.address(), total.address()])?;
        Ok((free.u64_at(0), total.u64_at(0)))
    }

    fn pci(&self) -> anyhow::Result<String> {
        let mut text = Buffer::new(32);
        self.call("cuDeviceGetPCIBusId", &[text.address(), 32, self.device])?;
        Ok(text.text_at(0, 32))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The process ends anyway, with everything that it allocated.
        let _ = self.code("cuDevicePrimaryCtxRelease_v2", &[self.device]);
    }
}

fn say(line: &serde_json::Value) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// What standard input tells: its first byte is the start, its end is the end.
#[derive(Debug, Default)]
struct Input {
    started: AtomicBool,
    ended: AtomicBool,
}

fn input() -> Arc<Input> {
    let input = Arc::new(Input::default());
    let flags = Arc::clone(&input);
    std::thread::spawn(move || {
        let mut byte = [0];
        // An input that cannot be read has ended too.
        while matches!(std::io::stdin().read(&mut byte), Ok(1)) {
            flags.started.store(true, Ordering::Relaxed);
        }
        flags.ended.store(true, Ordering::Relaxed);
    });
    input
}

/// `gpu-run cuda PROGRAM …`.
///
/// # Errors
/// CUDA refuses something else than memory, or the arguments are wrong.
pub(crate) fn run(mut arguments: Arguments) -> anyhow::Result<()> {
    let program = arguments.next().context("no program")?;
    let library = arguments.text("--library", "libcuda.so.1");
    let device = arguments.size("--device")?;
    let step = arguments.size("--step")?;
    let every = Duration::from_secs_f64(arguments.number("--every-ms", 0.0)? / 1e3);
    let cap = arguments.size("--cap")?;
    let count = arguments.size("--count")?;
    let file: PathBuf = arguments.text("--file", "").into();
    arguments.end()?;
    let context = Context::open(&library, device)?;
    let input = input();
    let (free, total) = context.info()?;
    say(&json!({"event": "ready", "pci": context.pci()?, "free": free, "total": total}))?;
    let plan = Plan { context: &context, step, every, cap, count, input: &input };
    match program.as_str() {
        "hold" => plan.hold(),
        "leak" => plan.leak(),
        "peaks" => plan.peaks(),
        "latency" => plan.latency(),
        "job" => plan.job(&file),
        other => anyhow::bail!("no program {other}"),
    }
}

/// What a program does, and how much of it.
struct Plan<'a> {
    context: &'a Context,
    /// Bytes of one allocation.
    step: usize,
    every: Duration,
    /// The most bytes; 0 for all that there are.
    cap: usize,
    count: usize,
    input: &'a Input,
}

impl Plan<'_> {
    fn wait_for_end(&self) {
        while !self.input.ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Holds memory.
    fn hold(&self) -> anyhow::Result<()> {
        let held = self.context.allocate(self.step)?;
        let (free, total) = self.context.info()?;
        say(&json!({"event": "held", "t": now(), "ok": held.is_some(), "free": free, "total": total}))?;
        self.wait_for_end();
        Ok(())
    }

    /// Allocates step by step, up to the cap or until CUDA refuses.
    fn leak(&self) -> anyhow::Result<()> {
        let mut held = Vec::new();
        loop {
            let allocated = held.len() * self.step;
            let at_cap = self.cap > 0 && allocated + self.step > self.cap;
            if at_cap || self.input.ended.load(Ordering::Relaxed) {
                break say(&json!({"event": "cap", "t": now(), "allocated": allocated}))?;
            }
            match self.context.allocate(self.step)? {
                Some(address) => held.push(address),
                None => {
                    say(&json!({"event": "refused", "t": now(), "allocated": allocated}))?;
                    for address in held.drain(..) {
                        self.context.free(address)?;
                    }
                    let (free, total) = self.context.info()?;
                    break say(&json!({"event": "freed", "t": now(), "free": free, "total": total}))?;
                }
            }
            let (free, total) = self.context.info()?;
            let allocated = held.len() * self.step;
            say(&json!({"event": "step", "t": now(), "allocated": allocated, "free": free, "total": total}))?;
            std::thread::sleep(self.every);
        }
        self.wait_for_end();
        Ok(())
    }

    /// Peaks of 100 ms, each higher than the one before by a step, so that each can be told from the others.
    fn peaks(&self) -> anyhow::Result<()> {
        let base = self.cap;
        while !self.input.started.load(Ordering::Relaxed) && !self.input.ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        for number in 0..self.count {
            // The phase within the period is another for each peak: no sampling interval is in step with it.
            let phase = f64::from(u32::try_from(number * 37 % 100)?) / 100.0;
            let before = self.every.mul_f64(0.8).saturating_sub(Duration::from_millis(100)).mul_f64(phase);
            std::thread::sleep(before);
            let size = base + number * self.step;
            let begun = Instant::now();
            let Some(address) = self.context.allocate(size)? else {
                say(&json!({"event": "no memory", "number": number}))?;
                break;
            };
            std::thread::sleep(Duration::from_millis(100).saturating_sub(begun.elapsed()));
            let lasted = begun.elapsed().as_secs_f64();
            self.context.free(address)?;
            say(&json!({"event": "peak", "number": number, "size": size, "seconds": lasted}))?;
            std::thread::sleep(self.every.saturating_sub(before + Duration::from_millis(100)));
        }
        say(&json!({"event": "done"}))?;
        self.wait_for_end();
        Ok(())
    }

    /// How long allocating and freeing takes.
    fn latency(&self) -> anyhow::Result<()> {
        let mut micros = Vec::new();
        for _ in 0..self.count {
            let begun = Instant::now();
            let mut pointer = Buffer::new(8);
            self.context.call("cuMemAlloc_v2", &[pointer.address(), self.step])?;
            self.context.free(usize::try_from(pointer.u64_at(0))?)?;
            micros.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        micros.sort_by(f64::total_cmp);
        let at = |share: usize| micros.get((micros.len() * share / 1000).min(micros.len().saturating_sub(1)));
        say(&json!({"event": "latency", "p50_us": at(500), "p99_us": at(990), "max_us": at(1000)}))
    }

    /// Grows until a checkpoint is requested by SIGUSR1; then saves, releases everything and goes on with little memory.
    fn job(&self, file: &Path) -> anyhow::Result<()> {
        let requested = Arc::new(AtomicBool::new(false));
        let signal = signal_hook::consts::SIGUSR1;
        signal_hook::flag::register(signal, Arc::clone(&requested))?;
        say(&json!({"event": "handles USR1"}))?;
        let mut held = Vec::new();
        let mut saved = false;
        let mut number = 0_u64;
        while !self.input.ended.load(Ordering::Relaxed) {
            number += 1;
            if requested.swap(false, Ordering::Relaxed) {
                let next = file.with_extension("next");
                std::fs::write(&next, format!("{{\"step\": {number}}}\n"))?;
                std::fs::rename(&next, file)?;
                let released = held.len() * self.step;
                for address in held.drain(..) {
                    self.context.free(address)?;
                }
                saved = true;
                say(&json!({"event": "saved", "t": now(), "step": number, "released": released}))?;
            } else if !saved && held.len() * self.step < self.cap {
                held.extend(self.context.allocate(self.step)?);
            }
            say(
                &json!({"event": "step", "t": now(), "step": number, "allocated": held.len() * self.step, "saved": saved}),
            )?;
            std::thread::sleep(self.every);
        }
        Ok(())
    }
}
