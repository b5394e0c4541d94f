//! The calls of a guard to the kernel, its clock and its disk, on a simulated machine.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::Value;

use super::super::Defect;
use super::{KILL, Machine, run_tasks};
use crate::host::task::Task;
use crate::host::testing::Edges;
use crate::model::time::Timestamp;

impl Edges for Machine {
    fn now(&self) -> Timestamp {
        self.0.borrow().time()
    }

    fn wait(&self, longest: Duration) {
        let hangs = {
            let mut cluster = self.0.borrow_mut();
            if cluster.in_task {
                return;
            }
            cluster.now += longest;
            let disk = &cluster.host().disk;
            disk.hangs || disk.delay > Duration::from_millis(50)
        };
        run_tasks(self, &["steps"]);
        if !hangs {
            run_tasks(self, &["remember", "audit"]);
        }
    }

    fn start(&self, name: &'static str, mut task: Box<dyn Task>) {
        // The file of earlier runs is read.
        if name == "remember" {
            task.step(false);
        }
        let mut cluster = self.0.borrow_mut();
        let node = cluster.node;
        cluster.tasks.push((node, name, task));
    }

    fn write(&self, length: usize) -> (usize, io::Result<()>) {
        let mut cluster = self.0.borrow_mut();
        if !cluster.host().disk.full {
            return (length, Ok(()));
        }
        let part = usize::try_from(cluster.random().below(length as u64 + 1)).unwrap();
        (part, Err(Errno::NOSPC.into()))
    }

    fn open(&self, pid: u32) -> Result<u64, Errno> {
        let mut cluster = self.0.borrow_mut();
        let Some(place) = cluster.host().pids.get(&pid).copied() else { return Err(Errno::SRCH) };
        // It ends now, and another process gets its pid at once.
        if cluster.faults && cluster.random().percent(3) {
            cluster.end_process(place);
            cluster.reap(place);
            let (job, parent) = (cluster.host().processes[place].job, cluster.host().processes[place].parent);
            let stranger = cluster.random().percent(50);
            match job.filter(|_| !stranger) {
                Some(job) => {
                    let (uid, path) = (cluster.host().jobs[job].uid, cluster.host().jobs[job].path.clone());
                    cluster.start_at(pid, Some(job), uid, &path, parent);
                }
                None => {
                    let uid = 1001 + u32::try_from(cluster.random().below(3)).unwrap();
                    cluster.start_at(pid, None, uid, "/other", 1);
                }
            }
        }
        cluster.host().pids.get(&pid).map(|place| *place as u64).ok_or(Errno::SRCH)
    }

    fn users(&self, process: u64) -> Option<[u32; 3]> {
        let mut cluster = self.0.borrow_mut();
        let host = cluster.host();
        let process = &host.processes[usize::try_from(process).ok()?];
        (host.recent && !process.ended).then_some([process.uid; 3])
    }

    fn send(&self, process: u64, signal: u8) -> Result<(), Errno> {
        let mut cluster = self.0.borrow_mut();
        let place = usize::try_from(process).map_err(|_| Errno::SRCH)?;
        let took = cluster.random().millis(0, 1) / 20;
        cluster.now += took;
        if cluster.host().processes[place].ended {
            return Err(Errno::SRCH);
        }
        cluster.check_signal(place, signal);
        cluster.deliver(place, signal);
        Ok(())
    }

    fn ended(&self, process: u64) -> bool {
        let mut cluster = self.0.borrow_mut();
        let sleeps = cluster.defect == Some(Defect::DeadVictim);
        let place = usize::try_from(process).unwrap();
        cluster.host().processes[place].ended && !sleeps
    }

    fn exists(&self, pid: u32) -> bool {
        self.0.borrow_mut().host().pids.contains_key(&pid)
    }

    fn write_group(&self, inode: u64, name: &str, bytes: &[u8]) -> Result<(), Errno> {
        let mut cluster = self.0.borrow_mut();
        cluster.read_audit();
        let Some(place) = cluster.host().jobs.iter().position(|job| job.inode == inode) else {
            cluster.fail(format!("a write to {name} of a cgroup of no job"));
            return Ok(());
        };
        let (recent, now) = (cluster.host().recent, cluster.now);
        let job = &cluster.host().jobs[place];
        let (path, enforced) = (job.path.clone(), job.enforced);
        let wanted = match (name, bytes) {
            ("cgroup.kill", _) if !recent => return Err(Errno::NOENT),
            ("cgroup.kill", _) => "kill_group",
            ("cgroup.freeze", b"1") => "freeze",
            ("cgroup.freeze", _) => "thaw",
            _ => "raise",
        };
        let own = |step: &Value| step["do"] == wanted && step["group"]["path"].as_str() == Some(&path);
        // One thaw is that of the daemon that starts, for the one before it.
        let known = wanted == "thaw" || cluster.host().open.values().any(|(_, step)| own(step));
        if !enforced || !known {
            cluster.fail(format!("{wanted} of {path} without a line of the audit log before it"));
        }
        cluster.note(|| format!("{wanted} {path}"));
        match wanted {
            "kill_group" => {
                let host = cluster.host();
                let inside =
                    |place: &usize| host.processes[*place].group == path && !host.processes[*place].ended;
                let inside: Vec<usize> = (0..host.processes.len()).filter(inside).collect();
                for member in inside {
                    // A process that came after the check is killed by the kernel, which no line names.
                    let allowed = cluster.host().processes[member].job == Some(place);
                    if !allowed {
                        cluster.fail(format!("cgroup.kill of {path} reaches a process outside of the scope"));
                    }
                    cluster.deliver(member, KILL);
                }
            }
            "freeze" if cluster.defect != Some(Defect::Thaw) || cluster.random().percent(50) => {
                cluster.host().jobs[place].frozen = true;
            }
            "thaw" if cluster.defect != Some(Defect::Thaw) => {
                cluster.host().jobs[place].frozen = false;
                cluster.host().jobs[place].level.0 = now;
                for member in cluster.members(place) {
                    let waiting = std::mem::take(&mut cluster.host().processes[member].waiting);
                    waiting.into_iter().for_each(|signal| cluster.deliver(member, signal));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
