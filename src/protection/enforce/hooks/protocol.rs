//! The protocol between the daemon and the hook helper: one JSON document per line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Maximum length of a line in bytes: the input of a hook has a few KiB.
pub(super) const LONGEST: usize = 1 << 20;
/// Bytes of a hook's output that are kept.
pub(super) const OUTPUT: usize = 4096;
/// Maximum timeout of a hook in milliseconds.
pub(super) const SLOWEST: u64 = 60_000;

/// A hook to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HookRequest {
    /// Returned with the answer.
    pub(super) id: u64,
    /// The absolute path.
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    /// Time after which it is killed, in milliseconds.
    pub(super) timeout_ms: u64,
    /// Its standard input: a JSON document.
    pub(super) input: String,
}

/// How a hook ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ending {
    /// It exited with this code.
    Exited(i32),
    /// It was terminated by this signal.
    Signalled(i32),
    /// It was killed at its timeout.
    TimedOut,
    /// It was not started, for this reason.
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HookResult {
    /// The id of the request.
    pub(super) id: u64,
    /// How it ended.
    pub(super) ending: Ending,
    /// Its standard output and error, cut.
    pub(super) output: String,
}

/// The environment of a hook: the top-level values of its input, as `MEMWARDEN_NAME`.
pub(super) fn environment(input: &str) -> Vec<(String, String)> {
    let Ok(serde_json::Value::Object(values)) = serde_json::from_str(input) else { return Vec::new() };
    let variables = values.into_iter().filter_map(|(name, value)| {
        let value = match value {
            serde_json::Value::String(text) => text,
            serde_json::Value::Number(number) => number.to_string(),
            serde_json::Value::Bool(yes) => yes.to_string(),
            _ => return None,
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        // The kernel does not accept zero bytes in the environment.
        (name.chars().all(plain) && !value.contains('\0'))
            .then(|| (format!("MEMWARDEN_{}", name.to_ascii_uppercase()), value))
    });
    variables.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_become_variables() {
        let input =
            r#"{"target": "job", "headroom_bytes": 5, "drill": true, "list": [1], "a-b": 1, "z": "\u0000"}"#;
        let variables: Vec<String> =
            environment(input).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(variables, ["MEMWARDEN_DRILL=true", "MEMWARDEN_HEADROOM_BYTES=5", "MEMWARDEN_TARGET=job"]);
        assert!(environment("[1]").is_empty() && environment("{").is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(text in ".{0,200}") {
            let _ = environment(&text);
            let _ = serde_json::from_str::<HookRequest>(&text);
            let _ = serde_json::from_str::<HookResult>(&text);
        }
    }
}
