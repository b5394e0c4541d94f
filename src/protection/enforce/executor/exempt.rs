//! The processes that are never signalled: memwarden, its ancestors, and its cgroup.

use std::path::Path;

use super::process_status::{Proc, group_of};
use crate::host::cgroup::Version;
use crate::protection::types::scope::Exempt;

/// Reads memwarden's pid, its ancestors, and its cgroups in both kinds of hierarchy; `helpers` are its helper
/// processes.
///
/// # Errors
/// I/O errors. Without this information no process is signalled.
pub fn exempt(proc: &Path, helpers: &[u32]) -> std::io::Result<Exempt> {
    let own = std::process::id();
    let mut reader = Proc::open(proc, Version::V2)?;
    reader.look(own, false, None)?;
    let mut pids = vec![own];
    pids.extend(reader.ancestors().iter().map(|key| key.pid));
    pids.extend_from_slice(helpers);
    let text = std::fs::read(proc.join("self/cgroup"))?;
    let groups = [Version::V1, Version::V2].into_iter().filter_map(|version| group_of(&text, version));
    Ok(Exempt { own, pids, groups: groups.map(Into::into).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_and_our_parents_are_named() {
        let exempt = exempt(Path::new("/proc"), &[77]).unwrap();
        assert!(exempt.pids.contains(&std::process::id()) && exempt.own == std::process::id());
        assert!(exempt.pids.contains(&std::os::unix::process::parent_id()));
        assert!(exempt.pids.contains(&77) && !exempt.groups.is_empty());
    }
}
