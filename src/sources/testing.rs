//! Test support of the sources: a folder with fixture files, a source built on it, and the output of a sample.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use expect_test::Expect;

use crate::config;
use crate::host::roots::Roots;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::serve::prometheus::{Format, encode};
use crate::sources::{Context, Registration};

/// A temporary folder.
pub(crate) struct Root(tempfile::TempDir);

impl Root {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file below it, and creates the folders in between.
    pub(crate) fn write(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Appends to a file.
    pub(crate) fn append(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        let mut file = std::fs::OpenOptions::new().append(true).open(self.path().join(path)).unwrap();
        file.write_all(text.as_ref()).unwrap();
    }
}

impl AsRef<Path> for Root {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

/// A new folder with these files below it.
pub(crate) fn root(files: &[(&str, &str)]) -> Root {
    let root = Root(tempfile::tempdir().unwrap());
    for (path, text) in files {
        root.write(path, text);
    }
    root
}

/// The path of a folder of `tests/fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The source as the daemon builds it without a configuration file, with its roots below `root`.
pub(crate) fn build(registration: &Registration, root: impl AsRef<Path>) -> Box<dyn Source> {
    let schema = config::schema::Schema {
        sections: config::schema::SECTIONS,
        groups: vec![config::schema::GroupSchema {
            key: config::schema::SOURCES,
            about: "",
            parts: vec![config::schema::PartSchema {
                key: registration.name,
                about: registration.about,
                on_by_default: registration.on_by_default,
                options: registration.options,
                needs: &[],
                check: registration.check,
            }],
        }],
        modules: Vec::new(),
    };
    let config = config::parse_str("", Path::new("test.yaml"), &schema, &[]).unwrap();
    let context = Context {
        roots: Arc::new(Roots::under(root.as_ref())),
        worker: None,
        checkpoints: Arc::default(),
        past_runs: Arc::default(),
    };
    (registration.build)(&config.sources[registration.name].settings, &context)
}

/// The series of one sample as text without HELP and TYPE, then a line for each metric with dropped points;
/// and the result.
pub(crate) fn tick(source: &mut dyn Source, second: u64) -> (String, Result<(), SourceError>) {
    let mut batch = Batch::new();
    let outcome = source.sample(Timestamp::from_secs(second), &mut batch);
    let (families, dropped, _) = batch.seal();
    let text = encode(&families, Format::Text);
    let mut shown: String =
        text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect();
    for ((metric, reason), count) in dropped {
        shown.push_str(&format!("dropped ({}): {count} of {metric}\n", reason.label()));
    }
    (shown, outcome)
}

/// The output of [`tick`] as one text, with a line for an error, if any, and `root` replaced by `ROOT`.
pub(crate) fn sample(source: &mut dyn Source, root: impl AsRef<Path>, second: u64) -> String {
    let (mut shown, outcome) = tick(source, second);
    match outcome {
        Ok(()) => {}
        Err(SourceError::Unavailable { why }) => shown.push_str(&format!("unavailable: {why}\n")),
        Err(SourceError::Failed { kind, why }) => {
            shown.push_str(&format!("failed ({}): {why}\n", kind.label()));
        }
    }
    shown.replace(&root.as_ref().display().to_string(), "ROOT")
}

/// Compares the first sample of a source built on `root`.
pub(crate) fn check(registration: &Registration, root: impl AsRef<Path>, expected: Expect) {
    expected.assert_eq(&sample(&mut *build(registration, &root), &root, 1));
}

/// Replaces the pid in labels by `PID`, but not the same digits in other numbers.
pub(crate) fn without_pid(text: &str, pid: u32) -> String {
    text.replace(&format!("\"{pid}\""), "\"PID\"").replace(&format!("@{pid}"), "@PID")
}
