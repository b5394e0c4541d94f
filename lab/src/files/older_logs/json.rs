//! JSON files, recognized by their keys.

use serde_json::Value;

use super::{Clock, Quantity, Recording};
use memwarden::formats::stamp;
use memwarden::model::units::{GIB, MIB};
/// The series of a document with a known format; invalid parts are left out.
pub fn read(document: &Value) -> Option<Recording> {
    match document {
        Value::Array(_) => history(document),
        _ if document.get("iteration_logs").is_some() => iterations(document),
        _ if document.get("timeline").is_some() => timeline(document),
        _ if document.get("snapshots").is_some() => snapshots(document),
        _ => events(document),
    }
}

fn number(record: &Value, key: &str) -> Option<f64> {
    record.get(key)?.as_f64()
}

fn time(record: &Value) -> Option<f64> {
    stamp::find(record.get("timestamp")?.as_str()?)
}

fn array<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// MemoryDebugger's `memory_history_*.json`: `[{timestamp, gpu_memory: [{device_id, allocated_mb, …}],
/// system_memory: {used_gb, total_gb}}]` (wutong8023/eacg, utils/memoryDebug/memoryDebugger.py).
fn history(document: &Value) -> Option<Recording> {
    let mut found = Recording::new("MemoryDebugger", Clock::Local);
    for record in document.as_array()? {
        let Some(at) = time(record) else { continue };
        for gpu in array(record, "gpu_memory") {
            gpu_point(&mut found, gpu, at, ["allocated_mb", "reserved_mb", "total_mb"]);
        }
        if let Some(system) = record.get("system_memory")
            && let (Some(used), Some(total)) = (number(system, "used_gb"), number(system, "total_gb"))
        {
            found.push("host used", Quantity::Bytes, at, used * GIB);
            found.limit("host used", total * GIB);
        }
    }
    found.known()
}

/// One GPU's memory under a tool's names of allocated, reserved and total, in MiB.
fn gpu_point(found: &mut Recording, gpu: &Value, at: f64, names: [&str; 3]) {
    let Some(index) = gpu.get("device_id").and_then(Value::as_u64) else { return };
    let [allocated, reserved, total] = names.map(|name| number(gpu, name));
    for (what, value) in [("allocated", allocated), ("reserved", reserved)] {
        if let Some(value) = value {
            let name = format!("GPU {index} {what}");
            found.push(&name, Quantity::Bytes, at, value * MIB);
            found.limit(&name, total.unwrap_or(0.0) * MIB);
        }
    }
}

/// GPUMemoryProfiler's `save_to_json`: `{event: [{time, total_allocated, total_reserved, gpu_details, …}]}`, in
/// MiB (wutong8023/eacg, utils/memoryDebug/memoryCheck.py; its README names other keys).
fn events(document: &Value) -> Option<Recording> {
    let mut found = Recording::new("GPUMemoryProfiler", Clock::Elapsed);
    let named = document.as_object()?.iter().flat_map(|(event, records)| {
        records.as_array().into_iter().flatten().map(move |record| (event, record))
    });
    let mut records: Vec<_> =
        named.filter_map(|(event, record)| Some((number(record, "time")?, event, record))).collect();
    records.sort_by(|one, two| one.0.total_cmp(&two.0));
    for (at, event, record) in records {
        for (key, name) in
            [("total_allocated", "allocated, all GPUs"), ("total_reserved", "reserved, all GPUs")]
        {
            if let Some(value) = number(record, key) {
                found.push(name, Quantity::Bytes, at, value * MIB);
            }
        }
        for gpu in array(record, "gpu_details") {
            gpu_point(&mut found, gpu, at, ["allocated", "reserved", "total_memory"]);
        }
        found.events.push((at, event.clone()));
    }
    found.known()
}

/// `export_json` of the Python client: `{timeline: [{event, unix_seconds, allocated_bytes, …}]}`, with null for
/// unknown values (clients/python/memwarden/_recording.py).
fn timeline(document: &Value) -> Option<Recording> {
    let mut found = Recording::new("memwarden.py", Clock::Utc);
    for record in array(document, "timeline") {
        let Some(at) = number(record, "unix_seconds") else { continue };
        for (key, name) in [
            ("allocated_bytes", "allocated, all GPUs"),
            ("reserved_bytes", "reserved, all GPUs"),
            ("host_rss_bytes", "process"),
        ] {
            if let Some(value) = number(record, key) {
                found.push(name, Quantity::Bytes, at, value);
            }
        }
        if let Some(event) = record.get("event").and_then(Value::as_str) {
            found.events.push((at, event.to_owned()));
        }
    }
    found.known()
}

/// Tiny-Torch's `export_snapshots`: `{snapshots: {device: [{timestamp, allocated, total, …}]}}`, in bytes
/// (nash635/tiny-torch at 8a53f3b, tools/memory/memory_profiler.py); a total of 0 marks a failed reading.
fn snapshots(document: &Value) -> Option<Recording> {
    let mut found = Recording::new("Tiny-Torch memory profiler", Clock::Utc);
    for (device, records) in document.get("snapshots")?.as_object()? {
        let name = format!("GPU {device} used");
        for record in records.as_array().into_iter().flatten() {
            if let (Some(at), Some(used), Some(total)) =
                (number(record, "timestamp"), number(record, "allocated"), number(record, "total"))
                && total > 0.0
            {
                found.push(&name, Quantity::Bytes, at, used);
                found.limit(&name, total);
            }
        }
    }
    found.known()
}

/// FlagScale's `perf_summary_*.json`: `{iteration_logs: [{iteration, timestamp, memory_GB, …}]}`
/// (xiaodouzi666/FlagScale-new-feature, flagscale/train/perf_monitor/perf_logger.py).
fn iterations(document: &Value) -> Option<Recording> {
    let mut found = Recording::new("FlagScale perf_monitor", Clock::Local);
    for record in array(document, "iteration_logs") {
        let Some(at) = time(record) else { continue };
        if let Some(memory) = number(record, "memory_GB").filter(|memory| *memory > 0.0) {
            found.push("allocated", Quantity::Bytes, at, memory * GIB);
        }
        if let Some(millis) = number(record, "step_time_ms") {
            found.push("step time", Quantity::StepSeconds, at, millis / 1000.0);
        }
        if let Some(flops) = number(record, "TFLOPS_per_GPU") {
            found.push("TFLOPS per GPU", Quantity::Teraflops, at, flops);
        }
    }
    found.known()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Recording {
        read(&serde_json::from_str(text).unwrap()).unwrap()
    }

    fn names(recording: &Recording) -> Vec<(&str, usize, Option<f64>)> {
        recording
            .series
            .iter()
            .map(|series| (series.name.as_str(), series.points.len(), series.limit))
            .collect()
    }

    #[test]
    fn gpu_memory_profiler() {
        let found = found(
            r#"{"backward": [{"time": 2.5, "total_allocated": 3, "total_reserved": 4, "timestamp": "x", "gpu_details": []}],
                "forward": [{"time": 1.5, "total_allocated": 1.0, "total_reserved": 2.0,
                  "gpu_details": [{"device_id": 0, "allocated": 1.0, "reserved": 2.0, "total_memory": 16}]}, 7]}"#,
        );
        assert_eq!(found.series[0].points, [(1.5, MIB), (2.5, 3.0 * MIB)]);
        assert_eq!(
            names(&found)[2..],
            [("GPU 0 allocated", 1, Some(16.0 * MIB)), ("GPU 0 reserved", 1, Some(16.0 * MIB))]
        );
        assert_eq!(found.events, [(1.5, "forward".to_owned()), (2.5, "backward".to_owned())]);
    }

    #[test]
    fn memwarden_client() {
        let found = found(
            r#"{"schema_version": 1, "snapshots": {}, "timeline": [
                 {"event": "start", "unix_seconds": 1.7e9, "allocated_bytes": null, "host_rss_bytes": 5},
                 {"event": "end", "unix_seconds": 1700000001.5, "allocated_bytes": 7, "host_rss_bytes": 6}, 3]}"#,
        );
        assert_eq!(names(&found), [("process", 2, None), ("allocated, all GPUs", 1, None)]);
        assert_eq!(found.events[1], (1_700_000_001.5, "end".to_owned()));
    }

    #[test]
    fn memory_debugger() {
        let found = found(
            r#"[{"timestamp": "1970-01-01T00:00:01.500000", "gpu_memory": [{"device_id": 3, "allocated_mb": 1, "reserved_mb": 2, "total_mb": 8}],
                 "system_memory": {"total_gb": 4, "used_gb": 1, "percent": 25}}, {"timestamp": "broken"}, null]"#,
        );
        assert_eq!(names(&found).len(), 3);
        assert_eq!(found.series[2].points, [(1.5, GIB)]);
    }

    #[test]
    fn tiny_torch() {
        let found = found(
            r#"{"metadata": {}, "snapshots": {"0": [{"timestamp": 1.7e9, "allocated": 100, "total": 200},
                 {"timestamp": 1700000001, "allocated": 0, "total": 0}]}}"#,
        );
        assert_eq!(names(&found), [("GPU 0 used", 1, Some(200.0))]);
        assert_eq!(found.clock, Clock::Utc);
    }

    #[test]
    fn flagscale() {
        let found = found(
            r#"{"session_info": {}, "iteration_logs": [
                 {"iteration": 1, "timestamp": "2025-06-24 11:27:20", "TFLOPS_per_GPU": 1.5, "step_time_ms": 250, "memory_GB": 2},
                 {"iteration": 2, "timestamp": "2025-06-24 11:27:21", "step_time_ms": 250, "memory_GB": 0.0}]}"#,
        );
        assert_eq!(
            names(&found),
            [("allocated", 1, None), ("step time", 2, None), ("TFLOPS per GPU", 1, None)]
        );
    }

    #[test]
    fn unknown_documents_have_no_series() {
        for text in [
            "{}",
            "[]",
            "[1]",
            "{\"snapshots\": 3}",
            "{\"iteration_logs\": {}}",
            "{\"timeline\": [{}]}",
            "{\"a\": {\"time\": 1}}",
        ] {
            assert_eq!(read(&serde_json::from_str(text).unwrap()), None, "{text}");
        }
    }
}
