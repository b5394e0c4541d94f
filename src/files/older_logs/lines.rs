//! Log lines and tables, recognized one by one.

use std::collections::BTreeMap;

use super::{Clock, LogError, Quantity, Recording};
use crate::formats::log_lines::flagscale;
use crate::formats::stamp;
use crate::model::units::{GIB, MIB};
/// Maximum length of a line: no tool writes longer ones, but a progress bar without line ends may.
const LONGEST: usize = 64 * 1024;

enum LogLine<'a> {
    Host { used: f64, processes: f64 },
    Step { flops: f64, seconds: f64, bytes: f64 },
    Total { event: &'a str, allocated: f64, reserved: f64, elapsed: Option<f64> },
    Gpu { index: &'a str, allocated: f64, reserved: f64, free: Option<f64> },
}

/// Reads the lines of a log.
///
/// # Errors
/// [`LogError::Unknown`] or [`LogError::NotText`] where no line has a known format.
pub fn read(bytes: &[u8]) -> Result<Recording, LogError> {
    let mut not_text = None;
    let mut recognized = Vec::new();
    // Progress bars end their lines with carriage returns.
    for line in bytes.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let line = &line[..line.len().min(LONGEST)];
        let text = plain(&String::from_utf8_lossy(line));
        if not_text.is_none() && std::str::from_utf8(line).is_err_and(|error| error.error_len().is_some()) {
            let before = line.as_ptr().addr() - bytes.as_ptr().addr();
            not_text = Some(1 + bytes[..before].iter().filter(|byte| **byte == b'\n').count());
        }
        if parse(&text).is_some() {
            recognized.push(text);
        }
    }
    recording(&recognized)
        .ok_or_else(|| not_text.map_or(LogError::Unknown, |line| LogError::NotText { line }))
}

/// The first recognized line determines the tool.
fn recording(lines: &[String]) -> Option<Recording> {
    let stamps: Vec<Option<f64>> = lines.iter().map(|line| stamp::find(line)).collect();
    let all: Vec<LogLine<'_>> = lines.iter().filter_map(|line| parse(line)).collect();
    let elapsed = || all.iter().any(|line| matches!(line, LogLine::Total { elapsed: Some(_), .. }));
    let clock = match stamps.iter().all(Option::is_some) {
        true => Clock::Local,
        false if elapsed() => Clock::Elapsed,
        false => Clock::Order,
    };
    let tool = match all.first()? {
        LogLine::Host { .. } => "MindRLHF host monitor",
        LogLine::Step { .. } => "FlagScale perf_monitor",
        LogLine::Total { .. } | LogLine::Gpu { .. } => "GPUMemoryProfiler",
    };
    let mut found = Recording::new(tool, clock);
    let mut order = 0.0;
    let mut latest = 0.0;
    let mut totals = BTreeMap::new();
    for (line, stamp) in all.iter().zip(stamps) {
        // The lines of the GPUs belong to the total before them.
        if !matches!(line, LogLine::Gpu { .. }) {
            order += 1.0;
        }
        if let LogLine::Total { elapsed: Some(elapsed), .. } = line {
            latest = *elapsed;
        }
        let time = match clock {
            Clock::Local | Clock::Utc => stamp.unwrap_or(latest),
            Clock::Elapsed => latest,
            Clock::Order => order,
        };
        match line {
            LogLine::Host { used, processes } => {
                found.push("host used", Quantity::Bytes, time, *used);
                found.push("active processes", Quantity::Bytes, time, *processes);
            }
            LogLine::Step { flops, seconds, bytes } => {
                if *bytes > 0.0 {
                    found.push("allocated", Quantity::Bytes, time, *bytes);
                }
                found.push("step time", Quantity::StepSeconds, time, *seconds);
                found.push("TFLOPS per GPU", Quantity::Teraflops, time, *flops);
            }
            LogLine::Total { event, allocated, reserved, .. } => {
                found.push("allocated, all GPUs", Quantity::Bytes, time, *allocated);
                found.push("reserved, all GPUs", Quantity::Bytes, time, *reserved);
                found.events.push((time, (*event).to_owned()));
            }
            LogLine::Gpu { index, allocated, reserved, free } => {
                found.push(&format!("GPU {index} allocated"), Quantity::Bytes, time, *allocated);
                found.push(&format!("GPU {index} reserved"), Quantity::Bytes, time, *reserved);
                if let Some(free) = free {
                    totals.insert((*index).to_owned(), reserved + free);
                }
            }
        }
    }
    for (index, total) in totals {
        found.limit(&format!("GPU {index} allocated"), total);
        found.limit(&format!("GPU {index} reserved"), total);
    }
    found.known()
}

fn parse(line: &str) -> Option<LogLine<'_>> {
    host(line).or_else(|| total(line)).or_else(|| gpu(line)).or_else(|| step(line))
}

/// MindRLHF's `ResourceMonitor`: `Virtual Memory: 32.45 GB | Process Memory: 28.76 GB`
/// (mindspore-ai/mindrlhf, mindrlhf/tools/host_monitor.py; its own reader is plot_host_memory.py). "Virtual"
/// is the used memory of the host, "process" the sum over its active processes.
fn host(line: &str) -> Option<LogLine<'_>> {
    let (used, processes) = line.split_once("Virtual Memory:")?.1.split_once('|')?;
    let processes = processes.split_once("Process Memory:")?.1;
    Some(LogLine::Host { used: amount(used, "GB")? * GIB, processes: amount(processes, "GB")? * GIB })
}

/// GPUMemoryProfiler: `事件: NAME | 总分配: …MB | 总保留: …MB | … | 耗时: …s`
/// (wutong8023/eacg, utils/memoryDebug/memoryCheck.py).
fn total(line: &str) -> Option<LogLine<'_>> {
    let (event, rest) = line.split_once("事件:")?.1.split_once('|')?;
    let field = |name: &str, unit| amount(rest.split_once(name)?.1, unit);
    Some(LogLine::Total {
        event: event.trim(),
        allocated: field("总分配:", "MB")? * MIB,
        reserved: field("总保留:", "MB")? * MIB,
        elapsed: field("耗时:", "s"),
    })
}

/// GPUMemoryProfiler's line of one GPU: `GPU N: 分配=…MB, 保留=…MB, 利用率=…%, 可用=…MB`.
fn gpu(line: &str) -> Option<LogLine<'_>> {
    let (front, rest) = line.split_once("分配=")?;
    let index = front.trim_end().strip_suffix(':')?.rsplit_once("GPU ")?.1;
    let field = |name: &str| amount(rest.split_once(name)?.1, "MB");
    let known = !index.is_empty() && index.len() <= 3 && index.bytes().all(|byte| byte.is_ascii_digit());
    known.then_some(LogLine::Gpu {
        index,
        allocated: amount(rest, "MB")? * MIB,
        reserved: field("保留=")? * MIB,
        free: field("可用=").map(|free| free * MIB),
    })
}

fn step(line: &str) -> Option<LogLine<'_>> {
    let flagscale::FlagscaleRow { flops, seconds, bytes, .. } = flagscale::row(line)?;
    Some(LogLine::Step { flops, seconds, bytes })
}

/// A number at the front of a text, followed by its unit with or without a space.
fn amount(text: &str, unit: &str) -> Option<f64> {
    let text = text.trim_start();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    text[end..].trim_start().starts_with(unit).then(|| text[..end].parse().ok())?
}

/// A line without the color codes of terminals.
fn plain(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| letter.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        out.push_str(&part[end..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(text: &str, expected: &Expect) {
        let found = read(text.as_bytes()).unwrap();
        let mut shown = format!("{} {:?}\n", found.tool, found.clock);
        for series in &found.series {
            let points: Vec<String> =
                series.points.iter().map(|(time, value)| format!("{time}:{value:.1}")).collect();
            shown.push_str(&format!(
                "{} {:?} {} {:?}\n",
                series.name,
                series.quantity,
                points.join(" "),
                series.limit
            ));
        }
        shown.push_str(&format!("{:?}\n", found.events));
        expected.assert_eq(&shown);
    }

    #[test]
    fn mindrlhf() {
        check(
            "2025-06-24 11:27:22,500 - mindformers./mindrlhf/tools/host_monitor.py[x:230] - INFO - Virtual Memory: 2.00 GB | Process Memory: 1.00 GB\r\n\
             epoch: 0, step: 3 start\n\
             \u{1b}[32m2025-06-24 11:27:23,500 - INFO - Virtual Memory: 4.00GB | Process Memory: 1.50GB\u{1b}[0m\n\
             2025-06-24 11:27:24,500 - INFO - Virtual Memory: 4.0",
            &expect![[r#"
                MindRLHF host monitor Local
                host used Bytes 1750764442.5:2147483648.0 1750764443.5:4294967296.0 None
                active processes Bytes 1750764442.5:1073741824.0 1750764443.5:1610612736.0 None
                []
            "#]],
        );
        check(
            "Virtual Memory: 2.00 GB | Process Memory: 1.00 GB\nVirtual Memory: 3.00 GB | Process Memory: 1.00 GB\n",
            &expect![[r#"
                MindRLHF host monitor Order
                host used Bytes 1:2147483648.0 2:3221225472.0 None
                active processes Bytes 1:1073741824.0 2:1073741824.0 None
                []
            "#]],
        );
    }

    #[test]
    fn flagscale() {
        check(
            "================\nPerformance Monitor Session Started: 2025-06-24 11:27:00\n================\n\
             Timestamp            Step     TFLOPS/GPU   TFLOPS     Samples/s    Tokens/s     Time(ms)   Memory(GB)\n\
             ----------------\n\
             2025-06-24 11:27:20  10       100.25       802.00     120.6        123456       235.5      12.50     \n\
             2025-06-24 11:27:40  20       101.25       810.00     121.6        124456       233.0      0.00      \n",
            &expect![[r#"
                FlagScale perf_monitor Local
                allocated Bytes 1750764440:13421772800.0 None
                step time StepSeconds 1750764440:0.2 1750764460:0.2 None
                TFLOPS per GPU Teraflops 1750764440:100.2 1750764460:101.2 None
                []
            "#]],
        );
    }

    #[test]
    fn gpu_memory_profiler() {
        check(
            "2025-06-24 11:27:20 - MemoryProfiler_1 - INFO - 事件: load | 总分配:   100.0MB | 总保留:   200.0MB | 总最大分配:   100.0MB | 总最大保留:   200.0MB | 耗时: 1.50s\n\
             2025-06-24 11:27:20 - MemoryProfiler_1 - INFO -   GPU 0: 分配=  100.0MB, 保留=  200.0MB, 利用率=  0.1%, 可用=  824.0MB\n\
             2025-06-24 11:27:22 - MemoryProfiler_1 - INFO - load                 | 总分配:   100.0MB | 总保留:   200.0MB\n",
            &expect![[r#"
                GPUMemoryProfiler Local
                allocated, all GPUs Bytes 1750764440:104857600.0 None
                reserved, all GPUs Bytes 1750764440:209715200.0 None
                GPU 0 allocated Bytes 1750764440:104857600.0 Some(1073741824.0)
                GPU 0 reserved Bytes 1750764440:209715200.0 Some(1073741824.0)
                [(1750764440.0, "load")]
            "#]],
        );
        check(
            "事件: a | 总分配: 1.0MB | 总保留: 2.0MB | 耗时: 1.50s\n事件: b | 总分配: 1.0MB | 总保留: 2.0MB | 耗时: 2.50s\n",
            &expect![[r#"
                GPUMemoryProfiler Elapsed
                allocated, all GPUs Bytes 1.5:1048576.0 2.5:1048576.0 None
                reserved, all GPUs Bytes 1.5:2097152.0 2.5:2097152.0 None
                [(1.5, "a"), (2.5, "b")]
            "#]],
        );
    }
}
