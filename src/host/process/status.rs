//! Parses `/proc/PID/status` (proc_pid_status(5)) and one line of `smaps_rollup`.

use super::{field, number};
use crate::model::node_set::NodeSet;
use crate::model::units::Bytes;

/// Memory and signals in `/proc/PID/status`; a process without memory has no memory lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `RssAnon`.
    pub anon: Option<Bytes>,
    /// `RssFile`.
    pub file: Option<Bytes>,
    /// `RssShmem`.
    pub shmem: Option<Bytes>,
    /// `VmSwap`.
    pub swap: Option<Bytes>,
    /// `VmHWM`, the peak resident memory.
    pub peak: Option<Bytes>,
    /// `VmPeak`, the peak size of the address space.
    pub address_space: Option<Bytes>,
    /// `HugetlbPages`, which is no part of the resident memory.
    pub huge: Option<Bytes>,
    /// Whether `NSpid` ends with 1 after the pid: it is the first process of a pid namespace, whose end ends all others of that.
    pub is_init: bool,
    /// `Mems_allowed_list`, the NUMA nodes that its cpuset allows; a policy of the process (mbind(2)) can leave fewer.
    pub nodes: Option<NodeSet>,
    /// Whether `SigPnd` or `ShdPnd` has a bit set: a signal is pending.
    pub signalled: bool,
}

/// Parses `/proc/PID/status`; an invalid line is ignored.
pub fn status(text: &[u8]) -> Status {
    let mut found = Status::default();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match line.first() {
            Some(b'V') => {
                if let Some(value) = field(line, b"VmHWM") {
                    found.peak = kib(value);
                } else if let Some(value) = field(line, b"VmSwap") {
                    found.swap = kib(value);
                } else if let Some(value) = field(line, b"VmPeak") {
                    found.address_space = kib(value);
                }
            }
            Some(b'R') => {
                if let Some(value) = field(line, b"RssAnon") {
                    found.anon = kib(value);
                } else if let Some(value) = field(line, b"RssFile") {
                    found.file = kib(value);
                } else if let Some(value) = field(line, b"RssShmem") {
                    found.shmem = kib(value);
                }
            }
            Some(b'H') => found.huge = field(line, b"HugetlbPages").map_or(found.huge, kib),
            Some(b'M') => {
                let list = field(line, b"Mems_allowed_list").filter(|_| line.ends_with(b"\n"));
                found.nodes = list.map_or(found.nodes, |list| NodeSet::of_list(list.trim_ascii()));
            }
            Some(b'N') => found.is_init |= field(line, b"NSpid").is_some_and(|pids| pids.ends_with(b"\t1")),
            Some(b'S') => {
                if let Some(mask) = field(line, b"SigPnd").or_else(|| field(line, b"ShdPnd")) {
                    found.signalled |= mask.iter().any(|digit| *digit != b'0');
                }
            }
            _ => {}
        }
    }
    found
}

/// The user ids and groups of a process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The real, effective, saved and file system user id.
    pub users: [u32; 4],
    /// The real, effective, saved and file system group id.
    pub groups: [u32; 4],
    /// The supplementary groups.
    pub supplementary: Vec<u32>,
}

/// The user ids and groups in `/proc/PID/status`, which the kernel writes from one set of credentials; nothing if a line is
/// missing, truncated or invalid.
pub fn credentials(text: &[u8]) -> Option<Credentials> {
    let line = |name| complete_lines(text).find_map(|line| field(line, name));
    let id = |id: &[u8]| u32::try_from(number(id)?).ok();
    let four = |name| -> Option<[u32; 4]> {
        let ids: Option<Vec<u32>> = line(name)?.split(|byte| *byte == b'\t').map(id).collect();
        ids?.try_into().ok()
    };
    let supplementary = line(b"Groups".as_slice())?.split(|byte| *byte == b' ').filter(|id| !id.is_empty());
    Some(Credentials {
        users: four(b"Uid".as_slice())?,
        groups: four(b"Gid".as_slice())?,
        supplementary: supplementary.map(id).collect::<Option<_>>()?,
    })
}

/// The real, effective and saved user id in `/proc/PID/status`; nothing if the line is missing, truncated or invalid.
pub fn users(text: &[u8]) -> Option<[u32; 3]> {
    let mut lines = complete_lines(text);
    let line = lines.find_map(|line| field(line, b"Uid"))?;
    let mut ids = line.split(|byte| *byte == b'\t').map(|id| u32::try_from(number(id)?).ok());
    Some([ids.next()??, ids.next()??, ids.next()??])
}

/// The lines that end with a newline: without it, the last digits may be missing.
fn complete_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"))
}

/// The proportional set size in `smaps_rollup`.
pub fn pss(text: &[u8]) -> Option<Bytes> {
    text.split(|byte| *byte == b'\n').find_map(|line| field(line, b"Pss")).and_then(kib)
}

fn kib(value: &[u8]) -> Option<Bytes> {
    number(value.strip_suffix(b" kB")?.trim_ascii()).and_then(Bytes::from_kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PYTHON: &str = "Name:\tpython3\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t77\nVmPeak:\t  900000 kB\n\
        VmHWM:\t  512000 kB\nVmRSS:\t  400000 kB\nRssAnon:\t  300000 kB\nRssFile:\t   60000 kB\n\
        RssShmem:\t   40000 kB\nVmSwap:\t       8 kB\nHugetlbPages:\t    2048 kB\nThreads:\t9\nSigQ:\t0/127400\n\
        SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigCgt:\t0000000000000002\n\
        Mems_allowed:\t00000000,0000000d\nMems_allowed_list:\t0,2-3\n";

    #[test]
    fn the_lines_are_read() {
        expect_test::expect![[r#"
            Status {
                anon: Some(
                    Bytes(
                        307200000,
                    ),
                ),
                file: Some(
                    Bytes(
                        61440000,
                    ),
                ),
                shmem: Some(
                    Bytes(
                        40960000,
                    ),
                ),
                swap: Some(
                    Bytes(
                        8192,
                    ),
                ),
                peak: Some(
                    Bytes(
                        524288000,
                    ),
                ),
                address_space: Some(
                    Bytes(
                        921600000,
                    ),
                ),
                huge: Some(
                    Bytes(
                        2097152,
                    ),
                ),
                is_init: false,
                nodes: Some(
                    NodeSet(
                        13,
                    ),
                ),
                signalled: false,
            }
        "#]]
        .assert_debug_eq(&status(PYTHON.as_bytes()));
    }

    #[test]
    fn the_first_process_of_a_pid_namespace_is_known() {
        for (line, is_init) in [("77\t1", true), ("77\t9\t1", true), ("77\t9\t11", false), ("1", false)] {
            assert_eq!(status(format!("Tgid:\t1\nNSpid:\t{line}\n").as_bytes()).is_init, is_init, "{line}");
        }
    }

    #[test]
    fn a_pending_signal_is_detected() {
        for line in ["SigPnd:\t0000000000000000", "ShdPnd:\t0000000000000000"] {
            let signalled = PYTHON.replace(line, &line.replace("0000000000000000", "0000000000004000"));
            assert!(status(signalled.as_bytes()).signalled, "{line}");
        }
    }

    #[test]
    fn credentials_are_read_whole_or_not_at_all() {
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t9 10 \nNStgid:\t1\n";
        let all = Credentials { users: [1, 2, 3, 4], groups: [5, 6, 7, 8], supplementary: vec![9, 10] };
        assert_eq!(credentials(text.as_bytes()), Some(all.clone()));
        let none = text.replace("9 10 ", "");
        assert_eq!(credentials(none.as_bytes()), Some(Credentials { supplementary: vec![], ..all }));
        for end in 0..text.find("NStgid").unwrap() {
            assert_eq!(credentials(&text.as_bytes()[..end]), None, "{end}");
        }
        for (from, to) in [("1\t2\t3\t4", "1\t2\t3"), ("7\t8", "7\t-8"), ("9 10", "9 99999999999")] {
            assert_eq!(credentials(text.replace(from, to).as_bytes()), None, "{to}");
        }
    }

    #[test]
    fn users_are_read_or_refused() {
        assert_eq!(users(b"Name:\tx\nUid:\t1000\t0\t7\t1000\nGid:\t1\n"), Some([1000, 0, 7]));
        for damaged in ["", "Uid:\t1000\t0\n", "Uid:\t-1\t0\t0\t0\n", "Uid:\t1\t2\t3"] {
            assert_eq!(users(damaged.as_bytes()), None, "{damaged}");
        }
    }

    #[test]
    fn missing_and_invalid_values_are_absent() {
        assert_eq!(status(b"Name:\tz\nState:\tZ (zombie)\n"), Status::default());
        assert_eq!(status(b"VmHWM:\t  512000 kB\nRssAnon:\t  30000").anon, None);
        assert_eq!(status(b"Mems_allowed_list:\t0-1").nodes, None, "truncated");
        assert_eq!(status(b"VmHWM:\t99999999999999999999 kB\n").peak, None);
        assert_eq!(
            pss(b"00-ff ---p 00 00:00 0 [rollup]\nRss: 9 kB\nPss:    7 kB\nPss_Anon: 1 kB\n"),
            Some(Bytes::new(7168))
        );
        assert_eq!(pss(b"Pss_Anon: 1 kB\n"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, cut in 0_usize..400) {
            let _ = status(&bytes);
            let _ = pss(&bytes);
            let _ = credentials(&bytes);
            let _ = users(&bytes);
            let _ = status(&PYTHON.as_bytes()[..cut.min(PYTHON.len())]);
        }
    }
}
