//! Lines that nothing follows from; the texts of `tests/kernel` have the others.

use super::*;

#[test]
fn similar_lines_are_ignored() {
    for message in [
        "NVRM: Xid (PCI:0000:3b:00): , pid=1",
        "NVRM: Xid (PCI:0000:3b:00): 99999999999",
        "NVRM: Xid (PCI:somewhere): 79",
        "NVRM: Xid (PCI:000000000000000000:3b:00): 79",
        "NVRM: Xid (): 79",
        "NVRM: Xid (PCI: GPU-I:07): 79",
        "NVRM: Xid (GPU-I:07 0000:3b:00): 79",
        "NVRM: Xid (3b:00): 79",
        "NVRM: Xid (::): 79",
        "NVRM: GPU at PCI:0000:3b:00: GPU-00000000-0000-0000-0000-000000000000",
        "python3 said: Out of memory: Killed process 5 (a) total-vm:4kB",
        "oom_reaper: reaped process 5 (a), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "oom-kill:constraint=CONSTRAINT_OTHER,nodemask=(null)",
        "INFO: task kworker/0:1:33 blocked on a mutex likely owned by task a:1.",
        "a name that is long invoked oom-killer: gfp_mask=0xcc0, order=0",
        "EDAC MC0: Giving out device to module skx_edac",
    ] {
        assert_eq!(line(message), None, "{message:?}");
    }
}

#[test]
fn a_segmentation_fault_of_a_program_with_a_chosen_name_is_no_warning() {
    for (comm, file) in [
        ("a", "b: page allocation failure: order:4, mode:0x40dc0"),
        (": page allocati", "on failure: order:4"),
        ("a", "watchdog: BUG: soft lockup - CPU#3 stuck for 22s!"),
        ("watchdog: ", "BUG: soft lockup - CPU#3 stuck for 22s!"),
        ("INFO: task a", "a:5 blocked for more than 120 seconds."),
        ("INFO: task a:5 ", " blocked for more than 120 seconds."),
        ("Memory failure:", " 0x1: recovery action for "),
        ("INFO: rcu_a", "self-detected stall on CPU"),
        ("EDAC MC0: 1 UE ", "x"),
    ] {
        let fault =
            format!("{comm}[48213]: segfault at 0 ip 0000561a sp 00007ffd error 4 in {file}[561a+1000]");
        assert_eq!(line(&fault), None, "{fault}");
    }
}

proptest::proptest! {
    #[test]
    fn never_panics(any: String, tail in "\\PC{0,40}", pid in "[0-9]{0,12}") {
        line(&any);
        line(&format!("Out of memory: Killed process {pid} ({tail}) total-vm:{tail}"));
        line(&format!("oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg={tail},task={tail},pid={pid}"));
        line(&format!("NVRM: Xid ({tail}): {pid}{tail}"));
        line(&format!("[{tail}]: {pid}"));
        line(&format!("EDAC MC{pid}: {pid} {tail}"));
    }
}
