//! Parses `/proc/vmstat`: one name and one number per line.

use super::table::{self, Entry};

/// The known lines, in the file's order; a line that is truncated or has no number is ignored.
pub fn vmstat(text: &str) -> impl Iterator<Item = (&'static Entry, u64)> {
    text.split_inclusive('\n').filter_map(|line| {
        let (name, number) = line.strip_suffix('\n')?.split_once(' ')?;
        Some((table::find(name)?, number.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, u64)]) {
        let found: Vec<_> = vmstat(text).map(|(entry, number)| (entry.line, number)).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn only_complete_known_lines_count() {
        check("nr_free_pages 5\noom_kill 3\npgfault 92715", &[("oom_kill", 3)]);
        check("oom_kill -1\noom_kill \noom_kill\noom_kill 1 2\noom_kill 99999999999999999999\n", &[]);
        check("\0\noom_kill\t3\n oom_kill 3\nOOM_KILL 3\noom_kill_x 3\n", &[]);
        check("pgmajfault 18446744073709551615\n", &[("pgmajfault", u64::MAX)]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, number in "\\PC{0,30}") {
            vmstat(&text).count();
            vmstat(&format!("pswpin {number}\n{text}")).count();
        }
    }
}
