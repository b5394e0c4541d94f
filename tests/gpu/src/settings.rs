//! What a run uses, and how much time it takes.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::arguments::Arguments;

/// The settings of a run; each part is a process that is given the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The folder of results.
    pub(crate) out: PathBuf,
    /// The daemon.
    pub(crate) memwarden: PathBuf,
    /// Name or path of the NVML library.
    pub(crate) nvml: String,
    /// Name or path of CUDA's driver library.
    pub(crate) cuda: String,
    /// The GPU that the programs use, by CUDA's number.
    pub(crate) device: usize,
    /// Whether memory may be allocated up to the last byte although other processes use the GPU.
    pub(crate) allow_oom: bool,
    /// The share of the usual time that measurements take; the rehearsal takes less.
    pub(crate) pace: f64,
    /// Seconds after which no further part begins.
    pub(crate) limit: f64,
    pub(crate) python: String,
    pub(crate) smi: String,
    /// The folder with the Python programs, and the one with the package `memwarden`.
    pub(crate) programs: PathBuf,
    pub(crate) client: PathBuf,
    /// Whether the parts of PyTorch run on a CPU where there is no GPU for it; for tests of these parts.
    pub(crate) torch_on_cpu: bool,
    /// The only parts that are carried out; all if empty.
    pub(crate) only: Vec<String>,
}

impl Settings {
    /// Takes them from the command line; what is absent is next to this program.
    ///
    /// # Errors
    /// An argument that is unknown or has no valid value.
    pub(crate) fn take(mut arguments: Arguments) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("the path of this program")?;
        let pack = own.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        let path = |given: Option<String>, otherwise: PathBuf| given.map_or(otherwise, PathBuf::from);
        let settings = Self {
            out: path(arguments.option("--out"), PathBuf::from("gpu-run-results")),
            memwarden: path(arguments.option("--memwarden"), pack.join("bin/memwarden")),
            programs: path(arguments.option("--programs"), pack.join("programs")),
            client: path(arguments.option("--client"), pack.join("client")),
            nvml: arguments.text("--nvml", "libnvidia-ml.so.1"),
            cuda: arguments.text("--cuda", "libcuda.so.1"),
            device: arguments.size("--device")?,
            allow_oom: arguments.flag("--allow-oom"),
            torch_on_cpu: arguments.flag("--torch-on-cpu"),
            pace: arguments.number("--pace", 1.0)?.clamp(0.1, 4.0),
            limit: arguments.number("--limit-s", 480.0)?,
            python: arguments.text("--python", "python3"),
            smi: arguments.text("--nvidia-smi", "nvidia-smi"),
            only: arguments.option("--only").into_iter().flat_map(|list| split(&list)).collect(),
        };
        arguments.end()?;
        Ok(settings)
    }

    /// As arguments of another process.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut all: Vec<String> = Vec::new();
        for (name, value) in [
            ("--out", text(&self.out)),
            ("--memwarden", text(&self.memwarden)),
            ("--programs", text(&self.programs)),
            ("--client", text(&self.client)),
            ("--nvml", self.nvml.clone()),
            ("--cuda", self.cuda.clone()),
            ("--device", self.device.to_string()),
            ("--pace", self.pace.to_string()),
            ("--limit-s", self.limit.to_string()),
            ("--python", self.python.clone()),
            ("--nvidia-smi", self.smi.clone()),
        ] {
            all.extend([name.to_owned(), value]);
        }
        for (name, on) in [("--allow-oom", self.allow_oom), ("--torch-on-cpu", self.torch_on_cpu)] {
            all.extend(on.then(|| name.to_owned()));
        }
        all
    }

    /// The folder of one part.
    pub(crate) fn folder(&self, part: &str) -> PathBuf {
        self.out.join(part)
    }
}

fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::to_owned).collect()
}
