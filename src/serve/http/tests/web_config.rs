//! The fixtures under `tests/fixtures/web-config`, and whether `promtool check web-config` agrees on them.

use std::path::{Path, PathBuf};

use super::tls::Authority;
use crate::serve::http::check_web_config;

/// The fixtures of a folder, beside freshly made certificates.
fn fixtures(verdict: &str) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("fixtures");
    let (cert, key) = authority.server();
    let (_, other_key) = authority.server();
    let indented = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    for (name, text) in [
        ("cert.pem", cert.as_str()),
        ("key.pem", &key),
        ("other-key.pem", &other_key),
        ("ca.pem", &authority.pem()),
        ("empty.pem", ""),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/web-config").join(verdict);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replace("    CERT\n", &indented(&cert)).replace("    KEY\n", &indented(&key));
        let copy = folder.path().join(path.file_name().unwrap());
        std::fs::write(&copy, text).unwrap();
        found.push(copy);
    }
    found.sort();
    (folder, found)
}

fn name(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

#[test]
fn good_files_are_accepted() {
    let (_folder, files) = fixtures("good");
    assert!(files.len() >= 8);
    for path in files {
        check_web_config(&path).unwrap_or_else(|error| panic!("{}: {error}", name(&path)));
    }
}

#[test]
fn bad_files_are_refused_with_their_reason() {
    let (folder, files) = fixtures("bad");
    assert!(files.len() >= 12);
    let mut verdicts = String::new();
    for path in files {
        let error = check_web_config(&path).expect_err(name(&path));
        let source =
            std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        let text = format!("{error}{source}").replace(&format!("{}/", folder.path().display()), "");
        verdicts.push_str(&format!("{}\n  {}\n", name(&path), text.replace('\n', "\n  ")));
    }
    expect_test::expect_file!["../../../../tests/fixtures/web-config/bad.txt"].assert_eq(&verdicts);
}

/// promtool's verdict; nothing where it is not installed.
#[expect(clippy::disallowed_methods, reason = "the reference is another program")]
fn promtool(arguments: &[&std::ffi::OsStr]) -> Option<std::process::Output> {
    std::process::Command::new("promtool").args(arguments).output().ok()
}

#[test]
fn promtool_agrees() {
    let Some(version) = promtool(&["--version".as_ref()]) else {
        crate::skip::skip("promtool is not installed");
        return;
    };
    let version = String::from_utf8_lossy(&[version.stdout, version.stderr].concat()).into_owned();
    let number = version.split("version ").nth(1).unwrap().split('.').take(2);
    let number: Vec<u32> = number.map(|part| part.parse().unwrap()).collect();
    // Rate limit, inline PEM and allowed names came with the exporter-toolkit of Prometheus 3.
    let old = number[0] < 3;
    for (verdict, expected) in [("good", true), ("bad", false)] {
        let (_folder, files) = fixtures(verdict);
        for path in files {
            if (old && name(&path).starts_with("newer-")) || name(&path).starts_with("stricter-") {
                continue;
            }
            let output = promtool(&["check".as_ref(), "web-config".as_ref(), path.as_os_str()]).unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), expected, "{}: promtool says {text}", name(&path));
        }
    }
}
