//! What the guard allocates with its real hands, books and files: nothing, at rest and up to the kill.

use std::cell::Cell;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::events::Events;
use crate::host::cgroup::{Hierarchy, Version};
use crate::host::clock;
use crate::host::process;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::executor::{self, BackgroundExecutors, Machine, Observer};
use crate::protection::enforce::levels::{GroupMeter, HostMeter};
use crate::protection::guard::guard_loop::{Executors, GuardLoop};
use crate::protection::guard::input::{GuardInput, JobInput, SLOTS, SampledGives, SamplerReadings};
use crate::protection::guard::journal::GuardJournal;
use crate::protection::guard::mailbox::Mailbox;
use crate::protection::options::Protection;
use crate::protection::options::target::Target;
use crate::protection::plan::victim::{ProcessInfo, Roster};
use crate::protection::policy::{Escalation, Members, State};
use crate::protection::record::Records;
use crate::protection::types::scope::Exempt;
use crate::protection::types::scope::{Member, Scope};

const MIB: u64 = 1 << 20;

/// A process of the test's own; ended with it.
struct Victim(Child);

impl Victim {
    #[expect(clippy::disallowed_methods, reason = "the test's own process")]
    fn start() -> (Self, ProcessKey) {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let text = std::fs::read(format!("/proc/{}/stat", child.id())).unwrap();
        let key = ProcessKey { pid: child.id(), start: process::stat(&text).unwrap().start };
        (Self(child), key)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says how much of 1 GiB the job's group uses.
fn uses(folder: &Path, mib: u64) {
    let group = folder.join("job");
    std::fs::create_dir_all(&group).unwrap();
    std::fs::write(group.join("memory.max"), format!("{}\n", 1024 * MIB)).unwrap();
    std::fs::write(group.join("memory.current"), format!("{}\n", mib * MIB)).unwrap();
    std::fs::write(group.join("memory.stat"), format!("anon {}\ninactive_file 0\n", mib * MIB)).unwrap();
    // The host's swap is that of the machine.
    for name in ["memory.swap.max", "memory.swap.current"] {
        std::fs::write(group.join(name), "0\n").unwrap();
    }
}

fn facts(target: &Target, key: ProcessKey, folder: &Path, at: Timestamp) -> GuardInput {
    let process = ProcessInfo { key, parent: 1, resident: Bytes::new(MIB), group: None, rank: false };
    let hierarchy = Hierarchy { version: Version::V2, root: folder.to_owned() };
    let user = rustix::process::getuid().as_raw();
    let scope = Scope {
        name: "train".into(),
        users: vec![user],
        owner: None,
        members: vec![Member::Tree(key)].into(),
    };
    let mut slots: Vec<Option<JobInput>> = (0..SLOTS).map(|_| None).collect();
    slots[0] = Some(JobInput {
        serial: 1,
        target: 0,
        user: Some(7),
        names: Arc::default(),
        escalation: Some(Escalation::new(target.limits.clone(), at)),
        roster: Roster::new(&[process], target.victims, None).into(),
        scope: Some(scope),
        meter: Some(GroupMeter::open(&hierarchy, "/job").ok()),
        nodes: None,
        processes: None,
        sampled: SamplerReadings {
            members: Some(Members { count: 1, catching: None }),
            gives: Some(SampledGives { resident: Bytes::new(1 << 30), ..SampledGives::default() }),
            ..SamplerReadings::default()
        },
    });
    GuardInput { at, host: None, is_pool: false, slots }
}

#[test]
fn the_whole_guard_allocates_nothing_at_rest_or_for_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state/state.json");
    let text = format!(
        "state: {{file: {}}}\nprotection: {{mode: enforce, targets: [{{name: train, workload: train, \
         allow_users: [ada], host: {{soft: 1%, hard: \"\"}}}}]}}",
        state.display()
    );
    let config = crate::config::parse_str(&text, Path::new("f"), &crate::app::schema(), &[]).unwrap();
    let records = Records::start(&config, Arc::new(Events::new())).unwrap();
    let targets: Arc<[Target]> =
        Protection::new(&config.modules["protection"], config.sampling.interval).targets.into();
    let proc = Path::new("/proc");
    // The jobs of this test are children of it, which the daemon itself never touches.
    let exempt = Exempt { own: 0, ..executor::exempt(proc, &[]).unwrap() };
    let background =
        BackgroundExecutors { records: Some(records.executor()), ..BackgroundExecutors::default() };
    let mode = executor::Mode::Enforce;
    let machine = Machine::arm(mode, proc, Path::new("/sys/fs/cgroup"), exempt.clone(), background).unwrap();
    let hands =
        Executors { enforce: Some(Box::new(machine)), observe: Box::new(Observer::new(exempt, proc)) };
    let signalled =
        Arc::new(std::sync::Mutex::new(Vec::with_capacity(super::super::journal::MOST_SIGNALLED)));
    let book = Box::new(GuardJournal::new(&records, "ab12cd34", Arc::clone(&targets), signalled).unwrap());
    let mailbox = Arc::new(Mailbox::default());
    let meter = HostMeter::open(proc, &[]).ok();
    let mut watch =
        GuardLoop::new(Arc::clone(&targets), 5, Arc::clone(&mailbox), meter, hands, Arc::default(), book);
    let (mut victim, key) = Victim::start();
    uses(folder.path(), 100);
    let now = Cell::new(clock::now());
    mailbox.give(Box::new(facts(&targets[0], key, folder.path(), now.get())), GuardInput::keep);
    let mut rounds = |count: u32| {
        let info = allocation_counter::measure(|| {
            for _ in 0..count {
                now.set(now.get().plus(Duration::from_millis(100)));
                watch.round(&|| now.get());
            }
        });
        (info.count_total, watch.report().slots[0].map(|slot| slot.state))
    };
    rounds(3);
    assert_eq!(rounds(1_000), (0, Some(State::Ok)));
    uses(folder.path(), 1020);
    let (count, state) = rounds(2);
    assert_eq!(state, Some(State::Kill));
    assert!(count <= 1, "{count}: after the kill there is room for who is waited for, and for nothing else");
    victim.0.wait().unwrap();
    let flight = records.flight.lock().unwrap().since(0).0.len();
    assert!(flight > 500, "the same guard that was measured: {flight} samples");
    assert!(records.recorder().flush(Duration::from_secs(20)));
    let incident = std::fs::read_dir(folder.path().join("state/incidents")).unwrap().next().unwrap().unwrap();
    let record = std::fs::read(incident.path().join("incident.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let memory = ["resource", "used_bytes", "limit_bytes"].map(|name| record[name].to_string());
    let bytes = |mib| format!("{:?}", crate::model::units::real(mib * MIB));
    assert_eq!(memory, ["\"cgroup\"".to_owned(), bytes(1020), bytes(1024)]);
}
