//! Fragmentation of the host's free memory, from `/proc/buddyinfo`.

pub mod metrics;
pub mod parse;

use crate::host::fs::KeptFile;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::Count;
use crate::sources::{Context, Registration};
use parse::Zone;

/// The source of free memory by block size.
pub static REGISTRATION: Registration = Registration {
    name: "buddyinfo",
    about: "Free memory of the host by block size, and its share that is unusable for larger blocks, from /proc/buddyinfo.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| Box::new(Buddyinfo::new(context, rustix::param::page_size())))
};

struct Buddyinfo {
    buddyinfo: KeptFile,
    page_size: u64,
    buffer: Vec<u8>,
}

impl Buddyinfo {
    fn new(context: &Context, page_size: usize) -> Self {
        Self {
            buddyinfo: KeptFile::new(context.roots.proc.join("buddyinfo")),
            page_size: page_size as u64,
            buffer: Vec::new(),
        }
    }
}

impl Source for Buddyinfo {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let bytes = self.buddyinfo.sample_if_there(&mut self.buffer)?;
        let (mut zones, mut malformed) = (0_usize, None);
        for (zone, line) in parse::buddyinfo(&String::from_utf8_lossy(bytes)).zip(1_usize..) {
            match zone {
                Some(zone) => {
                    zones += 1;
                    put(&zone, self.page_size, out);
                }
                None => malformed = malformed.or(Some(line)),
            }
        }
        match malformed {
            Some(line) => Err(self.buddyinfo.malformed(&format!("has an incomplete zone in line {line}"))),
            None if zones == 0 => Err(self.buddyinfo.malformed("contains no zone")),
            None => Ok(()),
        }
    }
}

fn put(zone: &Zone<'_>, page_size: u64, out: &mut Batch) {
    let here = [Label::from(zone.node), Label::from(zone.name)];
    out.put_some(&metrics::FREE, &here, zone.free(page_size));
    out.put_some(&metrics::LARGEST, &here, zone.largest(page_size));
    let at = |order: u32| [(&here[0]).into(), (&here[1]).into(), Label::from(order)];
    for (blocks, order) in zone.blocks.iter().zip(0..) {
        out.put(&metrics::FREE_BLOCKS, &at(order), Count(*blocks));
    }
    for (index, order) in zone.unusable().zip(0..) {
        out.put(&metrics::UNUSABLE, &at(order), index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::testing::{check, fixture, root};
    use expect_test::expect;

    static SMALL_PAGES: Registration =
        Registration { build: |_, context| Box::new(Buddyinfo::new(context, 4096)), ..REGISTRATION };

    #[test]
    fn linux_6_18() {
        check(
            &SMALL_PAGES,
            fixture("host/6.18"),
            expect![[r#"
            memwarden_host_zone_free_bytes{node="0",zone="DMA"} 15728640
            memwarden_host_zone_free_bytes{node="0",zone="DMA32"} 3165868032
            memwarden_host_zone_free_bytes{node="0",zone="Normal"} 6302076928
            memwarden_host_largest_free_block_bytes{node="0",zone="DMA"} 4194304
            memwarden_host_largest_free_block_bytes{node="0",zone="DMA32"} 4194304
            memwarden_host_largest_free_block_bytes{node="0",zone="Normal"} 4194304
            memwarden_host_free_blocks{node="0",zone="DMA",order="0"} 0
            memwarden_host_free_blocks{node="0",zone="DMA",order="1"} 0
            memwarden_host_free_blocks{node="0",zone="DMA",order="2"} 0
            memwarden_host_free_blocks{node="0",zone="DMA",order="3"} 0
            memwarden_host_free_blocks{node="0",zone="DMA",order="4"} 0
            memwarden_host_free_blocks{node="0",zone="DMA",order="5"} 0
            memwarden_host_free_blocks{node="0",zone="DMA",order="6"} 0
            memwarden_host_free_blocks{node="0",zone="DMA",order="7"} 0
            memwarden_host_free_blocks{node="0",zone="DMA",order="8"} 1
            memwarden_host_free_blocks{node="0",zone="DMA",order="9"} 1
            memwarden_host_free_blocks{node="0",zone="DMA",order="10"} 3
            memwarden_host_free_blocks{node="0",zone="DMA32",order="0"} 1
            memwarden_host_free_blocks{node="0",zone="DMA32",order="1"} 2
            memwarden_host_free_blocks{node="0",zone="DMA32",order="2"} 4
            memwarden_host_free_blocks{node="0",zone="DMA32",order="3"} 2
            memwarden_host_free_blocks{node="0",zone="DMA32",order="4"} 5
            memwarden_host_free_blocks{node="0",zone="DMA32",order="5"} 4
            memwarden_host_free_blocks{node="0",zone="DMA32",order="6"} 3
            memwarden_host_free_blocks{node="0",zone="DMA32",order="7"} 3
            memwarden_host_free_blocks{node="0",zone="DMA32",order="8"} 4
            memwarden_host_free_blocks{node="0",zone="DMA32",order="9"} 2
            memwarden_host_free_blocks{node="0",zone="DMA32",order="10"} 752
            memwarden_host_free_blocks{node="0",zone="Normal",order="0"} 2353
            memwarden_host_free_blocks{node="0",zone="Normal",order="1"} 2360
            memwarden_host_free_blocks{node="0",zone="Normal",order="2"} 1524
            memwarden_host_free_blocks{node="0",zone="Normal",order="3"} 1156
            memwarden_host_free_blocks{node="0",zone="Normal",order="4"} 1249
            memwarden_host_free_blocks{node="0",zone="Normal",order="5"} 1158
            memwarden_host_free_blocks{node="0",zone="Normal",order="6"} 689
            memwarden_host_free_blocks{node="0",zone="Normal",order="7"} 301
            memwarden_host_free_blocks{node="0",zone="Normal",order="8"} 113
            memwarden_host_free_blocks{node="0",zone="Normal",order="9"} 44
            memwarden_host_free_blocks{node="0",zone="Normal",order="10"} 1294
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="0"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="1"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="2"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="3"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="4"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="5"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="6"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="7"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="8"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="9"} 0.06666666666666667
            memwarden_host_unusable_free_ratio{node="0",zone="DMA",order="10"} 0.2
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="0"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="1"} 0.0000012937999811105203
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="2"} 0.000006468999905552601
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="3"} 0.000027169799603320927
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="4"} 0.00004787059930108925
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="5"} 0.00015137459778993088
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="6"} 0.0003169809953720775
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="7"} 0.0005653905917452973
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="8"} 0.0010622097844917371
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="9"} 0.00238706096514891
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="10"} 0.003711912145806083
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="0"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="1"} 0.0015293193196641347
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="2"} 0.004597057181463844
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="3"} 0.008559118623313638
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="4"} 0.014569805010161882
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="5"} 0.027558295143679974
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="6"} 0.05164263713665667
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="7"} 0.08030258814384311
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="8"} 0.10534364838524549
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="9"} 0.12414524178908912
            memwarden_host_unusable_free_ratio{node="0",zone="Normal",order="10"} 0.13878719063456027
        "#]],
        );
    }

    #[test]
    fn a_truncated_line_fails_and_the_others_are_read() {
        let text =
            "Node 0, zone  DMA32  4  2  1  0 \nNode 1, zone Normal  0  0  0  0 \nNode 1, zone Movable  7  1";
        check(
            &SMALL_PAGES,
            root(&[("proc/buddyinfo", text)]),
            expect![[r#"
            memwarden_host_zone_free_bytes{node="0",zone="DMA32"} 49152
            memwarden_host_zone_free_bytes{node="1",zone="Normal"} 0
            memwarden_host_largest_free_block_bytes{node="0",zone="DMA32"} 16384
            memwarden_host_largest_free_block_bytes{node="1",zone="Normal"} 0
            memwarden_host_free_blocks{node="0",zone="DMA32",order="0"} 4
            memwarden_host_free_blocks{node="0",zone="DMA32",order="1"} 2
            memwarden_host_free_blocks{node="0",zone="DMA32",order="2"} 1
            memwarden_host_free_blocks{node="0",zone="DMA32",order="3"} 0
            memwarden_host_free_blocks{node="1",zone="Normal",order="0"} 0
            memwarden_host_free_blocks{node="1",zone="Normal",order="1"} 0
            memwarden_host_free_blocks{node="1",zone="Normal",order="2"} 0
            memwarden_host_free_blocks{node="1",zone="Normal",order="3"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="0"} 0
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="1"} 0.3333333333333333
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="2"} 0.6666666666666666
            memwarden_host_unusable_free_ratio{node="0",zone="DMA32",order="3"} 1
            failed (parse): ROOT/proc/buddyinfo has an incomplete zone in line 3
        "#]],
        );
    }

    #[test]
    fn a_missing_file_is_unavailable_and_an_empty_one_an_error() {
        check(
            &SMALL_PAGES,
            root(&[]),
            expect![[r#"
            unavailable: cannot read ROOT/proc/buddyinfo: No such file or directory (os error 2)
        "#]],
        );
        check(
            &SMALL_PAGES,
            root(&[("proc/buddyinfo", "")]),
            expect![[r#"
            failed (parse): ROOT/proc/buddyinfo contains no zone
        "#]],
        );
    }
}
