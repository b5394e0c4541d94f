//! `memwarden params`: what checkpoints hold, without executing anything of them.

mod checkpoint;
mod file;
mod picture;
mod text;
mod work;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::checkpoint::Checkpoint;
use self::work::{Pair, Speed};
use crate::cli::output::{Format, Output};
use crate::cli::picture::Format as Drawing;
use crate::formats::parameters::adapter::Adapter;
use crate::formats::parameters::compare::{Comparison, Moved, compare};
use crate::formats::parameters::summary::{self, Item, Row, Summary, summarize};
use crate::formats::parameters::{Group, Place, Tensor, group_of, torch};

/// Grows when a key changes its meaning or goes.
const SCHEMA_VERSION: u32 = 1;
/// Threads where none are asked for: more would not read memory faster on most machines.
const THREADS: usize = 4;

/// Report the contents of parameter files: shapes, data types, size by part of the model, NaN, Inf and zeros.
///
/// Reads safetensors (one file, or shards with their index), archives of torch.save, and PEFT adapters; a folder
/// is read in the layout of Hugging Face. No code in a file is executed. Values are read by threads of the lowest
/// priority, without evicting other files from the page cache. If two checkpoints are given, they are compared.
/// Exit codes: 0 success, 1 an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden params checkpoint-1000/
  memwarden params adapter/ --base meta-llama/Llama-3.1-8B/
  memwarden params step100.safetensors step200.safetensors --difference")]
pub(super) struct Args {
    /// File, index or folder with parameters.
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// Second checkpoint, which is compared with the first.
    #[arg(value_name = "OTHER")]
    other: Option<PathBuf>,
    #[command(flatten)]
    output: Output<Format>,
    /// Draw the size by part of the model and by data type to this file: .svg or .png.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Maximum length of each list in the report.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// List every tensor in the text report; JSON has every tensor.
    #[arg(long)]
    tensors: bool,
    /// Read only the headers; NaN, Inf and zeros are then unknown.
    #[arg(long)]
    no_scan: bool,
    /// Number of threads that read values [default: number of CPU cores, at most 4].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Compare the values too, and report by how much each tensor differs.
    #[arg(long, requires = "other")]
    difference: bool,
    /// Base model of an adapter, to report the share of trainable parameters.
    #[arg(long, value_name = "CHECKPOINT")]
    base: Option<PathBuf>,
    /// Accept .pt files that name functions or classes outside the list of harmless ones; none is called in any case.
    #[arg(long)]
    any_class: bool,
}

/// What is said of one checkpoint.
#[derive(serde::Serialize)]
struct Told<'a> {
    path: String,
    files: Vec<FileTold<'a>>,
    notes: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<&'a Adapter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scan: Option<Speed>,
    summary: Summary<'a>,
    all: Vec<Row<'a>>,
}

#[derive(serde::Serialize)]
struct FileTold<'a> {
    file: String,
    file_bytes: u64,
    tensors: usize,
    metadata: &'a BTreeMap<String, String>,
}

#[derive(serde::Serialize)]
struct Report<'a> {
    schema_version: u32,
    checkpoints: &'a [Told<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a Comparison<'a>>,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let drawing = self.plot.as_deref().map(Drawing::of).transpose()?;
        let options = torch::Options { any_class: self.any_class };
        let paths: Vec<&Path> = [Some(&self.checkpoint), self.other.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .collect();
        let checkpoints =
            paths.iter().map(|path| Checkpoint::open(path, &options)).collect::<anyhow::Result<Vec<_>>>()?;
        let base_elements = match &self.base {
            Some(path) => Some(elements(&Checkpoint::open(path, &options)?)),
            None => None,
        };
        let told = checkpoints
            .iter()
            .map(|checkpoint| self.tell(checkpoint, base_elements))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let names: Vec<Vec<String>> = checkpoints.iter().map(names).collect();
        let comparison = match (&checkpoints[..], &names[..]) {
            ([before, after], [old, new]) => Some(self.compare([before, after], [old, new])?),
            _ => None,
        };
        self.write(&told, comparison.as_ref())?;
        if let (Some(path), Some(drawing)) = (&self.plot, drawing) {
            drawing.write(&picture::draw(&told), path)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or(cores.min(THREADS), NonZeroUsize::get)
    }

    fn tell<'a>(&self, checkpoint: &'a Checkpoint, base_elements: Option<u64>) -> anyhow::Result<Told<'a>> {
        let (found, speed) = if self.no_scan {
            (vec![None; checkpoint.tensors().count()], None)
        } else {
            let (found, speed) = work::scan_all(checkpoint, self.threads())?;
            (found, Some(speed))
        };
        let items: Vec<Item<'a>> = checkpoint
            .tensors()
            .zip(found)
            .map(|((file, tensor), found)| Item { file, tensor, found })
            .collect();
        let options =
            summary::Options { top: self.top, adapter: checkpoint.adapter.is_some(), base_elements };
        let file = |shard: &'a checkpoint::Shard| FileTold {
            file: shard.path.display().to_string(),
            file_bytes: shard.size,
            tensors: shard.part.tensors.len(),
            metadata: &shard.part.metadata,
        };
        Ok(Told {
            path: checkpoint.path.display().to_string(),
            files: checkpoint.files.iter().map(file).collect(),
            notes: &checkpoint.notes,
            adapter: checkpoint.adapter.as_ref(),
            scan: speed,
            summary: summarize(&items, &options),
            all: items.iter().map(summary::row).collect(),
        })
    }

    fn compare<'a>(
        &self,
        both: [&'a Checkpoint; 2],
        names: [&'a [String]; 2],
    ) -> anyhow::Result<Comparison<'a>> {
        let named = |side: usize| -> Vec<(&'a str, &'a Tensor)> {
            names[side]
                .iter()
                .map(String::as_str)
                .zip(both[side].tensors().map(|(_, tensor)| tensor))
                .collect()
        };
        let mut comparison = compare(&named(0), &named(1));
        if !self.difference {
            return Ok(comparison);
        }
        let after: BTreeMap<&str, (usize, &Tensor)> =
            names[1].iter().map(String::as_str).zip(both[1].tensors()).collect();
        let (mut same, mut pairs): (Vec<&'a str>, Vec<Pair<'_>>) = (Vec::new(), Vec::new());
        for (name, before) in names[0].iter().zip(both[0].tensors()) {
            let fits = |after: &&(usize, &Tensor)| {
                after.1.dtype == before.1.dtype && after.1.shape == before.1.shape
            };
            if let Some(after) = after.get(name.as_str()).filter(fits) {
                same.push(name);
                pairs.push([before, *after]);
            }
        }
        let (found, _) = work::compare_all(both, &pairs, self.threads())?;
        comparison.compared = Some(found.iter().flatten().count());
        let moved = same.iter().zip(found).filter_map(|(name, difference)| {
            let difference = difference.filter(|difference| difference.differing > 0)?;
            Some(Moved { name, difference })
        });
        let mut moved: Vec<Moved<'a>> = moved.collect();
        moved.sort_by(|a, b| {
            let of = |moved: &Moved<'_>| moved.difference.max_abs.unwrap_or(-1.0);
            of(b).total_cmp(&of(a))
        });
        comparison.values = Some(moved);
        Ok(comparison)
    }

    fn write(&self, told: &[Told<'_>], comparison: Option<&Comparison<'_>>) -> anyhow::Result<()> {
        if self.output.format() == Format::Json {
            return self.output.value(&Report {
                schema_version: SCHEMA_VERSION,
                checkpoints: told,
                comparison,
            });
        }
        let mut text = String::new();
        told.iter().for_each(|told| text::checkpoint(told, self.tensors, &mut text));
        if let Some(comparison) = comparison {
            text::comparison(comparison, self.top, &mut text);
        }
        self.output.text(&text)
    }
}

/// The elements of a model, without optimizer state and what is tied.
fn elements(checkpoint: &Checkpoint) -> u64 {
    let mut places = std::collections::HashSet::new();
    let counted = checkpoint.tensors().filter(|(file, tensor)| {
        let own = matches!(tensor.place, Place::Elsewhere { .. })
            || places.insert((*file, tensor.place, tensor.bytes));
        group_of(&tensor.name) != Group::Optimizer && own
    });
    counted.fold(0, |sum, (_, tensor)| sum.saturating_add(tensor.elements))
}

/// The names of all tensors; shards of one name (of tensor parallelism) are told apart by their file.
fn names(checkpoint: &Checkpoint) -> Vec<String> {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    checkpoint.tensors().for_each(|(_, tensor)| *times.entry(&tensor.name).or_default() += 1);
    let name = |(file, tensor): (usize, &Tensor)| match times.get(tensor.name.as_str()) {
        Some(2..) => {
            let file = checkpoint.files[file].path.file_name().unwrap_or_default().display();
            format!("{file}:{}", tensor.name)
        }
        _ => tensor.name.clone(),
    };
    checkpoint.tensors().map(name).collect()
}
