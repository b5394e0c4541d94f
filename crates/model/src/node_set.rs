//! Sets of NUMA nodes.

/// NUMA nodes with numbers below 128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(u128);

impl NodeSet {
    /// The nodes of a list such as `0,2-4` (cpuset(7), "Formats"); absent where it is invalid, or has a larger number.
    pub fn of_list(list: &[u8]) -> Option<Self> {
        let number = |digits: &[u8]| {
            let number: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
            (number < u128::BITS).then_some(number)
        };
        let mut all = Self::default();
        for part in list.split(|byte| *byte == b',').filter(|part| !part.is_empty()) {
            let mut ends = part.splitn(2, |byte| *byte == b'-');
            let first = number(ends.next()?)?;
            let last = ends.next().map_or(Some(first), number)?;
            all.0 |= (first..=last).fold(0, |bits, node| bits | (1 << node));
        }
        Some(all)
    }

    /// The nodes that are in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The nodes that are in one of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a node is in the set.
    pub const fn contains(self, node: u32) -> bool {
        node < u128::BITS && (self.0 >> node) & 1 == 1
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The numbers, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..u128::BITS).filter(move |node| (self.0 >> node) & 1 == 1)
    }
}

impl FromIterator<u32> for NodeSet {
    /// The numbers below 128.
    fn from_iter<T: IntoIterator<Item = u32>>(nodes: T) -> Self {
        Self(nodes.into_iter().filter(|node| *node < u128::BITS).fold(0, |bits, node| bits | (1 << node)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_whole_or_not_at_all() {
        let of = |list: &str| NodeSet::of_list(list.as_bytes()).map(|set| set.iter().collect::<Vec<_>>());
        assert_eq!(of("0,2-4"), Some(vec![0, 2, 3, 4]));
        assert_eq!(of("127"), Some(vec![127]));
        assert_eq!(of(""), Some(vec![]));
        for bad in ["128", "0-128", "x", "1-", "-1", "1-2-3", "0 1"] {
            assert_eq!(of(bad), None, "{bad}");
        }
        let [one, two] = ["0-3", "2-5"].map(|list| NodeSet::of_list(list.as_bytes()).unwrap());
        assert_eq!(one.and(two), [2, 3].into_iter().collect());
        assert_eq!(one.or(two), (0..=5).collect());
    }
}
