//! The cgroups on the path of a target that have a memory limit.

/// Most groups that are kept; a path with more limits keeps the outermost, which are those that targets share.
const MOST: usize = 8;

/// The cgroups on a target's path that have a memory limit below the host's memory, by inode. Copied without
/// allocating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitedGroups {
    /// The outermost first.
    all: [u64; MOST],
    count: usize,
    least: Option<u64>,
}

impl LimitedGroups {
    /// Adds a group below those added before.
    pub fn add(&mut self, group: u64) {
        if self.count < MOST {
            self.all[self.count] = group;
            self.count += 1;
        }
    }

    /// Sets the group whose limit leaves the least memory.
    pub const fn set_least(&mut self, group: u64) {
        self.least = Some(group);
    }

    /// The group whose limit leaves the least memory; absent where no group has a limit.
    pub const fn least(&self) -> Option<u64> {
        self.least
    }

    /// Whether memory that the target frees counts towards the limit of this group.
    pub fn contain(&self, group: u64) -> bool {
        self.all[..self.count].contains(&group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_keeps_its_outermost_groups() {
        let mut groups = LimitedGroups::default();
        assert!(!groups.contain(0) && groups.least().is_none());
        (1..=20).rev().for_each(|group| groups.add(group));
        groups.set_least(3);
        assert_eq!(groups.least(), Some(3));
        assert_eq!(
            (1..=20).filter(|group| groups.contain(*group)).collect::<Vec<_>>(),
            [13, 14, 15, 16, 17, 18, 19, 20]
        );
    }
}
