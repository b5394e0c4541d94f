//! Tests with simulated counters, and with those of the running kernel.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::expect;

use super::*;
use crate::host::perf::{Counter, Reading};
use crate::model::facts::ProcessRow;
use crate::sources::testing::{Root, root};

/// A kernel whose counters grow by 100 per read, active half of the time; it records what is open.
#[derive(Clone, Default)]
struct Fake {
    open: Arc<Mutex<Vec<(Event, Target)>>>,
    refuse: Option<(Target, i32)>,
    /// Opening a counter for this thread waits for the lock.
    hang: Option<(Target, Arc<Mutex<()>>)>,
    hardware: bool,
}

struct Counting(Fake, (Event, Target), u64);

impl Counter for Counting {
    fn read(&mut self) -> io::Result<Reading> {
        self.2 += 1;
        let running = if self.1.0.is_hardware() { self.2 } else { 2 * self.2 };
        Ok(Reading {
            value: self.2 * if self.1.0 == Event::Instructions { 150 } else { 100 },
            enabled: Duration::from_secs(2 * self.2),
            running: Duration::from_secs(running),
        })
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let mut open = self.0.open.lock().unwrap();
        let place = open.iter().position(|one| *one == self.1).unwrap();
        open.remove(place);
    }
}

impl Perf for Fake {
    fn open(&self, event: Event, target: Target) -> io::Result<Box<dyn Counter>> {
        if event.is_hardware() && !self.hardware {
            return Err(io::Error::from_raw_os_error(2));
        }
        if let Some((_, code)) = self.refuse.filter(|(refused, _)| *refused == target) {
            return Err(io::Error::from_raw_os_error(code));
        }
        if let Some((_, lock)) = self.hang.as_ref().filter(|(hangs, _)| *hangs == target) {
            drop(lock.lock().unwrap());
        }
        self.open.lock().unwrap().push((event, target));
        Ok(Box::new(Counting(self.clone(), (event, target), 0)))
    }
}

const ALL: Options = Options { host: true, workloads: true, hardware: true, max_descriptors: 100 };

fn host() -> Root {
    let stat = |pid: u32| format!("{pid} (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 77 0 0 0\n");
    root(&[
        ("proc/sys/kernel/perf_event_paranoid", "2\n"),
        ("sys/devices/system/cpu/online", "0-1\n"),
        ("proc/7/stat", &stat(7)),
        ("proc/7/task/7/stat", ""),
        ("proc/7/task/8/stat", ""),
        ("proc/9/stat", &stat(9)),
        ("proc/9/task/9/stat", ""),
    ])
}

fn source(root: &Root, options: Options, kernel: &Fake) -> Counters {
    let pool = Arc::new(Pool::new(readers::Pace::PATIENT));
    Counters::new(options, Arc::new(Roots::under(root.path())), Arc::new(kernel.clone()), pool)
}

/// One tick with these processes, each in a workload of a user.
fn sample(source: &mut Counters, pids: &[(u32, &str, u32)]) -> (Batch, Result<(), SourceError>) {
    let mut out = Batch::new();
    let key = |pid| ProcessKey { pid, start: 77 };
    let member = |(pid, name, user): &(u32, &str, u32)| {
        let mut member = Membership::named(key(*pid), name);
        let workload = Workload { user: *user, ..(*member.workload).clone() };
        member.workload = Arc::new(workload);
        member
    };
    out.facts.members = pids.iter().map(member).collect();
    let row = |pid| ProcessRow {
        parent: 1,
        threads: if pid == 7 { 2 } else { 1 },
        ..ProcessRow::new(key(pid), "python".into())
    };
    let rows = pids.iter().map(|(pid, ..)| row(*pid)).collect();
    out.facts.processes = Some(Arc::new(ProcessTable { rows, boot: None }));
    let outcome = source.sample(Timestamp::from_secs(1), &mut out);
    assert_eq!(out.facts.members.len(), pids.len(), "others need them too");
    (out, outcome)
}

/// One tick with these processes in workload `job`: the points by name and labels, and the result.
fn tick(source: &mut Counters, pids: &[u32]) -> (Vec<String>, Result<(), SourceError>) {
    let members: Vec<_> = pids.iter().map(|pid| (*pid, "job", 0)).collect();
    let (out, outcome) = sample(source, &members);
    let shown = out.families().iter().flat_map(|family| {
        let name = family.desc.name.strip_prefix("memwarden_").unwrap();
        family.points.iter().map(move |point| {
            let labels: Vec<&str> = point.labels.iter().map(Label::as_str).collect();
            format!("{name}{labels:?} {}", point.value)
        })
    });
    (shown.collect(), outcome)
}

fn value(shown: &[String], name: &str) -> Option<String> {
    shown.iter().find_map(|line| Some(line.strip_prefix(name)?.split_once(' ')?.1.to_owned()))
}

#[test]
fn a_process_that_cannot_be_opened_does_not_affect_others() {
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().unwrap();
    let hang = Some((Target::Thread(8), Arc::clone(&lock)));
    let (root, kernel) = (host(), Fake { hang, ..Fake::default() });
    let pace = readers::Pace {
        slow: Duration::from_millis(10),
        deadline: Duration::from_millis(10),
        ..readers::Pace::PATIENT
    };
    let roots = Arc::new(Roots::under(root.path()));
    let mut source = Counters::new(ALL, roots, Arc::new(kernel), Arc::new(Pool::new(pace)));
    let mut until = |count: &str| {
        let counted = (0..3_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            value(&tick(&mut source, &[7, 9]).0, "perf_descriptors").as_deref() == Some(count)
        });
        assert!(counted, "{count}");
    };
    // 2 CPUs with 3 events, and one thread with 4; then the two threads of the other process.
    until("10");
    drop(held);
    until("18");
}

#[test]
fn totals_are_scaled_and_include_exited_processes() {
    let (root, kernel) = (host(), Fake { hardware: true, ..Fake::default() });
    let mut source = source(&root, ALL, &kernel);
    let (shown, outcome) = tick(&mut source, &[7, 9]);
    assert!(outcome.is_ok());
    assert_eq!(
        value(&shown, "perf_context_switches_total[\"job\"]").as_deref(),
        Some("300"),
        "three threads"
    );
    assert_eq!(value(&shown, "perf_cycles_total[\"job\"]").as_deref(), Some("600"), "half was not counted");
    assert_eq!(value(&shown, "perf_instructions_per_cycle_ratio[\"job\"]").as_deref(), Some("1.5"));
    assert_eq!(value(&shown, "perf_counting_ratio[\"job\"]").as_deref(), Some("0.5"));
    assert_eq!(value(&shown, "host_perf_migrations_total").as_deref(), Some("200"), "two processors");
    assert_eq!(value(&shown, "perf_descriptors").as_deref(), Some("43"), "3 threads of 9, 2 processors of 8");
    let (shown, _) = tick(&mut source, &[7]);
    assert_eq!(
        value(&shown, "perf_context_switches_total[\"job\"]").as_deref(),
        Some("600"),
        "with the last of 9"
    );
    assert_eq!(value(&shown, "perf_descriptors").as_deref(), Some("34"));
    let (shown, _) = tick(&mut source, &[]);
    assert_eq!(
        value(&shown, "perf_context_switches_total"),
        None,
        "a workload that has ended is not exposed"
    );
    assert_eq!(kernel.open.lock().unwrap().len(), 16, "only the host's are open");
    drop(source);
    assert!(kernel.open.lock().unwrap().is_empty());
}

#[test]
fn missing_hardware_is_reported_and_not_zero() {
    let (root, kernel) = (host(), Fake::default());
    let (shown, outcome) = tick(&mut source(&root, ALL, &kernel), &[9]);
    assert!(outcome.is_ok());
    expect![[r#"
        perf_event_paranoid_info["2"] 1
        perf_event_available["task_clock", "workload"] 1
        perf_event_available["context_switches", "workload"] 1
        perf_event_available["migrations", "workload"] 1
        perf_event_available["page_faults", "workload"] 1
        perf_event_available["cycles", "workload"] 0
        perf_event_available["instructions", "workload"] 0
        perf_event_available["cache_references", "workload"] 0
        perf_event_available["cache_misses", "workload"] 0
        perf_event_available["branch_misses", "workload"] 0
        perf_event_available["context_switches", "host"] 1
        perf_event_available["migrations", "host"] 1
        perf_event_available["page_faults", "host"] 1
        perf_event_available["cycles", "host"] 0
        perf_event_available["instructions", "host"] 0
        perf_event_available["cache_references", "host"] 0
        perf_event_available["cache_misses", "host"] 0
        perf_event_available["branch_misses", "host"] 0
        perf_task_clock_seconds_total["job"] 0.0000001
        perf_context_switches_total["job"] 100
        perf_migrations_total["job"] 100
        perf_page_faults_total["job"] 100
        perf_uncounted_processes["job"] 0
        host_perf_context_switches_total[] 200
        host_perf_migrations_total[] 200
        host_perf_page_faults_total[] 200
        perf_descriptors[] 10"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn refused_and_excess_counters_are_reported() {
    let root = host();
    let own = Target::Thread(std::process::id());
    let refusing = Fake { refuse: Some((own, 13)), ..Fake::default() };
    let (shown, outcome) = tick(&mut source(&root, ALL, &refusing), &[7]);
    expect![[r#"perf_event_paranoid_info["2"] 1, perf_event_available["task_clock", "workload"] 0, perf_event_available["context_switches", "workload"] 0, perf_event_available["migrations", "workload"] 0, perf_event_available["page_faults", "workload"] 0, perf_event_available["cycles", "workload"] 0, perf_event_available["instructions", "workload"] 0, perf_event_available["cache_references", "workload"] 0, perf_event_available["cache_misses", "workload"] 0, perf_event_available["branch_misses", "workload"] 0: perf_event_open is not permitted: kernel.perf_event_paranoid is 2 and CAP_PERFMON is missing"#]].assert_eq(&format!("{}: {}", shown.join(", "), outcome.unwrap_err()));
    let one = Fake { refuse: Some((Target::Thread(8), 13)), ..Fake::default() };
    let (shown, _) = tick(&mut source(&root, ALL, &one), &[7, 9]);
    assert_eq!(value(&shown, "perf_uncounted_processes[\"job\"]").as_deref(), Some("1"));
    assert_eq!(value(&shown, "perf_page_faults_total[\"job\"]").as_deref(), Some("100"), "9 is counted");
    let few = Options { max_descriptors: 4, host: false, ..ALL };
    let (shown, _) = tick(&mut source(&root, few, &Fake::default()), &[7, 9]);
    assert_eq!(value(&shown, "perf_uncounted_processes[\"job\"]").as_deref(), Some("1"), "7 has two threads");
    let gone = Fake { refuse: Some((Target::Thread(8), 3)), ..Fake::default() };
    let (shown, _) = tick(&mut source(&root, ALL, &gone), &[7]);
    assert_eq!(value(&shown, "perf_uncounted_processes[\"job\"]").as_deref(), Some("0"), "a thread may end");
}

#[test]
fn one_user_leaves_descriptors_for_anothers_processes() {
    let stat = |pid: u32| format!("{pid} (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0 0\n");
    let root = host();
    for pid in 20..26 {
        root.write(format!("proc/{pid}/stat"), stat(pid));
        root.write(format!("proc/{pid}/task/{pid}/stat"), "");
    }
    let kernel = Fake::default();
    let options = Options { max_descriptors: 16, host: false, ..ALL };
    let mut source = source(&root, options, &kernel);
    let mallorys: Vec<_> = (20..26).map(|pid| (pid, "mallory", 61_002)).collect();
    let shown = |source: &mut Counters, members: &[(u32, &str, u32)]| {
        let (out, outcome) = sample(source, members);
        outcome.unwrap();
        let uncounted = |name: &str| {
            let family =
                out.families().iter().find(|family| family.desc.name == "memwarden_perf_uncounted_processes");
            let point = family.unwrap().points.iter().find(|point| point.labels[0].as_str() == name);
            point.map(|point| point.value)
        };
        let shortages = out
            .facts
            .shortages
            .iter()
            .map(|shortage| (shortage.limit, shortage.user, shortage.left_out, shortage.most));
        (uncounted("mallory"), uncounted("alice"), shortages.collect::<Vec<_>>())
    };
    // Four of six processes with four counters each: a single user may use all descriptors.
    let (mallory, _, shortages) = shown(&mut source, &mallorys);
    assert_eq!((mallory, shortages), (Some(2.0), vec![("perf_descriptors", Some(61_002), 2, 16)]));
    // Another user's process with two threads gets its share, for which counters of the first user are closed.
    let both: Vec<_> = [(7, "alice", 61_001)].into_iter().chain(mallorys.clone()).collect();
    let (mallory, alice, shortages) = shown(&mut source, &both);
    assert_eq!((mallory, alice), (Some(4.0), Some(0.0)));
    assert_eq!(shortages, [("perf_descriptors", Some(61_002), 4, 16)]);
    assert_eq!(kernel.open.lock().unwrap().len(), 16);
    let alices = kernel
        .open
        .lock()
        .unwrap()
        .iter()
        .filter(|(_, thread)| [Target::Thread(7), Target::Thread(8)].contains(thread))
        .count();
    assert_eq!(alices, 8);
    // Released descriptors are used again.
    let (mallory, _, _) = shown(&mut source, &mallorys);
    assert_eq!(mallory, Some(2.0));
    let (_, _, shortages) = shown(&mut source, &mallorys[..4]);
    assert!(shortages.is_empty());
}

#[test]
fn a_pid_in_use_again_is_not_counted() {
    let (root, kernel) = (host(), Fake::default());
    root.write("proc/9/stat", "9 (other) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 78 0 0 0\n");
    let (shown, _) = tick(&mut source(&root, Options { host: false, ..ALL }, &kernel), &[9]);
    assert_eq!(value(&shown, "perf_uncounted_processes[\"job\"]").as_deref(), Some("1"));
    assert!(kernel.open.lock().unwrap().is_empty(), "no counter stays open on another process");
}

#[test]
fn processors_are_those_that_are_on() {
    let folder = root(&[("devices/system/cpu/online", "0-2,5,x,7-\n")]);
    assert_eq!(online(folder.path()), [0, 1, 2, 5]);
    assert!(online(Path::new("nowhere")).is_empty());
}

#[test]
fn the_kernel_that_runs_counts_this_thread() {
    let thread = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
    let mut counter = match Kernel.open(Event::PageFaults, Target::Thread(thread)) {
        Ok(counter) => counter,
        Err(error) => return crate::skip::skip(&format!("perf_event_open: {error}")),
    };
    let before = counter.read().unwrap();
    let pages = vec![1u8; 8 << 20];
    assert_eq!(std::hint::black_box(&pages)[4096], 1);
    let after = counter.read().unwrap();
    assert!(after.value > before.value, "new memory is faulted in: {before:?} {after:?}");
    assert!(after.running <= after.enabled && after.enabled > before.enabled);
}
