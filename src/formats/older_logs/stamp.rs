//! Dates and times in front of log lines and in JSON.

/// Seconds since 1970 of the first `YYYY-MM-DD HH:MM:SS` (or with a `T`) in a text, a fraction after a dot or
/// comma counted; a zone is not, since these tools log none.
pub(super) fn find(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    // A stamp stands at the front, after a prefix such as a rank; a later one belongs to the message.
    (0..bytes.len().min(64)).find_map(|at| stamp(bytes.get(at..)?))
}

fn stamp(bytes: &[u8]) -> Option<f64> {
    const FORM: &[u8; 19] = b"0000-00-00 00:00:00";
    let front = bytes.get(..FORM.len())?;
    let fits = front.iter().zip(FORM).all(|(byte, form)| match form {
        b'0' => byte.is_ascii_digit(),
        b' ' => matches!(byte, b' ' | b'T'),
        _ => byte == form,
    });
    if !fits {
        return None;
    }
    let number = |from: usize, to: usize| {
        front[from..to].iter().fold(0_u32, |sum, digit| sum * 10 + u32::from(digit - b'0'))
    };
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    let (hour, minute, second) = (number(11, 13), number(14, 16), number(17, 19));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let of_day = f64::from(hour * 3600 + minute * 60 + second);
    Some(f64::from(days(year, month, day)) * 86_400.0 + of_day + fraction(&bytes[FORM.len()..]))
}

fn fraction(bytes: &[u8]) -> f64 {
    let Some((b'.' | b',', digits)) = bytes.split_first() else { return 0.0 };
    let digits = digits.iter().take_while(|digit| digit.is_ascii_digit()).take(9);
    digits.fold((0.0, 0.1), |(sum, place), digit| (sum + place * f64::from(digit - b'0'), place / 10.0)).0
}

/// Days since 1970-01-01: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn days(year: u32, month: u32, day: u32) -> i32 {
    let [year, month, day] = [year, month, day].map(|number| i32::try_from(number).unwrap_or(0));
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let shifted = (month + 9) % 12;
    let of_year = (153 * shifted + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_and_counted() {
        assert_eq!(find("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(find("[rank0]: 2024-02-29 23:30:00 x"), Some(1_709_249_400.0));
        assert_eq!(find("2024-02-29T23:30:00.250"), Some(1_709_249_400.25));
        let comma = find("2024-02-29 23:30:00,455 - INFO").unwrap();
        assert!((comma - 1_709_249_400.455).abs() < 1e-6);
        assert_eq!(find("0000-01-01 00:00:00"), Some(-62_167_219_200.0));
        for none in ["", "2024-13-01 00:00:00", "2024-02-29 24:30:00", "2024-02-29 23:30", "no time"] {
            assert_eq!(find(none), None, "{none}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = find(&text);
            let _ = find(&format!("2024-02-29 23:30:00{text}"));
        }
    }
}
