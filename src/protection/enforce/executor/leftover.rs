//! Letting go on whom an earlier run stopped: the one thing that needs no bounds, since it ends nobody.

use std::path::Path;

use super::group::{self, Groups};
use crate::host::cgroup::{self, Version};
use crate::protection::words::step::{Group, StepError};

/// Lets a group go on, if it is still the one that was stopped; one that is not stopped does not notice.
///
/// # Errors
/// [`StepError::OtherGroup`] where it is gone, or another by now; the kernel's otherwise.
pub fn let_go(root: &Path, group: &Group) -> Result<(), StepError> {
    let gone = || StepError::OtherGroup { path: group.path.clone() };
    let hierarchy = cgroup::memory_hierarchy(root).ok().and_then(Result::ok).ok_or_else(gone)?;
    let groups = Groups::new(hierarchy, root);
    let open = groups.open(group)?;
    let open = if groups.version() == Version::V2 { open } else { groups.freezer(group).ok_or_else(gone)? };
    open.freeze(false).map_err(|error| group::failed("thaw", error))
}
