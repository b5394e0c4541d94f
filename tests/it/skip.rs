//! Reports skipped tests: test runners capture the output of a passing test.

use std::io::Write as _;

/// Writes the reason to standard error itself, and to the file that `tests/run` and `tests/real` show at their end.
pub(crate) fn skip(why: &str) {
    let line = format!("skipped: {why}\n");
    // A closed standard error or a full disk must not fail a test that was to be skipped.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("MEMWARDEN_SKIPPED")
        && let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = file.write_all(line.as_bytes());
    }
}
