//! The incidents of a folder, for a list and for `/api/v1/incidents`.

use serde::Serialize;

use crate::protection::record::store::{IncidentError, RECORD, Store};
use crate::protection::words::incident::{Cause, Incident};

/// Grows when a key changes its meaning or goes.
const SCHEMA_VERSION: u32 = 1;

/// One incident of a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Its name, which is its folder's.
    pub id: String,
    /// All its files together.
    pub bytes: u64,
    /// Whether its record can be read; the rest is absent where not.
    pub complete: bool,
    /// Why there is a record.
    pub cause: Option<Cause>,
    /// The target's name, or the victim's group.
    pub target: Option<String>,
    /// `observe`, `enforce` or `drill`.
    pub mode: Option<String>,
    /// When it began, in seconds since 1970.
    pub began_unix_seconds: Option<f64>,
    /// When it was over; absent while it goes on.
    pub ended_unix_seconds: Option<f64>,
    /// What happened, one sentence.
    pub summary: Option<String>,
    /// How many steps were carried out.
    pub steps: Option<usize>,
}

/// The incidents of a folder, newest first; one whose record is damaged is in the list all the same.
///
/// # Errors
/// Where the folder cannot be listed.
pub fn entries(store: &Store) -> Result<Vec<Entry>, IncidentError> {
    let listed = store.list()?;
    let entries = listed.into_iter().rev().map(|listed| {
        let bytes = store.read(&listed.id, RECORD).ok();
        let record = bytes.and_then(|bytes| serde_json::from_slice::<Incident>(&bytes).ok());
        let mut entry = Entry {
            id: listed.id,
            bytes: listed.bytes,
            complete: record.is_some(),
            cause: None,
            target: None,
            mode: None,
            began_unix_seconds: None,
            ended_unix_seconds: None,
            summary: None,
            steps: None,
        };
        if let Some(record) = record {
            entry.cause = Some(record.cause);
            entry.began_unix_seconds = Some(record.began_unix_seconds);
            entry.ended_unix_seconds = record.ended_unix_seconds;
            entry.steps = Some(record.steps.len());
            entry.target = Some(record.target);
            entry.mode = Some(record.mode);
            entry.summary = Some(record.summary);
        }
        entry
    });
    Ok(entries.collect())
}

/// The list as one JSON object.
///
/// # Errors
/// As [`entries`].
pub fn json(store: &Store) -> Result<Vec<u8>, IncidentError> {
    #[derive(Serialize)]
    struct List {
        schema_version: u32,
        incidents: Vec<Entry>,
    }
    let list = List { schema_version: SCHEMA_VERSION, incidents: entries(store)? };
    Ok(serde_json::to_vec(&list).expect("keys are text and writing to memory cannot fail"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_comes_first_and_a_damaged_one_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned(), 10, 1 << 20);
        let record =
            Incident { target: "job".to_owned(), summary: "It ended.".to_owned(), ..Incident::default() };
        let whole = serde_json::to_vec(&record).unwrap();
        store.write("a", &[(RECORD.to_owned(), whole.clone())]).unwrap();
        store.write("b", &[(RECORD.to_owned(), whole[..20].to_vec())]).unwrap();
        let text = String::from_utf8(json(&store).unwrap()).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["schema_version"], 1);
        assert_eq!(read["incidents"][0]["id"], "b");
        assert_eq!(
            (&read["incidents"][0]["complete"], &read["incidents"][0]["summary"]),
            (&false.into(), &serde_json::Value::Null)
        );
        assert_eq!(
            (&read["incidents"][1]["target"], &read["incidents"][1]["steps"]),
            (&"job".into(), &0.into())
        );
    }
}
