//! From a recording to a scenario file of the fake NVML, which then gives the recorded answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::calls::LINK_FIELDS;
use crate::recording::{Answer, FUNCTION_NOT_FOUND, Recording, SUCCESS};

/// `NVML_VALUE_NOT_AVAILABLE`, also as the instance of a process that is on none.
const NOT_AVAILABLE: u64 = u64::MAX;
const NO_INSTANCE: u64 = 0xFFFF_FFFF;
/// `NVML_ERROR_NOT_SUPPORTED`, which a scenario's null answers.
const NOT_SUPPORTED: u32 = 3;

/// The scenario of a recording.
pub(crate) fn scenario(recording: &Recording) -> Value {
    let system = Reader { recording, gpu: None, mig: None };
    let mut scenario = Map::new();
    for (key, function) in
        [("driver_version", "nvmlSystemGetDriverVersion"), ("nvml_version", "nvmlSystemGetNVMLVersion")]
    {
        put(&mut scenario, key, system.text(function).map(Value::from));
    }
    let cuda = system.number("nvmlSystemGetCudaDriverVersion_v2", &[], "value");
    put(&mut scenario, "cuda_version", cuda.map(Value::from));
    let confidential = system.number("nvmlSystemGetConfComputeState", &[], "feature").map(|feature| {
        let first = Reader { gpu: Some(0), ..system };
        let kib = |name: &str| first.number("nvmlDeviceGetConfComputeMemSizeInfo", &[], name).unwrap_or(0);
        json!({
            "enabled": feature != 0, "protected_kib": kib("protected"), "unprotected_kib": kib("unprotected"),
        })
    });
    scenario.insert("confidential_compute".to_owned(), confidential.unwrap_or_default());
    let handles = ["nvmlDeviceGetHandleByIndex_v2"];
    put(&mut scenario, "returns", Some(system.refusals(&handles)));
    let devices: Vec<Value> =
        (0..recording.gpus()).map(|gpu| device(Reader { gpu: Some(gpu), ..system })).collect();
    scenario.insert("devices".to_owned(), devices.into());
    Value::Object(scenario)
}

/// The answers for one GPU or MIG instance.
#[derive(Clone, Copy)]
struct Reader<'a> {
    recording: &'a Recording,
    gpu: Option<u32>,
    mig: Option<u32>,
}

impl<'a> Reader<'a> {
    fn calls(self) -> impl Iterator<Item = &'a Answer> {
        self.recording.calls.iter().filter(move |call| call.gpu == self.gpu && call.mig == self.mig)
    }

    fn answer(self, function: &str, arguments: &[u32]) -> Option<&'a Answer> {
        self.calls().find(|call| call.function == function && call.arguments == arguments)
    }

    fn number(self, function: &str, arguments: &[u32], name: &str) -> Option<u64> {
        self.answer(function, arguments)?.number(name)
    }

    /// A number, or null where the call did not succeed.
    fn value(self, function: &str, arguments: &[u32], name: &str) -> Value {
        self.number(function, arguments, name).map_or(Value::Null, Value::from)
    }

    fn text(self, function: &str) -> Option<&'a str> {
        self.answer(function, &[])?.text("text")
    }

    /// The functions that always returned the same code that is not success.
    fn refusals(self, except: &[&str]) -> Value {
        // The code of a device holds for its MIG instances too.
        let of_instances =
            self.recording.calls.iter().filter(|call| call.gpu == self.gpu && call.mig.is_some());
        let answered: BTreeSet<&str> = of_instances
            .filter(|call| self.gpu.is_some() && call.code == Some(SUCCESS))
            .map(|call| call.function.as_str())
            .collect();
        let mut codes: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for call in self.calls().filter(|call| !answered.contains(call.function.as_str())) {
            codes.entry(&call.function).or_default().insert(call.code.unwrap_or(FUNCTION_NOT_FOUND));
        }
        let same = codes.into_iter().filter_map(|(function, codes)| {
            let code = codes.first().copied().filter(|_| codes.len() == 1)?;
            let refused = code != SUCCESS && !except.contains(&function);
            refused.then(|| (function.to_owned(), code.into()))
        });
        Value::Object(same.collect())
    }

    /// The processes, without those on these GPU instances.
    fn processes(self, without: &BTreeSet<u64>) -> Value {
        let utilization = self.answer("nvmlDeviceGetProcessUtilization", &[]);
        let samples = utilization.and_then(|call| call.answer.get("samples")?.as_array());
        let mut processes = Vec::new();
        for (kind, function) in [("compute", "Compute"), ("graphics", "Graphics"), ("mps", "MPSCompute")] {
            let function = format!("nvmlDeviceGet{function}RunningProcesses_v3");
            let listed =
                self.answer(&function, &[]).and_then(|call| call.answer.get("processes")?.as_array());
            for entry in listed.into_iter().flatten() {
                let number = |name: &str| entry.get(name).and_then(Value::as_u64);
                if number("gpu_instance").is_some_and(|instance| without.contains(&instance)) {
                    continue;
                }
                let mut process = Map::new();
                process.insert("pid".to_owned(), number("pid").into());
                process.insert("type".to_owned(), kind.into());
                let memory = number("memory").filter(|memory| *memory != NOT_AVAILABLE);
                put(&mut process, "memory", memory.map(Value::from));
                for (key, name) in [("gi", "gpu_instance"), ("ci", "compute_instance")] {
                    let instance = number(name).filter(|instance| *instance != NO_INSTANCE);
                    put(&mut process, key, instance.map(Value::from));
                }
                let sample = samples.and_then(|samples| {
                    samples.iter().find(|sample| sample.get("pid").and_then(Value::as_u64) == number("pid"))
                });
                for (key, name) in [("sm", "sm"), ("mem", "memory"), ("enc", "encoder"), ("dec", "decoder")] {
                    put(&mut process, key, sample.and_then(|sample| sample.get(name).cloned()));
                }
                processes.push(Value::Object(process));
            }
        }
        processes.into()
    }

    /// The GPM metrics by id.
    fn gpm(self) -> Value {
        let metrics = self.calls().filter(|call| call.function == "nvmlGpmMetricsGet");
        let metrics = metrics.filter_map(|call| {
            let &[id] = call.arguments.as_slice() else { return None };
            Some((id.to_string(), call.answer.get("value")?.clone()))
        });
        Value::Object(metrics.collect())
    }

    fn memory(self) -> Value {
        let newer = "nvmlDeviceGetMemoryInfo_v2";
        if let Some(total) = self.number(newer, &[], "total") {
            let used = self.value(newer, &[], "used");
            return json!({"total": total, "reserved": self.value(newer, &[], "reserved"), "used": used});
        }
        let older = "nvmlDeviceGetMemoryInfo";
        self.number(older, &[], "total").map_or(
            Value::Null,
            |total| json!({"total": total, "reserved": 0, "used": self.value(older, &[], "used")}),
        )
    }
}

fn device(reader: Reader<'_>) -> Value {
    let mut device = Map::new();
    for (key, function) in
        [("uuid", "UUID"), ("name", "Name"), ("serial", "Serial"), ("vbios", "VbiosVersion")]
    {
        let text = reader.text(&format!("nvmlDeviceGet{function}"));
        let absent = (key == "serial" || key == "vbios").then_some(Value::Null);
        put(&mut device, key, text.map(Value::from).or(absent));
    }
    let pci = reader.answer("nvmlDeviceGetPciInfo_v3", &[]);
    put(&mut device, "pci", pci.and_then(|pci| pci.text("bus_id")).map(Value::from));
    for (key, name) in [("pci_device_id", "device_id"), ("pci_subsystem_id", "subsystem_id")] {
        put(&mut device, key, pci.and_then(|pci| pci.number(name)).map(Value::from));
    }
    for (key, function) in [
        ("minor", "MinorNumber"),
        ("brand", "Brand"),
        ("cores", "NumGpuCores"),
        ("memory_bus_width", "MemoryBusWidth"),
        ("compute_mode", "ComputeMode"),
    ] {
        let number = reader.number(&format!("nvmlDeviceGet{function}"), &[], "value");
        put(&mut device, key, number.map(Value::from));
    }
    let persistence = reader.number("nvmlDeviceGetPersistenceMode", &[], "value");
    put(&mut device, "persistence", persistence.map(|mode| (mode != 0).into()));
    let architecture = reader.number("nvmlDeviceGetArchitecture", &[], "value").and_then(architecture);
    put(&mut device, "architecture", architecture.map(Value::from));
    let capability = reader.answer("nvmlDeviceGetCudaComputeCapability", &[]);
    if let Some((major, minor)) =
        capability.and_then(|call| Some((call.number("major")?, call.number("minor")?)))
    {
        device.insert("compute_capability".to_owned(), json!([major, minor]));
    }
    device.insert("memory".to_owned(), reader.memory());
    let bar1 = reader.number("nvmlDeviceGetBAR1MemoryInfo", &[], "total").map(
        |total| json!({"total": total, "used": reader.value("nvmlDeviceGetBAR1MemoryInfo", &[], "used")}),
    );
    device.insert("bar1".to_owned(), bar1.unwrap_or_default());
    gauges(&mut device, reader);
    device.insert("ecc".to_owned(), ecc(reader));
    device.insert("remapped_rows".to_owned(), remapped_rows(reader));
    device.insert("retired_pages".to_owned(), retired_pages(reader));
    device.insert("nvlink".to_owned(), nvlink(reader));
    let gpm = reader.number("nvmlGpmQueryDeviceSupport", &[], "supported") == Some(1);
    device.insert("gpm".to_owned(), if gpm { reader.gpm() } else { Value::Null });
    let mode = reader.value("nvmlDeviceGetVirtualizationMode", &[], "value");
    device.insert("virtualization".to_owned(), mode);
    fields(&mut device, reader);
    // The fake lists the processes of instances at the GPU too.
    let instances = (0..16).filter_map(|index| {
        Reader { mig: Some(index), ..reader }.number("nvmlDeviceGetGpuInstanceId", &[], "value")
    });
    device.insert("processes".to_owned(), reader.processes(&instances.collect()));
    device.insert("mig".to_owned(), mig(reader));
    let events = reader.number("nvmlDeviceGetSupportedEventTypes", &[], "value");
    put(&mut device, "supported_events", events.map(Value::from));
    // The wait for an event has no device, and the time that it waits is the recorder's.
    let except =
        ["nvmlEventSetWait_v2", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetProcessUtilization"];
    device.insert("returns".to_owned(), reader.refusals(&except));
    Value::Object(device)
}

/// Everything that is one number for each call.
fn gauges(device: &mut Map<String, Value>, reader: Reader<'_>) {
    for (key, function, arguments, name) in [
        ("utilization", "UtilizationRates", None, "gpu"),
        ("memory_utilization", "UtilizationRates", None, "memory"),
        ("encoder_utilization", "EncoderUtilization", None, "percent"),
        ("decoder_utilization", "DecoderUtilization", None, "percent"),
        ("temperature", "Temperature", Some(0), "value"),
        ("temperature_margin", "MarginTemperature", None, "celsius"),
        ("power_milliwatts", "PowerUsage", None, "value"),
        ("power_limit", "EnforcedPowerLimit", None, "value"),
        ("power_default_limit", "PowerManagementDefaultLimit", None, "value"),
        ("power_min_limit", "PowerManagementLimitConstraints", None, "lowest"),
        ("power_max_limit", "PowerManagementLimitConstraints", None, "highest"),
        ("energy", "TotalEnergyConsumption", None, "value"),
        ("pstate", "PerformanceState", None, "value"),
        ("throttle", "CurrentClocksThrottleReasons", None, "value"),
        ("fan_speed", "FanSpeed", None, "value"),
    ] {
        let arguments: Vec<u32> = arguments.into_iter().collect();
        let value = reader.value(&format!("nvmlDeviceGet{function}"), &arguments, name);
        device.insert(key.to_owned(), value);
    }
    let field = |id: u32| reader.value("nvmlDeviceGetFieldValues", &[id, 0], "value");
    device.insert("memory_temperature".to_owned(), field(82));
    let each = |function: &str, keys: &[(&str, u32)], name: &str| {
        let function = format!("nvmlDeviceGet{function}");
        let members = keys.iter().map(|(key, of)| ((*key).to_owned(), reader.value(&function, &[*of], name)));
        members.collect::<Map<_, _>>()
    };
    let thresholds = [("shutdown", 0), ("slowdown", 1), ("memory_max", 2), ("gpu_max", 3)];
    device.insert("thresholds".to_owned(), each("TemperatureThreshold", &thresholds, "value").into());
    let domains = [("graphics", 0), ("sm", 1), ("memory", 2), ("video", 3)];
    let mut clocks = each("ClockInfo", &domains, "value");
    clocks.insert("max".to_owned(), each("MaxClockInfo", &domains, "value").into());
    device.insert("clocks".to_owned(), clocks.into());
    let policies = [
        ("power", 0),
        ("thermal", 1),
        ("sync_boost", 2),
        ("board_limit", 3),
        ("low_utilization", 4),
        ("reliability", 5),
        ("app_clocks", 10),
        ("base_clocks", 11),
    ];
    device.insert("violations_ns".to_owned(), each("ViolationStatus", &policies, "violation").into());
    let mut pcie = Map::new();
    for (key, function) in [
        ("generation", "CurrPcieLinkGeneration"),
        ("width", "CurrPcieLinkWidth"),
        ("max_generation", "MaxPcieLinkGeneration"),
        ("max_width", "MaxPcieLinkWidth"),
        ("replays", "PcieReplayCounter"),
    ] {
        pcie.insert(key.to_owned(), reader.value(&format!("nvmlDeviceGet{function}"), &[], "value"));
    }
    for (key, direction) in [("tx_kib_per_second", 0), ("rx_kib_per_second", 1)] {
        pcie.insert(key.to_owned(), reader.value("nvmlDeviceGetPcieThroughput", &[direction], "value"));
    }
    pcie.insert("tx_bytes".to_owned(), field(197));
    pcie.insert("rx_bytes".to_owned(), field(198));
    device.insert("pcie".to_owned(), pcie.into());
}

fn ecc(reader: Reader<'_>) -> Value {
    let mode = |name: &str| reader.number("nvmlDeviceGetEccMode", &[], name);
    let Some(enabled) = mode("current") else { return Value::Null };
    let location = |place: u32| {
        let names = [
            ("corrected", 0, 0),
            ("uncorrected", 1, 0),
            ("corrected_aggregate", 0, 1),
            ("uncorrected_aggregate", 1, 1),
        ];
        let count = |(key, error, scope): (&str, u32, u32)| {
            let count = reader.number("nvmlDeviceGetMemoryErrorCounter", &[error, scope, place], "value");
            // A location that has no counter; the totals are then those of the other one.
            (key.to_owned(), Value::from(count.unwrap_or(0)))
        };
        Value::Object(names.map(count).into_iter().collect())
    };
    json!({
        "enabled": enabled != 0, "pending": mode("pending").unwrap_or(enabled) != 0,
        "dram": location(2), "sram": location(7),
    })
}

fn remapped_rows(reader: Reader<'_>) -> Value {
    let rows = |name: &str| reader.number("nvmlDeviceGetRemappedRows", &[], name);
    let Some(corrected) = rows("corrected") else { return Value::Null };
    let names = ["max", "high", "partial", "low", "none"];
    let banks = |name: &str| reader.number("nvmlDeviceGetRowRemapperHistogram", &[], name).unwrap_or(0);
    json!({
        "corrected": corrected, "uncorrected": rows("uncorrected").unwrap_or(0),
        "pending": rows("pending").unwrap_or(0) != 0, "failure": rows("failure").unwrap_or(0) != 0,
        "histogram": names.map(banks),
    })
}

fn retired_pages(reader: Reader<'_>) -> Value {
    let pages = |cause: u32| {
        let call = reader.answer("nvmlDeviceGetRetiredPages", &[cause]);
        call.and_then(|call| call.answer.get("addresses").cloned())
    };
    let Some(single) = pages(0) else { return Value::Null };
    let pending = reader.number("nvmlDeviceGetRetiredPagesPendingStatus", &[], "value").unwrap_or(0) != 0;
    json!({"single_bit": single, "double_bit": pages(1).unwrap_or_else(|| json!([])), "pending": pending})
}

fn nvlink(reader: Reader<'_>) -> Value {
    let states: Vec<Option<u64>> =
        (0..18).map(|link| reader.number("nvmlDeviceGetNvLinkState", &[link], "value")).collect();
    let links = states.iter().take_while(|state| state.is_some()).count();
    if links == 0 {
        return Value::Null;
    }
    let down: Vec<usize> = (0..links).filter(|link| states[*link] == Some(0)).collect();
    let up = (0_u32..18).find(|link| {
        usize::try_from(*link).ok().and_then(|link| states.get(link)).copied().flatten() == Some(1)
    });
    let mut shape = json!({"links": links, "down": down});
    if let (Some(up), Some(members)) = (up, shape.as_object_mut()) {
        let field = |id: u32| reader.value("nvmlDeviceGetFieldValues", &[id, up], "value");
        put(members, "version", Some(reader.value("nvmlDeviceGetNvLinkVersion", &[up], "value")));
        put(members, "speed_mbps", Some(field(164)).filter(|value| !value.is_null()));
        for (key, id) in
            [("data_tx_kib", 138), ("data_rx_kib", 139), ("raw_tx_kib", 140), ("raw_rx_kib", 141)]
        {
            members.insert(key.to_owned(), field(id));
        }
        let names = [("replay", 0), ("recovery", 1), ("crc_flit", 2), ("crc_data", 3), ("ecc_data", 4)];
        let errors = names.into_iter().filter_map(|(key, kind)| {
            let count = reader.number("nvmlDeviceGetNvLinkErrorCounter", &[up, kind], "value")?;
            Some((key.to_owned(), Value::from(count)))
        });
        members.insert("errors".to_owned(), Value::Object(errors.collect()));
    }
    shape
}

/// Field values by id; those of links come from the key `nvlink`, because they are another for each link.
fn fields(device: &mut Map<String, Value>, reader: Reader<'_>) {
    let (mut values, mut types, mut codes) = (Map::new(), Map::new(), Map::new());
    let calls = reader.calls().filter(|call| call.function == "nvmlDeviceGetFieldValues");
    for call in calls {
        let &[id, 0] = call.arguments.as_slice() else { continue };
        if LINK_FIELDS.contains(&id) {
            continue;
        }
        match (call.code, call.answer.get("value")) {
            (Some(SUCCESS), Some(value)) => {
                values.insert(id.to_string(), value.clone());
                put(&mut types, &id.to_string(), call.answer.get("type").cloned());
            }
            (Some(code), _) => {
                codes.insert(id.to_string(), code.into());
            }
            _ => {}
        }
    }
    device.insert("fields".to_owned(), values.into());
    device.insert("field_types".to_owned(), types.into());
    device.insert("field_returns".to_owned(), codes.into());
}

fn mig(reader: Reader<'_>) -> Value {
    let mode = |name: &str| reader.number("nvmlDeviceGetMigMode", &[], name);
    let Some(enabled) = mode("current") else { return Value::Null };
    let mut instances = Vec::new();
    for index in 0..16 {
        let instance = Reader { mig: Some(index), ..reader };
        if instance.calls().next().is_none() {
            instances.push(Value::Null);
            continue;
        }
        let mut members = Map::new();
        for (key, function) in [("uuid", "UUID"), ("name", "Name")] {
            put(&mut members, key, instance.text(&format!("nvmlDeviceGet{function}")).map(Value::from));
        }
        for (key, function) in [("gi", "GpuInstanceId"), ("ci", "ComputeInstanceId")] {
            let id = instance.number(&format!("nvmlDeviceGet{function}"), &[], "value");
            members.insert(key.to_owned(), id.unwrap_or(0).into());
        }
        for key in [
            "multiprocessors",
            "copy_engines",
            "decoders",
            "encoders",
            "jpeg",
            "ofa",
            "gpu_slices",
            "compute_slices",
        ] {
            let count = instance.number("nvmlDeviceGetAttributes_v2", &[], key);
            put(&mut members, key, count.map(Value::from));
        }
        members.insert("memory".to_owned(), instance.memory());
        members.insert("gpm".to_owned(), instance.gpm());
        members.insert("processes".to_owned(), instance.processes(&BTreeSet::new()));
        instances.push(Value::Object(members));
    }
    while instances.last().is_some_and(Value::is_null) {
        instances.pop();
    }
    json!({"enabled": enabled != 0, "pending": mode("pending").unwrap_or(enabled) != 0, "instances": instances})
}

/// The fake's name of an `nvmlDeviceArchitecture_t`.
fn architecture(number: u64) -> Option<&'static str> {
    const NAMES: [&str; 9] =
        ["kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"];
    usize::try_from(number).ok()?.checked_sub(2).and_then(|index| NAMES.get(index).copied())
}

fn put(members: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let Some(value) = value {
        members.insert(key.to_owned(), value);
    }
}

/// The functions that never succeeded, with the code of the first call; some succeed for one link or clock and not for another.
pub(crate) fn refused(recording: &Recording, gpu: Option<u32>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let own = || recording.calls.iter().filter(|call| call.gpu == gpu && call.mig.is_none());
    let succeeded: BTreeSet<&str> =
        own().filter(|call| call.code == Some(SUCCESS)).map(|call| call.function.as_str()).collect();
    for call in own() {
        if succeeded.contains(call.function.as_str()) {
            continue;
        }
        let text = match call.code {
            None => "not in this library".to_owned(),
            Some(NOT_SUPPORTED) => "not supported".to_owned(),
            Some(4) => "no permission".to_owned(),
            Some(code) => format!("return code {code}"),
        };
        found.entry(call.function.clone()).or_insert(text);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(function: &str, arguments: &[u32], code: Option<u32>, value: Option<Value>) -> Answer {
        let name = if function.ends_with("UUID") { "text" } else { "value" };
        Answer {
            function: function.to_owned(),
            gpu: (function != "nvmlDeviceGetCount_v2").then_some(0),
            mig: None,
            arguments: arguments.to_vec(),
            code,
            answer: value.into_iter().map(|value| (name.to_owned(), value)).collect(),
            bytes: Vec::new(),
            micros: 0.0,
        }
    }

    #[test]
    fn answers_codes_and_absent_functions_are_in_the_scenario() {
        let recording = Recording {
            format: 1,
            origin: "device".to_owned(),
            taken: 0,
            calls: vec![
                answer("nvmlDeviceGetCount_v2", &[], Some(SUCCESS), Some(1.into())),
                answer("nvmlDeviceGetUUID", &[], Some(SUCCESS), Some("GPU-1".into())),
                answer("nvmlDeviceGetPowerUsage", &[], Some(4), None),
                answer("nvmlDeviceGetBrand", &[], None, None),
                answer("nvmlDeviceGetClockInfo", &[0], Some(SUCCESS), Some(1_980.into())),
                answer("nvmlDeviceGetClockInfo", &[1], Some(NOT_SUPPORTED), None),
                answer("nvmlDeviceGetFieldValues", &[82, 0], Some(SUCCESS), Some(42.into())),
                answer("nvmlDeviceGetFieldValues", &[83, 0], Some(27), None),
            ],
        };
        let scenario = scenario(&recording);
        let device = &scenario["devices"][0];
        assert_eq!(device["uuid"], "GPU-1");
        assert_eq!(device["returns"]["nvmlDeviceGetPowerUsage"], 4);
        assert_eq!(device["returns"]["nvmlDeviceGetBrand"], FUNCTION_NOT_FOUND);
        assert_eq!(device["returns"].get("nvmlDeviceGetClockInfo"), None);
        assert_eq!((&device["clocks"]["graphics"], &device["clocks"]["sm"]), (&1_980.into(), &Value::Null));
        assert_eq!((&device["fields"]["82"], &device["field_returns"]["83"]), (&42.into(), &27.into()));
        let refused = refused(&recording, Some(0));
        assert_eq!(refused.get("nvmlDeviceGetPowerUsage").map(String::as_str), Some("no permission"));
        assert_eq!(refused.get("nvmlDeviceGetClockInfo"), None, "one clock succeeded");
        assert_eq!(refused.len(), 2, "{refused:?}");
    }
}
