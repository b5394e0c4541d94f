//! Selected subjects without data: unknown is not healthy.

use serde::Serialize;

use super::record::Recorder;
use crate::model::finding::Subject;
use crate::model::format::duration;
use crate::node_view::SourceRow;

/// States of NVML in which a driver exists and none of its GPUs is visible.
const BLIND: [&str; 4] = ["no_permission", "version_mismatch", "worker_failed", "unknown_error"];
/// States of NVML that are permanent.
const FINAL: [&str; 5] =
    ["library_absent", "driver_not_loaded", "no_permission", "version_mismatch", "released"];
/// Maximum number of GPUs that a sentence names.
const NAMED: usize = 16;

/// A GPU without current data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Unseen {
    pub(super) gpu: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) uuid: String,
    /// The status that the GPU has, such as `hung`.
    pub(super) status: String,
    /// Time since it last responded, or since it was first queried.
    pub(super) age_seconds: Option<f64>,
}

impl Unseen {
    /// Its name, as in a subject.
    pub(super) fn name(&self) -> String {
        format!("gpu {}", self.gpu)
    }

    /// Text in place of its values.
    fn words(&self) -> String {
        let age = self.age_seconds.map_or_else(String::new, |age| format!(" for {}", duration(age)));
        format!("unknown: no answer{age} ({})", self.status)
    }
}

/// The selected GPUs that do not respond.
pub(super) fn gpus(recorder: &Recorder) -> Vec<Unseen> {
    let silent = recorder.last.gpus.iter().filter(|gpu| !gpu.answers() && !gpu.status.is_empty());
    let unseen = silent.filter(|gpu| recorder.focus.has_gpu(&gpu.index, &gpu.uuid)).map(|gpu| Unseen {
        gpu: gpu.index.clone(),
        uuid: gpu.uuid.clone(),
        status: gpu.status.clone(),
        age_seconds: gpu.sample_age,
    });
    unseen.collect()
}

/// Whether a subject is on one of these GPUs, so that its findings are outdated.
pub(super) fn is_on(subject: &Subject, unseen: &[Unseen]) -> bool {
    let of_gpu = matches!(subject.resource.as_str(), "gpu" | "gpu_process");
    of_gpu
        && unseen
            .iter()
            .any(|unseen| subject.gpu.as_str() == unseen.gpu && subject.uuid.as_str() == unseen.uuid)
}

/// Writes one row for each of these GPUs.
pub(super) fn rows(text: &mut String, unseen: &[Unseen]) {
    for one in unseen {
        text.push_str(&format!("  {}  {}\n", one.name(), one.words()));
    }
}

/// Appends the names of these GPUs to a verdict that does not include them.
pub(super) fn beside(verdict: String, unseen: &[Unseen]) -> String {
    if unseen.is_empty() {
        return verdict;
    }
    let named: Vec<String> =
        unseen.iter().take(NAMED).map(|one| format!("{} ({})", one.name(), one.status)).collect();
    let more = unseen.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{verdict} No data for: {}{more}.", named.join(", "))
}

/// The reason why no GPU is visible, if that is so, and whether an existing GPU is hidden by an error.
pub(super) fn no_gpus(recorder: &Recorder) -> Option<(String, bool)> {
    let view = &recorder.last;
    if !view.gpus.is_empty() {
        return None;
    }
    let source = view.sources.iter().find(|source| source.name == "gpu")?;
    if source.status == "ok" {
        return Some(("GPUs: none.".to_owned(), false));
    }
    let why = match view.nvml.as_str() {
        "library_absent" => "NVML library not found",
        _ => reason(source),
    };
    Some((format!("GPUs: not visible: {why}."), BLIND.contains(&view.nvml.as_str())))
}

/// Why a source has no values.
fn reason(source: &SourceRow) -> &str {
    if source.why.is_empty() { "no reason is given" } else { &source.why }
}

impl Recorder {
    /// An error for selected GPUs that do not exist. Before `over`, only errors that further samples would not change
    /// are returned.
    pub fn absent_devices(&self, over: bool) -> Option<String> {
        let wanted = self.focus.devices.as_ref()?;
        let known = &self.last.gpus;
        let here = |name: &String| known.iter().any(|gpu| gpu.index == *name || gpu.uuid == *name);
        let absent: Vec<&str> = wanted.iter().filter(|name| !here(name)).map(String::as_str).collect();
        if absent.is_empty() {
            return None;
        }
        if known.is_empty() {
            let source = self.last.sources.iter().find(|source| source.name == "gpu");
            let final_state = source.is_none() || FINAL.contains(&self.last.nvml.as_str());
            let why = match source {
                None => "the source gpu is off",
                Some(source) if source.status == "ok" => "the driver lists no GPU",
                Some(source) => reason(source),
            };
            return (over || final_state)
                .then(|| format!("GPU {} was not found: no GPU is visible ({why})", absent.join(", ")));
        }
        let here: Vec<(&str, &str)> =
            known.iter().map(|gpu| (gpu.index.as_str(), gpu.uuid.as_str())).collect();
        // A GPU whose UUID is unknown may be any of the selected ones.
        let nameless = here.iter().any(|(_, uuid)| uuid.is_empty());
        if nameless && !over && absent.iter().all(|name| name.parse::<u32>().is_err()) {
            return None;
        }
        let here: Vec<String> = here
            .into_iter()
            .map(|(gpu, uuid)| format!("{gpu} ({})", if uuid.is_empty() { "UUID not known" } else { uuid }))
            .collect();
        Some(format!("GPU {} was not found; available: {}", absent.join(", "), here.join(", ")))
    }
}
