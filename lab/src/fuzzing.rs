//! One function for each parser of this crate, for the targets in `fuzz/`, as `memwarden::fuzzing` has them.

use std::path::Path;

use memwarden::analyzers::replay;
use memwarden::cluster;

use crate::files::{older_logs, pickle, run_records, snapshot};
use crate::recording::{csv, prometheus, report};

macro_rules! targets {
    ($($(#[doc = $doc:literal])+ $name:ident($bytes:ident) $body:block)+) => {
        $($(#[doc = $doc])+ pub fn $name($bytes: &[u8]) $body)+

        /// Every target by its name.
        pub const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name),)+];
    };
}

targets! {
    /// A log or JSON record of an older tool.
    older_logs(bytes) {
        let _ = older_logs::read(bytes);
    }
    /// A pickle; what is read holds to its bound on memory.
    pickle(bytes) {
        let limits = pickle::Limits::for_file(bytes.len() as u64, 64 << 20);
        let mut budget = pickle::Budget::new(&limits, bytes);
        if let Ok(arena) = pickle::read(bytes, &limits, &mut budget) {
            let root = arena.root();
            let _ = (arena.value(root), arena.items(root).count(), arena.pairs(root).count());
        }
        assert!(budget.most() <= limits.memory_bytes, "the bound is exceeded");
    }
    /// An allocator snapshot, with everything that is said about it.
    snapshot(bytes) {
        let limits = pickle::Limits::for_file(bytes.len() as u64, 64 << 20);
        let options = snapshot::analysis::Options { top: 5, request: None };
        if let Ok(found) = snapshot::decode(bytes, &limits) {
            assert!(found.memory_bytes() <= limits.memory_bytes, "the bound is exceeded");
            if let Ok(analysis) = snapshot::analysis::analyze(&found, &options) {
                serde_json::to_string(&analysis).expect("a report has text keys and finite numbers");
                crate::report::snapshot::fuzz(&found, &analysis);
            }
            let _ = snapshot::analysis::compare(&found, &found, 5);
        }
    }
    /// A recorded series, and all that is said of it.
    series_csv(bytes) {
        let _ = csv::read_all("fuzz", bytes);
        if let Ok(series) = csv::read("fuzz", bytes) {
            let options = replay::Options { limit: None, horizons: vec![60.0], every: 3, gpu: false };
            for replayed in replay::replay(&series, &options) {
                let numbers = replayed.assessment.p_exhaustion.into_iter().flatten();
                let times = replayed.assessment.tte.map(|tte| tte.p50);
                assert!(numbers.chain(times).all(f64::is_finite), "a value that is not finite");
            }
        }
    }
    /// What a Prometheus server answers to a range query, and a report of ours read back as series.
    recordings(bytes) {
        let ranges = cluster::ranges(bytes).unwrap_or_default().into_iter();
        let ranges = ranges.map(|range| prometheus::series(&range.labels, range.points)).collect();
        for found in [Some(ranges), report::read(bytes).ok()].into_iter().flatten() {
            for series in found {
                assert!(series.rows.is_sorted_by(|one, next| one.at < next.at), "times that do not rise");
            }
        }
    }
    /// What trackers and schedulers recorded of runs, by each reader.
    run_records(bytes) {
        let _ = run_records::Format::of(bytes);
        for format in run_records::Format::ALL {
            let record = format.read(bytes).unwrap_or_default();
            for series in record.series {
                assert!(series.rows.is_sorted_by(|one, next| one.at < next.at), "times that do not rise");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_seeds_and_takes_them() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
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
