//! Initializes NVML and finds the GPUs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::calls::call;
use super::{WorkerShared, device, give_up, peaks};
use crate::sources::gpu::options::Options;
use crate::sources::gpu::protocol::{Line, MOST_GPUS, State, Status};

/// The library's name, for the dynamic loader.
const NAME: &str = "libnvidia-ml.so.1";

/// Folders in which distributions, containers and WSL install it.
const FOLDERS: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/lib/wsl/lib",
];

/// Interval between two reads of the number of GPUs.
const RECOUNT: Duration = Duration::from_secs(30);

/// Initializes NVML, starts a thread for each GPU, then watches the number of GPUs.
pub(super) fn run(shared: &Arc<WorkerShared>, options: &Options) {
    shared.calls.enter(None);
    let nvml = match start(options) {
        Ok(nvml) => *shared.nvml.get_or_init(|| nvml),
        Err((why, error)) => return give_up(shared, why, error),
    };
    let gpus = match call("nvmlDeviceGetCount_v2", || nvml.device_count()) {
        Ok(gpus) => gpus.min(MOST_GPUS),
        Err(error) => return give_up(shared, format!("cannot count the GPUs: {error}"), error),
    };
    let cuda = call("nvmlSystemGetCudaDriverVersion_v2", || nvml.sys_cuda_driver_version()).map(|version| {
        let major = nvml_wrapper::cuda_driver_version_major(version);
        format!("{major}.{}", nvml_wrapper::cuda_driver_version_minor(version))
    });
    shared.send(&Line::State(State {
        status: Status::Ok,
        gpus,
        driver: call("nvmlSystemGetDriverVersion", || nvml.sys_driver_version()).unwrap_or_default(),
        nvml: call("nvmlSystemGetNVMLVersion", || nvml.sys_nvml_version()).unwrap_or_default(),
        cuda: cuda.unwrap_or_default(),
        ..State::default()
    }));
    for gpu in 0..gpus {
        let options = options.clone();
        shared.spawn(format!("gpu-{gpu}"), move |shared| device::run(shared, nvml, gpu, &options));
    }
    if options.memory_peaks {
        peaks::start(shared);
    }
    watch(shared, nvml, gpus);
}

/// Makes the worker exit once the number of GPUs has changed, so that a new worker starts from the current state.
fn watch(shared: &WorkerShared, nvml: &Nvml, gpus: u32) {
    loop {
        shared.rest(RECOUNT);
        if shared.leaving() {
            return;
        }
        if call("nvmlDeviceGetCount_v2", || nvml.device_count()).is_ok_and(|now| now.min(MOST_GPUS) != gpus) {
            shared.gone.store(true, std::sync::atomic::Ordering::Release);
        }
    }
}

/// Initializes NVML from the first path that has it. It is never dropped: that would unload it during a hung call.
fn start(options: &Options) -> Result<&'static Nvml, (String, NvmlError)> {
    let mut refused: Option<(String, NvmlError)> = None;
    for path in places(options) {
        match call("nvmlInit_v2", || Nvml::builder().lib_path(path.as_os_str()).init()) {
            Ok(nvml) => return Ok(Box::leak(Box::new(nvml))),
            Err(error) => {
                // The error of the loader names what is missing; that of the wrapper does not.
                let (absent, cause) = match &error {
                    NvmlError::LibloadingError(cause) => (true, cause.to_string()),
                    other => (false, other.to_string()),
                };
                let why = format!("cannot initialize NVML from {}: {cause}", path.display());
                if !absent {
                    return Err((why, error));
                }
                refused = refused.or(Some((why, error)));
            }
        }
    }
    Err(refused.unwrap_or_else(|| ("no path to search for NVML".to_owned(), NvmlError::LibraryNotFound)))
}

/// The paths of the library to try, in this order.
fn places(options: &Options) -> Vec<PathBuf> {
    if let Some(library) = &options.nvml_library {
        return vec![library.clone()];
    }
    let root = options.driver_root.as_deref();
    let mut places: Vec<PathBuf> = root.is_none().then(|| NAME.into()).into_iter().collect();
    let folders = FOLDERS.iter().map(|folder| root.unwrap_or(Path::new("/")).join(folder).join(NAME));
    places.extend(folders.filter(|path| path.exists()));
    if places.is_empty() {
        // Included so that the error names what was searched for.
        places.push(root.unwrap_or(Path::new("/")).join(FOLDERS[0]).join(NAME));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(library: Option<&str>, root: Option<&Path>) -> Options {
        Options {
            nvml_library: library.map(PathBuf::from),
            driver_root: root.map(Path::to_path_buf),
            ..Options::default()
        }
    }

    #[test]
    fn a_given_library_is_the_only_one() {
        assert_eq!(places(&options(Some("a.so"), None)), [PathBuf::from("a.so")]);
    }

    #[test]
    fn a_driver_root_is_searched_instead_of_the_system() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib64");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(NAME), "").unwrap();
        assert_eq!(places(&options(None, Some(root.path()))), [folder.join(NAME)]);
    }

    #[test]
    fn the_loader_is_tried_first() {
        assert_eq!(places(&options(None, None))[0], PathBuf::from(NAME));
    }
}
