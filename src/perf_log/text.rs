//! The text log: one line per step, for people.

use std::fmt::Write as _;

use super::{GIB, StepRow, TERA, stamp};

/// One line, without unknown values.
pub fn line(row: &StepRow) -> String {
    let mut out = format!("[{} UTC] step {}", stamp(row.unix_seconds), row.step);
    let mut add = |name: &str, value: Option<f64>, scale: f64, digits: usize, unit: &str| {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(out, " | {name} {:.digits$}{unit}", value / scale);
        }
    };
    add("step time", row.step_seconds, 0.001, 1, " ms");
    add("throughput", row.tokens_per_second, 1.0, 0, " tokens/s");
    add("samples", row.samples_per_second, 1.0, 2, "/s");
    add("compute", row.flops_per_gpu, TERA, 2, " TFLOP/s per GPU");
    add("MFU", row.mfu, 0.01, 1, " %");
    add("loss", row.loss, 1.0, 4, "");
    add("allocated", row.allocated, GIB, 2, " GiB");
    add("reserved", row.reserved, GIB, 2, " GiB");
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn known_values_are_written() {
        let row = StepRow {
            unix_seconds: 1_750_764_440.0,
            step: 10,
            step_seconds: Some(0.5),
            tokens_per_second: Some(8_192.4),
            mfu: Some(0.412),
            loss: Some(2.317_2),
            ..StepRow::default()
        };
        expect![[r#"
            [2025-06-24 11:27:20 UTC] step 10 | step time 500.0 ms | throughput 8192 tokens/s | MFU 41.2 % | loss 2.3172
        "#]]
        .assert_eq(&line(&row));
        assert_eq!(line(&StepRow::default()), "[1970-01-01 00:00:00 UTC] step 0\n");
    }
}
