//! CPU time, memory, threads and file descriptors of memwarden itself, from `/proc/self`.

pub mod metrics;

use std::io;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::host::fs::{self, KeptFile};
use crate::host::process;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::Count;
use crate::sources::Registration;

/// The source of the daemon's own resource usage.
pub static REGISTRATION: Registration = Registration {
    name: "daemon",
    about: "CPU time, memory and open files of memwarden itself.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| {
        let folder = context.roots.proc.join("self");
        Box::new(Daemon {
            stat: KeptFile::new(folder.join("stat")),
            statm: KeptFile::new(folder.join("statm")),
            descriptors: folder.join("fd"),
            host_stat: KeptFile::new(context.roots.proc.join("stat")),
            boot: None,
            buffer: Vec::new(),
        })
    })
};

struct Daemon {
    stat: KeptFile,
    statm: KeptFile,
    descriptors: std::path::PathBuf,
    host_stat: KeptFile,
    /// When the host was booted, in seconds since 1970, once that was read.
    boot: Option<u64>,
    buffer: Vec<u8>,
}

impl Daemon {
    /// When the host was booted, read once: the kernel computes it anew from a clock that may be set.
    fn boot(&mut self, at: Timestamp) -> Option<u64> {
        if self.boot.is_none() {
            self.boot = process::boot(self.host_stat.read(&mut self.buffer).ok()?).time_at(at);
        }
        self.boot
    }
}

impl Source for Daemon {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let bytes = self.stat.sample(&mut self.buffer)?;
        let Some(own) = process::stat(bytes) else {
            return Err(self.stat.malformed("has an invalid format"));
        };
        out.put(&metrics::CPU, &[], process::seconds(own.cpu_ticks));
        out.put(&metrics::THREADS, &[], Count(own.threads));
        let start = own.start;
        let started = self.boot(at).map(|boot| process::unix_seconds(boot, start));
        out.put_some(&metrics::START, &[], started);
        let open = open_files(&self.descriptors);
        out.put_some(&metrics::OPEN_FDS, &[], open.as_ref().ok().copied().map(Count));
        out.put_some(&metrics::MAX_FDS, &[], getrlimit(Resource::Nofile).current.map(Count));
        let bytes = self.statm.sample(&mut self.buffer)?;
        let Some([all, resident]) = process::statm(bytes) else {
            return Err(self.statm.malformed("has an invalid format"));
        };
        out.put(&metrics::VIRTUAL, &[], all);
        out.put(&metrics::RSS, &[], resident);
        open.map(|_| ()).map_err(|error| fs::failed(&self.descriptors, &error))
    }
}

/// Number of descriptors in the folder: since Linux 6.2 the kernel reports it as the folder's size.
fn open_files(folder: &Path) -> io::Result<u64> {
    let size = u64::try_from(rustix::fs::stat(folder)?.st_size).unwrap_or(0);
    if size > 0 && rustix::fs::statfs(folder)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
        return Ok(size);
    }
    // Listing opens one descriptor itself.
    Ok(std::fs::read_dir(folder)?.count().saturating_sub(1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process::testing::at;
    use crate::model::units::{Bytes, Unit as _};
    use crate::sources::testing::{build, root};

    const STAT: &str = "4242 (mem) warden) S 1 4242 4242 0 -1 4194560 812 0 3 0 25 17 0 0 20 0 5 0 81523 253952000 3141 \
                        18446744073709551615 1 1 0 0 0 0 0 4096 17 0 0 0 17 1 0 0 0 0 0\n";

    #[test]
    fn resident_memory_is_that_of_statm() {
        let own = ["stat", "fd/0", "fd/1", "fd/2"].map(|name| format!("proc/self/{name}"));
        let root = root(&own.each_ref().map(|path| (path.as_str(), STAT)));
        let mut daemon = build(&REGISTRATION, &root);
        let mut sample = || {
            let mut out = Batch::new();
            let error = daemon.sample(at(1), &mut out).err().map(|error| error.to_string());
            let values: Vec<_> =
                out.families().iter().map(|family| (family.desc.name, family.points[0].value)).collect();
            (values, error)
        };
        let (values, error) = sample();
        assert!(error.is_some_and(|error| error.contains("statm")));
        assert!(values.iter().all(|(name, _)| *name != metrics::RSS.desc.name), "missing is not zero");
        root.write("proc/self/statm", "62000 3000 900 1 0 5000 0\n");
        let (values, error) = sample();
        assert_eq!(error, None);
        let rss = Bytes::new(3000 * rustix::param::page_size() as u64).value();
        assert!(values.contains(&(metrics::RSS.desc.name, rss)), "{values:?}");
        assert!(values.contains(&(metrics::OPEN_FDS.desc.name, 2.0)), "{values:?}");
        let limit = getrlimit(Resource::Nofile).current.map(|limit| Count(limit).value());
        let found = values.iter().find(|(name, _)| *name == metrics::MAX_FDS.desc.name);
        assert_eq!(found.map(|(_, value)| *value), limit);
        assert!(values.iter().all(|(name, _)| *name != metrics::START.desc.name), "the boot is not known");
        root.write("proc/stat", "cpu 1 2\nbtime 1700000000\nprocesses 4321\n");
        let start = 1_700_000_000.0 + 81_523.0 / 100.0;
        assert!(sample().0.contains(&(metrics::START.desc.name, start)));
    }
}
