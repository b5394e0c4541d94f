//! What memwarden itself costs, from `/proc/self`.

pub mod metrics;

use crate::host::fs::{self, KeptFile};
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Seconds};
use crate::sources::Registration;

/// What memwarden itself costs.
pub static REGISTRATION: Registration = Registration {
    name: "daemon",
    about: "What memwarden itself costs: its processor time, memory and open files.",
    on_by_default: true,
    options: &[],
    metrics: metrics::METRICS,
    build: |_, context| {
        let folder = context.roots.proc.join("self");
        Box::new(Daemon {
            stat: KeptFile::new(folder.join("stat")),
            descriptors: folder.join("fd"),
            ticks_per_second: rustix::param::clock_ticks_per_second(),
            page: rustix::param::page_size() as u64,
            buffer: Vec::new(),
        })
    },
};

struct Daemon {
    stat: KeptFile,
    descriptors: std::path::PathBuf,
    ticks_per_second: u64,
    page: u64,
    buffer: Vec<u8>,
}

impl Source for Daemon {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let bytes = match self.stat.read(&mut self.buffer) {
            Ok(bytes) => bytes,
            Err(error) => return Err(fs::failed(self.stat.path(), &error)),
        };
        let Some(own) = parse(bytes) else {
            let path = self.stat.path().display();
            return Err(SourceError::failed(Failure::Parse, format!("{path} is not understood")));
        };
        let micros = own.ticks.saturating_mul(1_000_000) / self.ticks_per_second.max(1);
        out.put(&metrics::CPU, &[], Seconds::from_micros(micros));
        out.put(&metrics::RSS, &[], Bytes::new(own.rss_pages.saturating_mul(self.page)));
        out.put(&metrics::THREADS, &[], Count(own.threads));
        match std::fs::read_dir(&self.descriptors) {
            Ok(entries) => {
                // Listing opens one descriptor more.
                let open = entries.count().saturating_sub(1) as u64;
                out.put(&metrics::OPEN_FILES, &[], Count(open));
                Ok(())
            }
            Err(error) => Err(fs::failed(&self.descriptors, &error)),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Own {
    ticks: u64,
    threads: u64,
    rss_pages: u64,
}

/// Fields 14, 15, 20 and 24 of `/proc/PID/stat` (proc_pid_stat(5)).
fn parse(stat: &[u8]) -> Option<Own> {
    let text = std::str::from_utf8(stat).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    // The first field after the name is field 3.
    let field = |number: usize| rest.split(' ').nth(number - 3)?.trim().parse::<u64>().ok();
    Some(Own { ticks: field(14)?.saturating_add(field(15)?), threads: field(20)?, rss_pages: field(24)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "4242 (mem) warden) S 1 4242 4242 0 -1 4194560 812 0 3 0 25 17 0 0 20 0 5 0 81523 253952000 3141 \
                        18446744073709551615 1 1 0 0 0 0 0 4096 17 0 0 0 17 1 0 0 0 0 0\n";

    #[test]
    fn a_name_with_a_parenthesis_is_no_trap() {
        assert_eq!(parse(STAT.as_bytes()), Some(Own { ticks: 42, threads: 5, rss_pages: 3141 }));
    }

    #[test]
    fn a_truncated_line_is_not_understood() {
        for end in 0..90 {
            assert_eq!(parse(&STAT.as_bytes()[..end]), None, "cut at {end}");
        }
    }
}
