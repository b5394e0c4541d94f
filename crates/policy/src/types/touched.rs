//! A process that a step reached.

use std::borrow::Cow;

use crate::model::ids::ProcessKey;
use crate::model::printable::is_hidden;

/// One process that a step reached, or would have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Touched {
    #[serde(flatten)]
    pub key: ProcessKey,
    /// Its real user.
    pub uid: u32,
    /// Its name (comm), padded with zeros.
    #[serde(serialize_with = "write_comm", deserialize_with = "read_comm")]
    pub comm: [u8; 16],
    /// Its resident memory in bytes, from `stat`.
    #[serde(rename = "resident_bytes")]
    pub resident: u64,
    /// The error's number (errno(3)), 0 for none.
    pub errno: i32,
}

impl Touched {
    /// Its name, without control characters.
    pub fn name(&self) -> Cow<'_, str> {
        printable_comm(&self.comm)
    }
}

fn printable_comm(comm: &[u8; 16]) -> Cow<'_, str> {
    let comm = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    match std::str::from_utf8(comm) {
        Ok(plain) if !plain.contains(is_hidden) => plain.into(),
        _ => String::from_utf8_lossy(comm).replace(is_hidden, "?").into(),
    }
}

fn write_comm<S: serde::Serializer>(comm: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&printable_comm(comm))
}

fn read_comm<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<[u8; 16], D::Error> {
    let name: Cow<'_, str> = serde::Deserialize::deserialize(deserializer)?;
    let mut comm = [0; 16];
    comm.iter_mut().zip(name.bytes()).for_each(|(own, byte)| *own = byte);
    Ok(comm)
}
