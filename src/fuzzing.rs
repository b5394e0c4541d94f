//! One function for each parser of foreign bytes, for the targets in `fuzz/`.
//!
//! Compiled under `--cfg fuzzing` and for tests, which run every committed
//! seed and every crash that was once found.

use std::path::Path;

use crate::formats::{cdi, kernel, log_lines, messages, rank_environment, varlink};
use crate::host::cgroup::Version;
use crate::host::room::{group, meminfo};
use crate::host::{cgroup_path, process};
use crate::otlp;
use crate::plot;
use crate::serve::http;
use crate::serve::prometheus::{Format, negotiate};
use crate::sources::gpu;
use crate::sources::{buddyinfo, cgroup, slurm, vmstat};
use crate::{app, config};

macro_rules! targets {
    ($($(#[doc = $doc:literal])+ $name:ident($bytes:ident) $body:block)+) => {
        $($(#[doc = $doc])+ pub fn $name($bytes: &[u8]) $body)+

        /// Every target by its name.
        pub const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name),)+];
    };
}

targets! {
    /// `/proc/PID/stat` and `/proc/stat`.
    proc_stat(bytes) {
        let _ = process::stat(bytes);
        let _ = process::boot(bytes);
    }
    /// `/proc/PID/status` and `/proc/PID/smaps_rollup`.
    proc_status(bytes) {
        let _ = process::status(bytes);
        let _ = process::pss(bytes);
    }
    /// `/proc/PID/io`.
    proc_io(bytes) {
        let _ = process::io(bytes);
    }
    /// `/proc/PID/mountinfo`, and the id of a mount in `fdinfo`.
    proc_mountinfo(bytes) {
        for mount in process::tmpfs_mounts(bytes) {
            assert!(mount.point.is_absolute(), "{mount:?}");
        }
        let _ = process::mount_id(bytes);
    }
    /// `/proc/PID/cgroup`, and what its paths name.
    proc_cgroup(bytes) {
        let found = process::cgroups(bytes);
        for path in [found.memory, found.naming].into_iter().flatten() {
            let _ = cgroup_path::place(&path);
            let _ = cgroup_path::units(&path).count();
        }
    }
    /// `/proc/meminfo`.
    meminfo(bytes) {
        let found = meminfo::meminfo(bytes);
        let _ = (found.room(meminfo::arc(bytes)), found.huge(found.huge_total));
    }
    /// `/proc/vmstat`.
    vmstat(bytes) {
        text(bytes, |text| {
            let _ = vmstat::table::vmstat(text).count();
        });
    }
    /// `/proc/buddyinfo`, with small pages and large ones.
    buddyinfo(bytes) {
        text(bytes, |text| {
            for zone in buddyinfo::parse::buddyinfo(text).flatten() {
                for page in [4 << 10, 64 << 10] {
                    let _ = (zone.free(page), zone.largest(page), zone.unusable().count());
                }
            }
        });
    }
    /// `/proc/pressure/*` and `memory.pressure`.
    pressure(bytes) {
        let _ = crate::host::pressure::pressure(bytes);
    }
    /// A record of the kernel log, and its message.
    kmsg(bytes) {
        if let Some(record) = kernel::record(bytes) {
            let _ = kernel::Reports::default().read(&record);
        }
        text(bytes, |text| {
            let _ = kernel::lines::line(text);
        });
    }
    /// The memory controller's files, of both versions.
    cgroup_memory(bytes) {
        let _ = (group::stat(bytes, Version::V1), group::stat(bytes, Version::V2));
        let _ = (cgroup::parse::events(bytes), cgroup::parse::oom_kills(bytes));
        let _ = (group::number(bytes), group::amount(bytes));
    }
    /// A line of the GPU worker; one that is understood is written and read as the same.
    gpu_line(bytes) {
        if let Some(line) = gpu::protocol::Line::read(bytes) {
            assert_eq!(gpu::protocol::Line::read(&line.write()), Some(line));
        }
    }
    /// A PCI address as the kernel and NVML write it.
    gpu_address(bytes) {
        text(bytes, |text| {
            let _ = gpu::xid::pci(text);
        });
    }
    /// A file that names the Slurm jobs of a GPU.
    slurm_holders(bytes) {
        if let Some(jobs) = slurm::holders::parse(bytes) {
            assert!(jobs.iter().all(|job| job.id.as_str().parse::<u32>().is_ok_and(|id| id > 0)));
        }
    }
    /// The environment of a process of a job, and the name of a run in it.
    rank_environment(bytes) {
        let read = rank_environment::RankEnvironment::read(bytes);
        if let Some(rank) = read.rank {
            assert!(rank.world.is_none_or(|world| rank.rank < world), "{rank:?}");
        }
        let _ = rank_environment::run_name(bytes);
        text(bytes, |text| {
            let _ = rank_environment::is_loopback(text);
            let _ = text.split_once('\n').and_then(|(space, pod)| rank_environment::run_of_pod(space, pod));
        });
    }
    /// A log of a training framework: each line as every framework's, and all of it followed in two pieces.
    log_lines(bytes) {
        let mut splitter = log_lines::Splitter::default();
        let mut tracker = log_lines::Tracker::new(None);
        let (front, rest) = bytes.split_at(bytes.len() / 2);
        for (piece, at) in [(front, 1), (rest, 2), (b"\n".as_slice(), 3)] {
            splitter.feed(piece, |line| {
                assert!(line.len() <= log_lines::LONGEST, "a line that was not cut");
                tracker.line(line, std::time::Duration::from_secs(at));
                let text = log_lines::clean(line).text;
                for framework in log_lines::Framework::ALL {
                    let _ = framework.read(&text);
                }
            });
        }
        let latest = tracker.latest();
        let numbers = [latest.step_seconds, latest.loss, latest.flops_per_gpu, latest.grad_norm];
        assert!(numbers.into_iter().flatten().all(f64::is_finite), "a value that is not finite");
    }
    /// The JSON of a report, and the chart it gives, as SVG.
    plot_report(bytes) {
        for report in plot::report::read_all(bytes).unwrap_or_default() {
            let picture = plot::draw(&report.chart(), 600, 300, &plot::Theme::LIGHT);
            let svg = plot::svg::render(&picture, crate::model::printable::is_hidden);
            assert!(!svg.contains("=\"NaN"), "a number was lost on the way to the picture");
        }
    }
    /// The configuration file.
    config(bytes) {
        text(bytes, |text| {
            let _ = config::parse_str(text, Path::new("memwarden.yaml"), &app::schema(), &[]);
        });
    }
    /// The web-config file.
    web_config(bytes) {
        text(bytes, http::fuzz_document);
    }
    /// `Accept` and `Accept-Encoding`.
    accept(bytes) {
        text(bytes, |text| {
            for offered in [false, true] {
                let format = negotiate::format(text.lines(), offered);
                assert!(offered || format == Format::Text, "OpenMetrics is not offered");
            }
            let _ = negotiate::encoding(text.lines());
        });
    }
    /// `Authorization`.
    authorization(bytes) {
        if let Ok(value) = ::http::HeaderValue::from_bytes(bytes) {
            http::fuzz_authorization(&value);
        }
    }
    /// The `OTEL_*` variables, one `NAME=value` a line, beside the default configuration.
    otel_environment(bytes) {
        static DEFAULT: std::sync::OnceLock<config::Config> = std::sync::OnceLock::new();
        let config = DEFAULT.get_or_init(|| {
            config::parse_str("", Path::new("memwarden.yaml"), &app::schema(), &[])
                .expect("an empty file is the default configuration")
        });
        text(bytes, |text| {
            otlp::fuzz_environment(&config.otlp, &|name| {
                text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
            });
        });
    }
    /// A line of the job socket.
    job_messages(bytes) {
        let _ = messages::parse(bytes).map_err(|problem| problem.to_string());
    }
    /// A CDI file.
    cdi(bytes) {
        text(bytes, |text| {
            let _ = cdi::parse(text);
        });
    }
    /// The call of systemd-oomd.
    varlink(bytes) {
        if let Ok(cgroup) = varlink::prekill(bytes) {
            assert!(cgroup.starts_with('/'));
        }
    }
    /// What a collector answers to a push.
    otlp_answer(bytes) {
        otlp::fuzz_answer(bytes);
    }
}

fn text(bytes: &[u8], parse: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        parse(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_seeds_and_takes_them() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        for (name, target) in TARGETS {
            assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name} is not in fuzz/Cargo.toml");
            let seeds: Vec<_> = std::fs::read_dir(fuzz.join("corpus").join(name)).unwrap().collect();
            assert!(!seeds.is_empty(), "{name} has no seed");
            for seed in seeds {
                target(&std::fs::read(seed.unwrap().path()).unwrap());
            }
        }
    }
}
