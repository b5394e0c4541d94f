//! The types of elements: their widths, their names in files, and which bits are NaN, infinite or zero.

/// What files say of a type; a name is empty where the format does not have it.
struct Row {
    dtype: Dtype,
    bits: u64,
    safetensors: &'static str,
    torch: &'static str,
    storage: &'static str,
    numpy: &'static str,
}

macro_rules! dtypes {
    ($($dtype:ident $bits:literal $safetensors:literal $torch:literal $storage:literal $numpy:literal)+) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Dtype {
            $($dtype),+
        }

        const TABLE: &[Row] = &[$(Row {
            dtype: Dtype::$dtype,
            bits: $bits,
            safetensors: $safetensors,
            torch: $torch,
            storage: $storage,
            numpy: $numpy,
        }),+];
    };
}

// Type, bits of an element, name in safetensors (crate 0.8), PyTorch's name, PyTorch's typed storage, NumPy's name without
// the order of bytes.
dtypes! {
    Bool 8 "BOOL" "bool" "BoolStorage" "b1"
    F4E2M1 4 "F4" "" "" ""
    F6E2M3 6 "F6_E2M3" "" "" ""
    F6E3M2 6 "F6_E3M2" "" "" ""
    U8 8 "U8" "uint8" "ByteStorage" "u1"
    I8 8 "I8" "int8" "CharStorage" "i1"
    F8E5M2 8 "F8_E5M2" "float8_e5m2" "" ""
    F8E4M3 8 "F8_E4M3" "float8_e4m3fn" "" ""
    F8E8M0 8 "F8_E8M0" "float8_e8m0fnu" "" ""
    F8E4M3Fnuz 8 "F8_E4M3FNUZ" "float8_e4m3fnuz" "" ""
    F8E5M2Fnuz 8 "F8_E5M2FNUZ" "float8_e5m2fnuz" "" ""
    I16 16 "I16" "int16" "ShortStorage" "i2"
    U16 16 "U16" "uint16" "" "u2"
    F16 16 "F16" "float16" "HalfStorage" "f2"
    BF16 16 "BF16" "bfloat16" "BFloat16Storage" ""
    I32 32 "I32" "int32" "IntStorage" "i4"
    U32 32 "U32" "uint32" "" "u4"
    F32 32 "F32" "float32" "FloatStorage" "f4"
    C32 32 "C32" "complex32" "" ""
    C64 64 "C64" "complex64" "ComplexFloatStorage" "c8"
    F64 64 "F64" "float64" "DoubleStorage" "f8"
    I64 64 "I64" "int64" "LongStorage" "i8"
    U64 64 "U64" "uint64" "" "u8"
    C128 128 "C128" "complex128" "ComplexDoubleStorage" "c16"
}

impl Dtype {
    fn named(name: &[u8], column: fn(&Row) -> &'static str) -> Option<Self> {
        let mut rows = TABLE.iter().filter(|row| !column(row).is_empty());
        rows.find(|row| column(row).as_bytes() == name).map(|row| row.dtype)
    }

    /// The type of that name in safetensors, such as `BF16`.
    pub fn of_safetensors(name: &str) -> Option<Self> {
        Self::named(name.as_bytes(), |row| row.safetensors)
    }

    /// The type of that name in PyTorch, such as `float8_e4m3fn`.
    pub fn of_torch(name: &[u8]) -> Option<Self> {
        Self::named(name, |row| row.torch)
    }

    /// The type that a storage class of PyTorch holds, such as `BFloat16Storage`.
    pub fn of_storage(class: &[u8]) -> Option<Self> {
        Self::named(class, |row| row.storage)
    }

    /// The type of that name in NumPy, such as `f4`.
    pub(super) fn of_numpy(name: &[u8]) -> Option<Self> {
        Self::named(name, |row| row.numpy)
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Its name, as in safetensors.
    pub fn name(self) -> &'static str {
        self.row().safetensors
    }

    /// The width of an element, in bits: 4 to 128.
    pub fn bits(self) -> u64 {
        self.row().bits
    }

    /// The bytes of that many elements; absent where they do not fill whole bytes, or 64 bits do not suffice.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl serde::Serialize for Dtype {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The number of elements of a shape; absent where it exceeds 64 bits.
pub(super) fn elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, length| product.checked_mul(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_each_of_its_names() {
        for Row { dtype, bits, safetensors, torch, storage, numpy } in TABLE {
            assert_eq!((dtype.bits(), dtype.name()), (*bits, *safetensors));
            assert_eq!(Dtype::of_safetensors(safetensors), Some(*dtype));
            assert!(torch.is_empty() || Dtype::of_torch(torch.as_bytes()) == Some(*dtype));
            assert!(storage.is_empty() || Dtype::of_storage(storage.as_bytes()) == Some(*dtype));
            assert!(numpy.is_empty() || Dtype::of_numpy(numpy.as_bytes()) == Some(*dtype));
        }
        assert_eq!(
            (Dtype::of_safetensors("F7"), Dtype::of_torch(b""), Dtype::of_storage(b"")),
            (None, None, None)
        );
    }

    #[test]
    fn partial_bytes_and_overflows_have_no_size() {
        assert_eq!(Dtype::F4E2M1.bytes_of(2), Some(1));
        assert_eq!(Dtype::F6E2M3.bytes_of(3), None);
        assert_eq!(Dtype::F64.bytes_of(u64::MAX / 8), None);
        assert_eq!(elements(&[]), Some(1));
        assert_eq!(elements(&[u64::MAX, 2]), None);
    }
}
