//! Snapshots of every supported format, damaged ones, and recorded ones.

use expect_test::expect;
use proptest::prelude::*;

use super::analysis::{Analysis, Options, analyze, compare};
use super::*;
use crate::files::pickle::Limits;
use crate::files::pickle::testing::{Py, dict, list, write};
use memwarden::model::units::Bytes;

const OPTIONS: Options = Options { top: 5, request: None };
const MIB: u64 = 1 << 20;

fn limits(file: &[u8]) -> Limits {
    Limits::for_file(u64::try_from(file.len()).unwrap(), Limits::MEMORY_BYTES)
}

/// Decodes and analyzes; returns the error as it is displayed.
fn both<R>(value: &Py, look: impl FnOnce(&Snapshot<'_>, &Analysis<'_>) -> R) -> Result<R, String> {
    let file = write(value, 4);
    let limits = limits(&file);
    let snapshot = decode(&file, &limits).map_err(|error| error.to_string())?;
    let analysis = analyze(&snapshot, &OPTIONS).map_err(|error| error.to_string())?;
    assert!(snapshot.memory_bytes() <= limits.memory_bytes);
    Ok(look(&snapshot, &analysis))
}

fn frames(lines: &[(&str, u64)]) -> Py {
    list(lines.iter().map(|(name, line)| {
        dict([("name", (*name).into()), ("filename", "/job/train.py".into()), ("line", (*line).into())])
    }))
}

fn block(address: u64, size: u64, requested: u64, state: &str, name: &str) -> Py {
    dict([
        ("address", address.into()),
        ("size", size.into()),
        ("requested_size", requested.into()),
        ("state", state.into()),
        ("frames", frames(&[(name, 7)])),
    ])
}

fn segment(address: u64, size: u64, expandable: bool, blocks: Vec<Py>) -> Py {
    dict([
        ("device", 0.into()),
        ("address", address.into()),
        ("total_size", size.into()),
        ("stream", 0.into()),
        ("segment_type", "large".into()),
        ("segment_pool_id", Py::Tuple(vec![0.into(), 0.into()])),
        ("is_expandable", expandable.into()),
        ("blocks", Py::List(blocks)),
    ])
}

fn event(action: &str, address: u64, size: u64, time_us: u64, name: &str) -> Py {
    let address = (if action == "oom" { "device_free" } else { "addr" }, Py::from(address));
    dict([
        ("action", action.into()),
        address,
        ("size", size.into()),
        ("stream", 0.into()),
        ("time_us", time_us.into()),
        ("frames", frames(&[(name, 7), ("main", 1)])),
    ])
}

fn snapshot(segments: Vec<Py>, events: Vec<Py>) -> Py {
    dict([("segments", Py::List(segments)), ("device_traces", list([Py::List(events)]))])
}

#[test]
fn a_gap_between_live_blocks_is_not_releasable_and_a_free_segment_is() {
    let base = 0x7f00_0000_0000;
    let segments = vec![
        segment(
            base,
            60 * MIB,
            false,
            vec![
                block(base, 20 * MIB, 19 * MIB, "active_allocated", "weights"),
                block(base + 20 * MIB, 10 * MIB, 0, "inactive", "gone"),
                block(base + 30 * MIB, 20 * MIB, 20 * MIB, "active_pending_free", "sent"),
                block(base + 50 * MIB, 10 * MIB, 0, "inactive", "gone"),
            ],
        ),
        segment(
            base + 100 * MIB,
            40 * MIB,
            false,
            vec![block(base + 100 * MIB, 40 * MIB, 0, "inactive", "gone")],
        ),
    ];
    both(&snapshot(segments, vec![]), |_, analysis| {
        let totals = analysis.totals;
        assert_eq!(totals.reserved_bytes, Bytes::new(100 * MIB));
        assert_eq!(totals.allocated_bytes, Bytes::new(20 * MIB));
        assert_eq!(totals.active_bytes, Bytes::new(40 * MIB));
        assert_eq!(totals.internal_bytes, Bytes::new(MIB));
        assert_eq!(totals.free_bytes, Bytes::new(60 * MIB));
        assert_eq!(totals.unreleasable_bytes, Bytes::new(20 * MIB));
        assert_eq!(totals.releasable_bytes, Bytes::new(40 * MIB));
        assert_eq!(totals.largest_free_bytes, Bytes::new(40 * MIB));
        let gap = &analysis.gaps[0];
        assert_eq!((analysis.gaps.len(), gap.size_bytes), (2, Bytes::new(10 * MIB)));
        let names = [&gap.before, &gap.after].map(|side| side.as_ref().unwrap().stack.short.clone());
        assert_eq!(names, ["weights train.py:7", "sent train.py:7"]);
        let largest = &analysis.requests[1];
        assert_eq!((largest.size_bytes, largest.fits), (Bytes::new(20 * MIB), true));
        assert_eq!(largest.lost_bytes, Bytes::new(20 * MIB));
        assert_eq!(analysis.advice[0].setting, "expandable_segments:True");
    })
    .unwrap();
}

#[test]
fn free_pages_of_an_expandable_segment_are_releasable() {
    // Free from 10 to 70 MiB: of pages of 20 MiB, 20 to 60 are whole.
    let blocks = vec![
        block(0, 10 * MIB, 10 * MIB, "active_allocated", "first"),
        block(10 * MIB, 60 * MIB, 0, "inactive", "gone"),
        block(70 * MIB, 10 * MIB, 10 * MIB, "active_allocated", "last"),
    ];
    both(&snapshot(vec![segment(0, 80 * MIB, true, blocks)], vec![]), |_, analysis| {
        assert_eq!(analysis.totals.releasable_bytes, Bytes::new(40 * MIB));
        assert_eq!(analysis.totals.unreleasable_bytes, Bytes::new(20 * MIB));
        assert_eq!(analysis.totals.inactive_split_bytes, Bytes::new(60 * MIB));
    })
    .unwrap();
}

#[test]
fn a_peak_includes_memory_allocated_before_the_trace() {
    // 4 MiB stay allocated from before the trace, 2 MiB from before are freed in it, 8 MiB are allocated and freed in
    // it.
    let blocks = vec![
        block(0, 4 * MIB, 4 * MIB, "active_allocated", "weights"),
        block(4 * MIB, MIB, MIB, "active_allocated", "loss"),
        block(5 * MIB, 15 * MIB, 0, "inactive", "gone"),
    ];
    let events = vec![
        event("alloc", 6 * MIB, 8 * MIB, 1_000_000, "activation"),
        event("free_requested", 14 * MIB, 2 * MIB, 1_100_000, "gone"),
        event("free_completed", 14 * MIB, 2 * MIB, 1_200_000, "gone"),
        event("free_completed", 6 * MIB, 8 * MIB, 1_300_000, "gone"),
        event("alloc", 4 * MIB, MIB, 1_400_000, "loss"),
        event("oom", MIB, 64 * MIB, 1_500_000, "huge"),
    ];
    both(&snapshot(vec![segment(0, 20 * MIB, false, blocks)], events), |_, analysis| {
        let trace = &analysis.traces[0];
        assert_eq!(trace.base_bytes, Bytes::new(6 * MIB));
        assert_eq!(trace.end_bytes, Bytes::new(5 * MIB));
        assert_eq!((trace.peak.live_bytes, trace.peak.event), (Bytes::new(14 * MIB), 1));
        assert_eq!(trace.unknown_frees, 1);
        assert_eq!(trace.span_seconds, Some(0.5));
        let stacks: Vec<&str> = trace.peak.holders.iter().map(|holder| holder.stack.short.as_str()).collect();
        assert_eq!(
            stacks,
            ["activation train.py:7 < main train.py:1", "weights train.py:7", "no stack recorded"]
        );
        let failure = &trace.failures[0];
        assert_eq!(failure.requested_bytes, Bytes::new(64 * MIB));
        assert_eq!(failure.device_free_bytes, Bytes::new(MIB));
        assert!(!trace.leaks.conclusive, "one step in progress is not conclusive");
        let advice = &analysis.advice.iter().map(|advice| advice.setting.as_str()).collect::<Vec<_>>();
        assert!(advice.contains(&"a smaller batch, activation checkpointing, or sharding"), "{advice:?}");
    })
    .unwrap();
}

/// Steps that allocate and free 64 MiB, and keep `kept` bytes each.
fn steps(kept: u64) -> Py {
    let (mut events, mut blocks) = (Vec::new(), Vec::new());
    blocks.push(block(0, 64 * MIB, 0, "inactive", "gone"));
    for step in 0..12u64 {
        let time = 1_000_000 * (step + 1);
        events.push(event("alloc", 0, 64 * MIB, time, "activation"));
        let address = 64 * MIB + step * MIB;
        if kept > 0 {
            events.push(event("alloc", address, kept, time + 1, "log"));
            blocks.push(block(address, MIB, kept, "active_allocated", "log"));
        }
        events.push(event("free_completed", 0, 64 * MIB, time + 2, "activation"));
    }
    let size = 64 * MIB + if kept > 0 { 12 * MIB } else { 0 };
    snapshot(vec![segment(0, size, false, blocks)], events)
}

#[test]
fn memory_left_by_every_step_is_suspect() {
    both(&steps(1000), |_, analysis| {
        let leaks = &analysis.traces[0].leaks;
        assert!(leaks.conclusive && leaks.whole_steps >= 8, "{leaks:?}");
        let first = &leaks.stacks[0];
        assert!(first.suspect && first.stack.short.starts_with("log"), "{first:?}");
        assert_eq!((first.allocations, first.per_step_bytes), (12, Some(Bytes::new(1000))));
    })
    .unwrap();
    both(&steps(0), |_, analysis| {
        let leaks = &analysis.traces[0].leaks;
        assert!(leaks.conclusive && leaks.stacks.is_empty(), "{leaks:?}");
    })
    .unwrap();
}

#[test]
fn growth_between_snapshots_is_reported_by_stack() {
    let files = [steps(0), steps(1000)].map(|value| write(&value, 2));
    let limits = files.each_ref().map(|file| limits(file));
    let before = decode(&files[0], &limits[0]).unwrap();
    let after = decode(&files[1], &limits[1]).unwrap();
    let comparison = compare(&before, &after, 5).unwrap();
    assert_eq!(comparison.stacks.len(), 1);
    assert_eq!(comparison.stacks[0].change_bytes, 12_000);
    assert_eq!((comparison.stacks[0].before_blocks, comparison.stacks[0].after_blocks), (0, 12));
}

#[test]
fn a_snapshot_of_the_oldest_release_is_read() {
    // A list without a dictionary; blocks without addresses, their owners in `history`.
    let owner = dict([
        ("addr", 0x1000.into()),
        ("real_size", 900.into()),
        (
            "frames",
            list([dict([
                ("name", "forward".into()),
                ("filename", "/job/net.py".into()),
                ("line", u64::MAX.into()),
            ])]),
        ),
    ]);
    let blocks = list([
        dict([("size", 1024.into()), ("state", "active_allocated".into()), ("history", list([owner]))]),
        dict([("size", (2 * MIB - 1024).into()), ("state", "inactive".into())]),
    ]);
    let segment = dict([("address", 0x1000.into()), ("total_size", (2 * MIB).into()), ("blocks", blocks)]);
    both(&list([segment]), |snapshot, analysis| {
        assert_eq!(analysis.totals.requested_bytes, Bytes::new(900));
        assert_eq!(analysis.segments[0].pool, SegmentKind::Small);
        assert_eq!(snapshot.blocks[1].address, 0x1000 + 1024);
        assert_eq!(analysis.stacks[0].stack.frames, ["forward (/job/net.py)"]);
        assert!(analysis.allocator_settings.is_none() && analysis.traces.is_empty());
    })
    .unwrap();
}

#[test]
fn errors_name_the_position() {
    let error = |value: Py| both(&value, |_, _| ()).unwrap_err();
    let with = |blocks| dict([("segments", list([segment(0, 512, false, blocks)]))]);
    expect!["segments[0].blocks[1].size: missing"].assert_eq(&error(with(vec![
        block(0, 512, 512, "inactive", "a"),
        dict([("state", "inactive".into())]),
    ])));
    expect![[r#"segments[0].blocks[0].state: expected a block's state, found "lost""#]]
        .assert_eq(&error(with(vec![block(0, 512, 512, "lost", "a")])));
    expect!["segments[0].blocks[0].size: expected an integer of 0 or more, found -1"]
        .assert_eq(&error(with(vec![dict([("size", Py::Int(-1)), ("state", "inactive".into())])])));
    expect![[r#"segments: expected a list, found "none""#]]
        .assert_eq(&error(dict([("segments", "none".into())])));
    expect!["segments[0]: expected a dictionary, found None"].assert_eq(&error(list([Py::None])));
    expect!["not an allocator snapshot: it has no segments"].assert_eq(&error(dict([])));
    expect!["not an allocator snapshot: it holds a tuple"].assert_eq(&error(Py::Tuple(vec![])));
    let many = Py::Dict((0..65u64).map(|key| (key.to_string().as_str().into(), key.into())).collect());
    expect!["segments[0]: more than 64 keys"].assert_eq(&error(list([many])));
    let event = dict([("action", "alloc".into()), ("size", 1.into())]);
    expect!["device_traces[0][0].addr: missing"].assert_eq(&error(snapshot(vec![], vec![event])));
    let frame = dict([("name", 5.into())]);
    let block = dict([("size", 512.into()), ("state", "active_allocated".into()), ("frames", list([frame]))]);
    expect!["segments[0].blocks[0].frames[0].name: expected text, found 5"]
        .assert_eq(&error(with(vec![block])));
}

#[test]
fn anomalies_are_noted_and_the_largest_numbers_do_not_overflow() {
    let most = u64::MAX;
    let blocks = || {
        vec![
            block(0, most, most, "active_allocated", "a"),
            block(5, most, most, "active_pending_free", "b"),
            block(9, most, 0, "inactive", "c"),
        ]
    };
    let events = vec![
        event("alloc", 0, most, most, "a"),
        event("alloc", 0, most, 1, "a"),
        event("free_completed", 7, most, 2, "a"),
        event("segment_alloc", 0, most, 3, "a"),
        event("tomorrow", 0, most, 3, "a"),
    ];
    let value = snapshot(vec![segment(most, 12, true, blocks()), segment(0, most, false, blocks())], events);
    both(&value, |snapshot, _| assert!(snapshot.notes.len() > 2, "{:?}", snapshot.notes)).unwrap();
}

#[test]
fn a_record_that_is_referenced_often_stays_within_the_limit() {
    // One trace with 1,000 references to one event, referenced 1,000 times: a million events in a few kilobytes.
    let mut file = b"\x80\x02}(X\x08\0\0\0segments]X\x0d\0\0\0device_traces](".to_vec();
    file.extend(b"](}(X\x06\0\0\0actionX\x05\0\0\0allocX\x04\0\0\0addrK\x01uq\x01");
    for _ in 0..999 {
        file.extend(b"h\x01");
    }
    file.extend(b"eq\x02");
    for _ in 0..999 {
        file.extend(b"h\x02");
    }
    file.extend(b"eu.");
    let error = decode(&file, &limits(&file)).unwrap_err();
    assert!(matches!(error, SnapshotError::Memory { .. }), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    expect!["needs more than the 1048576 bytes of memory allowed for it"].assert_eq(&source);
}

#[test]
fn a_truncated_file_is_an_error() {
    let file = write(&steps(1000), 4);
    for len in 0..file.len() {
        let cut = &file[..len];
        assert!(matches!(decode(cut, &limits(cut)), Err(SnapshotError::Pickle(_))), "cut to {len}");
    }
}

proptest! {
    #[test]
    fn never_panics_on_a_changed_file(at in 0usize..4000, to in any::<u8>(), protocol in prop::sample::select(vec![2u8, 4])) {
        let mut file = write(&steps(1000), protocol);
        let at = at % file.len();
        file[at] = to;
        let limits = limits(&file);
        if let Ok(snapshot) = decode(&file, &limits) {
            let _ = analyze(&snapshot, &OPTIONS);
        }
    }
}

/// The recorded snapshots beside the repository, if present.
fn recorded() -> Option<std::path::PathBuf> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/snapshots");
    if !folder.is_dir() {
        crate::skip::skip("the recorded allocator snapshots are not beside the repository");
        return None;
    }
    Some(folder)
}

#[test]
fn recorded_snapshots_give_the_expected_figures() {
    let Some(folder) = recorded() else { return };
    let expected = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&expected).unwrap();
    assert!(expected.len() >= 4);
    for (name, figures) in &expected {
        let file = std::fs::read(folder.join(name)).unwrap();
        let limits = limits(&file);
        let snapshot = decode(&file, &limits).unwrap();
        let analysis = analyze(&snapshot, &OPTIONS).unwrap();
        let totals = analysis.totals;
        let (reserved, free) = (totals.reserved_bytes, totals.free_bytes);
        let ratio = |part: Bytes, whole: Bytes| (part.share_of(whole).unwrap().get() * 1e4).round() / 1e4;
        let mut found = serde_json::json!({
            "segments": totals.segments,
            "reserved": reserved,
            "allocated": totals.allocated_bytes,
            "active": totals.active_bytes,
            "requested": totals.requested_bytes,
            "external_free": free,
            "internal": totals.internal_bytes,
            "largest_free": totals.largest_free_bytes,
            "nfree": totals.free_blocks,
            "inactive_split": totals.inactive_split_bytes,
            "whole_free": totals.whole_free_bytes,
            "frag_external_1-largest/free": ratio(free.saturating_sub(totals.largest_free_bytes), free),
            "(res-alloc)/res": ratio(reserved.saturating_sub(totals.allocated_bytes), reserved),
            "util alloc/res": ratio(totals.allocated_bytes, reserved),
        });
        if let Some(trace) = analysis.traces.first() {
            let span = trace.span_seconds.map(|span| (span * 1e3).round() / 1e3);
            found["trace0"] = serde_json::json!({
                "n": trace.events,
                "alloc_live_end": trace.traced_live_bytes,
                "alloc_peak": trace.traced_peak_bytes,
                "seg_net": i64::try_from(trace.reserved_net_bytes).unwrap(),
                "seg_peak": trace.reserved_net_peak_bytes,
                "free_unknown": trace.unknown_frees,
                "span_s": span,
            });
        }
        assert_eq!(&found, figures, "{name}");
        assert!(snapshot.notes.is_empty(), "{name}: {:?}", snapshot.notes);
        assert!(snapshot.memory_bytes() <= limits.memory_bytes);
    }
}

#[test]
fn a_recorded_snapshot_truncated_anywhere_is_an_error() {
    let Some(folder) = recorded() else { return };
    let file = std::fs::read(folder.join("maphsge4.pickle")).unwrap();
    assert!(decode(&file, &limits(&file)).is_ok());
    for len in 0..file.len() {
        let cut = &file[..len];
        assert!(matches!(decode(cut, &limits(cut)), Err(SnapshotError::Pickle(_))), "cut to {len}");
    }
}
