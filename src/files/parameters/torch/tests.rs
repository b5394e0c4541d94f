//! Archives as PyTorch writes them, truncated ones, and hostile ones.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::files::parameters::archive::read_archive;
use crate::files::parameters::testing::zip;
use crate::model::error_chain::error_chain;

/// A text of a pickle.
fn text(text: &str) -> Vec<u8> {
    [b"X".to_vec(), u32::try_from(text.len()).unwrap().to_le_bytes().to_vec(), text.into()].concat()
}

/// A storage of `count` elements.
fn storage(class: &str, key: &str, count: u8) -> Vec<u8> {
    let class = format!("c{class}\n");
    [&b"("[..], &text("storage"), class.as_bytes(), &text(key), &text("cpu"), &[b'K', count], b"tQ"].concat()
}

/// `_rebuild_tensor_v2` of a vector.
fn vector(storage: &[u8], skip: u8, len: u8, stride: u8) -> Vec<u8> {
    let numbers = [b'K', skip, b'K', len, 0x85, b'K', stride, 0x85, 0x89];
    let hooks = b"ccollections\nOrderedDict\n)R";
    [b"ctorch._utils\n_rebuild_tensor_v2\n(", storage, &numbers, hooks, b"tR"].concat()
}

fn dict(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs = pairs.iter().map(|(key, value)| [text(key), value.clone()].concat());
    [b"}(".to_vec(), pairs.collect::<Vec<_>>().concat(), b"u".to_vec()].concat()
}

fn archive(value: &[u8], data: &[(&str, &[u8])]) -> Vec<u8> {
    let pickle = [b"\x80\x02", value, b"."].concat();
    let mut entries = vec![("m/data.pkl", &pickle[..])];
    entries.extend(data);
    zip(&entries)
}

fn shown(file: &[u8], options: &Options) -> String {
    match read_archive(file, options) {
        Ok(part) => {
            let tensors = part.tensors.iter().map(|tensor| {
                format!(
                    "{} {:?} {:?} {:?} {:?} {:?}",
                    tensor.name,
                    tensor.dtype,
                    tensor.shape,
                    tensor.place,
                    tensor.parameter,
                    tensor.requires_grad
                )
            });
            tensors.chain(part.notes.iter().cloned()).collect::<Vec<_>>().join("\n")
        }
        Err(error) => error_chain(&error),
    }
}

fn check(value: &[u8], data: &[(&str, &[u8])], expected: Expect) {
    expected.assert_eq(&shown(&archive(value, data), &Options::default()));
}

#[test]
fn tensors_are_found_in_all_containers() {
    let w = vector(&storage("torch\nBFloat16Storage", "0", 4), 1, 3, 1);
    let parameter =
        [b"ctorch._utils\n_rebuild_parameter\n(", &w[..], b"\x88ccollections\nOrderedDict\n)RtR"].concat();
    let state = dict(&[("w", w.clone()), ("p", parameter)]);
    let optimizer = dict(&[("state", [b"}K\0".to_vec(), dict(&[("exp_avg", w)]), b"s".to_vec()].concat())]);
    let value = dict(&[("model", state), ("optimizer", optimizer), ("step", b"K\x07".to_vec())]);
    check(
        &value,
        &[("m/data/0", &[0; 8])],
        expect![[r#"
        model.w BF16 [3] Dense { offset: 642 } Some(false) Some(false)
        model.p BF16 [3] Dense { offset: 642 } Some(true) Some(true)
        optimizer.state.0.exp_avg BF16 [3] Dense { offset: 642 } Some(false) Some(false)"#]],
    );
}

#[test]
fn types_without_a_storage_class_are_read() {
    let storage = storage("torch.storage\nUntypedStorage", "0", 4);
    let call = [
        b"ctorch._utils\n_rebuild_tensor_v3\n(",
        &storage[..],
        b"K\0K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)Rctorch\nfloat8_e4m3fn\ntR",
    ];
    check(
        &dict(&[("w", call.concat())]),
        &[("m/data/0", &[0; 4])],
        expect!["w F8E4M3 [4] Dense { offset: 320 } Some(false) Some(false)"],
    );
}

#[test]
fn views_with_gaps_and_foreign_bytes_are_not_scanned() {
    let storage = storage("torch\nFloatStorage", "0", 4);
    let value = dict(&[("gaps", vector(&storage, 0, 2, 2)), ("all", vector(&storage, 0, 4, 1))]);
    check(
        &value,
        &[("m/data/0", &[0; 16])],
        expect![[r#"
        gaps F32 [2] Elsewhere { why: "a view with gaps or repetitions" } Some(false) Some(false)
        all F32 [4] Dense { offset: 384 } Some(false) Some(false)"#]],
    );
    check(
        &value,
        &[("m/data/0", &[0; 16]), ("m/byteorder", b"big")],
        expect![[r#"
        gaps F32 [2] Elsewhere { why: "a view with gaps or repetitions" } Some(false) Some(false)
        all F32 [4] Elsewhere { why: "written by a big-endian machine" } Some(false) Some(false)"#]],
    );
}

#[test]
fn unknown_calls_are_refused_with_their_offset() {
    let data: &[(&str, &[u8])] = &[];
    let system = [b"cposix\nsystem\n", &text("id")[..], b"\x85R"].concat();
    check(
        &system,
        data,
        expect![
            "byte 24 of its pickle: loading it would call posix.system, which is not known to be harmless; nothing was called"
        ],
    );
    check(
        &[&system[..], b"}"].concat(),
        data,
        expect![
            "byte 24 of its pickle: loading it would call posix.system, which is not known to be harmless; nothing was called"
        ],
    );
    check(
        b"c__builtin__\neval\n)\x81",
        data,
        expect![
            "byte 21 of its pickle: loading it would call __builtin__.eval, which is not known to be harmless; nothing was called"
        ],
    );
    check(
        b"ctorch\nSize\n)R)R",
        data,
        expect![
            "byte 17 of its pickle: loading it would call the result of another call, which is not known to be harmless; nothing was called"
        ],
    );
    check(
        &[b"c\x1b[31mos\nsystem\n".to_vec(), b")R".to_vec()].concat(),
        data,
        expect![[
            r#"byte 19 of its pickle: loading it would call \u{1b}[31mos.system, which is not known to be harmless; nothing was called"#
        ]],
    );
    let net = [b"c__main__\nNet\n)\x81", &dict(&[("x", b"N".to_vec())])[..], b"b"].concat();
    check(
        &net,
        data,
        expect![
            "byte 17 of its pickle: loading it would call __main__.Net, which is not known to be harmless; nothing was called"
        ],
    );
    expect!["loading it would call functions that are not known to be harmless: __main__.Net"]
        .assert_eq(&shown(&archive(&net, data), &Options { any_class: true }));
}

#[test]
fn an_inconsistent_tensor_is_named() {
    let four = storage("torch\nFloatStorage", "0", 4);
    let data: &[(&str, &[u8])] = &[("m/data/0", &[0; 16])];
    let check = |tensor: Vec<u8>, expected: Expect| check(&dict(&[("w", tensor)]), data, expected);
    check(vector(&four, 0, 5, 1), expect![[r#"tensor "w": ends at byte 20 of its storage, which has 16"#]]);
    check(vector(&four, 1, 4, 1), expect![[r#"tensor "w": ends at byte 20 of its storage, which has 16"#]]);
    check(
        vector(&four, 0, 2, 200),
        expect![[r#"tensor "w": ends at byte 804 of its storage, which has 16"#]],
    );
    check(
        vector(&storage("torch\nFloatStorage", "9", 4), 0, 4, 1),
        expect![[r#"tensor "w": its storage "9" is not in the archive"#]],
    );
    check(
        vector(&storage("torch\nFloatStorage", "0", 5), 0, 4, 1),
        expect![[r#"tensor "w": its storage "0" has 16 bytes, too few for 5 elements"#]],
    );
    check(
        vector(&storage("torch\nQInt8Storage", "0", 4), 0, 4, 1),
        expect![[r#"tensor "w": elements of a type that is not known"#]],
    );
    check(vector(b"K\x01", 0, 4, 1), expect![[r#"tensor "w": its storage is not in the archive"#]]);
    check(vector(b"]Q", 0, 4, 1), expect![[r#"tensor "w": its storage is not named as PyTorch names them"#]]);
    check(
        b"ctorch._utils\n_rebuild_tensor_v2\n)R".to_vec(),
        expect![[r#"tensor "w": its storage is not in the archive"#]],
    );
    check(
        b"ctorch._utils\n_rebuild_sparse_tensor\n)R".to_vec(),
        expect!["1 tensors of unsupported kinds were skipped (sparse, quantized, nested or others)"],
    );
}

#[test]
fn other_files_are_not_archives() {
    let options = Options::default();
    expect!["byte 139: neither data.pkl of torch.save nor arrays of NumPy in the archive"]
        .assert_eq(&shown(&zip(&[("m/other", b"")]), &options));
    expect!["its pickle: byte 3: the file ends here; it was cut off"]
        .assert_eq(&shown(&zip(&[("m/data.pkl", b"\x80\x02]")]), &options));
    expect!["byte 0: the format of torch.save before 1.6 is not supported: load the file and save it again"]
        .assert_eq(&shown(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", &options));
}

#[test]
fn cyclic_and_very_deep_containers_are_bounded() {
    check(b"]q\0h\0a", &[], expect![""]);
    let mut deep = vec![b']'; 3000];
    deep.extend(vec![b'a'; 2999]);
    check(&deep, &[], expect!["1 containers are more than 100 levels deep and were left out"]);
}

proptest! {
    #[test]
    fn never_panics(
        at in 0usize..300, bytes in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let storage = storage("torch\nFloatStorage", "0", 4);
        let mut value = dict(&[("w", vector(&storage, 0, 4, 1)), ("x", vector(&storage, 1, 2, 2))]);
        let at = at % value.len();
        value.splice(at..(at + bytes.len()).min(value.len()), bytes);
        shown(&archive(&value, &[("m/data/0", &[0; 16])]), &Options { any_class: true });
    }
}
