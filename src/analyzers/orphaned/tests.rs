//! GPUs whose memory is released when their processes end, and GPUs whose memory is not.

use std::sync::Arc;

use super::*;
use crate::model::facts::{Membership, ProcessRow, ProcessTable, WorkloadNames};
use crate::model::ids::ProcessKey;
use crate::model::point::Batch;
use crate::model::setting::Settings;
use crate::model::units::Flag;

const GIB: f64 = 1_073_741_824.0;

/// One GPU at one time: unattributed GiB, running pids, and listed pids with their GiB.
#[derive(Clone, Copy)]
struct Scene<'a> {
    unattributed: f64,
    running: &'a [u32],
    listed: &'a [(u32, f64)],
}

/// What the driver and the namespaces are like.
#[derive(Clone, Copy)]
struct Node {
    vendor: &'static str,
    host_pids: bool,
    mode: &'static str,
}

const NODE: Node = Node { vendor: "nvidia", host_pids: true, mode: "none" };

fn row(pid: u32) -> ProcessRow {
    ProcessRow {
        parent: 1,
        uid: 1000,
        kernel: pid == KTHREADD,
        ..ProcessRow::new(ProcessKey { pid, start: u64::from(pid) * 10 }, "python".into())
    }
}

/// The orphaned GiB with the workload at each of these seconds, and the last finding.
fn play<'a>(
    node: Node,
    seconds: u64,
    scene: impl Fn(u64) -> Scene<'a>,
) -> (Vec<(u64, f64, String)>, Option<Finding>) {
    let mut analyzer = (REGISTRATION.build)(&Settings::default());
    let (mut all, mut finding) = (Vec::new(), None);
    for second in 0..=seconds {
        let Scene { unattributed, running, listed } = scene(second);
        let mut batch = Batch::new();
        let labels: [Label; 2] = ["0".into(), "GPU-a".into()];
        batch.put(&MEMORY_UNATTRIBUTED, &labels, Bytes::of(unattributed * GIB));
        let mut info = vec![Label::default(); INFO.desc.labels.len()];
        (info[0], info[1]) = ("0".into(), "GPU-a".into());
        *info.last_mut().unwrap() = node.vendor.into();
        batch.put(&INFO, &info, Flag(true));
        batch.put(&VIRTUALIZATION, &["0".into(), "GPU-a".into(), node.mode.into()], Flag(true));
        let kernel = node.host_pids.then_some(KTHREADD);
        let rows = kernel.iter().chain(running).map(|pid| row(*pid)).collect();
        batch.facts.processes = Some(Arc::new(ProcessTable { rows, boot: None }));
        let members = running.iter().map(|pid| Membership::named(row(*pid).key, "sft"));
        batch.facts.workload_of = members.collect();
        for member in batch.facts.workload_of.iter().take(1) {
            batch.facts.workloads.push(member.workload.clone());
            let names = WorkloadNames { user: "alice".into(), ..WorkloadNames::default() };
            batch.facts.workload_names.push(names.into());
        }
        for (pid, memory) in listed {
            batch.facts.gpu_processes.push(GpuProcess {
                pid: *pid,
                gpu: "0".into(),
                uuid: "GPU-a".into(),
                memory: Some(Bytes::of(memory * GIB)),
            });
        }
        let mut out = Analysis::default();
        let view = View::new(batch.families()).with_facts(&batch.facts);
        analyzer.analyze(&view, Timestamp::from_secs(second), &mut out);
        finding = out.findings.pop();
        let (families, ..) = out.batch.seal();
        if let Some(point) = families.first().and_then(|family| family.points.first()) {
            let owner = format!("{} {}", point.labels[2], point.labels[3]);
            all.push((second, point.value / GIB, owner));
        }
    }
    (all, finding)
}

/// Pid 7 has 20 GiB until second 100; then this scene.
fn until_100<'a>(after: Scene<'a>) -> impl Fn(u64) -> Scene<'a> {
    move |second| match second {
        ..100 => Scene { unattributed: 0.5, running: &[7], listed: &[(7, 20.0)] },
        _ => after,
    }
}

#[test]
fn memory_that_stays_after_the_end_of_its_process_is_orphaned_after_a_minute() {
    let after = Scene { unattributed: 20.5, running: &[], listed: &[] };
    let (all, finding) = play(NODE, 200, until_100(after));
    assert_eq!(all.first(), Some(&(161, 20.0, "sft alice".to_owned())), "without what the driver uses");
    let finding = finding.unwrap();
    assert_eq!(
        finding.summary,
        "GPU 0 has 20.0 GiB in use that belong to no running process: python (pid 7) of sft has ended there."
    );
    assert!(finding.advice.contains("--gpu-reset"));
    let released = Scene { unattributed: 0.6, running: &[], listed: &[] };
    let late = move |second| if second < 150 { until_100(after)(second) } else { released };
    assert!(play(NODE, 400, late).0.is_empty(), "the driver released it within the minute");
}

#[test]
fn a_process_that_is_listed_after_its_end_holds_orphaned_memory() {
    let after = Scene { unattributed: 0.5, running: &[8], listed: &[(7, 20.0), (8, 1.0)] };
    let (all, finding) = play(NODE, 200, until_100(after));
    assert_eq!(all.first(), Some(&(161, 20.0, "sft alice".to_owned())));
    let finding = finding.unwrap();
    assert!(
        finding.summary.ends_with("; other processes of this workload still run."),
        "{}",
        finding.summary
    );
    assert!(finding.advice.starts_with("End the other processes of the workload"));
}

#[test]
fn beside_running_processes_only_what_an_ended_process_left_counts() {
    let managed = |_| Scene { unattributed: 30.0, running: &[7], listed: &[(7, 20.0)] };
    assert!(play(NODE, 300, managed).0.is_empty(), "managed memory of a running process");
    let scene = |second| match second {
        ..100 => Scene { unattributed: 5.0, running: &[7, 8], listed: &[(7, 20.0), (8, 10.0)] },
        // First the driver lists it no more, then it ends.
        100..105 => Scene { unattributed: 17.0, running: &[7, 8], listed: &[(7, 20.0)] },
        _ => Scene { unattributed: 17.0, running: &[7], listed: &[(7, 20.0)] },
    };
    let (all, _) = play(NODE, 200, scene);
    assert_eq!(all.last().map(|(_, bytes, _)| *bytes), Some(10.0), "at most as much as it had");
    let released = |second| match second {
        ..100 => Scene { unattributed: 5.0, running: &[7, 8], listed: &[(7, 20.0), (8, 10.0)] },
        100..120 => Scene { unattributed: 5.0, running: &[7], listed: &[(7, 20.0)] },
        _ => Scene { unattributed: 45.0, running: &[7], listed: &[(7, 20.0)] },
    };
    assert!(play(NODE, 300, released).0.is_empty(), "what is allocated later is not of the ended one");
    let closed = |second| match second {
        ..100 => Scene { unattributed: 0.5, running: &[7, 8], listed: &[(7, 20.0), (8, 10.0)] },
        _ => Scene { unattributed: 10.5, running: &[7, 8], listed: &[(7, 20.0)] },
    };
    assert!(play(NODE, 300, closed).0.is_empty(), "its process runs");
}

#[test]
fn memory_from_before_the_start_is_orphaned_only_where_every_process_is_listed() {
    let scene = |_| Scene { unattributed: 20.5, running: &[], listed: &[] };
    let (all, finding) = play(NODE, 100, scene);
    assert_eq!(all.first(), Some(&(61, 19.5, " ".to_owned())), "1 GiB may be the driver's");
    assert_eq!(finding.unwrap().summary, "GPU 0 has 19.5 GiB in use that belong to no running process.");
    let silent = [
        Node { vendor: "amd", ..NODE },
        Node { host_pids: false, ..NODE },
        Node { mode: "host_vgpu", ..NODE },
    ];
    for node in silent {
        assert!(play(node, 100, scene).0.is_empty(), "{}", node.mode);
    }
    let own = |_| Scene { unattributed: 1.2, running: &[], listed: &[] };
    assert!(play(NODE, 100, own).0.is_empty(), "what an old driver reserves");
    let foreign = |_| Scene { unattributed: 20.5, running: &[], listed: &[(99, 1.0)] };
    assert!(play(NODE, 100, foreign).0.is_empty(), "a listed process that is not known may run");
}
