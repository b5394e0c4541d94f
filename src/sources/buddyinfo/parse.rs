//! Parses `/proc/buddyinfo`: free blocks by order, and their unusable free index.
//!
//! The index at order j is 1 - sum over i >= j of n_i 2^i / sum over all i of
//! n_i 2^i, as in the kernel's `unusable_index` in debugfs.

use crate::model::units::{Bytes, Ratio};

/// The free blocks of one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone<'a> {
    /// The NUMA node's number.
    pub node: &'a str,
    pub name: &'a str,
    /// Number of free blocks of 2^i pages, by i.
    pub blocks: Vec<u64>,
}

/// The zones, in the file's order; nothing for a line that is truncated or does not have the form
/// `Node 0, zone Normal 1926 915 …`.
pub fn buddyinfo(text: &str) -> impl Iterator<Item = Option<Zone<'_>>> {
    text.split_inclusive('\n').map(zone)
}

fn zone(line: &str) -> Option<Zone<'_>> {
    let mut fields = line.strip_suffix('\n')?.strip_prefix("Node ")?.split_ascii_whitespace();
    let node = fields.next()?.strip_suffix(',')?;
    node.parse::<u32>().ok()?;
    let name = fields.next().filter(|word| *word == "zone").and_then(|_| fields.next())?;
    let blocks: Vec<u64> = fields.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let zone = Zone { node, name, blocks };
    // Checks that all derived values fit into 64 bits.
    (!zone.blocks.is_empty()).then_some(())?;
    zone.checked_pages()?;
    Some(zone)
}

impl Zone<'_> {
    /// Free pages in blocks of each order.
    fn pages(&self) -> impl Iterator<Item = Option<u64>> {
        self.blocks.iter().zip(0..).map(|(blocks, order)| 1_u64.checked_shl(order)?.checked_mul(*blocks))
    }

    fn checked_pages(&self) -> Option<u64> {
        self.pages().try_fold(0_u64, |sum, pages| sum.checked_add(pages?))
    }

    /// Free memory in bytes, for pages of this size; nothing on overflow.
    pub fn free(&self, page_size: u64) -> Option<Bytes> {
        self.checked_pages()?.checked_mul(page_size).map(Bytes::new)
    }

    /// The largest free block; zero if there is none.
    pub fn largest(&self, page_size: u64) -> Option<Bytes> {
        let Some(order) = self.blocks.iter().rposition(|blocks| *blocks > 0) else {
            return Some(Bytes::ZERO);
        };
        1_u64.checked_shl(u32::try_from(order).ok()?)?.checked_mul(page_size).map(Bytes::new)
    }

    /// The unusable free index of each order; nothing for a zone without free memory.
    pub fn unusable(&self) -> impl Iterator<Item = Ratio> {
        let total = self.checked_pages().unwrap_or(0);
        let below = self.pages().scan(0_u64, |sum, pages| {
            let below = *sum;
            *sum = sum.checked_add(pages?)?;
            Some(below)
        });
        below.map_while(move |below| Bytes::new(below).share_of(Bytes::new(total)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(blocks: &[u64]) -> Zone<'static> {
        Zone { node: "0", name: "Normal", blocks: blocks.to_vec() }
    }

    /// 8 free pages in single blocks, 4 in pairs, 4 in one block of four: 16 pages.
    #[test]
    fn the_index_is_the_share_in_smaller_blocks() {
        let zone = of(&[8, 2, 1, 0]);
        let indices: Vec<f64> = zone.unusable().map(Ratio::get).collect();
        assert_eq!(indices, [0.0, 8.0 / 16.0, 12.0 / 16.0, 1.0]);
        assert_eq!(zone.free(4096), Some(Bytes::new(16 * 4096)));
        assert_eq!(zone.largest(4096), Some(Bytes::new(4 * 4096)));
    }

    #[test]
    fn without_free_memory_there_is_no_index() {
        let zone = of(&[0; 11]);
        assert_eq!(zone.unusable().count(), 0);
        assert_eq!(zone.largest(4096), Some(Bytes::ZERO));
    }

    #[test]
    fn a_line_is_complete_or_malformed() {
        let whole = "Node 0, zone   Normal   1926    915   1225 \n";
        assert_eq!(buddyinfo(whole).collect::<Vec<_>>(), [Some(of(&[1926, 915, 1225]))]);
        for end in 1..whole.len() {
            assert_eq!(buddyinfo(&whole[..end]).collect::<Vec<_>>(), [None], "cut at {end}");
        }
        for hostile in [
            "\n",
            "Node 0, zone Normal\n",
            "Node x, zone Normal 1\n",
            "Node 0, zone Normal 1 -2\n",
            "Node 0, zone Normal 18446744073709551615 1\n",
            "Node 0, zone Normal 0 9223372036854775808\n",
        ] {
            assert_eq!(buddyinfo(hostile).collect::<Vec<_>>(), [None], "{hostile:?}");
        }
        let orders = " 1".repeat(70);
        assert_eq!(buddyinfo(&format!("Node 0, zone Normal{orders}\n")).next(), Some(None));
    }

    proptest! {
        #[test]
        fn the_index_rises_from_zero_to_at_most_one(blocks in prop::collection::vec(0..1_u64 << 40, 1..14)) {
            let zone = of(&blocks);
            let indices: Vec<f64> = zone.unusable().map(Ratio::get).collect();
            if blocks.iter().all(|count| *count == 0) {
                prop_assert!(indices.is_empty());
            } else {
                prop_assert_eq!(indices.len(), blocks.len());
                prop_assert_eq!(indices[0], 0.0);
                prop_assert!(indices.is_sorted());
                prop_assert!(indices.iter().all(|index| (0.0..=1.0).contains(index)));
                // A block of the largest order is usable at every order.
                let last = blocks.last().is_some_and(|count| *count > 0);
                prop_assert_eq!(last, indices[blocks.len() - 1] < 1.0);
            }
        }

        #[test]
        fn never_panics(text: String, fields in "Node [0-9]{0,3}, zone [A-Z]{0,3}( [0-9]{0,22}){0,70}\n") {
            for zone in buddyinfo(&text).chain(buddyinfo(&fields)).flatten() {
                zone.unusable().count();
                zone.free(65_536);
                zone.largest(65_536);
            }
        }
    }
}
