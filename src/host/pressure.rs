//! Pressure stall information in `/proc/pressure/*` and `memory.pressure` of a cgroup (Documentation/accounting/psi.rst): percentages and microseconds.

use crate::model::units::{Ratio, Seconds};

/// One line: the time for which tasks waited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// Share of the last 10, 60 and 300 seconds.
    pub shares: [Ratio; 3],
    /// Time since boot, or since the cgroup was created.
    pub total: Seconds,
}

/// The lines of one file; absent if the kernel does not write them or they are incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Option<Stall>,
    /// Every non-idle task waited.
    pub full: Option<Stall>,
}

/// Parses one file.
pub fn pressure(text: &[u8]) -> Pressure {
    let mut found = Pressure::default();
    for line in String::from_utf8_lossy(text).split_inclusive('\n') {
        let Some((kind, rest)) = line.strip_suffix('\n').and_then(|line| line.split_once(' ')) else {
            continue;
        };
        match kind {
            "some" => found.some = stall(rest),
            "full" => found.full = stall(rest),
            _ => {}
        }
    }
    found
}

/// Parses `avg10=0.01 avg60=0.43 avg300=0.42 total=17347535`; all fields are required.
fn stall(text: &str) -> Option<Stall> {
    let mut fields = text.split(' ');
    let mut share = |name: &str| percent(field(fields.next()?, name)?);
    let shares = [share("avg10")?, share("avg60")?, share("avg300")?];
    let total = Seconds::from_micros(field(fields.next()?, "total")?.parse().ok()?);
    Some(Stall { shares, total })
}

/// Parses `1.53`: always two decimals, so that the share is the nearest number to 0.0153.
fn percent(text: &str) -> Option<Ratio> {
    let (whole, hundredths) = text.split_once('.').filter(|(_, hundredths)| hundredths.len() == 2)?;
    let [whole, hundredths]: [u32; 2] = [whole.parse().ok()?, hundredths.parse().ok()?];
    let share = whole.checked_mul(100)?.checked_add(hundredths)?;
    (share <= 10_000).then(|| Ratio::new(f64::from(share) / 10_000.0))?
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name)?.strip_prefix('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_complete_or_absent() {
        let text = "some avg10=1.50 avg60=0.43 avg300=0.42 total=17347535\n";
        let some = pressure(text.as_bytes()).some.unwrap();
        assert_eq!(some.shares.map(Ratio::get), [0.015, 0.0043, 0.0042]);
        assert_eq!(some.total.get(), 17.347_535);
        for end in 0..text.len() {
            assert_eq!(pressure(&text.as_bytes()[..end]).some, None, "cut at {end}");
        }
    }

    #[test]
    fn invalid_shares_are_absent() {
        for avg10 in ["NaN", "inf", "-0.01", "100.01", "1e400", "", "1", "1.5", "1.-5", "99999999999.00"] {
            let text = format!("full avg10={avg10} avg60=0.00 avg300=0.00 total=1\n");
            assert_eq!(pressure(text.as_bytes()), Pressure::default(), "{avg10}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: Vec<u8>, line in "(some|full) avg10=\\PC{0,9} avg60=[0-9.]{0,5}\n") {
            pressure(&text);
            pressure(line.as_bytes());
        }
    }
}
