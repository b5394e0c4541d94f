//! Rows as text: the table that FlagScale's users had, and dates.

use super::row::{COLUMNS, Row, place};

const GIB: f64 = 1_073_741_824.0;

/// The line above the rows.
pub fn header() -> String {
    format!(
        "{:<20} {:<8} {:<12} {:<10} {:<12} {:<12} {:<10} {}\n",
        "Timestamp", "Step", "TFLOPS/GPU", "TFLOPS", "Samples/s", "Tokens/s", "Time(ms)", "Memory(GB)"
    )
}

/// A row with the columns of FlagScale's `perf_realtime.log`; what is not known is `nan`, and never 0. The TFLOPS of
/// all GPUs are not known here: a node does not see them.
pub fn line(row: &Row) -> String {
    let cell = |place: usize, scale: f64| row.values[place].map_or(f64::NAN, |value| value * scale);
    format!(
        "{:<20} {:<8} {:<12} {:<10} {:<12} {:<12} {:<10} {}\n",
        date(row.unix_seconds),
        row.step,
        shown(cell(place::FLOPS, 1e-12)),
        "nan",
        shown(cell(place::JOB_SAMPLES, 1.0)),
        shown(cell(place::JOB_TOKENS, 1.0)),
        shown(cell(place::STEP_SECONDS, 1e3)),
        shown(cell(place::ALLOCATED, 1.0 / GIB)),
    )
}

/// Everything a row has, by name and in base units.
pub fn words(row: &Row) -> String {
    let mut text = format!("{} step={}", date(row.unix_seconds), row.step);
    for (column, value) in COLUMNS.iter().zip(row.values) {
        if let Some(value) = value {
            text.push_str(&format!(" {}={value}", column.name));
        }
    }
    text.push('\n');
    text
}

fn shown(value: f64) -> String {
    if value.is_nan() { "nan".to_owned() } else { format!("{value:.2}") }
}

/// `YYYY-MM-DD HH:MM:SS`, UTC.
pub fn date(unix_seconds: f64) -> String {
    let [year, month, day, hour, minute, second] = civil(unix_seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// `YYYYMMDD_HHMMSS`, UTC, for names of files.
pub fn stamp(unix_seconds: f64) -> String {
    date(unix_seconds).replace(['-', ':'], "").replace(' ', "_")
}

/// Year, month, day, hour, minute and second: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `civil_from_days`, for times from 1970 on.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is bounded")]
fn civil(unix_seconds: f64) -> [u64; 6] {
    let seconds = unix_seconds.clamp(0.0, 253_402_300_799.0) as u64;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let of_era_years = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_era_years + of_era_years / 4 - of_era_years / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = of_era_years + era * 400 + u64::from(month <= 2);
    [year, month, day, of_day / 3_600, of_day / 60 % 60, of_day % 60]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (unix, expected) in [
            (0.0, "1970-01-01 00:00:00"),
            (1_709_249_400.9, "2024-02-29 23:30:00"),
            (951_782_400.0, "2000-02-29 00:00:00"),
            (4_102_444_799.0, "2099-12-31 23:59:59"),
            (-5.0, "1970-01-01 00:00:00"),
            (f64::INFINITY, "9999-12-31 23:59:59"),
        ] {
            assert_eq!(date(unix), expected);
        }
        assert_eq!(stamp(1_709_249_400.0), "20240229_233000");
    }

    #[test]
    fn a_line_is_read_back_by_the_reader_of_flagscales() {
        let mut values = [None; COLUMNS.len()];
        values[place::FLOPS] = Some(100.25e12);
        values[place::STEP_SECONDS] = Some(0.2355);
        let row = Row { unix_seconds: 1_750_764_440.0, step: 10, values };
        let found = crate::training::older_logs::lines::flagscale_step(&line(&row)).unwrap();
        assert_eq!((found.step, found.flops, found.seconds), (10, 100.25, 0.2355));
        assert!(found.bytes.is_nan());
        assert_eq!(
            words(&row),
            "2025-06-24 11:27:20 step=10 step_seconds=0.2355 flops_per_second_per_gpu=100250000000000\n"
        );
    }
}
