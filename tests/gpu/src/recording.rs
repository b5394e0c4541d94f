//! A recording: what was answered, what differs in another one, and how it is written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `NVML_SUCCESS`.
pub(crate) const SUCCESS: u32 = 0;

/// `NVML_ERROR_FUNCTION_NOT_FOUND`, which the fake returns for a function that a library of a recording does not have.
pub(crate) const FUNCTION_NOT_FOUND: u32 = 13;

/// Answers that change between two calls although nothing happens: times of the driver's own clock.
const VOLATILE: &[&str] = &["reference_time", "timestamp", "latency_us"];

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
            let code = call.code.unwrap_or(FUNCTION_NOT_FOUND);
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

    /// A number of the answer that can have a fraction.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.answer.get(name)?.as_f64()
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
