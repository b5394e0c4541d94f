//! Reads the logs of other memory tools as time series.
//!
//! Supported are, each with its source named where it is read: the host monitor of MindRLHF and the performance
//! monitor of FlagScale ([`lines`]), GPUMemoryProfiler ([`lines`] and [`json`]), MemoryDebugger and the memory
//! profiler of Tiny-Torch ([`json`]), and the export of memwarden's client. The format is detected from the content.
//! Their "GB" and "MB" are powers of 1024. Lines of unknown formats are ignored, because these tools share their
//! files with others.

pub mod json;
pub mod lines;

#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// The tool that wrote it.
    pub tool: &'static str,
    /// The clock of the times.
    pub clock: Clock,
    /// The series, the most important first.
    pub series: Vec<Series>,
    /// Events with their times.
    pub events: Vec<(f64, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Seconds since the tool started.
    Elapsed,
    /// Seconds since 1970, UTC.
    Utc,
    /// Seconds since 1970 by the wall clock of the machine, whose zone was not logged.
    Local,
    /// No clock: the log has no times, only an order.
    Order,
}

/// The quantity of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    Bytes,
    StepSeconds,
    /// 10^12 floating point operations per second and GPU, as computed by the tool.
    Teraflops,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub quantity: Quantity,
    /// Times and values, as in the file.
    pub points: Vec<(f64, f64)>,
    /// The limit, where the tool logged it.
    pub limit: Option<f64>,
}

/// Maximum size of a JSON document in bytes: the tools keep at most 10,000 records of a GPU, and a hostile document
/// takes up to 90 times its size while it is parsed.
const LARGEST_JSON: usize = 32 << 20;
/// Maximum number of events; more are steps, and are left out.
const MOST_EVENTS: usize = 40;

/// Why a file has no series.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file has only white space.
    #[error("the file is empty")]
    Empty,
    #[error(
        "no line is of a known form (MindRLHF host monitor, FlagScale perf_monitor, GPUMemoryProfiler, \
         MemoryDebugger, Tiny-Torch memory profiler, memwarden.py)"
    )]
    Unknown,
    /// No line was recognized, and part of the file is not text.
    #[error("line {line} is not UTF-8 text, and no line is of a known form")]
    NotText {
        /// Counted from 1.
        line: usize,
    },
    /// A document is larger than those of any tool.
    #[error("the JSON document is larger than {} MiB", LARGEST_JSON >> 20)]
    TooLarge,
    /// The JSON is invalid or truncated.
    #[error("line {line}, column {column}: not JSON: {what}")]
    Json {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// The error of the parser.
        what: String,
    },
}

/// Reads a file in any of the known formats.
///
/// # Errors
/// [`LogError`] where it has no series; invalid parts of a file with series are ignored.
pub fn read(bytes: &[u8]) -> Result<Recording, LogError> {
    let begin = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    match begin {
        None => Err(LogError::Empty),
        Some(b'{') if bytes.len() > LARGEST_JSON => Err(LogError::TooLarge),
        // A log of any size may begin with a bracket.
        Some(b'[') if bytes.len() > LARGEST_JSON => lines::read(bytes),
        Some(b'{' | b'[') => match serde_json::from_slice(bytes) {
            Ok(document) => json::read(&document).ok_or(LogError::Unknown),
            // A line of a log may begin with a bracket too.
            Err(error) => lines::read(bytes).map_err(|_| LogError::Json {
                line: error.line(),
                column: error.column(),
                what: cause(&error),
            }),
        },
        Some(_) => lines::read(bytes),
    }
}

/// Removes the parser's position, which this error states itself.
fn cause(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

impl Recording {
    fn new(tool: &'static str, clock: Clock) -> Self {
        Self { tool, clock, series: Vec::new(), events: Vec::new() }
    }

    /// Adds a point to the series of that name; values that are not finite or negative are ignored.
    fn push(&mut self, name: &str, quantity: Quantity, time: f64, value: f64) {
        if !time.is_finite() || !value.is_finite() || value < 0.0 {
            return;
        }
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push((time, value)),
            None => self.series.push(Series {
                name: name.to_owned(),
                quantity,
                points: vec![(time, value)],
                limit: None,
            }),
        }
    }

    /// Sets the limit of the series of that name.
    fn limit(&mut self, name: &str, limit: f64) {
        if let Some(series) = self.series.iter_mut().find(|series| series.name == name)
            && limit.is_finite()
            && limit > 0.0
        {
            series.limit = Some(limit);
        }
    }

    fn known(mut self) -> Option<Self> {
        if self.events.len() > MOST_EVENTS {
            self.events.clear();
        }
        (!self.series.is_empty()).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_reported() {
        let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert_eq!(error(b" \n "), "the file is empty");
        assert_eq!(
            error(b"{\"snapshots\": {\n\"0\": [{"),
            "line 2, column 7: not JSON: EOF while parsing an object"
        );
        assert!(error(b"{}").starts_with("no line is of a known form"));
        assert!(error(b"hello\nworld\n").starts_with("no line is of a known form"));
        assert_eq!(error(b"hello\n\xff\xfe\n"), "line 2 is not UTF-8 text, and no line is of a known form");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>, cut in 0_usize..400) {
            let _ = read(&bytes);
            let known = "2025-06-24 11:27:22,455 - x - INFO - Virtual Memory: 32.45 GB | Process Memory: 28.76 GB\n\
                2025-06-24 11:27:23 - 事件: forward | 总分配: 1.0MB | 总保留: 2.0MB | 耗时: 1.00s\n\
                \u{1b}[0m  GPU 0: 分配=   1.0MB, 保留=   2.0MB, 利用率=  5.0%, 可用=   8.0MB\n";
            let known = known.as_bytes();
            let mut broken = known[..cut.min(known.len())].to_vec();
            broken.extend_from_slice(&bytes);
            let _ = read(&broken);
        }
    }
}
