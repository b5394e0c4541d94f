//! Configuration keys of the `gpu` source.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

crate::options! {
    /// The options of the source and of its worker.
    pub struct Options {
        /// Path of the NVML library to load. Empty means libnvidia-ml.so.1, as found by the system's loader or in the
        /// usual folders.
        nvml_library: Option<PathBuf>;
        /// Folder that contains the libraries of the driver, such as /run/nvidia/driver in a container; empty means the
        /// root folder.
        driver_root: Option<PathBuf>;
        /// Time between two samples of each GPU.
        interval: Duration = 1s in 100ms..=1m;
        /// Whether memory and utilization are sampled for each process.
        processes: bool = true;
        /// Whether NVML field values are sampled: memory temperature, remapped rows, PCIe and NVLink traffic, and
        /// throttling time.
        field_values: bool = true;
        /// Whether the memory of each GPU is also read between samples, to see short peaks: every 20 to 75 ms, or less
        /// often where the reads of all GPUs would take more than 0.35 % of a core.
        memory_peaks: bool = true;
        /// Whether GPM metrics are sampled where the GPU has them (from Hopper on): activity of SMs, pipes and memory,
        /// and rates of PCIe and NVLink.
        gpm: bool = true;
        /// Whether the state, the traffic and the errors of each NVLink link are exposed, 8 series a link, besides
        /// their sums; they are read every fifth sample.
        nvlink_links: bool = false;
    }
}

impl Options {
    /// As arguments of the worker's command line.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec!["--interval-ms".into(), self.interval.as_millis().to_string().into()];
        for (flag, path) in [("--library", &self.nvml_library), ("--driver-root", &self.driver_root)] {
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
        let mut options = Self::default();
        while let Some(flag) = arguments.next() {
            match flag.to_str() {
                Some("--no-processes") => options.processes = false,
                Some("--no-field-values") => options.field_values = false,
                Some("--no-memory-peaks") => options.memory_peaks = false,
                Some("--no-gpm") => options.gpm = false,
                Some("--nvlink-links") => options.nvlink_links = true,
                Some("--library") => options.nvml_library = Some(arguments.next().ok_or(flag)?.into()),
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
                nvml_library: library,
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
