//! The fields of a protobuf message, one after another.
//!
//! An empty message of a list takes two bytes in a file, and a hundred or more when it is decoded: lists are read item by item, so
//! that a file takes no more memory than it has bytes. The encoding: protobuf.dev/programming-guides/encoding.

/// Bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Iterates over the fields of a message that are texts, bytes or messages, by their numbers; numeric fields are passed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<Option<(u64, &'a [u8])>, Malformed> {
        while !self.0.is_empty() {
            let key = self.varint()?;
            match key & 7 {
                0 => drop(self.varint()?),
                1 => drop(self.bytes(8)?),
                2 => {
                    let length = self.varint()?;
                    return Ok(Some((key >> 3, self.bytes(length)?)));
                }
                5 => drop(self.bytes(4)?),
                _ => return Err(Malformed),
            }
        }
        Ok(None)
    }

    fn bytes(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        prost::encoding::decode_varint(&mut self.0).map_err(|_| Malformed)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        field.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_passed_over_and_the_rest_is_a_slice() {
        let check = |bytes: &[u8], expected: &[Result<(u64, &[u8]), Malformed>]| {
            assert_eq!(Fields(bytes).collect::<Vec<_>>(), expected, "{bytes:?}");
        };
        check(b"", &[]);
        // Field 1 is 150, field 2 is `ab`, field 3 has 8 bytes, field 4 has 4, field 16 is empty.
        let all = b"\x08\x96\x01\x12\x02ab\x1912345678\x251234\x82\x01\x00";
        check(all, &[Ok((2, b"ab")), Ok((16, b""))]);
        check(b"\x12\x03ab", &[Err(Malformed)]);
        check(b"\x12\x01a\x1b", &[Ok((2, b"a")), Err(Malformed)]);
        check(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", &[Err(Malformed)]);
        check(b"\xff", &[Err(Malformed)]);
    }
}
