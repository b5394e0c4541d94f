//! Selected subjects without data: unknown is not healthy.

use super::record::Recorder;
use crate::model::finding::Subject;
use crate::model::format::duration;
use crate::node_view::{Gpu, SourceRow};

/// States of NVML that are permanent.
const FINAL: [&str; 5] =
    ["library_absent", "driver_not_loaded", "no_permission", "version_mismatch", "released"];
/// Maximum number of GPUs that a sentence names.
const NAMED: usize = 16;

/// The selected GPUs that do not respond.
pub(super) fn gpus(recorder: &Recorder) -> Vec<&Gpu> {
    let silent = recorder.last.gpus.iter().filter(|gpu| !gpu.answers() && !gpu.status.is_empty());
    silent.filter(|gpu| recorder.focus.has_gpu(&gpu.index, &gpu.uuid)).collect()
}

/// Whether a subject is on one of these GPUs, so that its findings are outdated.
pub(super) fn is_on(subject: &Subject, unseen: &[&Gpu]) -> bool {
    let is_its = |gpu: &&Gpu| subject.gpu.as_str() == gpu.index && subject.uuid.as_str() == gpu.uuid;
    matches!(subject.resource.as_str(), "gpu" | "gpu_process") && unseen.iter().any(is_its)
}

/// Writes one row for each of these GPUs.
pub(super) fn rows(text: &mut String, unseen: &[&Gpu]) {
    for Gpu { index, status, sample_age, .. } in unseen {
        let age = sample_age.map_or_else(String::new, |age| format!(" for {}", duration(age)));
        text.push_str(&format!("  gpu {index}  unknown: no answer{age} ({status})\n"));
    }
}

/// Appends the names of these GPUs to a verdict that does not include them.
pub(super) fn beside(verdict: String, unseen: &[&Gpu]) -> String {
    if unseen.is_empty() {
        return verdict;
    }
    let named: Vec<String> =
        unseen.iter().take(NAMED).map(|gpu| format!("gpu {} ({})", gpu.index, gpu.status)).collect();
    let more = unseen.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{verdict} No data for: {}{more}.", named.join(", "))
}

/// The reason why no GPU is visible, if that is so.
pub(super) fn no_gpus(recorder: &Recorder) -> Option<String> {
    let source = recorder.last.sources.iter().find(|source| source.name == "gpu")?;
    match source.status.as_str() {
        _ if !recorder.last.gpus.is_empty() => None,
        "ok" => Some("GPUs: none.".to_owned()),
        _ => Some(format!("GPUs: not visible: {}.", reason(source).trim_end_matches('.'))),
    }
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
