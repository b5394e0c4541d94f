//! What is remembered of earlier runs.

use super::*;
use crate::protection::options::target::Victims;
use crate::protection::plan::victim::ProcessInfo;

const ONE: ProcessKey = ProcessKey { pid: 10, start: 100 };
const TWO: ProcessKey = ProcessKey { pid: 11, start: 101 };

fn roster(keys: &[ProcessKey]) -> Arc<Roster> {
    let person = |key: &ProcessKey| ProcessInfo {
        key: *key,
        parent: 1,
        resident: crate::model::units::Bytes::ZERO,
        group: None,
        rank: false,
    };
    let people: Vec<ProcessInfo> = keys.iter().map(person).collect();
    Roster::new(&people, Victims::Whole, None).into()
}

fn start(path: &Path, boot: &str) -> MemoryThread {
    MemoryThread::start(Some(path.to_owned()), boot.to_owned()).unwrap()
}

/// Waits until everything is written.
fn settle(archive: &MemoryThread) {
    let begun = clock::now();
    while archive.shared.written.load(Ordering::Acquire) < archive.shared.output.load(Ordering::Acquire) {
        assert!(clock::now().since(begun) < Duration::from_secs(30), "waited too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What is remembered once the file is read, however long that takes.
fn remembered(archive: &MemoryThread) -> Remembered {
    let _ = archive.read.lock().unwrap().recv_timeout(Duration::from_secs(30));
    archive.remembered()
}

#[test]
fn what_was_done_is_known_to_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state/protection.jsonl");
    let now = clock::now();
    let first = start(&path, "a");
    let mut memory = first.memory();
    memory.asked(now, &roster(&[ONE]));
    memory.ended(now, &"train".into(), Some(7));
    settle(&first);
    let check = |archive: &MemoryThread, same_boot: bool| {
        let known = remembered(archive);
        // Its thread drops the sender once it has written the file again, which nobody else may do meanwhile.
        let rewritten = archive.read.lock().unwrap().recv_timeout(Duration::from_secs(30));
        assert_eq!(rewritten, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
        let asked = known.asked([TWO, ONE].iter()).map(|at| at.monotonic().as_millis());
        assert_eq!(asked, same_boot.then_some(now.monotonic().as_millis()));
        assert_eq!(known.asked([TWO].iter()), None);
        let ends = known.ends(now);
        assert_eq!(
            ends.iter().map(|end| (end.target.as_str(), end.user)).collect::<Vec<_>>(),
            [("train", Some(7))]
        );
    };
    check(&first, true);
    // Nothing tells the first one to end: it may be killed at any time.
    check(&start(&path, "a"), true);
    check(&start(&path, "a"), true);
    check(&start(&path, "b"), false);
    let later = now.plus(END_RETENTION);
    assert_eq!(remembered(&start(&path, "b")).ends(later), []);
}

#[test]
fn only_the_first_who_asks_waits_for_the_file() {
    use std::sync::mpsc::RecvTimeoutError;
    let archive = MemoryThread::start(None, String::new()).unwrap();
    remembered(&archive);
    let result = archive.read.lock().unwrap().recv_timeout(Duration::from_secs(30));
    assert_eq!(result, Err(RecvTimeoutError::Disconnected));
}

#[test]
fn a_file_that_has_grown_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("protection.jsonl");
    let archive = start(&path, "a");
    remembered(&archive);
    let memory = archive.memory();
    let keys: Vec<ProcessKey> = (1..400).map(|pid| ProcessKey { pid, start: 1 }).collect();
    let roster = roster(&keys);
    for _ in 0..1_200 {
        memory.send(Message::Asked(clock::now(), Arc::clone(&roster)));
        settle(&archive);
    }
    assert!(std::fs::metadata(&path).unwrap().len() < 5 << 20);
    assert!(remembered(&start(&path, "a")).asked(keys.iter()).is_some());
}

#[test]
fn the_time_of_a_line_is_the_boots_and_not_the_clocks() {
    let at = Timestamp::new(Duration::from_secs(500), Duration::from_secs(1_000_000));
    let ended = Fact::Ended { target: "train".to_owned(), user: None };
    let text = serde_json::to_string(&line("a", at, ended)).unwrap();
    let known = |boot: &str, now: Timestamp| {
        let mut known = KnownActions::default();
        known.take_all(&text, boot, now);
        known.ended.first().map(|end| now.since(end.at).as_secs())
    };
    // The clock was set back, or ahead by a day.
    for unix in [900_000, 1_000_060, 1_086_400] {
        let now = Timestamp::new(Duration::from_secs(560), Duration::from_secs(unix));
        assert_eq!(known("a", now), Some(60));
    }
    let rebooted = Timestamp::new(Duration::from_secs(5_000), Duration::from_secs(1_000_060));
    assert_eq!(known("b", rebooted), Some(60));
    let long_ago = Timestamp::new(Duration::from_secs(5), Duration::from_secs(1_086_400));
    assert_eq!(known("b", long_ago), None);
}

#[test]
fn what_is_no_line_is_passed_over_and_no_link_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("protection.jsonl");
    let elsewhere = folder.path().join("elsewhere");
    std::fs::write(&elsewhere, "mine").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let archive = start(&path, "a");
    let mut memory = archive.memory();
    memory.asked(clock::now(), &roster(&[ONE]));
    settle(&archive);
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "mine");
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("x\n{whole}{}", &whole[..whole.len() / 2])).unwrap();
    assert!(remembered(&start(&path, "a")).asked([ONE].iter()).is_some());
}

#[test]
fn without_a_folder_it_is_remembered_until_the_end() {
    let archive = MemoryThread::start(None, String::new()).unwrap();
    archive.memory().asked(clock::now(), &roster(&[ONE]));
    settle(&archive);
    assert!(remembered(&archive).asked([ONE].iter()).is_some());
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text: String) {
        KnownActions::default().take_all(&text, "a", Timestamp::from_secs(9));
    }
}
