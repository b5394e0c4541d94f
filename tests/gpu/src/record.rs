//! Records the raw answer of every NVML call, for each GPU and MIG instance.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde_json::Value;

use crate::calls::{self, Call, Kind, Output, layout};
use crate::library::{Buffer, Driver, Outcome};
use crate::recording::{Answer, Recording, SUCCESS};

/// The most processes, samples and retired pages that are read of one list.
const LONGEST_LIST: usize = 1024;

/// How long the recording waits for an event.
const EVENT_WAIT_MS: usize = 20;

/// Whose answers are recorded at present.
#[derive(Clone, Copy, Debug, Default)]
struct Subject {
    gpu: Option<u32>,
    mig: Option<u32>,
    /// The `nvmlDevice_t`; absent for calls without a device.
    handle: Option<usize>,
}

/// How the error begins where NVML cannot be loaded or initialized.
pub(crate) const NO_NVML: &str = "NVML cannot be used";

/// Initializes NVML, records, and shuts it down. The name of each function is added to `journal` after it returned, so that the
/// journal of a process that hung shows where.
///
/// # Errors
/// NVML cannot be initialized.
pub(crate) fn record(library: &str, journal: Option<File>) -> anyhow::Result<Recording> {
    let nvml = &Driver::open(library).context(NO_NVML)?;
    let begun = nvml.call("nvmlInit_v2", &[]);
    match begun.map(|outcome| outcome.code) {
        Some(SUCCESS) => {}
        Some(code) => anyhow::bail!("{NO_NVML}: nvmlInit_v2 returned {code}"),
        None => anyhow::bail!("{NO_NVML}: the library has no nvmlInit_v2"),
    }
    let mut recorder = Recorder { nvml, calls: Vec::new(), journal };
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
    journal: Option<File>,
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
        self.gpm(subject, None);
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
                let instance = Subject { mig: Some(mig), handle, ..subject };
                self.device(instance);
                let answer =
                    self.calls.iter().rev().find(|call| call.function == "nvmlDeviceGetGpuInstanceId");
                let gi = answer.and_then(|call| u32::try_from(call.number("value")?).ok());
                // A sample of an instance is taken through its GPU.
                self.gpm(Subject { handle: subject.handle, ..instance }, gi);
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

    /// Two GPM samples and the metrics between them, where the GPU has them; of a MIG instance if its GPU instance is given.
    fn gpm(&mut self, subject: Subject, gpu_instance: Option<u32>) {
        const HEADER: usize = 24;
        const METRIC: usize = 40;
        if subject.mig.is_some() != gpu_instance.is_some() {
            return;
        }
        let supported = self.calls.iter().find(|call| {
            call.function == "nvmlGpmQueryDeviceSupport" && call.gpu == subject.gpu && call.mig.is_none()
        });
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
            let handle = subject.handle.unwrap_or(0);
            let (function, taken) = match gpu_instance {
                None => ("nvmlGpmSampleGet", self.nvml.call("nvmlGpmSampleGet", &[handle, sample])),
                Some(gi) => {
                    let arguments = [handle, as_register(gi), sample];
                    ("nvmlGpmMigSampleGet", self.nvml.call("nvmlGpmMigSampleGet", &arguments))
                }
            };
            self.add(subject, function, &[], taken, BTreeMap::new(), Vec::new());
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
        if let Some(journal) = &mut self.journal {
            // The recording does not depend on it.
            let _ = writeln!(journal, "{function} gpu={:?} mig={:?}", subject.gpu, subject.mig);
        }
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
