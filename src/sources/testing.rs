//! What every source's tests need: build it on a fixture folder, sample it, show what it put.

use std::path::Path;
use std::sync::Arc;

use crate::config;
use crate::exposition::prometheus::{Format, encode};
use crate::host::roots::Roots;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::sources::{Context, Registration};

/// The source as the daemon would build it without a configuration file, with its roots below `folder`.
pub(crate) fn build(registration: &Registration, folder: &Path) -> Box<dyn Source> {
    let schema = config::schema::Schema {
        sections: config::schema::SECTIONS,
        sources: vec![config::schema::SourceSchema {
            key: registration.name,
            about: registration.about,
            on_by_default: registration.on_by_default,
            options: registration.options,
            needs: &[],
            check: registration.check,
        }],
    };
    let config = config::parse_str("", Path::new("test.yaml"), &schema, &[]).unwrap();
    let context = Context { roots: Arc::new(Roots::under(folder)), worker: None };
    (registration.build)(&config.sources[registration.name].settings, &context)
}

/// One sample's series as text without HELP and TYPE, then a line for an error or dropped points, if any.
pub(crate) fn sample(source: &mut dyn Source, second: u64) -> String {
    let mut batch = Batch::new();
    let outcome = source.sample(Timestamp::from_secs(second), &mut batch);
    let (families, dropped, _) = batch.seal();
    let text = encode(&families, Format::Text);
    let mut shown: String =
        text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect();
    match outcome {
        Ok(()) => {}
        Err(SourceError::Unavailable { why }) => shown.push_str(&format!("unavailable: {why}\n")),
        Err(SourceError::Failed { kind, why }) => {
            shown.push_str(&format!("failed ({}): {why}\n", kind.label()));
        }
    }
    for ((metric, reason), count) in dropped {
        shown.push_str(&format!("dropped ({}): {count} of {metric}\n", reason.label()));
    }
    shown
}

/// The first sample of a source built on `folder`, which is shown as `ROOT`.
pub(crate) fn render(registration: &Registration, folder: &Path) -> String {
    sample(&mut *build(registration, folder), 1).replace(&folder.display().to_string(), "ROOT")
}

/// A folder of `tests/fixtures`.
pub(crate) fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A new folder with these files below it.
pub(crate) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}
