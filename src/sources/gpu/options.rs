//! Configuration keys of the `gpu` source.

use std::path::PathBuf;
use std::time::Duration;

crate::options! {
    /// The options of the source and of its worker, to which they are passed as one JSON document.
    #[derive(serde::Serialize, serde::Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_reads_the_document_that_the_daemon_writes() {
        let options = Options {
            nvml_library: Some("/opt/my \"lib\".so".into()),
            interval: Duration::from_millis(250),
            gpm: false,
            ..Options::default()
        };
        let document = serde_json::to_string(&options).unwrap();
        assert_eq!(serde_json::from_str::<Options>(&document).unwrap(), options);
        assert!(serde_json::from_str::<Options>("--help").is_err());
    }
}
