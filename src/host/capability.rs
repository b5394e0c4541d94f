//! Capabilities of this process (capabilities(7)).

use std::path::Path;

/// Signals to processes of other users.
pub const KILL: u8 = 5;

/// Capabilities that protection uses: name, number, and the effect of lacking it.
pub const WANTED: [(&str, u8, &str); 4] = [
    ("cap_kill", KILL, "processes of other users cannot be signalled"),
    ("cap_ipc_lock", 14, "the guard's memory cannot be locked and may be swapped out"),
    ("cap_sys_ptrace", 19, "some files of other users' processes cannot be read"),
    (
        "cap_sys_resource",
        24,
        "pressure notifications come at most every 2 s, and the daemon's OOM score cannot be lowered",
    ),
];

/// The effective capabilities of this process, as bits, read from `proc`; nothing if they cannot be read.
pub fn effective(proc: &Path) -> Option<u64> {
    let status = std::fs::read_to_string(proc.join("self/status")).ok()?;
    mask(&status)
}

/// Whether the mask contains a capability.
pub const fn holds(mask: u64, number: u8) -> bool {
    mask & (1 << number) != 0
}

fn mask(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_read() {
        let mask = mask("Name:\tx\nCapPrm:\t0\nCapEff:\t0000000000000020\n").unwrap();
        assert!(holds(mask, 5) && !holds(mask, 24));
        assert_eq!(super::mask("CapEff:\tx\n"), None);
        assert!(effective(Path::new("/proc")).is_some());
    }
}
