//! Pressure stall information of the host, from `/proc/pressure`.
//!
//! A kernel without PSI, or booted with `psi=0`, makes the source unavailable, which is not an error.

pub mod metrics;

use std::io;

use rustix::io::Errno;

use crate::host::fs::{self, KeptFile};
use crate::host::pressure::{self, Stall};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::sources::Registration;

/// The source of pressure stall information.
pub static REGISTRATION: Registration = Registration {
    name: "pressure",
    about: "Time that tasks of the host waited for memory, CPU and I/O (pressure stall information), from /proc/pressure.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| {
        let folder = context.roots.proc.join("pressure");
        let resource = |name: &'static str| Resource { name, file: KeptFile::new(folder.join(name)) };
        Box::new(Pressure { resources: ["memory", "cpu", "io"].map(resource), buffer: Vec::new() })
    })
};

struct Pressure {
    resources: [Resource; 3],
    buffer: Vec<u8>,
}

struct Resource {
    name: &'static str,
    file: KeptFile,
}

/// The names of the windows, in the order of [`Stall::shares`].
const WINDOWS: [&str; 3] = ["10s", "60s", "300s"];

impl Source for Pressure {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let mut absent = 0_usize;
        let mut error = None;
        for resource in &mut self.resources {
            match resource.sample(&mut self.buffer, out) {
                Ok(()) => {}
                Err(SourceError::Unavailable { why }) => {
                    absent += 1;
                    error.get_or_insert(SourceError::failed(Failure::NotFound, why));
                }
                Err(failed) => error = Some(failed),
            }
        }
        if absent == self.resources.len() {
            return Err(SourceError::unavailable(
                "the kernel provides no pressure stall information (PSI is not built in, or disabled)",
            ));
        }
        error.map_or(Ok(()), Err)
    }
}

impl Resource {
    fn sample(&mut self, buffer: &mut Vec<u8>, out: &mut Batch) -> Result<(), SourceError> {
        let found = match self.file.read(buffer) {
            Ok(bytes) => pressure::pressure(bytes),
            Err(error) if means_no_psi(&error) => {
                let path = self.file.path().display();
                return Err(SourceError::unavailable(format!(
                    "{path} does not exist, although other files of its folder do"
                )));
            }
            Err(error) => return Err(fs::failed(self.file.path(), &error)),
        };
        put(self.name, "some", found.some, out);
        // The kernel writes zeros here since 5.13, and documents the value as undefined for the host (psi.rst).
        if self.name != "cpu" {
            put(self.name, "full", found.full, out);
        }
        if found.some.is_none() || (found.full.is_none() && self.name != "cpu") {
            return Err(self.file.malformed("has no complete some or full line"));
        }
        Ok(())
    }
}

/// Without PSI the files do not exist; with `psi=0` they may exist but reading is not supported.
fn means_no_psi(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())
}

fn put(resource: &str, kind: &str, stall: Option<Stall>, out: &mut Batch) {
    let Some(stall) = stall else { return };
    let [resource, kind] = [Label::from(resource), Label::from(kind)];
    for (share, window) in stall.shares.into_iter().zip(WINDOWS) {
        out.put(&metrics::SHARE, &[(&resource).into(), (&kind).into(), window.into()], share);
    }
    out.put(&metrics::STALLED, &[resource, kind], stall.total);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::testing::{check, fixture, root};
    use expect_test::expect;

    const LINES: &str = "some avg10=2.00 avg60=1.00 avg300=0.50 total=1500000\n\
                         full avg10=1.00 avg60=0.50 avg300=0.25 total=500000\n";

    #[test]
    fn linux_6_18() {
        check(
            &REGISTRATION,
            fixture("host/6.18"),
            expect![[r#"
            memwarden_host_pressure_ratio{resource="memory",kind="some",window="10s"} 0.0153
            memwarden_host_pressure_ratio{resource="memory",kind="some",window="60s"} 0.0087
            memwarden_host_pressure_ratio{resource="memory",kind="some",window="300s"} 0.0012
            memwarden_host_pressure_ratio{resource="memory",kind="full",window="10s"} 0.0041
            memwarden_host_pressure_ratio{resource="memory",kind="full",window="60s"} 0.002
            memwarden_host_pressure_ratio{resource="memory",kind="full",window="300s"} 0.0003
            memwarden_host_pressure_ratio{resource="cpu",kind="some",window="10s"} 0.0065
            memwarden_host_pressure_ratio{resource="cpu",kind="some",window="60s"} 0.0125
            memwarden_host_pressure_ratio{resource="cpu",kind="some",window="300s"} 0.0117
            memwarden_host_pressure_ratio{resource="io",kind="some",window="10s"} 0
            memwarden_host_pressure_ratio{resource="io",kind="some",window="60s"} 0.0048
            memwarden_host_pressure_ratio{resource="io",kind="some",window="300s"} 0.0056
            memwarden_host_pressure_ratio{resource="io",kind="full",window="10s"} 0
            memwarden_host_pressure_ratio{resource="io",kind="full",window="60s"} 0.0046
            memwarden_host_pressure_ratio{resource="io",kind="full",window="300s"} 0.0054
            memwarden_host_pressure_stalled_seconds_total{resource="memory",kind="some"} 4.817261
            memwarden_host_pressure_stalled_seconds_total{resource="memory",kind="full"} 1.209433
            memwarden_host_pressure_stalled_seconds_total{resource="cpu",kind="some"} 26.163074
            memwarden_host_pressure_stalled_seconds_total{resource="io",kind="some"} 13.704769
            memwarden_host_pressure_stalled_seconds_total{resource="io",kind="full"} 13.07942
        "#]],
        );
    }

    #[test]
    fn linux_5_4_has_no_full_line_for_cpu() {
        check(
            &REGISTRATION,
            fixture("host/5.4"),
            expect![[r#"
            memwarden_host_pressure_ratio{resource="memory",kind="some",window="10s"} 0.0153
            memwarden_host_pressure_ratio{resource="memory",kind="some",window="60s"} 0.0087
            memwarden_host_pressure_ratio{resource="memory",kind="some",window="300s"} 0.0012
            memwarden_host_pressure_ratio{resource="memory",kind="full",window="10s"} 0.0041
            memwarden_host_pressure_ratio{resource="memory",kind="full",window="60s"} 0.002
            memwarden_host_pressure_ratio{resource="memory",kind="full",window="300s"} 0.0003
            memwarden_host_pressure_ratio{resource="cpu",kind="some",window="10s"} 0.0307
            memwarden_host_pressure_ratio{resource="cpu",kind="some",window="60s"} 0.0251
            memwarden_host_pressure_ratio{resource="cpu",kind="some",window="300s"} 0.0198
            memwarden_host_pressure_ratio{resource="io",kind="some",window="10s"} 0
            memwarden_host_pressure_ratio{resource="io",kind="some",window="60s"} 0.0048
            memwarden_host_pressure_ratio{resource="io",kind="some",window="300s"} 0.0056
            memwarden_host_pressure_ratio{resource="io",kind="full",window="10s"} 0
            memwarden_host_pressure_ratio{resource="io",kind="full",window="60s"} 0.0046
            memwarden_host_pressure_ratio{resource="io",kind="full",window="300s"} 0.0054
            memwarden_host_pressure_stalled_seconds_total{resource="memory",kind="some"} 4.817261
            memwarden_host_pressure_stalled_seconds_total{resource="memory",kind="full"} 1.209433
            memwarden_host_pressure_stalled_seconds_total{resource="cpu",kind="some"} 88112.233445
            memwarden_host_pressure_stalled_seconds_total{resource="io",kind="some"} 13.704769
            memwarden_host_pressure_stalled_seconds_total{resource="io",kind="full"} 13.07942
        "#]],
        );
    }

    #[test]
    fn without_psi_it_is_unavailable() {
        check(
            &REGISTRATION,
            root(&[]),
            expect![[r#"
            unavailable: the kernel provides no pressure stall information (PSI is not built in, or disabled)
        "#]],
        );
        assert!(means_no_psi(&Errno::OPNOTSUPP.into()));
        assert!(!means_no_psi(&Errno::ACCESS.into()));
    }

    #[test]
    fn one_missing_file_is_a_failure() {
        let root = root(&[("proc/pressure/cpu", LINES)]);
        check(
            &REGISTRATION,
            &root,
            expect![[r#"
            memwarden_host_pressure_ratio{resource="cpu",kind="some",window="10s"} 0.02
            memwarden_host_pressure_ratio{resource="cpu",kind="some",window="60s"} 0.01
            memwarden_host_pressure_ratio{resource="cpu",kind="some",window="300s"} 0.005
            memwarden_host_pressure_stalled_seconds_total{resource="cpu",kind="some"} 1.5
            failed (not_found): ROOT/proc/pressure/memory does not exist, although other files of its folder do
        "#]],
        );
    }

    #[test]
    fn a_truncated_file_fails_and_the_others_are_read() {
        let root = root(&[
            ("proc/pressure/memory", LINES),
            ("proc/pressure/cpu", "some avg10=2.00 avg60=1.00 avg300=0.50 total=15"),
            ("proc/pressure/io", "some avg10=2.00 avg60=1.00 avg300=0.50 total=1500000\nfull avg10=1.0"),
        ]);
        check(
            &REGISTRATION,
            &root,
            expect![[r#"
            memwarden_host_pressure_ratio{resource="memory",kind="some",window="10s"} 0.02
            memwarden_host_pressure_ratio{resource="memory",kind="some",window="60s"} 0.01
            memwarden_host_pressure_ratio{resource="memory",kind="some",window="300s"} 0.005
            memwarden_host_pressure_ratio{resource="memory",kind="full",window="10s"} 0.01
            memwarden_host_pressure_ratio{resource="memory",kind="full",window="60s"} 0.005
            memwarden_host_pressure_ratio{resource="memory",kind="full",window="300s"} 0.0025
            memwarden_host_pressure_ratio{resource="io",kind="some",window="10s"} 0.02
            memwarden_host_pressure_ratio{resource="io",kind="some",window="60s"} 0.01
            memwarden_host_pressure_ratio{resource="io",kind="some",window="300s"} 0.005
            memwarden_host_pressure_stalled_seconds_total{resource="memory",kind="some"} 1.5
            memwarden_host_pressure_stalled_seconds_total{resource="memory",kind="full"} 0.5
            memwarden_host_pressure_stalled_seconds_total{resource="io",kind="some"} 1.5
            failed (parse): ROOT/proc/pressure/io has no complete some or full line
        "#]],
        );
    }
}
