//! The program by itself, and what is about the commands of both programs. What its commands do, the tests of `memwarden` check, which
//! executes it.

#![expect(
    clippy::unwrap_used,
    clippy::tests_outside_test_module,
    clippy::print_stdout,
    reason = "the whole crate is tests"
)]

mod command_lines;
mod forecast;
#[path = "../../../tests/it/pages.rs"]
mod pages;
#[path = "../../../tests/it/skip.rs"]
mod skip;
mod texts;

/// The folder of the sources.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[test]
#[expect(clippy::disallowed_methods, reason = "it starts the program")]
fn it_says_its_own_name_and_version() {
    let done =
        std::process::Command::new(env!("CARGO_BIN_EXE_memwarden-lab")).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(done.stdout).unwrap(),
        format!("memwarden-lab {}\n", memwarden::cli::VERSION)
    );
}
