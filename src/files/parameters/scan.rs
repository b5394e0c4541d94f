//! Counts NaN, Inf and zero by their bits, limited only by memory bandwidth.
//!
//! No element is converted to a number. Each block is first tested for any element with the exponent of NaN and Inf,
//! by loops over fixed arrays, which the compiler vectorizes also without AVX2. Only blocks with such an element are
//! counted.

use super::dtype::Dtype;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanResult {
    /// Number of NaN elements; both parts of a complex element count.
    pub nan: u64,
    /// Number of elements that are positive or negative infinity.
    pub inf: u64,
    /// Whether any element is neither 0 nor -0.
    pub nonzero: bool,
}

impl ScanResult {
    /// Combines two results.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            nan: self.nan.saturating_add(other.nan),
            inf: self.inf.saturating_add(other.inf),
            nonzero: self.nonzero || other.nonzero,
        }
    }
}

/// Block size in bytes, small enough for the first-level cache.
const BLOCK: usize = 8 << 10;

macro_rules! kernel {
    ($name:ident, $bits:ty, $wide:literal) => {
        /// `special` are the bits that are all set in NaN and Inf, `size` all bits except the sign.
        fn $name(bytes: &[u8], special: $bits, size: $bits) -> ScanResult {
            const WIDTH: usize = size_of::<$bits>();
            let element = |bytes: &[u8; WIDTH]| <$bits>::from_le_bytes(*bytes);
            let mut found = ScanResult::default();
            for block in bytes.chunks(BLOCK) {
                let (mut specials, mut any) = ([0; $wide], [0; $wide]);
                let (elements, _) = block.as_chunks::<WIDTH>();
                let (rows, rest) = elements.as_chunks::<$wide>();
                for row in rows {
                    for lane in 0..$wide {
                        let bits = element(&row[lane]);
                        specials[lane] |= if bits & special == special { <$bits>::MAX } else { 0 };
                        any[lane] |= bits & size;
                    }
                }
                for bytes in rest {
                    let bits = element(bytes);
                    specials[0] |= if bits & special == special { <$bits>::MAX } else { 0 };
                    any[0] |= bits & size;
                }
                found.nonzero |= any.iter().any(|bits| *bits != 0);
                if specials.iter().any(|bits| *bits != 0) {
                    for bytes in elements {
                        let bits = element(bytes) & size;
                        found.nan += u64::from(bits > special);
                        found.inf += u64::from(bits == special);
                    }
                }
            }
            found
        }
    };
}

// Number of lanes that fit into registers; with more, the compiler does not vectorize.
kernel!(bytes8, u8, 32);
kernel!(bits16, u16, 8);
kernel!(bits32, u32, 8);
kernel!(bits64, u64, 8);

/// Scans elements of one type. Bytes after the last complete element are ignored.
pub fn scan(dtype: Dtype, bytes: &[u8]) -> ScanResult {
    match dtype {
        Dtype::F16 | Dtype::C32 => bits16(bytes, 0x7c00, 0x7fff),
        Dtype::BF16 => bits16(bytes, 0x7f80, 0x7fff),
        Dtype::F32 | Dtype::C64 => bits32(bytes, 0x7f80_0000, 0x7fff_ffff),
        Dtype::F64 | Dtype::C128 => bits64(bytes, 0x7ff0 << 48, u64::MAX >> 1),
        Dtype::F8E5M2 => bytes8(bytes, 0x7c, 0x7f),
        // OCP 8-bit formats, revision 1.0: one NaN of either sign, no Inf. The kernel counts this NaN as Inf.
        Dtype::F8E4M3 => only_nan(bytes8(bytes, 0x7f, 0x7f)),
        // OCP microscaling formats 1.0: a power of two, so there is no zero.
        Dtype::F8E8M0 => ScanResult { nonzero: !bytes.is_empty(), ..only_nan(bytes8(bytes, 0xff, 0xff)) },
        // One zero, and NaN where -0 would be.
        Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz => {
            ScanResult { nan: count(bytes, 0x80), inf: 0, nonzero: has(bytes, 0xff) }
        }
        // Two elements per byte, neither NaN nor Inf.
        Dtype::F4E2M1 => ScanResult { nonzero: has(bytes, 0x77), ..ScanResult::default() },
        Dtype::F6E2M3
        | Dtype::F6E3M2
        | Dtype::Bool
        | Dtype::U8
        | Dtype::I8
        | Dtype::I16
        | Dtype::U16
        | Dtype::I32
        | Dtype::U32
        | Dtype::I64
        | Dtype::U64 => ScanResult { nonzero: has(bytes, 0xff), ..ScanResult::default() },
    }
}

const fn only_nan(found: ScanResult) -> ScanResult {
    ScanResult { nan: found.inf, inf: 0, nonzero: found.nonzero }
}

fn has(bytes: &[u8], mask: u8) -> bool {
    // Complete blocks, so that the inner loop has no early exit and is vectorized.
    bytes.chunks(BLOCK).any(|block| block.iter().fold(0, |any, byte| any | byte & mask) != 0)
}

fn count(bytes: &[u8], byte: u8) -> u64 {
    bytes.iter().filter(|found| **found == byte).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(nan: u64, inf: u64, nonzero: bool) -> ScanResult {
        ScanResult { nan, inf, nonzero }
    }

    fn halves(bits: &[u16]) -> Vec<u8> {
        bits.iter().flat_map(|bits| bits.to_le_bytes()).collect()
    }

    #[test]
    fn bf16_and_f16_are_distinguished() {
        let half = [0x0000, 0x8000, 0x7c00, 0xfc00, 0x7c01, 0xffff, 0x7bff];
        assert_eq!(scan(Dtype::F16, &halves(&half)), found(2, 2, true));
        let brain = [0x7f80, 0xff80, 0x7f81, 0x7f7f, 0xffc0];
        assert_eq!(scan(Dtype::BF16, &halves(&brain)), found(2, 2, true));
        assert_eq!(scan(Dtype::BF16, &halves(&[0x8000; 5000])), found(0, 0, false), "-0 is zero");
    }

    #[test]
    fn every_byte_of_the_eight_bit_formats_is_classified() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(scan(Dtype::F8E5M2, &all), found(6, 2, true));
        assert_eq!(scan(Dtype::F8E4M3, &all), found(2, 0, true));
        assert_eq!(scan(Dtype::F8E8M0, &all), found(1, 0, true));
        assert_eq!(scan(Dtype::F8E4M3Fnuz, &all), found(1, 0, true));
        assert_eq!(scan(Dtype::F8E5M2Fnuz, &all), found(1, 0, true));
        assert_eq!(scan(Dtype::F8E4M3, &[0x80, 0]), found(0, 0, false));
        assert_eq!(scan(Dtype::F8E8M0, &[0, 0]), found(0, 0, true), "it is 2^-127");
        assert_eq!(scan(Dtype::F4E2M1, &[0x88, 0x80]), found(0, 0, false));
        assert_eq!(scan(Dtype::I64, &[0; 80]), found(0, 0, false));
        assert_eq!(scan(Dtype::U8, &[0, 0, 1]), found(0, 0, true));
    }

    proptest! {
        #[test]
        fn floats_are_counted_as_the_standard_library_counts(
            bits in prop::collection::vec(
                prop_oneof![any::<u32>(), Just(0), Just(0x7f80_0000), Just(0xff80_0000), Just(0x7fc0_0000)],
                0..1200,
            )
        ) {
            let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
            let floats = || bits.iter().map(|bits| f32::from_bits(*bits));
            let expected = found(
                floats().filter(|float| float.is_nan()).count() as u64,
                floats().filter(|float| float.is_infinite()).count() as u64,
                floats().any(|float| float != 0.0),
            );
            prop_assert_eq!(scan(Dtype::F32, &bytes), expected);
        }

        #[test]
        fn doubles_are_counted_as_the_standard_library_counts(
            floats in prop::collection::vec(
                prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY), Just(-0.0)], 0..1200,
            )
        ) {
            let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
            let expected = found(
                floats.iter().filter(|float| float.is_nan()).count() as u64,
                floats.iter().filter(|float| float.is_infinite()).count() as u64,
                floats.iter().any(|float| *float != 0.0),
            );
            prop_assert_eq!(scan(Dtype::F64, &bytes), expected);
        }
    }
}
