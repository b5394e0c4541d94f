//! Parses the memory controller's files (Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst).
//!
//! A line without newline may be truncated within a number, so it is ignored
//! like an invalid line.

use crate::host::room::group::keyed;
use crate::model::label::Label;
use crate::model::units::Bytes;

/// Names of the events, in the order of [`Events`].
pub const EVENTS: [&str; 6] = ["low", "high", "max", "oom", "oom_kill", "oom_group_kill"];

/// Index of `max` in [`EVENTS`].
pub const EVENT_MAX: usize = 2;
/// Index of `oom_kill` in [`EVENTS`].
pub const EVENT_OOM_KILL: usize = 4;

/// Event counters in the order of [`EVENTS`]; absent if the kernel does not count the event.
pub type Events = [Option<u64>; EVENTS.len()];

/// Parses `memory.events` (v2).
pub fn events(text: &[u8]) -> Events {
    let mut found = Events::default();
    for (key, value) in keyed(text) {
        if let Some(place) = EVENTS.iter().position(|name| name.as_bytes() == key) {
            found[place] = Some(value);
        }
    }
    found
}

/// Parses a file of the controller `dmem` (v2, Linux 6.14): an amount for each region of device memory. A region whose
/// amount is `max` is left out, as those after the first 64.
pub fn regions(text: &[u8]) -> Vec<(Label, Bytes)> {
    let region = |(name, amount)| (String::from_utf8_lossy(name).as_ref().into(), Bytes::new(amount));
    keyed(text).take(64).map(region).collect()
}

/// Parses `oom_kill` in `memory.oom_control` (v1, Linux 4.13 and later).
pub fn oom_kills(text: &[u8]) -> Option<u64> {
    keyed(text).find(|(key, _)| *key == b"oom_kill").map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;
    use crate::host::cgroup::Version;
    use crate::host::room::group::{Bound, Stat, amount, number, stat};

    #[track_caller]
    fn check(found: impl std::fmt::Debug, expected: Expect) {
        expected.assert_debug_eq(&found);
    }

    #[test]
    fn the_positions_of_v1_events_are_correct() {
        assert_eq!((EVENTS[EVENT_MAX], EVENTS[EVENT_OOM_KILL]), ("max", "oom_kill"));
    }

    #[test]
    fn regions_without_a_limit_and_broken_lines_are_left_out() {
        let text = b"drm/0000:03:00.0/vram0 1073741824\ndrm/0000:03:00.0/stolen max\nx\ny 5 6\nz 7";
        assert_eq!(regions(text), [("drm/0000:03:00.0/vram0".into(), Bytes::new(1 << 30))]);
        assert_eq!(regions("r 1\n".repeat(100).as_bytes()).len(), 64);
    }

    #[test]
    fn numbers_and_limits() {
        assert_eq!(number(b"717758464\n"), Some(717_758_464));
        for bad in [&b"717758464"[..], b"", b"\n", b"-1\n", b"1 2\n", b"18446744073709551616\n", b"0x10\n"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
        assert_eq!(amount(b"max\n"), Some(Bound::Unbounded));
        assert_eq!(amount(b"9223372036854771712\n"), Some(Bound::Unbounded), "4 KiB pages");
        assert_eq!(amount(b"9223372036854710272\n"), Some(Bound::Unbounded), "64 KiB pages");
        assert_eq!(amount(b"0\n"), Some(Bound::At(Bytes::ZERO)));
        assert_eq!(amount(b"ma"), None);
    }

    #[test]
    fn a_v1_stat_takes_the_totals() {
        let text = b"cache 9211904\nrss 12013568\nshmem 9068544\nswap 0\ninactive_file 8192\n\
            hierarchical_memory_limit 9223372036854771712\ntotal_cache 34045952\ntotal_rss 21958656\n\
            total_shmem 9068544\ntotal_swap 0\ntotal_inactive_file 7532544\ntotal_active_file 174";
        check(
            stat(text, Version::V1),
            expect![[r#"
                Stat {
                    anon: Some(
                        Bytes(
                            21958656,
                        ),
                    ),
                    file: Some(
                        Bytes(
                            34045952,
                        ),
                    ),
                    shmem: Some(
                        Bytes(
                            9068544,
                        ),
                    ),
                    kernel: None,
                    slab: None,
                    inactive_file: Some(
                        Bytes(
                            7532544,
                        ),
                    ),
                    active_file: None,
                    slab_reclaimable: None,
                    swap: Some(
                        Bytes(
                            0,
                        ),
                    ),
                    hierarchical_limit: Unbounded,
                }
            "#]],
        );
    }

    #[test]
    fn a_truncated_or_garbled_line_is_absent_not_zero() {
        let found = stat(b"anon 4096\nfile \nkernel 12x\nslab\n\nshmem 1 2\ninactive_file 40", Version::V2);
        let expected = Stat { anon: Some(Bytes::new(4096)), ..Stat::default() };
        assert_eq!(found, expected);
        assert_eq!(
            events(b"low 0\nhigh x\nmax 3\noom 1\noom_kill 1"),
            [Some(0), None, Some(3), Some(1), None, None]
        );
        assert_eq!(oom_kills(b"oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(oom_kills(b"oom_kill_disable 0\nunder_oom 0\n"), None);
    }

    proptest! {
        #[test]
        fn no_parser_panics(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            number(&text);
            amount(&text);
            stat(&text, Version::V1);
            stat(&text, Version::V2);
            events(&text);
            oom_kills(&text);
        }

        #[test]
        fn a_truncated_stat_never_gives_another_number(cut in 0_usize..60) {
            let text = b"anon 123456789\nfile 987654321\ninactive_file 55555555\n";
            let whole = stat(text, Version::V2);
            let part = stat(&text[..cut.min(text.len())], Version::V2);
            prop_assert!(part.anon.is_none() || part.anon == whole.anon);
            prop_assert!(part.file.is_none() || part.file == whole.file);
            prop_assert!(part.inactive_file.is_none() || part.inactive_file == whole.inactive_file);
        }
    }
}
