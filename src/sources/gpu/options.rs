//! Configuration keys of the `gpu` source.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::setting::{Opt, OptKind, Settings};

pub static LIBRARY: Opt = Opt {
    key: "nvml_library",
    help: "Path of the NVML library to load. Empty means libnvidia-ml.so.1, as found by the system's loader or in the usual folders.",
    kind: OptKind::Path,
    default: "\"\"",
};

pub static DRIVER_ROOT: Opt = Opt {
    key: "driver_root",
    help: "Folder that contains the libraries of the driver, such as /run/nvidia/driver in a container; empty means the root folder.",
    kind: OptKind::Path,
    default: "\"\"",
};

pub static INTERVAL: Opt = Opt {
    key: "interval",
    help: "Time between two samples of each GPU.",
    kind: OptKind::Duration(Duration::from_millis(100), Duration::from_secs(60)),
    default: "1s",
};

pub static PROCESSES: Opt = Opt {
    key: "processes",
    help: "Whether memory and utilization are sampled for each process.",
    kind: OptKind::Bool,
    default: "true",
};

pub static FIELD_VALUES: Opt = Opt {
    key: "field_values",
    help: "Whether NVML field values are sampled: memory temperature, remapped rows, PCIe and NVLink traffic, and throttling time.",
    kind: OptKind::Bool,
    default: "true",
};

pub static MEMORY_PEAKS: Opt = Opt {
    key: "memory_peaks",
    help: "Whether the memory of each GPU is also read between samples, to see short peaks: every 20 to 75 ms, or less often where the reads of all GPUs would take more than 0.35 % of a core.",
    kind: OptKind::Bool,
    default: "true",
};

pub static GPM: Opt = Opt {
    key: "gpm",
    help: "Whether GPM metrics are sampled where the GPU has them (from Hopper on): activity of SMs, pipes and memory, and rates of PCIe and NVLink.",
    kind: OptKind::Bool,
    default: "true",
};

pub static NVLINK_LINKS: Opt = Opt {
    key: "nvlink_links",
    help: "Whether the state, the traffic and the errors of each NVLink link are exposed, 8 series a link, besides their sums; they are read every fifth sample.",
    kind: OptKind::Bool,
    default: "false",
};

pub static OPTIONS: &[&Opt] =
    &[&LIBRARY, &DRIVER_ROOT, &INTERVAL, &PROCESSES, &FIELD_VALUES, &MEMORY_PEAKS, &GPM, &NVLINK_LINKS];

/// Settings of the worker, passed on its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The NVML library to load, if configured.
    pub library: Option<PathBuf>,
    /// The folder below which libraries are searched, if configured.
    pub driver_root: Option<PathBuf>,
    /// The time between two samples of a GPU.
    pub interval: Duration,
    pub processes: bool,
    pub field_values: bool,
    /// Whether memory is read between samples.
    pub memory_peaks: bool,
    pub gpm: bool,
    pub nvlink_links: bool,
}

impl Options {
    pub fn read(settings: &Settings) -> Self {
        Self {
            library: settings.path(&LIBRARY),
            driver_root: settings.path(&DRIVER_ROOT),
            interval: settings.duration(&INTERVAL),
            processes: settings.bool(&PROCESSES),
            field_values: settings.bool(&FIELD_VALUES),
            memory_peaks: settings.bool(&MEMORY_PEAKS),
            gpm: settings.bool(&GPM),
            nvlink_links: settings.bool(&NVLINK_LINKS),
        }
    }

    /// As arguments of the worker's command line.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec!["--interval-ms".into(), self.interval.as_millis().to_string().into()];
        for (flag, path) in [("--library", &self.library), ("--driver-root", &self.driver_root)] {
            if let Some(path) = path {
                arguments.extend([flag.into(), path.into()]);
            }
        }
        for (flag, on) in [
            ("--no-processes", self.processes),
            ("--no-field-values", self.field_values),
            ("--no-memory-peaks", self.memory_peaks),
            ("--no-gpm", self.gpm),
        ] {
            if !on {
                arguments.push(flag.into());
            }
        }
        if self.nvlink_links {
            arguments.push("--nvlink-links".into());
        }
        arguments
    }

    /// Parses the output of [`Options::arguments`].
    ///
    /// # Errors
    /// The first argument that is unknown or lacks its value.
    pub fn of_arguments(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, OsString> {
        let interval = Duration::from_secs(1);
        let mut options = Self {
            library: None,
            driver_root: None,
            interval,
            processes: true,
            field_values: true,
            memory_peaks: true,
            gpm: true,
            nvlink_links: false,
        };
        while let Some(flag) = arguments.next() {
            match flag.to_str() {
                Some("--no-processes") => options.processes = false,
                Some("--no-field-values") => options.field_values = false,
                Some("--no-memory-peaks") => options.memory_peaks = false,
                Some("--no-gpm") => options.gpm = false,
                Some("--nvlink-links") => options.nvlink_links = true,
                Some("--library") => options.library = Some(arguments.next().ok_or(flag)?.into()),
                Some("--driver-root") => options.driver_root = Some(arguments.next().ok_or(flag)?.into()),
                Some("--interval-ms") => {
                    let text = arguments.next().ok_or(flag)?;
                    let number = text.to_str().and_then(|text| text.parse().ok());
                    options.interval = Duration::from_millis(number.ok_or(text)?);
                }
                _ => return Err(flag),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn written_values_are_read_back() {
        let odd = OsString::from_vec(b"/opt/\xff lib.so".to_vec());
        for (library, processes, field_values) in
            [(None, true, true), (Some(PathBuf::from(odd)), false, true), (None, true, false)]
        {
            let driver_root = library.clone();
            let interval = Duration::from_millis(250);
            let memory_peaks = field_values != processes;
            let (gpm, nvlink_links) = (processes, field_values && !processes);
            let options = Options {
                library,
                driver_root,
                interval,
                processes,
                field_values,
                memory_peaks,
                gpm,
                nvlink_links,
            };
            assert_eq!(Options::of_arguments(options.arguments().into_iter()), Ok(options));
        }
        let read = |text: &str| Options::of_arguments(text.split(' ').map(OsString::from));
        assert_eq!(read("--interval-ms x"), Err("x".into()));
        assert_eq!(read("--no-processes --library"), Err("--library".into()));
        assert_eq!(read("--help"), Err("--help".into()));
    }
}
