//! Elements as numbers, for the comparison of values. NaN and Inf are counted by [`super::scan`] without conversion.

use super::dtype::Dtype;

/// The elements as 64-bit floats (integers beyond 2^53 are rounded), absent for types without plain numbers: complex
/// ones, and those below 16 bits that are not integers.
pub(super) fn numbers<'b>(dtype: Dtype, bytes: &'b [u8]) -> Option<Box<dyn Iterator<Item = f64> + 'b>> {
    macro_rules! each {
        ($number:ty, $convert:expr) => {{
            let (elements, _) = bytes.as_chunks::<{ size_of::<$number>() }>();
            Box::new(elements.iter().map(|bytes| $convert(<$number>::from_le_bytes(*bytes))))
        }};
    }
    #[expect(clippy::cast_precision_loss, reason = "documented: a difference of huge integers is rounded")]
    Some(match dtype {
        Dtype::Bool | Dtype::U8 => each!(u8, f64::from),
        Dtype::I8 => each!(i8, f64::from),
        Dtype::I16 => each!(i16, f64::from),
        Dtype::U16 => each!(u16, f64::from),
        Dtype::F16 => each!(u16, half),
        Dtype::BF16 => each!(u16, |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16))),
        Dtype::I32 => each!(i32, f64::from),
        Dtype::U32 => each!(u32, f64::from),
        Dtype::F32 => each!(f32, f64::from),
        Dtype::F64 => each!(f64, |value: f64| value),
        Dtype::I64 => each!(i64, |value: i64| value as f64),
        Dtype::U64 => each!(u64, |value: u64| value as f64),
        _ => return None,
    })
}

/// IEEE 754 binary16: 1 bit of sign, 5 of exponent with a bias of 15, 10 of fraction.
fn half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    };
    sign * size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_follows_the_standard() {
        let known = [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (0x0001, 5.960_464_477_539_063e-8)];
        for (bits, value) in known {
            assert_eq!(half(bits), value, "{bits:#x}");
        }
        assert_eq!((half(0xfc00), half(0x7e00).is_nan()), (f64::NEG_INFINITY, true));
        assert!(half(0x8000).is_sign_negative());
    }

    #[test]
    fn elements_are_converted_to_numbers() {
        let of = |dtype, bytes: &[u8]| numbers(dtype, bytes).map(Iterator::collect::<Vec<f64>>);
        assert_eq!(of(Dtype::BF16, &[0x80, 0x3f, 0, 0xc0]), Some(vec![1.0, -2.0]));
        assert_eq!(of(Dtype::I8, &[0xff, 1]), Some(vec![-1.0, 1.0]));
        assert_eq!(of(Dtype::F64, &2.5f64.to_le_bytes()), Some(vec![2.5]));
        assert_eq!(of(Dtype::F8E4M3, &[0]), None);
    }
}
