//! Valid, truncated and hostile pickles.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::testing::{Py, dict, list, write};
use super::*;

fn limits(file: &[u8]) -> Limits {
    Limits::for_file(u64::try_from(file.len()).unwrap(), Limits::MEMORY_BYTES)
}

fn read_all(file: &[u8]) -> Result<Arena<'_>, PickleError> {
    let limits = limits(file);
    let mut budget = Budget::new(&limits, file);
    let arena = read(file, &limits, &mut budget);
    assert!(budget.most() <= limits.memory_bytes, "{budget:?}");
    arena
}

/// The value as Python would print it, to a depth of `deep`.
fn shown(arena: &Arena<'_>, id: Id, deep: usize) -> String {
    if deep == 0 {
        return "...".to_owned();
    }
    let items = |arena: &Arena<'_>| {
        let items: Vec<String> = arena.items(id).map(|item| shown(arena, item, deep - 1)).collect();
        items.join(", ")
    };
    match arena.value(id) {
        Value::None => "None".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => format!("{value:?}"),
        Value::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
        Value::List => format!("[{}]", items(arena)),
        Value::Tuple => format!("({})", items(arena)),
        Value::Dict => {
            let pairs = arena.pairs(id).map(|(key, value)| {
                format!("{}: {}", shown(arena, key, deep - 1), shown(arena, value, deep - 1))
            });
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}

fn check(file: &[u8], expected: Expect) {
    let found = match read_all(file) {
        Ok(arena) => shown(&arena, arena.root(), 6),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&found);
}

fn every_kind() -> Py {
    dict([
        ("none", Py::None),
        ("flags", list([true.into(), false.into()])),
        ("ints", list([0u64, 255, 256, 65536, 1 << 40, 1 << 63, u64::MAX].map(Py::from))),
        ("negative", list([-1, -40_000, -(1 << 40), i128::from(i64::MIN)].map(Py::Int))),
        ("float", Py::Float(0.5)),
        ("tuple", Py::Tuple(vec![Py::from(1), "none".into()])),
        ("empty", list([])),
    ])
}

#[test]
fn every_kind_is_read_in_both_protocols() {
    let text = || {
        expect![[
            r#"{"none": None, "flags": [true, false], "ints": [0, 255, 256, 65536, 1099511627776, 9223372036854775808, 18446744073709551615], "negative": [-1, -40000, -1099511627776, -9223372036854775808], "float": 0.5, "tuple": (1, "none"), "empty": []}"#
        ]]
    };
    check(&write(&every_kind(), 2), text());
    check(&write(&every_kind(), 4), text());
}

#[test]
fn items_added_later_are_in_order() {
    // Two lists that grow in turns, as a pickler does that writes in batches.
    check(
        b"\x80\x02]q\x00]q\x01\x86q\x02h\x00K\x01ah\x01K\x02ah\x00(K\x03K\x04e0.",
        expect![
            "byte 29 (POP): refused: it does more than build plain data, and nothing in a pickle is ever executed"
        ],
    );
    check(b"\x80\x02]q\x00(K\x01e(K\x02]K\x03ae(K\x04e.", expect!["[1, 2, [3], 4]"]);
    check(
        b"\x80\x02}q\x00X\x01\x00\x00\x00aK\x01s(X\x01\x00\x00\x00bK\x02u.",
        expect![[r#"{"a": 1, "b": 2}"#]],
    );
    check(b"\x80\x04K\x01K\x02K\x03\x87K\x04\x85\x86)\x86.", expect!["(((1, 2, 3), (4)), ())"]);
}

#[test]
fn opcodes_that_execute_are_refused_by_name() {
    check(
        b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94.",
        expect![
            "byte 16 (STACK_GLOBAL): refused: it does more than build plain data, and nothing in a pickle is ever executed"
        ],
    );
    check(
        b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
        expect![
            "byte 2 (GLOBAL): refused: it does more than build plain data, and nothing in a pickle is ever executed"
        ],
    );
    check(
        b"\x80\x02)R.",
        expect![
            "byte 3 (REDUCE): refused: it does more than build plain data, and nothing in a pickle is ever executed"
        ],
    );
    check(
        b"\x80\x02}}b.",
        expect![
            "byte 4 (BUILD): refused: it does more than build plain data, and nothing in a pickle is ever executed"
        ],
    );
    check(
        b"\x80\x02(ios\nsystem\n.",
        expect![
            "byte 3 (INST): refused: it does more than build plain data, and nothing in a pickle is ever executed"
        ],
    );
    check(b"\x80\x02\xff.", expect!["byte 2 (0xff): unknown pickle operation"]);
}

#[test]
fn other_files_are_not_pickles() {
    check(b"", expect!["byte 0: the file ends here; it was cut off"]);
    check(
        b"PK\x03\x04",
        expect!["byte 0: not a pickle of protocol 2 to 5; this is a zip file, as torch.save writes"],
    );
    check(
        b"\x1f\x8b\x08",
        expect!["byte 0: not a pickle of protocol 2 to 5; this is a gzip file, to be unpacked first"],
    );
    check(b"{\"a\":1}", expect!["byte 0: not a pickle of protocol 2 to 5; this looks like JSON"]);
    check(b"(dp0\n.", expect!["byte 0: not a pickle of protocol 2 to 5"]);
    check(b"\x80\x01].", expect!["byte 0 (PROTO): pickle protocol 1, and only 2 to 5 are read"]);
    check(b"\x80\x06].", expect!["byte 0 (PROTO): pickle protocol 6, and only 2 to 5 are read"]);
}

#[test]
fn errors_have_the_offset_and_the_opcode() {
    check(b"\x80\x02.", expect!["byte 2 (STOP): takes a value from an empty stack"]);
    check(b"\x80\x02](K\x01.", expect!["1"]);
    check(b"\x80\x02](.", expect!["byte 4 (STOP): takes a value from an empty stack"]);
    check(
        b"\x80\x02]K\x01K\x02s.",
        expect!["byte 7 (SETITEM): adds to a value that is not of type dictionary"],
    );
    check(b"\x80\x02}K\x01a.", expect!["byte 5 (APPEND): adds to a value that is not of type list"]);
    check(b"\x80\x02}(K\x01u.", expect!["byte 6 (SETITEMS): dictionary key without a value"]);
    check(b"\x80\x02(K\x01e.", expect!["byte 5 (APPENDS): takes a value from an empty stack"]);
    check(b"\x80\x02]e.", expect!["byte 3 (APPENDS): no container is open"]);
    check(b"\x80\x02](\x85.", expect!["byte 4 (TUPLE1): takes a value from an empty stack"]);
    check(b"\x80\x02h\x05.", expect!["byte 2 (BINGET): refers to memo entry 5, which does not exist"]);
    check(b"\x80\x02]q\x03h\x02.", expect!["byte 5 (BINGET): refers to memo entry 2, which does not exist"]);
    check(
        b"\x80\x02]r\xff\xff\xff\x7f.",
        expect![
            "byte 3 (LONG_BINPUT): stores memo entry 2147483647, which exceeds the number of values in the file"
        ],
    );
    check(
        b"\x80\x02\x8a\x0a\0\0\0\0\0\0\0\0\0\x01.",
        expect!["byte 2 (LONG1): an integer of more than 64 bits"],
    );
    check(
        b"\x80\x02\x8a\x11\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0.",
        expect!["byte 2 (LONG1): an integer of more than 64 bits"],
    );
    check(b"\x80\x04\x95\xff\0\0\0\0\0\0\0.", expect!["byte 2 (FRAME): the file ends here; it was cut off"]);
    check(
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
        expect!["byte 2 (BINUNICODE8): the file ends here; it was cut off"],
    );
}

#[test]
fn a_file_truncated_anywhere_is_an_error() {
    for protocol in [2, 4] {
        let file = write(&every_kind(), protocol);
        for len in 0..file.len() {
            let error = read_all(&file[..len]).unwrap_err();
            assert_eq!(error.problem, Problem::CutOff, "cut to {len} of {} bytes", file.len());
        }
    }
}

#[test]
fn cyclic_values_are_accepted() {
    check(b"\x80\x02]q\x00h\x00a.", expect!["[[[[[[...]]]]]]"]);
    check(
        b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
        expect![[r#"{"a": {"a": {"a": {"a": {"a": {...: ...}}}}}}"#]],
    );
}

#[test]
fn repeated_references_take_memory_in_proportion_to_their_bytes() {
    let mut file = b"\x80\x02]q\x00(K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01e".to_vec();
    for level in 1..60 {
        file.extend([b']', b'q', level, b'(']);
        for _ in 0..10 {
            file.extend([b'h', level - 1]);
        }
        file.push(b'e');
    }
    file.push(b'.');
    let arena = read_all(&file).unwrap();
    assert_eq!((arena.nodes(), arena.len(arena.root())), (60, 10), "10^60 values, if they were copied");
}

#[test]
fn reading_stops_at_the_memory_limit() {
    let mut nested = b"\x80\x02)".to_vec();
    nested.resize(4 << 20, 0x85);
    check(
        &nested,
        expect!["byte 898658 (TUPLE1): needs more than the 41943040 bytes of memory allowed for it"],
    );
    let mut lists = b"\x80\x02".to_vec();
    lists.resize(4 << 20, b']');
    check(
        &lists,
        expect!["byte 898658 (EMPTY_LIST): needs more than the 41943040 bytes of memory allowed for it"],
    );
    let mut marks = b"\x80\x02".to_vec();
    marks.resize(4 << 20, b'(');
    check(&marks, expect!["byte 258 (MARK): more than 256 containers open at once"]);
    let mut remembered = b"\x80\x02]".to_vec();
    remembered.resize(4 << 20, 0x94);
    check(&remembered, expect!["byte 4194304: the file ends here; it was cut off"]);
    let mut waiting = b"\x80\x02".to_vec();
    waiting.resize(40 << 20, b'N');
    check(&waiting, expect!["byte 33554434 (NONE): more than 33554432 values without a container"]);
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let limits = Limits { file_bytes: 3, ..limits(b"") };
    let mut budget = Budget::new(&limits, b"");
    let error = read(b"\x80\x02].", &limits, &mut budget).unwrap_err();
    expect!["byte 0: the file has 4 bytes, and at most 3 are read"].assert_eq(&error.to_string());
}

/// Bytes that resemble a pickle more than random ones.
fn likely() -> impl Strategy<Value = Vec<u8>> {
    let op =
        prop::sample::select(b"(.NJKM\x8aGX\x8c]ae)t\x85\x86\x87}suhjqr\x94\x88\x89\x00\x01\x02".to_vec());
    prop::collection::vec(prop_oneof![9 => op, 1 => any::<u8>()], 0..200).prop_map(|mut bytes| {
        bytes.splice(0..0, [0x80, 4]);
        bytes
    })
}

proptest! {
    #[test]
    fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_all(&bytes);
    }

    #[test]
    fn never_panics_on_likely_pickles(bytes in likely()) {
        if let Ok(arena) = read_all(&bytes) {
            let _ = shown(&arena, arena.root(), 4);
        }
    }
}
