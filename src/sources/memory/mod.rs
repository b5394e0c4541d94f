//! Host memory, from `/proc/meminfo`.

pub mod metrics;
pub mod parse;

use crate::host::fs::{self, KeptFile};
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::sources::Registration;

/// Host memory.
pub static REGISTRATION: Registration = Registration {
    name: "memory",
    about: "Host memory, from /proc/meminfo.",
    on_by_default: true,
    options: &[],
    metrics: metrics::METRICS,
    build: |_, context| {
        Box::new(Memory { meminfo: KeptFile::new(context.roots.proc.join("meminfo")), buffer: Vec::new() })
    },
};

struct Memory {
    meminfo: KeptFile,
    buffer: Vec<u8>,
}

impl Source for Memory {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let bytes = match self.meminfo.read(&mut self.buffer) {
            Ok(bytes) => bytes,
            Err(error) => return Err(fs::failed(self.meminfo.path(), &error)),
        };
        let found = parse::meminfo(bytes);
        out.put_some(&metrics::TOTAL, &[], found.total);
        out.put_some(&metrics::AVAILABLE, &[], found.available);
        if found.total.is_none() {
            let path = self.meminfo.path().display();
            return Err(SourceError::failed(Failure::Parse, format!("{path} has no MemTotal")));
        }
        Ok(())
    }
}
