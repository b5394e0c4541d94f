//! The realtime table: one line per step, in the columns of FlagScale's `perf_realtime.log`.
//!
//! Unknown values are `nan`, where that tool wrote 0.

use super::{GIB, StepRow, TERA, stamp};

/// The lines at the top of a file.
pub fn header(started: f64) -> String {
    let line = "=".repeat(112);
    format!(
        "{line}\nPerformance Monitor Session Started: {} UTC\n{line}\n\
         {:<20} {:<8} {:<12} {:<12} {:<12} {:<12} {:<10} {:<10}\n{}\n",
        stamp(started),
        "Timestamp",
        "Step",
        "TFLOPS/GPU",
        "TFLOPS",
        "Samples/s",
        "Tokens/s",
        "Time(ms)",
        "Memory(GB)",
        "-".repeat(112),
    )
}

pub fn line(row: &StepRow) -> String {
    let number = |value: Option<f64>, scale: f64, digits: usize| {
        value.map_or_else(|| "nan".to_owned(), |value| format!("{:.digits$}", value / scale))
    };
    format!(
        "{:<20} {:<8} {:<12} {:<12} {:<12} {:<12} {:<10} {:<10}\n",
        stamp(row.unix_seconds),
        row.step,
        number(row.flops_per_gpu, TERA, 2),
        number(row.flops, TERA, 2),
        number(row.samples_per_second, 1.0, 1),
        number(row.tokens_per_second, 1.0, 0),
        number(row.step_seconds, 0.001, 1),
        number(row.allocated, GIB, 2),
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn columns_are_those_of_the_older_tool() {
        let full = StepRow {
            unix_seconds: 1_750_764_440.0,
            step: 10,
            step_seconds: Some(0.2355),
            tokens_per_second: Some(123_456.0),
            samples_per_second: Some(120.6),
            flops: Some(802e12),
            flops_per_gpu: Some(100.25e12),
            allocated: Some(12.5 * GIB),
            ..StepRow::default()
        };
        let bare = StepRow { unix_seconds: 1_750_764_460.0, step: 20, ..StepRow::default() };
        let text = format!("{}{}{}", header(1_750_764_420.0), line(&full), line(&bare));
        let shown: Vec<&str> = text.lines().map(str::trim_end).collect();
        expect![[r#"
            ================================================================================================================
            Performance Monitor Session Started: 2025-06-24 11:27:00 UTC
            ================================================================================================================
            Timestamp            Step     TFLOPS/GPU   TFLOPS       Samples/s    Tokens/s     Time(ms)   Memory(GB)
            ----------------------------------------------------------------------------------------------------------------
            2025-06-24 11:27:20  10       100.25       802.00       120.6        123456       235.5      12.50
            2025-06-24 11:27:40  20       nan          nan          nan          nan          nan        nan"#]]
        .assert_eq(&shown.join("\n"));
    }
}
