//! Log lines and tables, recognized one by one.

use super::{Clock, LogError, Quantity, Recording};
use memwarden::formats::log_lines::flagscale;
use memwarden::formats::stamp;
use memwarden::model::units::{GIB, MIB};
/// Maximum length of a line: no tool writes longer ones, but a progress bar without line ends may.
const LONGEST: usize = 64 * 1024;

/// What one line says.
#[derive(Default)]
struct LogLine {
    tool: &'static str,
    /// By the names of their series.
    values: Vec<(String, Quantity, f64)>,
    /// The limit of these series.
    limit: Option<f64>,
    event: Option<String>,
    elapsed: Option<f64>,
    /// Whether it belongs to the line before it.
    continues: bool,
}

const PROFILER: &str = "GPUMemoryProfiler";

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
        let line = host(&text).or_else(|| total(&text)).or_else(|| gpu(&text)).or_else(|| step(&text));
        recognized.extend(line.map(|line| (stamp::find(&text), line)));
    }
    recording(&recognized)
        .ok_or_else(|| not_text.map_or(LogError::Unknown, |line| LogError::NotText { line }))
}

/// The first recognized line determines the tool. Each line has its time where it states one.
fn recording(lines: &[(Option<f64>, LogLine)]) -> Option<Recording> {
    let elapsed = || lines.iter().any(|(_, line)| line.elapsed.is_some());
    let clock = match lines.iter().all(|(stamp, _)| stamp.is_some()) {
        true => Clock::Local,
        false if elapsed() => Clock::Elapsed,
        false => Clock::Order,
    };
    let mut found = Recording::new(lines.first()?.1.tool, clock);
    let (mut order, mut latest) = (0.0, 0.0);
    for (stamp, line) in lines {
        if !line.continues {
            order += 1.0;
        }
        latest = line.elapsed.unwrap_or(latest);
        let time = match clock {
            Clock::Local | Clock::Utc => stamp.unwrap_or(latest),
            Clock::Elapsed => latest,
            Clock::Order => order,
        };
        for (name, quantity, value) in &line.values {
            found.push(name, *quantity, time, *value);
            found.limit(name, line.limit.unwrap_or(0.0));
        }
        found.events.extend(line.event.iter().map(|event| (time, event.clone())));
    }
    found.known()
}

fn bytes(name: impl Into<String>, value: f64) -> (String, Quantity, f64) {
    (name.into(), Quantity::Bytes, value)
}

/// MindRLHF's `ResourceMonitor`: `Virtual Memory: 32.45 GB | Process Memory: 28.76 GB`
/// (mindspore-ai/mindrlhf, mindrlhf/tools/host_monitor.py; its own reader is plot_host_memory.py). "Virtual"
/// is the used memory of the host, "process" the sum over its active processes.
fn host(line: &str) -> Option<LogLine> {
    let (used, processes) = line.split_once("Virtual Memory:")?.1.split_once('|')?;
    let processes = processes.split_once("Process Memory:")?.1;
    let used = bytes("host used", amount(used, "GB")? * GIB);
    let values = vec![used, bytes("active processes", amount(processes, "GB")? * GIB)];
    Some(LogLine { tool: "MindRLHF host monitor", values, ..LogLine::default() })
}

/// GPUMemoryProfiler: `事件: NAME | 总分配: …MB | 总保留: …MB | … | 耗时: …s`
/// (wutong8023/eacg, utils/memoryDebug/memoryCheck.py).
fn total(line: &str) -> Option<LogLine> {
    let (event, rest) = line.split_once("事件:")?.1.split_once('|')?;
    let field = |name: &str, unit| amount(rest.split_once(name)?.1, unit);
    let allocated = bytes("allocated, all GPUs", field("总分配:", "MB")? * MIB);
    let values = vec![allocated, bytes("reserved, all GPUs", field("总保留:", "MB")? * MIB)];
    let (event, elapsed) = (Some(event.trim().to_owned()), field("耗时:", "s"));
    Some(LogLine { tool: PROFILER, values, event, elapsed, ..LogLine::default() })
}

/// GPUMemoryProfiler's line of one GPU: `GPU N: 分配=…MB, 保留=…MB, 利用率=…%, 可用=…MB`.
fn gpu(line: &str) -> Option<LogLine> {
    let (front, rest) = line.split_once("分配=")?;
    let index = front.trim_end().strip_suffix(':')?.rsplit_once("GPU ")?.1;
    let field = |name: &str| amount(rest.split_once(name)?.1, "MB");
    let known = !index.is_empty() && index.len() <= 3 && index.bytes().all(|byte| byte.is_ascii_digit());
    let (allocated, reserved) = (amount(rest, "MB")? * MIB, field("保留=")? * MIB);
    let values = vec![
        bytes(format!("GPU {index} allocated"), allocated),
        bytes(format!("GPU {index} reserved"), reserved),
    ];
    let limit = field("可用=").map(|free| reserved + free * MIB);
    known.then_some(LogLine { tool: PROFILER, values, limit, continues: true, ..LogLine::default() })
}

fn step(line: &str) -> Option<LogLine> {
    let flagscale::FlagscaleRow { flops, seconds, bytes: memory, .. } = flagscale::row(line)?;
    let mut values = vec![
        ("step time".to_owned(), Quantity::StepSeconds, seconds),
        ("TFLOPS per GPU".to_owned(), Quantity::Teraflops, flops),
    ];
    if memory > 0.0 {
        values.insert(0, bytes("allocated", memory));
    }
    Some(LogLine { tool: "FlagScale perf_monitor", values, ..LogLine::default() })
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
