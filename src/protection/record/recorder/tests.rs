//! Records of incidents, from their beginning to their end.

use super::*;
use crate::model::facts::{OomScope, OomVictim};
use crate::model::finding::Subject;
use crate::model::frame::Frame;
use crate::model::health::Rule;
use crate::model::ids::ProcessKey;
use crate::model::outlook::{Conclusion, Forecast, Outlook};
use crate::model::units::Bytes;
use crate::protection::enforce::executor::BackgroundExecutor as _;
use crate::protection::policy::Reason;
use crate::protection::record::ledger::{CompletedStep, Ledger};
use crate::protection::record::record_step::RecordExecutor;
use crate::protection::types::audit::{Quantity, Reading};
use crate::protection::types::incident::{Circumstances, Sample};
use crate::protection::types::rung::State;
use crate::protection::types::step::{SignalNumber, Step, TargetId, Touched, Work};
use std::sync::LazyLock;

#[track_caller]
fn until(mut check: impl FnMut() -> bool) {
    let begun = clock::now();
    while !check() {
        assert!(clock::now().since(begun) < Duration::from_secs(20), "waited too long");
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Room {
    folder: tempfile::TempDir,
    store: Store,
    recorder: Arc<Recorder>,
    ledger: Ledger,
}

fn room(folder: tempfile::TempDir) -> Room {
    let store = Store::new(folder.path().join("incidents"));
    let audit = AuditLog::start(None).unwrap();
    let flight = SharedFlight::default();
    flight.lock().unwrap().push(Sample {
        at: Timestamp::from_secs(9),
        subject: "host".into(),
        used: Some(Bytes::new(5)),
        limit: Some(Bytes::new(10)),
    });
    let proc = folder.path().join("proc");
    std::fs::create_dir_all(&proc).unwrap();
    // A frame with a healthy host.
    let healthy = Forecast { used_bytes: 5.0, limit_bytes: 10.0, rule: Rule::None, ..Forecast::default() };
    let host = Conclusion { subject: Subject::host(), forecast: Some(healthy), ..Conclusion::default() };
    let frame = Frame {
        sequence: 1,
        at: Timestamp::from_secs(9),
        families: Vec::new(),
        sources: Vec::new(),
        findings: Vec::new(),
        outlook: Outlook { conclusions: vec![host], ..Outlook::default() },
        timeline: Arc::default(),
        acknowledged: Arc::default(),
    };
    let frames = SharedFrames::new(Mutex::new(vec![Arc::new(frame)]));
    let recorder = Recorder::start(Some(store.clone()), audit.clone(), proc, flight, frames, None).unwrap();
    let recorder = Arc::new(recorder);
    let ledger = Ledger::new(audit, Arc::clone(&recorder), "ab12");
    Room { folder, store, recorder, ledger }
}

fn turn<'a>(second: u64, target: &'a Label, from: State, to: State) -> LoggedTransition<'a> {
    static POLICY: LazyLock<Arc<str>> = LazyLock::new(|| "job (enforce): SIGTERM, then SIGKILL.".into());
    const READINGS: &[Reading] = &[Reading {
        what: Quantity::HeadroomBytes(Resource::Cgroup),
        value: Some(7.0),
        threshold: Some(9.0),
        age_seconds: Some(0.1),
    }];
    LoggedTransition {
        at: Timestamp::from_secs(second),
        slot: TargetId(3),
        target,
        workload: target,
        user: Some(7),
        mode: "enforce",
        from,
        to,
        reason: Reason::Leak,
        readings: READINGS,
        reading: None,
        under_way: to != State::Ok,
        policy: &POLICY,
    }
}

fn read(store: &Store, id: &str) -> Incident {
    record(store, id).unwrap()
}

#[test]
fn an_escalation_leaves_an_incident_folder() {
    let mut room = room(tempfile::tempdir().unwrap());
    let job = Label::from("job a");
    let (store, ledger) = (room.store.clone(), &mut room.ledger);
    ledger.moved(&turn(10, &job, State::Warn, State::Soft));
    let id = ledger.incident(TargetId(3)).unwrap().to_owned();
    assert_eq!(id, "19700101T000010.000Z-job-a");
    // It is there while the incident goes on.
    until(|| store.file(&id, RECORD).is_ok());
    let key = ProcessKey { pid: 77, start: 5 };
    let work = Work::Signal { process: key, signal: SignalNumber::KILL, only_if_caught: false };
    let step = Step { target: TargetId(3), stage: State::Kill, work };
    ledger.moved(&turn(11, &job, State::Soft, State::Kill));
    let number = ledger.before(Timestamp::from_secs(11), &step);
    let done = Ok(StepDone { outcome: Outcome::Started(Ticket(5)), processes: 40 });
    let touched: Vec<Touched> = (0..40)
        .map(|pid| Touched {
            key: ProcessKey { pid, start: 1 },
            uid: 0,
            comm: [0; 16],
            resident: 1,
            errno: 0,
        })
        .collect();
    let completed = CompletedStep { number, step: &step, result: &done, micros: 30, touched: &touched };
    ledger.after(Timestamp::from_secs(11), &completed);
    let late = StepError::TimedOut { within: Duration::from_secs(1), left: 2 };
    ledger.ended(Timestamp::from_secs(13), &Finished::new(Ticket(5), Err(late)));
    ledger.moved(&turn(14, &job, State::Cooldown, State::Ok));
    assert_eq!(ledger.incident(TargetId(3)), None);
    until(|| room.recorder.status().written == 1);
    let incident = read(&store, &id);
    assert_eq!(incident.circumstances, Circumstances::default(), "a leak names no resource");
    assert_eq!((incident.moves.len(), incident.steps.len(), incident.processes().len()), (3, 1, 40));
    assert_eq!(incident.ended_unix_seconds, Some(14.0));
    assert_eq!(incident.summary, "Memory of job a ran low; it was killed.");
    assert_eq!((incident.config.as_str(), incident.policy.is_empty()), ("ab12", false));
    let step = &incident.steps[0];
    assert_eq!((step.has_failed(), step.ended_after_seconds), (true, Some(2.0)));
    let file = |name| String::from_utf8(store.file(&id, name).unwrap()).unwrap();
    assert_eq!(file("memory-host.csv"), "t_s,bytes,limit\n9.000,5,10\n");
    assert!(!file("processes.csv").is_empty());
    // Each line was appended once.
    let mut again = Incident { moves: Vec::new(), steps: Vec::new(), ..incident.clone() };
    again.read(file("audit.jsonl").as_bytes());
    assert_eq!(again, incident);
    let names: Vec<_> = std::fs::read_dir(store.folder().join(&id)).unwrap().collect();
    assert_eq!(names.len(), 4, "{names:?}: nothing is rendered");
    drop(room.folder);
}

#[test]
fn a_step_that_ends_when_the_slot_has_another_job_belongs_to_the_incident_of_its_own() {
    let mut room = room(tempfile::tempdir().unwrap());
    let (first, second) = (Label::from("first"), Label::from("second"));
    let ledger = &mut room.ledger;
    ledger.moved(&turn(10, &first, State::Soft, State::Kill));
    let work = Work::KillTree { roots: [ProcessKey { pid: 77, start: 5 }].into() };
    let step = Step { target: TargetId(3), stage: State::Kill, work };
    let number = ledger.before(Timestamp::from_secs(10), &step);
    ledger.left(Timestamp::from_secs(11), TargetId(3));
    ledger.moved(&turn(12, &second, State::Warn, State::Soft));
    let id = ledger.incident(TargetId(3)).unwrap().to_owned();
    let result = Ok(StepDone { outcome: Outcome::Done, processes: 1 });
    let key = ProcessKey { pid: 77, start: 5 };
    let touched = &[Touched { key, uid: 0, comm: [0; 16], resident: 1, errno: 0 }];
    ledger.after(
        Timestamp::from_secs(13),
        &CompletedStep { number, step: &step, result: &result, micros: 30, touched },
    );
    ledger.moved(&turn(14, &second, State::Cooldown, State::Ok));
    until(|| {
        room.ledger.settle();
        room.recorder.status().written == 2
    });
    let audit = room.store.file(&id, "audit.jsonl").unwrap();
    let entries: Vec<String> = String::from_utf8(audit)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["entry"].to_string())
        .collect();
    assert_eq!(entries, ["\"transition\""; 2], "nothing of the kill of the other job");
    drop(room.folder);
}

#[test]
fn an_incident_has_the_reading_of_its_own_job() {
    let mut room = room(tempfile::tempdir().unwrap());
    let reason = Reason::Level(Resource::Host);
    let [headroom, total] = [Bytes::new(6), Bytes::new(12)];
    let reading = Some(policy::Reading {
        room: crate::model::room::Room::new(headroom, total),
        fast: Some(3.0),
        slow: None,
    });
    let job = Label::from("job");
    room.ledger.moved(&LoggedTransition { reason, reading, ..turn(10, &job, State::Warn, State::Soft) });
    let id = room.ledger.incident(TargetId(3)).unwrap().to_owned();
    until(|| room.store.file(&id, RECORD).is_ok());
    let expected = Circumstances {
        resource: Some("host".to_owned()),
        used_bytes: Some(6.0),
        limit_bytes: Some(12.0),
        growth_bytes_per_second: Some(3.0),
        ..Circumstances::default()
    };
    assert_eq!(read(&room.store, &id).circumstances, expected);
}

#[test]
fn two_jobs_of_a_target_have_an_incident_each() {
    let mut room = room(tempfile::tempdir().unwrap());
    let job = Label::from("job");
    room.ledger.moved(&turn(10, &job, State::Warn, State::Soft));
    room.ledger.moved(&LoggedTransition { slot: TargetId(4), ..turn(10, &job, State::Warn, State::Soft) });
    let [one, other] = [3, 4].map(|slot| room.ledger.incident(TargetId(slot)).unwrap().to_owned());
    assert_eq!((one.as_str(), other), ("19700101T000010.000Z-job", format!("{one}-4")));
    room.ledger.moved(&turn(11, &job, State::Soft, State::Kill));
    // The guard never waits for the log: a line that it could not add is added in a later round.
    until(|| {
        room.ledger.settle();
        room.recorder.flush(Duration::from_secs(5)) && read(&room.store, &one).moves.len() == 2
    });
    // Whoever comes after one that left has an incident of its own.
    room.ledger.left(Timestamp::from_secs(12), TargetId(3));
    assert_eq!(room.ledger.incident(TargetId(3)), None);
    assert!(room.recorder.flush(Duration::from_secs(20)));
    assert_eq!(read(&room.store, &one).ended_unix_seconds, Some(12.0));
    let moves = [one.clone(), format!("{one}-4")].map(|id| read(&room.store, &id).moves.len());
    assert_eq!(moves, [2, 1]);
}

#[test]
fn an_incident_that_a_restart_cut_short_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("incidents"));
    let open = Incident {
        id: "i1".to_owned(),
        began_unix_seconds: 5.0,
        moves: vec![crate::protection::types::incident::Move { unix_seconds: 8.0, ..Default::default() }],
        ..Incident::default()
    };
    store.write("i1", &[(RECORD.to_owned(), open.json())]).unwrap();
    let room = room(folder);
    assert!(room.recorder.flush(Duration::from_secs(20)));
    let closed = read(&room.store, "i1");
    assert_eq!(closed.ended_unix_seconds, Some(8.0));
    assert_eq!(closed.interrupted.unwrap(), "memwarden ended during the incident");
}

#[test]
fn what_the_kernel_did_is_recorded_at_once() {
    let room = room(tempfile::tempdir().unwrap());
    let incident = Incident {
        id: "i1".to_owned(),
        cause: Cause::KernelOom,
        summary: "The kernel killed a process.".to_owned(),
        ..Incident::default()
    };
    room.recorder.record(incident);
    until(|| room.recorder.status().written == 1);
    let read = read(&room.store, "i1");
    assert_eq!((read.cause, read.summary.as_str()), (Cause::KernelOom, "The kernel killed a process."));
}

fn kill(second: u64, user: u32, cgroup: &str, pid: u32) -> Incident {
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let unix = second as f64;
    Incident {
        id: crate::protection::types::incident::name(Timestamp::from_secs(second), cgroup),
        cause: Cause::KernelOom,
        user: Some(user),
        target: cgroup.to_owned(),
        began_unix_seconds: unix,
        ended_unix_seconds: Some(unix),
        victim: Some(OomVictim { pid: Some(pid), comm: "sh".into(), ..OomVictim::default() }),
        kills: 1,
        ..Incident::default()
    }
}

fn count(store: &Store, cause: Cause, user: u32) -> usize {
    let records = store.names().unwrap().into_iter().map(|(id, _)| read(store, &id));
    records.filter(|record| record.cause == cause && record.user == Some(user)).count()
}

#[test]
fn a_user_whose_cgroups_are_killed_200_times_evicts_no_record_of_others_or_of_protection() {
    let mut protection = room(tempfile::tempdir().unwrap());
    let job = Label::from("job");
    for second in 1..=20 {
        protection.ledger.moved(&turn(2 * second, &job, State::Warn, State::Soft));
        protection.ledger.moved(&turn(2 * second + 1, &job, State::Soft, State::Ok));
        assert!(protection.recorder.flush(Duration::from_secs(20)));
    }
    for second in 50..60 {
        protection.recorder.record(kill(second, 1001, &format!("/user-1001/job-{second}"), 5));
    }
    assert!(protection.recorder.flush(Duration::from_secs(20)));
    let attack = |room: &Room, seconds: std::ops::Range<u64>| {
        for second in seconds {
            room.recorder.record(kill(second, 1002, &format!("/user-1002/{second}"), 6));
            assert!(room.recorder.flush(Duration::from_secs(20)));
        }
    };
    attack(&protection, 100..200);
    let Room { folder, store, recorder, ledger } = protection;
    drop((recorder, ledger));
    // Nothing is forgotten after a restart.
    let protection = room(folder);
    attack(&protection, 200..300);
    assert_eq!(count(&store, Cause::Policy, 7), 20);
    assert_eq!(count(&store, Cause::KernelOom, 1001), 10);
    assert_eq!(count(&store, Cause::KernelOom, 1002), 40);
    assert!(store.names().unwrap().iter().any(|(id, _)| id.ends_with("user-1002-299")));
}

#[test]
fn repeated_kills_in_one_cgroup_are_one_record() {
    let first = room(tempfile::tempdir().unwrap());
    for second in 100..150 {
        first.recorder.record(kill(second, 1002, "/a", 6));
    }
    first.recorder.record(kill(150, 1002, "/b", 7));
    assert!(first.recorder.flush(Duration::from_secs(20)));
    assert_eq!(first.recorder.status().written, 2);
    let Room { folder, store, recorder, ledger } = first;
    drop((recorder, ledger));
    let second = room(folder);
    second.recorder.record(kill(151, 1002, "/a", 8));
    assert!(second.recorder.flush(Duration::from_secs(20)));
    let listed: Vec<String> = store.names().unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(listed, ["19700101T000140.000Z-a", "19700101T000230.000Z-b"]);
    let record = read(&store, &listed[0]);
    assert_eq!((record.began_unix_seconds, record.ended_unix_seconds), (100.0, Some(151.0)));
    assert_eq!(
        record.summary,
        "The kernel killed sh (pid 6): the host's memory was exhausted. Kills in this cgroup until \
         1970-01-01T00:02:31Z: 51."
    );
    let pids = [record.victim, record.last_victim].map(|victim| victim.unwrap().pid);
    assert_eq!(pids, [Some(6), Some(8)]);
    assert!(!store.file(&listed[0], "processes.csv").unwrap().is_empty(), "that of the first kill");
    // An other limit was reached.
    let mut host = kill(152, 1002, "/a", 8);
    host.victim.as_mut().unwrap().scope = OomScope::Cgroup;
    second.recorder.record(host);
    assert!(second.recorder.flush(Duration::from_secs(20)));
    assert_eq!(store.names().unwrap().len(), 3);
}

#[test]
fn a_kill_within_an_incident_of_its_job_has_no_record_of_its_own() {
    let mut room = room(tempfile::tempdir().unwrap());
    let record = |id: &str, target: &str| Incident {
        id: id.to_owned(),
        cause: Cause::Killed,
        target: target.to_owned(),
        ..Incident::default()
    };
    room.ledger.moved(&turn(10, &"job".into(), State::Warn, State::Soft));
    room.recorder.record(record("i1", "job"));
    room.recorder.record(record("i2", "other"));
    assert!(room.recorder.flush(Duration::from_secs(20)));
    let listed: Vec<String> = room.store.names().unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(listed, ["19700101T000010.000Z-job", "i2"]);
}

#[test]
fn a_step_of_the_plan_has_it_written_first() {
    let mut room = room(tempfile::tempdir().unwrap());
    let job = Label::from("job");
    room.ledger.moved(&turn(10, &job, State::Warn, State::Soft));
    let id = room.ledger.incident(TargetId(3)).unwrap().to_owned();
    let mut errand = RecordExecutor::new(Arc::clone(&room.recorder));
    let step = Step { target: TargetId(3), stage: State::Soft, work: Work::Record };
    assert!(errand.begin(Ticket(8), &step));
    let mut finished = Vec::new();
    until(|| {
        errand.poll(&mut finished);
        !finished.is_empty()
    });
    assert_eq!(
        (finished[0].ticket, finished[0].result.as_ref().unwrap().outcome),
        (Ticket(8), Outcome::Done)
    );
    assert_eq!(read(&room.store, &id).target, "job");
    // The guard never waits for the log: a line that it could not add is added in a later round.
    until(|| {
        room.ledger.settle();
        room.recorder.flush(Duration::from_secs(5)) && read(&room.store, &id).moves.len() == 1
    });
}

#[test]
fn a_folder_that_cannot_be_written_is_reported_and_delays_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("incidents"), "in the way").unwrap();
    let mut room = room(folder);
    let job = Label::from("job");
    room.ledger.moved(&turn(10, &job, State::Warn, State::Soft));
    until(|| room.recorder.status().trouble.is_some());
    room.ledger.moved(&turn(11, &job, State::Soft, State::Ok));
    assert!(room.recorder.flush(Duration::from_secs(20)), "the first one has failed");
    room.ledger.moved(&turn(12, &job, State::Warn, State::Soft));
    std::fs::remove_file(room.folder.path().join("incidents")).unwrap();
    room.ledger.moved(&turn(13, &job, State::Soft, State::Ok));
    until(|| room.recorder.status().written == 1);
    assert_eq!(room.recorder.status().trouble, None);
}
