//! `/proc/meminfo` (Documentation/filesystems/proc.rst), in KiB.

use crate::model::units::Bytes;

/// The lines we know; what the kernel does not write is absent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// `MemTotal`.
    pub total: Option<Bytes>,
    /// `MemAvailable`.
    pub available: Option<Bytes>,
}

/// Reads the text of `/proc/meminfo`; a line that is not understood is left out.
pub fn meminfo(text: &[u8]) -> Meminfo {
    let mut found = Meminfo::default();
    for line in String::from_utf8_lossy(text).lines() {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let value =
            rest.trim().strip_suffix(" kB").and_then(|kib| kib.trim().parse().ok()).and_then(Bytes::from_kib);
        match name {
            "MemTotal" => found.total = value,
            "MemAvailable" => found.available = value,
            _ => {}
        }
    }
    found
}
