//! What `nvidia-smi -q -x` prints, from a recording: for the rehearsal, which has no nvidia-smi. It shares this program's
//! reading of NVML, so that it shows only that the comparison works.

use std::fmt::Write as _;

use crate::recording::Recording;

/// The document, with the elements that are compared.
pub(crate) fn output(recording: &Recording) -> String {
    let mut text = String::from(
        "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n",
    );
    for gpu in 0..recording.gpus() {
        let line = |function: &str| {
            let call = recording.find(Some(gpu), function, &[]);
            escaped(call.and_then(|call| call.text("text")).unwrap_or("N/A"))
        };
        let number = |function: &str, arguments: &[u32], name: &str, unit: &str| {
            let call = recording.find(Some(gpu), function, arguments);
            call.and_then(|call| call.number(name))
                .map_or("N/A".to_owned(), |number| format!("{number}{unit}"))
        };
        let mib = |function: &str, name: &str| {
            let call = recording.find(Some(gpu), function, &[]);
            let bytes = call.and_then(|call| call.number(name));
            bytes.map_or("N/A".to_owned(), |bytes| format!("{} MiB", bytes >> 20))
        };
        let memory = |name: &str| mib("nvmlDeviceGetMemoryInfo_v2", name);
        let bar1 = |name: &str| mib("nvmlDeviceGetBAR1MemoryInfo", name);
        let celsius = |function: &str, argument: u32| number(function, &[argument], "value", " C");
        let watts = |function: &str| {
            let call = recording.find(Some(gpu), function, &[]);
            let milliwatts = call.and_then(|call| call.number("value"));
            milliwatts.map_or("N/A".to_owned(), |draw| format!("{}.{:02} W", draw / 1000, draw % 1000 / 10))
        };
        let clock = |function: &str, domain: u32| number(function, &[domain], "value", " MHz");
        let percent = |function: &str, name: &str| number(function, &[], name, " %");
        let state = number("nvmlDeviceGetPerformanceState", &[], "value", "");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "<gpu id=\"{gpu}\"><stand_in>answers of NVML, printed by gpu-run</stand_in>\n\
             <product_name>{}</product_name><uuid>{}</uuid><serial>{}</serial><vbios_version>{}</vbios_version>\n\
             <fb_memory_usage><total>{}</total><reserved>{}</reserved><used>{}</used><free>{}</free></fb_memory_usage>\n\
             <bar1_memory_usage><total>{}</total><used>{}</used></bar1_memory_usage>\n\
             <utilization><gpu_util>{}</gpu_util><memory_util>{}</memory_util></utilization>\n\
             <temperature><gpu_temp>{}</gpu_temp><gpu_temp_max_threshold>{}</gpu_temp_max_threshold>\
             <gpu_temp_slow_threshold>{}</gpu_temp_slow_threshold></temperature>\n\
             <gpu_power_readings><power_draw>{}</power_draw><current_power_limit>{}</current_power_limit></gpu_power_readings>\n\
             <clocks><graphics_clock>{}</graphics_clock><sm_clock>{}</sm_clock><mem_clock>{}</mem_clock></clocks>\n\
             <performance_state>P{state}</performance_state>\n<processes>",
            line("nvmlDeviceGetName"),
            line("nvmlDeviceGetUUID"),
            line("nvmlDeviceGetSerial"),
            line("nvmlDeviceGetVbiosVersion"),
            memory("total"),
            memory("reserved"),
            memory("used"),
            memory("free"),
            bar1("total"),
            bar1("used"),
            percent("nvmlDeviceGetUtilizationRates", "gpu"),
            percent("nvmlDeviceGetUtilizationRates", "memory"),
            celsius("nvmlDeviceGetTemperature", 0),
            celsius("nvmlDeviceGetTemperatureThreshold", 0),
            celsius("nvmlDeviceGetTemperatureThreshold", 1),
            watts("nvmlDeviceGetPowerUsage"),
            watts("nvmlDeviceGetEnforcedPowerLimit"),
            clock("nvmlDeviceGetClockInfo", 0),
            clock("nvmlDeviceGetClockInfo", 1),
            clock("nvmlDeviceGetClockInfo", 2),
        );
        let lists =
            crate::calls::PROCESS_LISTS.iter().filter_map(|list| recording.find(Some(gpu), list, &[]));
        for process in lists.filter_map(|call| call.answer.get("processes")?.as_array()).flatten() {
            let figure = |name: &str| process.get(name).and_then(serde_json::Value::as_u64);
            if let (Some(pid), Some(memory)) = (figure("pid"), figure("memory")) {
                let memory =
                    if memory == u64::MAX { "N/A".to_owned() } else { format!("{} MiB", memory >> 20) };
                let _ = writeln!(
                    text,
                    "<process_info><pid>{pid}</pid><used_memory>{memory}</used_memory></process_info>"
                );
            }
        }
        text.push_str("</processes></gpu>\n");
    }
    text.push_str("</nvidia_smi_log>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
