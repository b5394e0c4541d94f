//! Opcodes with their names: plain data, and refused ones.

macro_rules! opcodes {
    ($($name:ident $code:literal)+) => {
        $(pub(super) const $name: u8 = $code;)+
        const ALLOWED: &[(u8, &str)] = &[$(($code, stringify!($name))),+];
    };
}

// Pickle protocols 2 to 5, from CPython's Lib/pickletools.py. Only these build
// plain data; no other occurs in a snapshot of any PyTorch release.
opcodes! {
    MARK b'('
    STOP b'.'
    NONE b'N'
    NEWTRUE 0x88
    NEWFALSE 0x89
    BININT b'J'
    BININT1 b'K'
    BININT2 b'M'
    LONG1 0x8a
    BINFLOAT b'G'
    SHORT_BINUNICODE 0x8c
    BINUNICODE b'X'
    BINUNICODE8 0x8d
    EMPTY_LIST b']'
    APPEND b'a'
    APPENDS b'e'
    EMPTY_TUPLE b')'
    TUPLE b't'
    TUPLE1 0x85
    TUPLE2 0x86
    TUPLE3 0x87
    EMPTY_DICT b'}'
    SETITEM b's'
    SETITEMS b'u'
    BINGET b'h'
    LONG_BINGET b'j'
    BINPUT b'q'
    LONG_BINPUT b'r'
    MEMOIZE 0x94
    PROTO 0x80
    FRAME 0x95
}

/// Opcodes that are not plain data, or that protocols 2 to 5 do not write.
const REFUSED: &[(u8, &str)] = &[
    (b'c', "GLOBAL"),
    (0x93, "STACK_GLOBAL"),
    (b'R', "REDUCE"),
    (b'b', "BUILD"),
    (0x81, "NEWOBJ"),
    (b'Q', "BINPERSID"),
    (b'B', "BINBYTES"),
    (b'C', "SHORT_BINBYTES"),
    (b'U', "SHORT_BINSTRING"),
    (0x8f, "EMPTY_SET"),
    (0x90, "ADDITEMS"),
    (b'i', "INST"),
    (b'o', "OBJ"),
    (0x92, "NEWOBJ_EX"),
    (0x82, "EXT1"),
    (0x83, "EXT2"),
    (0x84, "EXT4"),
    (b'P', "PERSID"),
    (b'0', "POP"),
    (b'1', "POP_MARK"),
    (b'2', "DUP"),
    (b'I', "INT"),
    (b'L', "LONG"),
    (0x8b, "LONG4"),
    (b'F', "FLOAT"),
    (b'S', "STRING"),
    (b'T', "BINSTRING"),
    (0x8e, "BINBYTES8"),
    (0x96, "BYTEARRAY8"),
    (0x97, "NEXT_BUFFER"),
    (0x98, "READONLY_BUFFER"),
    (b'V', "UNICODE"),
    (b'l', "LIST"),
    (b'd', "DICT"),
    (b'g', "GET"),
    (b'p', "PUT"),
    (0x91, "FROZENSET"),
];

/// The name of an opcode; absent where no protocol has it.
pub(super) fn name(code: u8) -> Option<&'static str> {
    ALLOWED.iter().chain(REFUSED).find(|(known, _)| *known == code).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_opcode_is_both_allowed_and_refused() {
        let mut codes: Vec<u8> = ALLOWED.iter().chain(REFUSED).map(|(code, _)| *code).collect();
        codes.sort_unstable();
        let all = codes.len();
        codes.dedup();
        assert_eq!((codes.len(), all), (68, 68), "protocol 5 has 68 opcodes");
    }
}
