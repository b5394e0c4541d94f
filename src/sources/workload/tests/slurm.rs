//! Jobs of Slurm, their IDs and their names.

use super::*;

const SLUID_STEP: &str = "/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0";

/// A process with the user ids of `status`, below `parent`.
fn with_users(pid: u32, comm: &str, parent: u32, users: &str) -> Process {
    let status = format!("Name:\tx\nUid:\t{users}\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n");
    Process::new(pid, comm).parent(parent).file("status", &status)
}

/// The slurmstepd of a step of job `job`.
fn stepd(pid: u32, job: &str) -> Process {
    with_users(pid, "slurmstepd", 1, "0\t0\t0\t0")
        .cgroup(&format!("{SLUID_STEP}/slurm"))
        .exe("/usr/sbin/slurmstepd")
        .file("cmdline", &format!("slurmstepd: [{job}.0]\0"))
}

/// Labels of `memwarden_workload_info`: workload, kind, id, step, account and partition of the job.
fn slurm_labels(host: &mut Host) -> String {
    labels(host, &["workload", "kind", "slurm_job_id", "slurm_step", "slurm_account", "slurm_partition"])
}

#[test]
fn a_job_with_a_sluid_has_the_id_in_the_title_of_its_slurmstepd() {
    let mut host = Host::new(options());
    host.add(&stepd(10, "77"));
    let task =
        with_users(11, "python", 10, "1000\t1000\t1000\t1000").cgroup(&format!("{SLUID_STEP}/user/task_0"));
    host.add(&task.file("environ", "SLURM_JOB_ID=99\0SLURM_JOB_ACCOUNT=physics\0SLURM_JOB_PARTITION=gpu\0"));
    assert_eq!(slurm_labels(&mut host), "slurm-77,slurm,77,0,physics,gpu");
    // They stay the same when the first processes have ended.
    host.add(&Process::new(12, "loader").cgroup(&format!("{SLUID_STEP}/user/task_0")));
    host.sample();
    host.tree.end(10);
    host.tree.end(11);
    assert_eq!(slurm_labels(&mut host), "slurm-77,slurm,77,0,physics,gpu");
    // The same SLUID, when it has no process for a while, is not remembered.
    host.tree.end(12);
    assert_eq!(slurm_labels(&mut host), "");
    host.add(&Process::new(13, "loader").cgroup(&format!("{SLUID_STEP}/user/task_0")));
    assert_eq!(slurm_labels(&mut host), "slurm-sEKNKTV3WPV500,slurm,,0,,");
}

#[test]
fn the_executable_of_debians_slurmstepd_is_known() {
    for (executable, name) in [
        ("/usr/sbin/slurmstepd-wlm", "slurm-77,slurm,77,0,,"),
        ("/usr/sbin/slurmstepd-wlm (deleted)", "slurm-77,slurm,77,0,,"),
        ("/tmp/slurmstepd-other", "slurm-sEKNKTV3WPV500,slurm,,0,,"),
    ] {
        let mut host = Host::new(options());
        host.add(&stepd(10, "77").exe(executable));
        host.add(&Process::new(12, "loader").cgroup(&format!("{SLUID_STEP}/user/task_0")));
        assert_eq!(slurm_labels(&mut host), name, "{executable}");
    }
}

#[test]
fn a_job_with_a_sluid_is_named_by_its_id_when_it_is_known() {
    let mut host = Host::new(options());
    host.add(&Process::new(12, "loader").cgroup(&format!("{SLUID_STEP}/user/task_0")));
    assert_eq!(slurm_labels(&mut host), "slurm-sEKNKTV3WPV500,slurm,,0,,");
    let key = host.workload.workload_table.workloads.values().next().unwrap().facts.key.clone();
    // Before it has a title, and then with it.
    host.add(&stepd(10, "77").file("cmdline", "/usr/sbin/slurmstepd\0"));
    assert_eq!(slurm_labels(&mut host), "slurm-sEKNKTV3WPV500,slurm,,0,,");
    host.add(&stepd(10, "77"));
    assert_eq!(slurm_labels(&mut host), "slurm-77,slurm,77,0,,");
    assert_eq!(host.workload.workload_table.workloads.values().next().unwrap().facts.key, key);
    assert_eq!(
        host.workload.workload_table.workloads.values().next().unwrap().facts.plain.as_str(),
        "slurm-77"
    );
}

#[test]
fn no_process_of_a_user_gives_its_job_the_id_of_another() {
    let task = format!("{SLUID_STEP}/user/task_0");
    let environ = "SLURM_JOB_ID=7\0SLURM_JOBID=7\0SLURM_JOB_ACCOUNT=a b\0SLURM_JOB_PARTITION=\x1b[2J\0";
    for forged in [
        // The name and the title of a slurmstepd, without root.
        with_users(11, "slurmstepd", 10, "1000\t1000\t1000\t1000").exe("/usr/sbin/slurmstepd"),
        // A setuid root program that was started under this name has the user's real id.
        with_users(11, "slurmstepd", 10, "1000\t0\t0\t0").exe("/usr/sbin/slurmstepd"),
        // One that also took root's real id is another program.
        with_users(11, "slurmstepd", 10, "0\t0\t0\t0").exe("/usr/bin/sudo"),
        // Only its environment.
        with_users(11, "python", 10, "1000\t1000\t1000\t1000"),
        // A pending signal.
        stepd(11, "7").file("status", "Name:\tx\nUid:\t0\t0\t0\t0\nSigPnd:\t0000000000000100\n"),
    ] {
        let mut host = Host::new(options());
        host.add(&forged.cgroup(&task).file("cmdline", "slurmstepd: [7.0]\0").file("environ", environ));
        // The job that has this id.
        host.add(&Process::new(20, "python").cgroup(JOB));
        let labels = slurm_labels(&mut host);
        assert_eq!(labels, "slurm-sEKNKTV3WPV500,slurm,,0,,\nslurm-7,slurm,7,0,,");
    }
}

#[test]
fn the_environment_of_a_process_that_slurm_did_not_start_or_that_is_signalled_is_not_read() {
    let environment = "SLURM_JOB_ACCOUNT=physics\0SLURM_JOB_PARTITION=gpu\0";
    let mut host = Host::new(options());
    host.add(&Process::new(10, "slurmstepd"));
    let signalled = with_users(11, "python", 10, "1\t1\t1\t1").cgroup(JOB).file("environ", environment);
    host.add(&signalled.file("status", "Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
    host.add(&with_users(12, "python", 11, "1\t1\t1\t1").cgroup(JOB).file("environ", environment));
    assert_eq!(slurm_labels(&mut host), "slurm-7,slurm,7,0,,");
    host.add(&with_users(13, "python", 10, "1\t1\t1\t1").cgroup(JOB).file("environ", environment));
    assert_eq!(slurm_labels(&mut host), "slurm-7,slurm,7,0,physics,gpu");
}
