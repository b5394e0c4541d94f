//! What `workload` exposes.

use crate::model::desc::Instrument;
use crate::model::units::{Bytes, Count, Flag, Seconds};

/// At most 64 workloads show their largest processes, and the host does.
const PROCESSES: usize = 8_000;

crate::metrics! {
    /// What a workload is: kind is matcher, slurm, pod, container, unit, gpu or job, user is that of its oldest process that is not root's; always 1. A label is empty where it does not apply.
    pub INFO: Gauge<Flag> = "memwarden_workload_info"
        {workload, kind, user, cgroup, slurm_job_id, pod_uid, container_id, unit};
    /// The largest resident memory of the workload over the peak window.
    pub RSS_MAX: Gauge<Bytes> = "memwarden_workload_rss_max_bytes" {workload};
    /// Resident memory of the workload's processes, the sum of its anonymous, file and shared parts; memory that several of them map is counted once for each.
    pub RSS: Gauge<Bytes> = "memwarden_workload_rss_bytes" {workload}.peak(&RSS_MAX);
    /// The anonymous part of the resident memory: heaps, stacks, private copies; pages shared since a fork count once for each process.
    pub ANON: Gauge<Bytes> = "memwarden_workload_rss_anon_bytes" {workload};
    /// The file part of the resident memory: mapped files and libraries, counted once for each process that maps them.
    pub FILE: Gauge<Bytes> = "memwarden_workload_rss_file_bytes" {workload};
    /// The shared part of the resident memory, such as /dev/shm of data loaders, counted once for each process that maps it.
    pub SHMEM: Gauge<Bytes> = "memwarden_workload_rss_shmem_bytes" {workload};
    /// Memory of the workload's processes that is swapped out.
    pub SWAP: Gauge<Bytes> = "memwarden_workload_swap_bytes" {workload};
    /// Proportional set size, shared memory divided among those that map it; absent unless enabled and where a process is too large to be asked without stalling it.
    pub PSS: Gauge<Bytes> = "memwarden_workload_pss_bytes" {workload};
    /// The most that any one living process of the workload ever had resident.
    pub PROCESS_PEAK: Gauge<Bytes> = "memwarden_workload_process_peak_rss_bytes" {workload};
    /// The most that any process of the workload which ended lately ever had resident; shown for exited_peak_hold, also when the workload ended with it, for at most 1,000 workloads.
    pub EXITED_PEAK: Gauge<Bytes> = "memwarden_workload_exited_process_peak_rss_bytes" {workload};
    /// Processes of the workload that ended while they were watched.
    pub EXITED: Counter<Count> = "memwarden_workload_processes_exited_total" {workload}.counting("{process}");
    /// Processes of the workload by activity: active ones used CPU since the last sample, run, or wait for a disk; the others are idle.
    pub PROCESSES_BY_ACTIVITY: Gauge<Count> = "memwarden_workload_processes" {workload, activity}.counting("{process}");
    /// Threads of the workload's processes.
    pub THREADS: Gauge<Count> = "memwarden_workload_threads" {workload}.counting("{thread}");
    /// User and system CPU time of the workload's processes, of those that ended up to their last sample: what each used after it, and a child that lived between two samples, is not counted.
    pub CPU: Counter<Seconds> = "memwarden_workload_cpu_seconds_total" {workload};
    /// Major page faults of the workload's processes, of those that ended up to their last sample.
    pub MAJOR_FAULTS: Counter<Count> = "memwarden_workload_major_faults_total" {workload}.counting("{fault}");
    /// Bytes the workload's processes fetched from storage, of those that ended up to their last sample; absent where the kernel shows none of them.
    pub READ: Counter<Bytes> = "memwarden_workload_io_read_bytes_total" {workload};
    /// Bytes the workload's processes sent to storage, of those that ended up to their last sample; absent where the kernel shows none of them.
    pub WRITTEN: Counter<Bytes> = "memwarden_workload_io_written_bytes_total" {workload};
    /// Descriptors the workload's processes have open; absent where the kernel shows none of them.
    pub OPEN_FILES: Gauge<Count> = "memwarden_workload_open_files" {workload}.counting("{file}");
    /// Processes of the workload whose I/O or descriptors the kernel does not show the daemon: the sums leave them out.
    pub RESTRICTED: Gauge<Count> = "memwarden_workload_restricted_processes" {workload}.counting("{process}");
    /// When the workload's oldest process started, in seconds since 1970.
    pub START: Gauge<Seconds> = "memwarden_workload_start_timestamp_seconds" {workload};
    /// GPU memory of the workload's processes on one GPU; absent where the driver does not say for any of them.
    pub GPU_MEMORY: Gauge<Bytes> = "memwarden_workload_gpu_memory_bytes" {workload, gpu, uuid};
    /// Processes of the workload on one GPU.
    pub GPU_PROCESSES: Gauge<Count> = "memwarden_workload_gpu_processes" {workload, gpu, uuid}.counting("{process}");
    /// Resident memory of one of the largest processes of a workload; workload is empty for those in none, of which the kernel tells an estimate, off by some MiB on hosts of many processors.
    pub PROCESS_RSS: Gauge<Bytes> = "memwarden_process_rss_bytes" {workload, pid, comm}
        .budget(PROCESSES)
        .semconv("process.memory.usage", Instrument::UpDownCounter, &[], &[("pid", "process.pid")]);
    /// The anonymous part of the resident memory of one of the largest processes of a workload; absent for those in none.
    pub PROCESS_ANON: Gauge<Bytes> = "memwarden_process_rss_anon_bytes" {workload, pid, comm}.budget(PROCESSES);
    /// The shared part of the resident memory of one of the largest processes of a workload, such as /dev/shm; absent for those in none.
    pub PROCESS_SHMEM: Gauge<Bytes> = "memwarden_process_rss_shmem_bytes" {workload, pid, comm}.budget(PROCESSES);
    /// User and system CPU time of one of the largest processes of a workload; workload is empty for those in none.
    pub PROCESS_CPU: Counter<Seconds> = "memwarden_process_cpu_seconds_total" {workload, pid, comm}.budget(PROCESSES);
    /// Resident memory of the processes of a workload that are not shown one by one; workload is empty for those in none, of which the kernel tells estimates.
    pub OTHER_RSS: Gauge<Bytes> = "memwarden_workload_other_processes_rss_bytes" {workload};
    /// Processes of a workload that are not shown one by one; workload is empty for those in none.
    pub OTHER: Gauge<Count> = "memwarden_workload_other_processes" {workload}.counting("{process}");
    /// Workloads that are watched.
    pub WORKLOADS: Gauge<Count> = "memwarden_workloads" {}.counting("{workload}");
    /// Workloads that were found and are not watched because there are more than most.
    pub OMITTED: Gauge<Count> = "memwarden_workloads_omitted" {}.counting("{workload}");
    /// Processes that a matcher could not be compared with because the kernel does not show their executable, command line or environment.
    pub UNREADABLE: Counter<Count> = "memwarden_workload_match_unreadable_total" {}.counting("{process}");
    /// Times that a process was compared with the matchers later because the share of its user in what is read of command lines and environments was used up, or because a signal was pending for it.
    pub DEFERRED: Counter<Count> = "memwarden_workload_match_deferred_total" {}.counting("{process}");
    /// Reads of a process's files that have not answered for 2 s and are waited for by a thread of their own, by user id; absent while there are none.
    pub HANGING: Gauge<Count> = "memwarden_process_reads_hanging" {user}.counting("{read}").budget(64);
    /// Reads of a process's files that did not answer within 2 s.
    pub HUNG: Counter<Count> = "memwarden_process_reads_hung_total" {}.counting("{read}");
}
