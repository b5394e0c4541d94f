//! Says why a command failed where its launcher looks: the termination message of a pod, and the error file of torchrun.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::out;
use crate::host::user_files;
use crate::model::ends::End;
use crate::model::printable;
use crate::node_view::ends::{remarks, sentence};

/// Names the file that torchrun reads to report why a worker failed (torch.distributed.elastic.multiprocessing.errors).
const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";
/// Bytes that the kubelet reads of a termination message.
const LONGEST: usize = 4096;
/// Most bytes of an error file that is extended.
const LARGEST: u64 = 1 << 20;

/// Writes the reason to both; a file that cannot be written is a line on standard error.
pub(super) fn tell(end: &End, termination_log: Option<&Path>) {
    let text = [vec![sentence(end)], remarks(end)].concat().join(" ");
    if let Some(path) = termination_log {
        let cut = text.char_indices().map(|(at, _)| at).take_while(|at| *at < LONGEST).last().unwrap_or(0);
        let short = if text.len() <= LONGEST { &text[..] } else { &text[..cut] };
        // Kubernetes creates it; what the command wrote there stays.
        report("--termination-log", path, user_files::append(path, format!("{short}\n").as_bytes()));
    }
    if let Some(path) = std::env::var_os(ERROR_FILE).filter(|path| !path.is_empty()) {
        let path = Path::new(&path);
        let known = match user_files::read(path, None, LARGEST) {
            Ok(known) => Ok(Some(known)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let extend = |known: Option<Vec<u8>>| {
            user_files::put(path, extended(known.as_deref(), &text, end).to_string().as_bytes())
        };
        report(ERROR_FILE, path, known.and_then(extend));
    }
}

/// `name` is that of the option or the variable that names the file.
fn report(name: &str, path: &Path, written: std::io::Result<()>) {
    if let Err(error) = written {
        out::note(&format!("memwarden: {name}: cannot write {}: {error}\n", printable::path(path)));
    }
}

/// The error file: what the worker wrote, extended; where it wrote nothing, the reason in the form in which torchrun shows it. It
/// shows `py_callstack`, and `message` where that is absent.
fn extended(known: Option<&[u8]>, text: &str, end: &End) -> Value {
    let known = known.and_then(|known| serde_json::from_slice::<Value>(known).ok());
    let mut file = known.filter(Value::is_object).unwrap_or_else(|| {
        let timestamp = format!("{:.0}", end.unix_seconds);
        json!({ "message": { "message": text, "extraInfo": { "timestamp": timestamp } } })
    });
    if let Some(Value::String(trace)) = file.pointer_mut("/message/extraInfo/py_callstack") {
        trace.push_str(&format!("\nmemwarden: {text}"));
    }
    file["memwarden"] =
        json!({ "cause": end.cause, "probability": end.probability, "retry": end.retry, "text": text });
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ends::{EndCause, Retry};

    #[test]
    fn the_error_file_of_a_worker_is_extended_and_not_replaced() {
        let end = End {
            cause: EndCause::CgroupLimit,
            probability: 0.99,
            retry: Retry::CannotHelp,
            unix_seconds: 12.0,
            ..End::default()
        };
        let own = br#"{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback"}}}"#;
        let own = extended(Some(own), "why", &end);
        assert_eq!(own["message"]["message"], "ValueError: x");
        assert_eq!(own["message"]["extraInfo"]["py_callstack"], "Traceback\nmemwarden: why");
        assert_eq!(
            (&own["memwarden"]["cause"], &own["memwarden"]["retry"]),
            (&"cgroup_limit".into(), &"cannot_help".into())
        );
        for damaged in [None, Some(&b"{"[..]), Some(b"[]")] {
            let new = extended(damaged, "why", &end);
            assert_eq!(
                new["message"],
                json!({ "message": "why", "extraInfo": { "timestamp": "12" } }),
                "torchrun would show another text"
            );
        }
    }
}
