//! The commands of the program `memwarden-lab`, which is executed as git executes `git-NAME`.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::host::lab;

/// Their names, and what they do.
pub const LAB: [(&str, &str); 4] = [
    ("plot", "Draw recordings, reports and logs as a chart"),
    ("replay", "Run the leak and exhaustion analyzers on recorded series, and report their results"),
    ("snapshot", "Analyze PyTorch allocator snapshots: fragmentation, the owners of memory, and remedies"),
    (
        "what-if",
        "Play recorded runs against memory limits and policies: who would have been killed, and what would have been lost",
    ),
];

/// Whether this command line, after the name of the program, is for that program: a command of it, or help on one.
pub(super) fn is_meant(words: &[impl AsRef<std::ffi::OsStr>]) -> bool {
    let name = match words {
        [help, name, ..] if help.as_ref() == "help" => name,
        [name, ..] => name,
        [] => return false,
    };
    LAB.iter().any(|(known, _)| name.as_ref() == *known)
}

/// Executes the program in place of this one, with the same arguments; it shows the name of this one. Returns why it cannot.
#[expect(clippy::disallowed_methods, reason = "it starts no process, and becomes this one")]
pub(super) fn execute() -> anyhow::Error {
    let program = match lab::program() {
        Ok(program) => program,
        Err(missing) => return missing.into(),
    };
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let error = Command::new(&program).arg0(name).arg(lab::release()).args(words).exec();
    anyhow::Error::new(error).context(format!("cannot execute {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::is_meant;

    #[test]
    fn commands_and_help_on_them_are_executed() {
        let cases: [(&[&str], bool); 6] = [
            (&["replay", "a.csv"], true),
            (&["help", "what-if"], true),
            (&["help"], false),
            (&["help", "serve"], false),
            (&["serve", "replay"], false),
            (&[], false),
        ];
        for (words, expected) in cases {
            assert_eq!(is_meant(words), expected, "{words:?}");
        }
    }
}
