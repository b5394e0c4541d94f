//! What a process reported over the job socket before its end.

use serde_json::Value;

use super::*;
use crate::model::timeline::{Entry, EntryKind, Timeline};

/// A timeline of the rank 0 of `train`, whose process is 11.
fn timeline(entries: &[(EntryKind, &str, Value)]) -> Arc<Timeline> {
    let entry = |(kind, name, detail): &(EntryKind, &str, Value)| {
        let detail = serde_json::value::to_raw_value(detail).ok();
        let (workload, rank) = ("train".into(), "0".into());
        Arc::new(Entry {
            sequence: 1,
            unix_seconds: 10_001.0,
            kind: *kind,
            workload,
            rank,
            pid: 11,
            name: (*name).into(),
            step: Some(7),
            detail,
            ..Entry::default()
        })
    };
    Arc::new(Timeline { entries: entries.iter().map(entry).collect(), forgotten: 0 })
}

/// The end of that process, with this exit code, after what the timeline has.
fn end_of_rank(code: i32, timeline: &Arc<Timeline>) -> Arc<End> {
    let mut node = Node::new(&[(11, "train", Some("0"))]);
    node.running.clear();
    for second in 0..4 {
        node.tick(|batch| {
            batch.facts.timeline = Arc::clone(timeline);
            if second == 0 {
                exit(batch, 11, code << 8);
            }
        });
    }
    let [end] = &*node.last.outlook.ends else { panic!("{:?}", node.last.outlook.ends) };
    Arc::clone(end)
}

#[test]
fn the_last_message_of_a_rank_counts() {
    let gib = f64::from(1 << 30);
    let failed = serde_json::json!({"device": 0, "requested": 4.0 * gib, "allocated": 70.0 * gib,
        "reserved": 71.0 * gib, "free": gib, "total": 80.0 * gib});
    let bye =
        serde_json::json!({"end": "out_of_memory", "reason": "torch.OutOfMemoryError", "resource": "device"});
    let end = end_of_rank(1, &timeline(&[(EntryKind::Oom, "oom", failed), (EntryKind::End, "bye", bye)]));
    assert_eq!((end.cause, end.step), (EndCause::GpuMemory, Some(7)));
    assert!(end.evidence.contains(&EndEvidence::Exception { name: "torch.OutOfMemoryError".into() }));
}

#[test]
fn what_a_rank_said_counts_until_its_process_has_ended() {
    let bye = |end: &str| serde_json::json!({"end": end, "reason": "MemoryError", "resource": "host"});
    let lost = serde_json::json!({"reason": "end of stream"});
    let told = timeline(&[
        (EntryKind::End, "bye", bye("finished")),
        (EntryKind::Start, "start", Value::Null),
        // That of a monitor which the last one has replaced.
        (EntryKind::End, "end", lost),
        (EntryKind::End, "bye", bye("out_of_memory")),
    ]);
    let mut node = Node::new(&[(11, "train", Some("0"))]);
    // It has closed its connection, and needs a minute to end.
    node.running[0].2 = None;
    for _ in 0..120 {
        node.tick(|batch| batch.facts.timeline = Arc::clone(&told));
    }
    node.running.clear();
    node.tick(|batch| exit(batch, 11, 0x100));
    for _ in 0..4 {
        node.tick(|batch| batch.facts.timeline = Arc::clone(&told));
    }
    let [end] = &*node.last.outlook.ends else { panic!("{:?}", node.last.outlook.ends) };
    assert_eq!((end.rank.as_str(), end.step), ("0", Some(7)));
    assert!(end.evidence.contains(&EndEvidence::Exception { name: "MemoryError".into() }), "{end:?}");
}

#[test]
fn a_rank_that_ends_itself_says_so_before_its_last_sample() {
    let bye = |end: &str| {
        timeline(&[(EntryKind::End, "bye", serde_json::json!({"end": end, "reason": "will not fit"}))])
    };
    let of = |end: &str, code: i32| {
        let found = end_of_rank(code, &bye(end));
        (found.cause, found.retry, found.step)
    };
    assert_eq!(of("aborted", 80), (EndCause::WillNotFit, Retry::CannotHelp, Some(7)));
    assert_eq!(of("aborted", 1).0, EndCause::Failed, "something else ended it meanwhile");
    assert_eq!(of("failed", 80).0, EndCause::Failed, "a program that exits with 80 for its own reasons");
}
