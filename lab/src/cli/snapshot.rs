//! `memwarden snapshot`: analyzes PyTorch allocator snapshots without executing their code.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use crate::files::pickle::Limits;
use crate::files::snapshot::analysis::{Analysis, Comparison, Options, analyze, compare};
use crate::files::snapshot::{Snapshot, decode};
use crate::report::snapshot::{FileReport, Report, SCHEMA_VERSION, picture, text};
use memwarden::cli::output::{Format, Output};
use memwarden::cli::{out, picture as drawing};
use memwarden::config;
use memwarden::model::printable;
use memwarden::model::units::Bytes;

/// Analyze PyTorch allocator snapshots: fragmentation, the owners of memory, and remedies.
///
/// Reads files written by torch.cuda.memory._dump_snapshot() of any release. No code in a file is executed, and
/// reading takes at most ten times the size of the file in memory. Exit codes: 0 success, 1 a file cannot be read; all
/// other files are still reported.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden snapshot snapshot.pickle --plot snapshot.html
  memwarden snapshot --request-size 512MiB oom_rank-0_snapshot.pickle
  memwarden snapshot --compare step100.pickle step200.pickle")]
pub(super) struct Args {
    /// Allocator snapshot to analyze (.pickle).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    output: Output<Format>,
    /// Draw the address space, and the live memory over the trace, to this file: .svg, .html or .png.
    #[arg(long, value_name = "FILE", value_parser = drawable)]
    plot: Option<PathBuf>,
    /// Maximum length of each list in the report.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Compare the second file with the first, instead of analyzing each.
    #[arg(long)]
    compare: bool,
    /// Size of an additional request to evaluate against the free memory, such as 512MiB.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    request_size: Option<Bytes>,
    /// Maximum memory for reading one file.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = size)]
    max_memory: Bytes,
}

fn size(text: &str) -> Result<Bytes, String> {
    config::size(text)
}

/// A page is written here; pictures by the code of all commands.
fn drawable(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if is_page(&path) {
        return Ok(path);
    }
    drawing::drawable(text).map_err(|error| format!("{error}; of a page, in .html"))
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html"))
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            !self.compare || self.files.len() == 2,
            "--compare takes two files, the older one first"
        );
        let needs_all = self.compare || self.files.len() == 1;
        let mut failed = false;
        let mut left_out = |error| {
            if needs_all {
                return Err(error);
            }
            failed = true;
            out::complain(&error);
            Ok(())
        };
        let mut read = Vec::new();
        for path in &self.files {
            match self.read(path) {
                Ok(file) => read.push((path.as_path(), file)),
                Err(error) => left_out(error)?,
            }
        }
        let limits: Vec<Limits> = read.iter().map(|(_, file)| self.limits(file)).collect();
        let mut snapshots: Vec<(&Path, usize, Snapshot<'_>, Analysis<'_>)> = Vec::new();
        let options = Options { top: self.top, request: self.request_size };
        for ((path, file), limits) in read.iter().zip(&limits) {
            let known = decode(file, limits).and_then(|snapshot| {
                let analysis = analyze(&snapshot, &options)?;
                Ok((snapshot, analysis))
            });
            match known.with_context(|| path.display().to_string()) {
                Ok((snapshot, analysis)) => snapshots.push((path, file.len(), snapshot, analysis)),
                Err(error) => left_out(error)?,
            }
        }
        let comparison = match &snapshots[..] {
            [before, after] if self.compare => Some(compare(&before.2, &after.2, self.top)?),
            _ => None,
        };
        self.write(&snapshots, comparison.as_ref())?;
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn limits(&self, file: &[u8]) -> Limits {
        Limits::for_file(u64::try_from(file.len()).unwrap_or(u64::MAX), self.max_memory.get())
    }

    /// The bytes of a file within the limit of its size.
    fn read(&self, path: &Path) -> anyhow::Result<Vec<u8>> {
        let name = || path.display().to_string();
        let file = std::fs::File::open(path).with_context(name)?;
        let limit = Limits::for_file(0, self.max_memory.get()).file_bytes;
        let len = file.metadata().with_context(name)?.len();
        let too_large =
            || format!("{}: more than the {} that are read (--max-memory)", name(), Bytes::new(limit));
        anyhow::ensure!(len <= limit, too_large());
        let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
        // A file can grow, and a pipe has no length.
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).with_context(name)?;
        anyhow::ensure!(u64::try_from(bytes.len()).is_ok_and(|len| len <= limit), too_large());
        if let Some(problem) = crate::files::not_the_file(&bytes) {
            anyhow::bail!("{}: {problem}", name());
        }
        Ok(bytes)
    }

    fn write(
        &self,
        snapshots: &[(&Path, usize, Snapshot<'_>, Analysis<'_>)],
        comparison: Option<&Comparison>,
    ) -> anyhow::Result<()> {
        if let Some(path) = &self.plot {
            let drawn = snapshots.iter().map(|(path, _, snapshot, analysis)| picture::Drawn {
                name: path.display().to_string(),
                snapshot,
                analysis,
            });
            let picture = picture::draw(&drawn.collect::<Vec<_>>());
            if is_page(path) {
                out::file(path, picture::page(&picture).as_bytes())?;
            } else {
                drawing::Format::of(path)?.write(&picture, path)?;
            }
        }
        if self.output.format() == Format::Json {
            let reports = snapshots.iter().map(|(path, len, _, analysis)| FileReport {
                file: path.display().to_string(),
                file_bytes: *len,
                analysis,
            });
            let snapshots = reports.collect();
            return self.output.value(&Report { schema_version: SCHEMA_VERSION, snapshots, comparison });
        }
        let page = self.output.page();
        let mut text = String::new();
        match comparison {
            Some(comparison) => text::comparison(comparison, page, &mut text),
            None => {
                for (path, len, _, analysis) in snapshots {
                    text::report(&printable::path(path), *len, analysis, page, &mut text);
                }
            }
        }
        self.output.colored(&text)
    }
}
