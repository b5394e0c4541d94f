//! A recording: the raw answer of every NVML call, for each GPU and MIG instance.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::calls::{self, Call, Kind, Output, layout};
use crate::library::{Buffer, Driver, Outcome};

/// `NVML_SUCCESS`.
pub(crate) const SUCCESS: u32 = 0;

/// Answers that change between two calls although nothing happens: times of the driver's own clock.
const VOLATILE: &[&str] = &["reference_time", "timestamp", "latency_us"];

/// The most processes, samples and retired pages that are read of one list.
const LONGEST_LIST: usize = 1024;

/// How long the recording waits for an event.
const EVENT_WAIT_MS: usize = 20;

/// The answers of one machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Recording {
    /// The version of this format.
    pub(crate) format: u32,
    /// What answered: `device`, or `fake NVML`, which no device is behind.
    pub(crate) origin: String,
    /// When it was taken, in seconds since 1970.
    pub(crate) taken: u64,
    pub(crate) calls: Vec<Answer>,
}

/// The answer of one call.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Answer {
    pub(crate) function: String,
    /// The index of the GPU; absent for calls without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpu: Option<u32>,
    /// The index of the MIG instance; absent for calls for the GPU itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mig: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) arguments: Vec<u32>,
    /// NVML's return code; absent where the library does not have the function.
    pub(crate) code: Option<u32>,
    /// What the call wrote, by the names of nvml.h; empty unless the call succeeded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) answer: BTreeMap<String, Value>,
    /// The bytes of structures as they are in memory, in hexadecimal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) bytes: Vec<String>,
    /// How long the call took.
    pub(crate) micros: f64,
}

/// Whose answers are recorded at present.
#[derive(Clone, Copy, Debug, Default)]
struct Subject {
    gpu: Option<u32>,
    mig: Option<u32>,
    /// The `nvmlDevice_t`; absent for calls without a device.
    handle: Option<usize>,
}

/// Initializes NVML, records, and shuts it down.
///
/// # Errors
/// NVML cannot be initialized.
pub(crate) fn record(nvml: &Driver) -> anyhow::Result<Recording> {
    let begun = nvml.call("nvmlInit_v2", &[]);
    match begun.map(|outcome| outcome.code) {
        Some(SUCCESS) => {}
        Some(code) => anyhow::bail!("nvmlInit_v2 returned {code}"),
        None => anyhow::bail!("the library has no nvmlInit_v2"),
    }
    let mut recorder = Recorder { nvml, calls: Vec::new() };
    recorder.machine();
    let calls = recorder.calls;
    nvml.call("nvmlShutdown", &[]);
    let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    Ok(Recording { format: 1, origin: origin(nvml).to_owned(), taken, calls })
}

/// Whether a device or the fake answers: the fake exports a function that NVML does not have.
pub(crate) fn origin(nvml: &Driver) -> &'static str {
    if nvml.has("fakeNvmlScenario") { "fake NVML" } else { "device" }
}

struct Recorder<'a> {
    nvml: &'a Driver,
    calls: Vec<Answer>,
}

impl Recorder<'_> {
    fn machine(&mut self) {
        let system = Subject::default();
        for call in calls::SYSTEM {
            self.all_inputs(system, call);
        }
        let count = self.number("nvmlDeviceGetCount_v2", None).unwrap_or(0);
        for gpu in 0..count {
            let mut handle = Buffer::new(8);
            let arguments = [as_register(gpu), handle.address()];
            let outcome = self.nvml.call("nvmlDeviceGetHandleByIndex_v2", &arguments);
            self.add(system, "nvmlDeviceGetHandleByIndex_v2", &[gpu], outcome, BTreeMap::new(), Vec::new());
            if outcome.is_some_and(|outcome| outcome.code == SUCCESS) {
                self.gpu(gpu, wide_register(handle.u64_at(0)));
            }
        }
    }

    fn gpu(&mut self, gpu: u32, handle: usize) {
        let subject = Subject { gpu: Some(gpu), mig: None, handle: Some(handle) };
        self.device(subject);
        self.fields(subject);
        self.retired_pages(subject);
        self.process_utilization(subject);
        self.events(subject);
        self.gpm(subject);
        let most = self.number("nvmlDeviceGetMaxMigDeviceCount", Some(gpu)).unwrap_or(0).min(16);
        for mig in 0..most {
            let mut instance = Buffer::new(8);
            let arguments = [handle, as_register(mig), instance.address()];
            let outcome = self.nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", &arguments);
            self.add(
                subject,
                "nvmlDeviceGetMigDeviceHandleByIndex",
                &[mig],
                outcome,
                BTreeMap::new(),
                Vec::new(),
            );
            if outcome.is_some_and(|outcome| outcome.code == SUCCESS) {
                let handle = Some(wide_register(instance.u64_at(0)));
                self.device(Subject { mig: Some(mig), handle, ..subject });
            }
        }
    }

    fn device(&mut self, subject: Subject) {
        for call in calls::DEVICE {
            self.all_inputs(subject, call);
        }
        for function in calls::PROCESS_LISTS {
            self.processes(subject, function);
        }
    }

    /// A number that was recorded before.
    fn number(&self, function: &str, gpu: Option<u32>) -> Option<u32> {
        let found = self.calls.iter().find(|call| call.function == function && call.gpu == gpu)?;
        found.answer.get("value")?.as_u64().and_then(|number| u32::try_from(number).ok())
    }

    /// Makes a call for each combination of its inputs.
    fn all_inputs(&mut self, subject: Subject, call: &Call) {
        let mut combinations: Vec<Vec<u32>> = vec![Vec::new()];
        for values in call.inputs {
            combinations = combinations
                .into_iter()
                .flat_map(|before| values.iter().map(move |value| [before.as_slice(), &[*value]].concat()))
                .collect();
        }
        for inputs in combinations {
            self.simple(subject, call, &inputs);
        }
    }

    fn simple(&mut self, subject: Subject, call: &Call, inputs: &[u32]) {
        let mut buffers: Vec<Buffer> = call.outputs.iter().map(buffer_of).collect();
        let mut arguments: Vec<usize> = subject.handle.into_iter().collect();
        arguments.extend(inputs.iter().map(|input| as_register(*input)));
        for (buffer, output) in buffers.iter_mut().zip(call.outputs) {
            arguments.push(buffer.address());
            if let Output::Line(size) = output {
                arguments.push(*size);
            }
        }
        let outcome = self.nvml.call(call.name, &arguments);
        let (mut answer, mut bytes) = (BTreeMap::new(), Vec::new());
        if outcome.is_some_and(|outcome| outcome.code == SUCCESS) {
            for (buffer, output) in buffers.iter().zip(call.outputs) {
                match output {
                    Output::Line(size) => {
                        answer.insert("text".to_owned(), buffer.text_at(0, *size).into());
                    }
                    Output::Structure { fields, .. } => {
                        read_fields(buffer, 0, fields, &mut answer);
                        if fields.len() > 1 {
                            bytes.push(hexadecimal(&buffer.bytes()));
                        }
                    }
                }
            }
        }
        self.add(subject, call.name, inputs, outcome, answer, bytes);
    }

    fn processes(&mut self, subject: Subject, function: &str) {
        const ENTRY: &[(&str, Kind)] = &[
            ("pid", Kind::Number),
            ("memory", Kind::Wide),
            ("gpu_instance", Kind::Number),
            ("compute_instance", Kind::Number),
        ];
        let size = layout(ENTRY).1;
        let (mut count, mut entries) = (Buffer::new(4), Buffer::new(size * LONGEST_LIST));
        count.put_u32(0, u32::try_from(LONGEST_LIST).unwrap_or(0));
        let handle = subject.handle.unwrap_or(0);
        let outcome = self.nvml.call(function, &[handle, count.address(), entries.address()]);
        let mut answer = BTreeMap::new();
        if outcome.is_some_and(|outcome| outcome.code == SUCCESS) {
            answer.insert("processes".to_owned(), list(&entries, count.u32_at(0), ENTRY).into());
        }
        self.add(subject, function, &[], outcome, answer, Vec::new());
    }

    fn process_utilization(&mut self, subject: Subject) {
        const ENTRY: &[(&str, Kind)] = &[
            ("pid", Kind::Number),
            ("timestamp", Kind::Wide),
            ("sm", Kind::Number),
            ("memory", Kind::Number),
            ("encoder", Kind::Number),
            ("decoder", Kind::Number),
        ];
        let size = layout(ENTRY).1;
        let (mut count, mut entries) = (Buffer::new(4), Buffer::new(size * LONGEST_LIST));
        count.put_u32(0, u32::try_from(LONGEST_LIST).unwrap_or(0));
        let handle = subject.handle.unwrap_or(0);
        let function = "nvmlDeviceGetProcessUtilization";
        let outcome = self.nvml.call(function, &[handle, entries.address(), count.address(), 0]);
        let mut answer = BTreeMap::new();
        if outcome.is_some_and(|outcome| outcome.code == SUCCESS) {
            answer.insert("samples".to_owned(), list(&entries, count.u32_at(0), ENTRY).into());
        }
        self.add(subject, function, &[], outcome, answer, Vec::new());
    }

    fn retired_pages(&mut self, subject: Subject) {
        let function = "nvmlDeviceGetRetiredPages";
        for cause in [0, 1] {
            let (mut count, mut pages) = (Buffer::new(4), Buffer::new(8 * LONGEST_LIST));
            count.put_u32(0, u32::try_from(LONGEST_LIST).unwrap_or(0));
            let handle = subject.handle.unwrap_or(0);
            let arguments = [handle, as_register(cause), count.address(), pages.address()];
            let outcome = self.nvml.call(function, &arguments);
            let mut answer = BTreeMap::new();
            if outcome.is_some_and(|outcome| outcome.code == SUCCESS) {
                let count = usize::try_from(count.u32_at(0)).unwrap_or(0).min(LONGEST_LIST);
                let found: Vec<u64> = (0..count).map(|index| pages.u64_at(index * 8)).collect();
                answer.insert("addresses".to_owned(), found.into());
            }
            self.add(subject, function, &[cause], outcome, answer, Vec::new());
        }
    }

    /// All field values: each id once, and those of links also for each link and for all links together.
    fn fields(&mut self, subject: Subject) {
        const SIZE: usize = 40;
        let plain = (1..=calls::LAST_FIELD).map(|id| (id, 0));
        let links =
            calls::LINK_FIELDS.iter().flat_map(|id| (1..18).chain([u32::MAX]).map(|link| (*id, link)));
        let wanted: Vec<(u32, u32)> = plain.chain(links).collect();
        let function = "nvmlDeviceGetFieldValues";
        // In portions: one refused field must not hide the others, and drivers limit the number.
        for portion in wanted.chunks(32) {
            let mut values = Buffer::new(SIZE * portion.len());
            for (index, (id, scope)) in portion.iter().enumerate() {
                values.put_u32(index * SIZE, *id);
                values.put_u32(index * SIZE + 4, *scope);
            }
            let arguments = [subject.handle.unwrap_or(0), portion.len(), values.address()];
            let Some(outcome) = self.nvml.call(function, &arguments) else {
                return self.add(subject, function, &[], None, BTreeMap::new(), Vec::new());
            };
            for (index, (id, scope)) in portion.iter().enumerate() {
                let at = index * SIZE;
                let failed = outcome.code != SUCCESS;
                let code = if failed { outcome.code } else { values.u32_at(at + 28) };
                let mut answer = BTreeMap::new();
                if code == SUCCESS {
                    answer.insert("type".to_owned(), values.u32_at(at + 24).into());
                    answer.insert("value".to_owned(), values.u64_at(at + 32).into());
                    answer.insert("timestamp".to_owned(), values.u64_at(at + 8).into());
                    answer.insert("latency_us".to_owned(), values.u64_at(at + 16).into());
                }
                let outcome = Some(Outcome { code, micros: outcome.micros });
                self.add(subject, function, &[*id, *scope], outcome, answer, Vec::new());
            }
        }
    }

    /// A set of events, which receives none within a short time.
    fn events(&mut self, subject: Subject) {
        const XID: usize = 8;
        let mut set = Buffer::new(8);
        let made = self.nvml.call("nvmlEventSetCreate", &[set.address()]);
        self.add(subject, "nvmlEventSetCreate", &[], made, BTreeMap::new(), Vec::new());
        if made.is_none_or(|outcome| outcome.code != SUCCESS) {
            return;
        }
        let set = wide_register(set.u64_at(0));
        let registered = self.nvml.call("nvmlDeviceRegisterEvents", &[subject.handle.unwrap_or(0), XID, set]);
        self.add(subject, "nvmlDeviceRegisterEvents", &[8], registered, BTreeMap::new(), Vec::new());
        if registered.is_some_and(|outcome| outcome.code == SUCCESS) {
            let mut event = Buffer::new(32);
            let waited = self.nvml.call("nvmlEventSetWait_v2", &[set, event.address(), EVENT_WAIT_MS]);
            self.add(subject, "nvmlEventSetWait_v2", &[], waited, BTreeMap::new(), Vec::new());
        }
        let freed = self.nvml.call("nvmlEventSetFree", &[set]);
        self.add(subject, "nvmlEventSetFree", &[], freed, BTreeMap::new(), Vec::new());
    }

    /// Two GPM samples and the metrics between them, where the GPU has them.
    fn gpm(&mut self, subject: Subject) {
        const HEADER: usize = 24;
        const METRIC: usize = 40;
        let supported = self.calls.iter().rev().find(|call| call.function == "nvmlGpmQueryDeviceSupport");
        if supported.and_then(|call| call.answer.get("supported")?.as_u64()) != Some(1) {
            return;
        }
        let mut samples = Vec::new();
        for _ in 0..2 {
            let mut sample = Buffer::new(8);
            let made = self.nvml.call("nvmlGpmSampleAlloc", &[sample.address()]);
            self.add(subject, "nvmlGpmSampleAlloc", &[], made, BTreeMap::new(), Vec::new());
            if made.is_none_or(|outcome| outcome.code != SUCCESS) {
                break;
            }
            let sample = wide_register(sample.u64_at(0));
            samples.push(sample);
            let taken = self.nvml.call("nvmlGpmSampleGet", &[subject.handle.unwrap_or(0), sample]);
            self.add(subject, "nvmlGpmSampleGet", &[], taken, BTreeMap::new(), Vec::new());
            std::thread::sleep(Duration::from_millis(120));
        }
        if let [first, second] = samples[..] {
            let ids: Vec<u32> = calls::GPM_METRICS.collect();
            // Room for more entries than are asked for: the structure of newer headers is longer.
            let mut get = Buffer::new(HEADER + METRIC * 400);
            get.put_u32(0, 1);
            get.put_u32(4, u32::try_from(ids.len()).unwrap_or(0));
            get.put_u64(8, first as u64);
            get.put_u64(16, second as u64);
            for (index, id) in ids.iter().enumerate() {
                get.put_u32(HEADER + index * METRIC, *id);
            }
            let outcome = self.nvml.call("nvmlGpmMetricsGet", &[get.address()]);
            for (index, id) in ids.iter().enumerate() {
                let at = HEADER + index * METRIC;
                let Some(outcome) = outcome else { break };
                let code = if outcome.code == SUCCESS { get.u32_at(at + 4) } else { outcome.code };
                let mut answer = BTreeMap::new();
                if code == SUCCESS {
                    answer.insert("value".to_owned(), f64::from_bits(get.u64_at(at + 8)).into());
                }
                let outcome = Some(Outcome { code, ..outcome });
                self.add(subject, "nvmlGpmMetricsGet", &[*id], outcome, answer, Vec::new());
            }
        }
        for sample in samples {
            let freed = self.nvml.call("nvmlGpmSampleFree", &[sample]);
            self.add(subject, "nvmlGpmSampleFree", &[], freed, BTreeMap::new(), Vec::new());
        }
    }

    fn add(
        &mut self,
        subject: Subject,
        function: &str,
        arguments: &[u32],
        outcome: Option<Outcome>,
        answer: BTreeMap<String, Value>,
        bytes: Vec<String>,
    ) {
        self.calls.push(Answer {
            function: function.to_owned(),
            gpu: subject.gpu,
            mig: subject.mig,
            arguments: arguments.to_vec(),
            code: outcome.map(|outcome| outcome.code),
            answer,
            bytes,
            micros: outcome.map_or(0.0, |outcome| outcome.micros.round()),
        });
    }
}

impl Recording {
    /// The first answer of a function for a GPU, with these arguments.
    pub(crate) fn find(&self, gpu: Option<u32>, function: &str, arguments: &[u32]) -> Option<&Answer> {
        self.calls.iter().find(|call| {
            call.gpu == gpu && call.mig.is_none() && call.function == function && call.arguments == arguments
        })
    }

    /// With other UUIDs, serial numbers and pids, the same ones for the same order: for a recording that is published.
    pub(crate) fn without_identities(mut self) -> Self {
        let mut pids: BTreeMap<u64, u64> = BTreeMap::new();
        for call in &mut self.calls {
            let (gpu, mig) = (call.gpu.unwrap_or(0), call.mig);
            let text = match call.function.as_str() {
                "nvmlDeviceGetUUID" => Some(match mig {
                    None => format!("GPU-00000000-0000-4000-8000-{gpu:012x}"),
                    Some(mig) => format!("MIG-00000000-0000-4000-8000-{gpu:06x}{mig:06x}"),
                }),
                "nvmlDeviceGetSerial" => Some(format!("16500{gpu:08}")),
                _ => None,
            };
            if let (Some(text), Some(place)) = (text, call.answer.get_mut("text")) {
                *place = text.into();
            }
            for list in ["processes", "samples"] {
                let entries = call.answer.get_mut(list).and_then(Value::as_array_mut);
                for pid in entries.into_iter().flatten().filter_map(|entry| entry.get_mut("pid")) {
                    let next = 1001 + pids.len() as u64;
                    *pid = (*pids.entry(pid.as_u64().unwrap_or(0)).or_insert(next)).into();
                }
            }
        }
        self
    }

    /// As JSON with one call in each line, so that the difference between two files can be read.
    ///
    /// # Errors
    /// A number that JSON does not have.
    pub(crate) fn text(&self) -> anyhow::Result<String> {
        let calls: Result<Vec<String>, _> = self.calls.iter().map(serde_json::to_string).collect();
        let head =
            format!("\"format\":{},\"origin\":{:?},\"taken\":{}", self.format, self.origin, self.taken);
        Ok(format!("{{{head},\"calls\":[\n{}\n]}}\n", calls?.join(",\n")))
    }

    /// The number of GPUs.
    pub(crate) fn gpus(&self) -> u32 {
        let count = self.find(None, "nvmlDeviceGetCount_v2", &[]);
        count.and_then(|call| call.number("value")).and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
    }

    /// What differs in another recording: a line for each call whose return code or answer is another. Times of the
    /// driver's clock are not compared.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let (mine, theirs) = (self.keyed(), other.keyed());
        let keys: std::collections::BTreeSet<_> = mine.keys().chain(theirs.keys()).collect();
        keys.into_iter()
            .filter(|key| mine.get(*key) != theirs.get(*key))
            .map(|key| {
                let text = |answer: Option<&String>| answer.map_or("not called", String::as_str).to_owned();
                format!("{key}: {} and {}", text(mine.get(key)), text(theirs.get(key)))
            })
            .collect()
    }

    fn keyed(&self) -> BTreeMap<String, String> {
        let mut keyed = BTreeMap::new();
        for call in &self.calls {
            let of = |index: Option<u32>| index.map_or("-".to_owned(), |index| index.to_string());
            let key =
                format!("gpu {} mig {} {}{:?}", of(call.gpu), of(call.mig), call.function, call.arguments);
            let mut answer = Value::Object(call.answer.clone().into_iter().collect());
            steady(&mut answer);
            let code = call.code.map_or("absent".to_owned(), |code| code.to_string());
            // A function that is called several times, such as for two samples.
            let mut place = key.clone();
            for again in 2.. {
                if !keyed.contains_key(&place) {
                    break;
                }
                place = format!("{key} ({again})");
            }
            keyed.insert(place, format!("{code} {answer}"));
        }
        keyed
    }
}

impl Answer {
    /// A number of the answer.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.answer.get(name)?.as_u64()
    }

    /// A text of the answer.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.answer.get(name)?.as_str()
    }
}

/// Removes what changes with time.
fn steady(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !VOLATILE.contains(&name.as_str()));
            members.values_mut().for_each(steady);
        }
        Value::Array(items) => items.iter_mut().for_each(steady),
        _ => {}
    }
}

fn buffer_of(output: &Output) -> Buffer {
    match output {
        Output::Line(size) => Buffer::new(*size),
        Output::Structure { version, fields } => {
            let mut buffer = Buffer::new(layout(fields).1);
            buffer.put_u32(0, *version);
            buffer
        }
    }
}

fn read_fields(buffer: &Buffer, at: usize, fields: &[(&str, Kind)], answer: &mut BTreeMap<String, Value>) {
    for ((name, kind), offset) in fields.iter().zip(layout(fields).0) {
        let value = match kind {
            Kind::Number => buffer.u32_at(at + offset).into(),
            Kind::Signed => buffer.u32_at(at + offset).cast_signed().into(),
            Kind::Wide => buffer.u64_at(at + offset).into(),
            Kind::Text(size) => buffer.text_at(at + offset, *size).into(),
        };
        answer.insert((*name).to_owned(), value);
    }
}

fn list(entries: &Buffer, count: u32, fields: &[(&str, Kind)]) -> Vec<Value> {
    let size = layout(fields).1;
    let count = usize::try_from(count).unwrap_or(0).min(LONGEST_LIST);
    let entry = |index: usize| {
        let mut answer = BTreeMap::new();
        read_fields(entries, index * size, fields, &mut answer);
        Value::Object(answer.into_iter().collect())
    };
    (0..count).map(entry).collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn as_register(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn wide_register(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(function: &str, name: &str, value: Value, micros: f64) -> Answer {
        Answer {
            function: function.to_owned(),
            gpu: Some(1),
            mig: None,
            arguments: Vec::new(),
            code: Some(SUCCESS),
            answer: BTreeMap::from([(name.to_owned(), value)]),
            bytes: Vec::new(),
            micros,
        }
    }

    fn recording(calls: Vec<Answer>) -> Recording {
        Recording { format: 1, origin: "device".to_owned(), taken: 5, calls }
    }

    #[test]
    fn times_are_no_difference_and_values_are() {
        let of = |value: u64, time: u64| {
            let mut call = answer("nvmlDeviceGetFieldValues", "value", value.into(), as_f64(time));
            call.answer.insert("timestamp".to_owned(), time.into());
            recording(vec![call])
        };
        assert_eq!(of(3, 1).differences(&of(3, 2)), Vec::<String>::new());
        let found = of(3, 1).differences(&of(4, 1));
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("gpu 1 mig - nvmlDeviceGetFieldValues"), "{found:?}");
        assert_eq!(of(3, 1).differences(&recording(Vec::new())).len(), 1);
    }

    fn as_f64(number: u64) -> f64 {
        crate::compare::as_f64(number)
    }

    #[test]
    fn a_recording_is_the_same_after_it_was_written_and_read() {
        let one = recording(vec![answer("nvmlDeviceGetMinorNumber", "value", 7.into(), 2.0)]);
        let again: Recording = serde_json::from_str(&one.text().unwrap()).unwrap();
        assert_eq!((again.taken, &again.calls), (5, &one.calls));
    }

    #[test]
    fn a_published_recording_names_no_device_and_no_process() {
        let processes = serde_json::json!([{"pid": 4711, "memory": 5}, {"pid": 4712}, {"pid": 4711}]);
        let calls = vec![
            answer("nvmlDeviceGetUUID", "text", "GPU-secret".into(), 0.0),
            answer("nvmlDeviceGetSerial", "text", "0123".into(), 0.0),
            answer("nvmlDeviceGetComputeRunningProcesses_v3", "processes", processes, 0.0),
        ];
        let text = recording(calls).without_identities().text().unwrap();
        for secret in ["GPU-secret", "0123\"", "4711", "4712"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        assert!(text.contains("[{\"memory\":5,\"pid\":1001},{\"pid\":1002},{\"pid\":1001}]"), "{text}");
    }
}
