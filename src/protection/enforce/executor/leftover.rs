//! Thaws cgroups that an earlier run froze. This needs no scope, since it terminates no process.

use std::path::Path;

use super::group::{self, Groups};
use crate::host::cgroup::{self, Version};
use crate::protection::types::step::{Group, StepError};

/// Thaws a cgroup, if it is still the one that was frozen; no effect on one that is not frozen.
///
/// # Errors
/// [`StepError::OtherGroup`] if it was removed or replaced; otherwise errors of the kernel.
pub fn let_go(root: &Path, group: &Group) -> Result<(), StepError> {
    let gone = || StepError::OtherGroup { path: group.path.clone() };
    let hierarchy = cgroup::memory_hierarchy(root).ok().and_then(Result::ok).ok_or_else(gone)?;
    let groups = Groups::new(hierarchy, root);
    let open = groups.open(group)?;
    let open = if groups.version() == Version::V2 { open } else { groups.freezer(group).ok_or_else(gone)? };
    open.freeze(false).map_err(|error| group::failed("thaw", error))
}
