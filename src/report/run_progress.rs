//! `run`: the progress line while the command runs.

use super::record::Kind;
use super::text::shortened;
use super::{Recorder, unseen};
use crate::model::format::{self, bytes, duration};
use crate::model::outlook::{Conclusion, Tte};

/// The figures of a progress line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunProgress {
    /// When they were sampled, in seconds since the first sample.
    seconds: f64,
    /// Memory of the command and its descendants in bytes, pages that they share once, or their resident memory where that is not
    /// known: now, and the largest so far.
    memory: Option<(f64, f64)>,
    /// The same for their GPU memory; absent where they hold none.
    gpu_memory: Option<(f64, f64)>,
    /// What runs out, or that nothing does.
    outlook: Outlook,
}

/// The forecast for what the command uses.
#[derive(Clone, Debug, Default, PartialEq)]
enum Outlook {
    /// Too few samples.
    #[default]
    None,
    /// A GPU without an answer: its index and status.
    Unknown(String),
    /// No resource has a time to exhaustion.
    NoEnd,
    /// The resource that is exhausted first: its name and when.
    Exhaustion { name: String, tte: Tte },
}

impl RunProgress {
    /// The figures of the workload `name` in the newest sample.
    pub fn of(recorder: &Recorder, name: &str) -> Self {
        let pair = |metric| {
            let curve = recorder.curve(Kind::Workload, name, metric)?;
            let (at, current) = curve.last()?;
            // Memory that is no longer measured is not shown as the current one.
            (at >= recorder.now).then_some((current, curve.peak()?.1))
        };
        Self {
            seconds: recorder.now,
            memory: pair("memory_bytes").or_else(|| pair("resident_bytes")),
            gpu_memory: pair("gpu_bytes").filter(|(_, peak)| *peak > 0.0),
            outlook: outlook(recorder, name),
        }
    }

    /// The line in at most so many columns, `elapsed` seconds after the start of the command. Figures that are older than
    /// `stale_after` seconds are named as such.
    pub fn line(&self, elapsed: f64, stale_after: f64, columns: usize) -> String {
        let pair = |name: &str, found: Option<(f64, f64)>, with_peak: bool| {
            let (current, peak) = found.map(|(current, peak)| (bytes(current), bytes(peak)))?;
            let peak = if with_peak { format!(" (peak {peak})") } else { String::new() };
            Some(format!("{name} {current}{peak}"))
        };
        let age = elapsed - self.seconds;
        let stale = (age > stale_after).then(|| format!("no sample for {}", duration(age.floor())));
        // With less room, these are left out one after the other: the peak of the GPU memory, the other peak, the GPU
        // memory, the memory, the range of the forecast.
        let lines = (0..6).map(|left_out| {
            let outlook = stale.clone().unwrap_or_else(|| self.outlook.words(left_out < 5));
            let parts = [
                Some(format!("memwarden: {}", format::elapsed(elapsed))),
                (left_out < 4).then(|| pair("memory", self.memory, left_out < 2)).flatten(),
                (left_out < 3).then(|| pair("GPU", self.gpu_memory, left_out < 1)).flatten(),
                Some(outlook),
            ];
            parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
        });
        let lines: Vec<String> = lines.collect();
        let fits = |line: &&String| shortened(line, columns) == **line;
        let widest = lines.iter().find(fits).or(lines.last());
        widest.map_or_else(String::new, |line| shortened(line, columns))
    }
}

impl Outlook {
    fn words(&self, has_range: bool) -> String {
        match self {
            Self::None => "no forecast yet".to_owned(),
            Self::Unknown(what) => what.clone(),
            Self::NoEnd => "no end predicted".to_owned(),
            Self::Exhaustion { name, tte } => {
                let left = format::time_left(tte.p50, has_range.then_some(tte.p10), tte.p90);
                format!("{name} runs out in {left}")
            }
        }
    }
}

/// The forecast for the memory of the host, for the workload, the allocators of its ranks, and the GPUs that it uses.
fn outlook(recorder: &Recorder, name: &str) -> Outlook {
    let view = &recorder.last;
    let gpus: Vec<&str> =
        view.workload(name).into_iter().flat_map(|own| &own.gpus).map(|(gpu, _)| gpu.as_str()).collect();
    let is_ours = |known: &&Conclusion| match known.subject.resource.as_str() {
        "host" => true,
        "gpu" => gpus.contains(&known.subject.gpu.as_str()),
        "workload" | "allocator" | "tmpfs" | "numa_nodes" => known.subject.workload.as_str() == name,
        _ => false,
    };
    let ours = || view.conclusions.iter().filter(is_ours);
    let forecasts = || ours().filter_map(|known| Some((&known.subject, known.forecast.as_ref()?)));
    let stated = forecasts().filter_map(|(subject, forecast)| Some((subject, forecast.stated()?)));
    if let Some((subject, tte)) = stated.min_by(|(_, a), (_, b)| a.p50.total_cmp(&b.p50)) {
        let name = match subject.resource.as_str() {
            "workload" => "memory".to_owned(),
            "gpu" => format!("GPU {}", subject.gpu),
            _ => subject.to_string(),
        };
        return Outlook::Exhaustion { name, tte };
    }
    if let Some(gpu) = unseen::gpus(recorder).first() {
        return Outlook::Unknown(format!("gpu {}: {}", gpu.index, gpu.status));
    }
    if forecasts().any(|(_, forecast)| forecast.is_ready()) {
        return Outlook::NoEnd;
    }
    Outlook::None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::GIB;
    fn progress(outlook: Outlook) -> RunProgress {
        let memory = Some((1.5 * GIB, 2.0 * GIB));
        RunProgress { seconds: 60.0, memory, gpu_memory: Some((10.0 * GIB, 12.0 * GIB)), outlook }
    }

    #[test]
    fn what_matters_remains_on_a_narrow_terminal() {
        let tte = Tte { p10: 180.0, p50: 240.0, p90: None };
        let outlook = Outlook::Exhaustion { name: "GPU 0".to_owned(), tte };
        let lines = [200, 100, 80, 50, 20].map(|columns| progress(outlook.clone()).line(61.2, 10.0, columns));
        assert_eq!(
            lines.join("\n"),
            "memwarden: 00:01:01  memory 1.5 GiB (peak 2.0 GiB)  GPU 10.0 GiB (peak 12.0 GiB)  GPU 0 runs out in 4 min (3 or more)\n\
             memwarden: 00:01:01  memory 1.5 GiB  GPU 10.0 GiB  GPU 0 runs out in 4 min (3 or more)\n\
             memwarden: 00:01:01  memory 1.5 GiB  GPU 0 runs out in 4 min (3 or more)\n\
             memwarden: 00:01:01  GPU 0 runs out in 4 min\n\
             memwarde... in 4 min"
        );
    }

    #[test]
    fn what_is_not_known_is_said() {
        let none = RunProgress { seconds: 1.0, ..RunProgress::default() };
        assert_eq!(none.line(2.0, 10.0, 80), "memwarden: 00:00:02  no forecast yet");
        assert!(progress(Outlook::NoEnd).line(69.0, 10.0, 90).ends_with("no end predicted"));
        assert!(progress(Outlook::NoEnd).line(75.0, 40.0, 90).ends_with("no end predicted"));
        assert!(progress(Outlook::NoEnd).line(75.0, 10.0, 90).ends_with("no sample for 15 s"));
        assert_eq!(none.line(21.5, 10.0, 80), "memwarden: 00:00:21  no sample for 20 s");
    }
}
