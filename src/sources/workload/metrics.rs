//! Metrics of the `workload` source.

use crate::model::desc::Instrument;
use crate::model::units::{Bytes, Count, Flag, Seconds};

/// The largest processes are exposed of at most 64 workloads, and of the host.
const PROCESSES: usize = 8_000;

crate::metrics! {
    /// Identity of a workload: the label kind is matcher, slurm, pod, container, unit, gpu or job; run is the training run that it is a part of, on all nodes; user is the user of its oldest process that does not run as root; slurm_step, container and container_id are those of the part with the most memory; slurm_account and slurm_partition are what the environment of a process that Slurm started says, which its user can change. Always 1; a label is empty where it does not apply or is not known.
    pub INFO: Gauge<Flag> = "memwarden_workload_info"
        {workload, kind, user, cgroup, slurm_job_id, slurm_step, slurm_account, slurm_partition, namespace, pod, container, pod_uid, container_id, unit, run};
    /// Largest resident memory of the workload within the peak window.
    pub RSS_MAX: Gauge<Bytes> = "memwarden_workload_rss_max_bytes" {workload};
    /// Resident memory of the workload's processes: the sum of anonymous, file and shared memory. Shared memory is counted once for each process that maps it.
    pub RSS: Gauge<Bytes> = "memwarden_workload_rss_bytes" {workload}.peak(&RSS_MAX);
    /// Resident anonymous memory of the workload's processes: heaps, stacks and private copies; pages shared since a fork are counted once for each process.
    pub ANON: Gauge<Bytes> = "memwarden_workload_rss_anon_bytes" {workload};
    /// Resident memory of files and libraries mapped by the workload's processes, counted once for each process that maps them.
    pub FILE: Gauge<Bytes> = "memwarden_workload_rss_file_bytes" {workload};
    /// Resident shared memory of the workload's processes, such as /dev/shm of data loaders, counted once for each process that maps it.
    pub SHMEM: Gauge<Bytes> = "memwarden_workload_rss_shmem_bytes" {workload};
    /// Anonymous and shared memory of the workload's processes, where a page that several of them map counts once, as a cgroup counts it. Only of workloads that are configured by a pid, such as the command of memwarden run; absent where the kernel does not show the memory of a process to memwarden.
    pub MEMORY: Gauge<Bytes> = "memwarden_workload_memory_bytes" {workload};
    /// Memory of the workload's processes in swap.
    pub SWAP: Gauge<Bytes> = "memwarden_workload_swap_bytes" {workload};
    /// Huge pages of a pool (hugetlbfs, MAP_HUGETLB) that the workload's processes map, which are no part of the resident memory; those that several processes map are counted once for each.
    pub HUGE: Gauge<Bytes> = "memwarden_workload_huge_pages_bytes" {workload};
    /// NUMA node that the cpuset of some process of the workload allows; always 1. Absent where all nodes are allowed, and where what is allowed is not known. What a process binds itself to (numactl --membind, mbind) is not seen.
    pub BOUND: Gauge<Flag> = "memwarden_workload_numa_node_allowed" {workload, node}.budget(4_000);
    /// Proportional set size (PSS) of the workload: shared memory is divided among the processes that map it. Absent unless sources.workload.pss is on, and where a process is too large to read without stalling it.
    pub PSS: Gauge<Bytes> = "memwarden_workload_pss_bytes" {workload};
    /// Largest peak resident memory of the workload's running processes, each over its lifetime.
    pub PROCESS_PEAK: Gauge<Bytes> = "memwarden_workload_process_peak_rss_bytes" {workload};
    /// Largest peak resident memory of the workload's processes that ended recently, each over its lifetime; exposed for sources.workload.exited_peak_hold, also after the workload ended, for at most 1,000 workloads.
    pub EXITED_PEAK: Gauge<Bytes> = "memwarden_workload_exited_process_peak_rss_bytes" {workload};
    /// Processes of the workload that ended since the workload was first seen, without those of memwarden.
    pub EXITED: Counter<Count> = "memwarden_workload_processes_exited_total" {workload}.counting("{process}");
    /// Processes of the workload, by activity: active (used CPU since the last sample, runs, or waits for a disk) or idle.
    pub PROCESSES_BY_ACTIVITY: Gauge<Count> = "memwarden_workload_processes" {workload, activity}.counting("{process}");
    /// Threads of the workload's processes.
    pub THREADS: Gauge<Count> = "memwarden_workload_threads" {workload}.counting("{thread}");
    /// CPU time of the workload's processes in user and system mode. CPU time after the last sample of an ended process, and of children that lived between two samples, is not included.
    pub CPU: Counter<Seconds> = "memwarden_workload_cpu_seconds_total" {workload};
    /// Major page faults of the workload's processes; ended processes are included up to their last sample.
    pub MAJOR_FAULTS: Counter<Count> = "memwarden_workload_major_faults_total" {workload}.counting("{fault}");
    /// Bytes that the workload's processes read from storage; ended processes are included up to their last sample. Absent where the kernel shows no process's I/O to memwarden.
    pub READ: Counter<Bytes> = "memwarden_workload_io_read_bytes_total" {workload};
    /// Bytes that the workload's processes wrote to storage; ended processes are included up to their last sample. Absent where the kernel shows no process's I/O to memwarden.
    pub WRITTEN: Counter<Bytes> = "memwarden_workload_io_written_bytes_total" {workload};
    /// File descriptors that the workload's processes have open; absent where the kernel shows no process's descriptors to memwarden.
    pub OPEN_FILES: Gauge<Count> = "memwarden_workload_open_files" {workload}.counting("{file}");
    /// Processes of the workload whose I/O or descriptors the kernel does not show to memwarden; the workload's sums do not include them.
    pub RESTRICTED: Gauge<Count> = "memwarden_workload_restricted_processes" {workload}.counting("{process}");
    /// Unix time at which the workload's oldest process started; in a workload that runs one job after the other, such as a shell, that of the first process that uses a GPU or reports as a rank of the newest job.
    pub START: Gauge<Seconds> = "memwarden_workload_start_timestamp_seconds" {workload};
    /// Memory of the workload's processes on one GPU; absent where the driver reports it for no process.
    pub GPU_MEMORY: Gauge<Bytes> = "memwarden_workload_gpu_memory_bytes" {workload, gpu, uuid};
    /// Resident memory of the workload's processes and their memory on GPUs that use the memory of the host (memwarden_gpu_uses_host_memory), which neither RSS nor cgroups include: what the workload takes of the one memory. Absent without such memory.
    pub POOL: Gauge<Bytes> = "memwarden_workload_host_and_gpu_memory_bytes" {workload};
    /// Processes of the workload that use the GPU.
    pub GPU_PROCESSES: Gauge<Count> = "memwarden_workload_gpu_processes" {workload, gpu, uuid}.counting("{process}");
    /// Resident memory of one of the largest processes; the label workload is empty for a process in no workload, whose value is the kernel's estimate, off by up to some MiB on hosts with many CPUs.
    pub PROCESS_RSS: Gauge<Bytes> = "memwarden_process_rss_bytes" {workload, pid, comm}
        .budget(PROCESSES)
        .semconv("process.memory.usage", Instrument::UpDownCounter, &[], &[("pid", "process.pid")]);
    /// Resident anonymous memory of one of the largest processes of a workload; absent for processes in no workload.
    pub PROCESS_ANON: Gauge<Bytes> = "memwarden_process_rss_anon_bytes" {workload, pid, comm}.budget(PROCESSES);
    /// Resident shared memory, such as /dev/shm, of one of the largest processes of a workload; absent for processes in no workload.
    pub PROCESS_SHMEM: Gauge<Bytes> = "memwarden_process_rss_shmem_bytes" {workload, pid, comm}.budget(PROCESSES);
    /// CPU time in user and system mode of one of the largest processes; the label workload is empty for a process in no workload.
    pub PROCESS_CPU: Counter<Seconds> = "memwarden_process_cpu_seconds_total" {workload, pid, comm}.budget(PROCESSES);
    /// Resident memory of the workload's processes that are not exposed individually; the label workload is empty for processes in no workload, whose values are the kernel's estimates.
    pub OTHER_RSS: Gauge<Bytes> = "memwarden_workload_other_processes_rss_bytes" {workload};
    /// Processes of the workload that are not exposed individually; the label workload is empty for processes in no workload.
    pub OTHER: Gauge<Count> = "memwarden_workload_other_processes" {workload}.counting("{process}");
    /// Workloads that memwarden tracks.
    pub WORKLOADS: Gauge<Count> = "memwarden_workloads" {}.counting("{workload}");
    /// Workloads that memwarden does not track because the limit sources.workload.max_workloads is reached.
    pub OMITTED: Gauge<Count> = "memwarden_workloads_omitted" {}.counting("{workload}");
    /// Processes that could not be compared with a matcher because the kernel does not show their executable, command line or environment to memwarden.
    pub UNREADABLE: Counter<Count> = "memwarden_workload_match_unreadable_total" {}.counting("{process}");
    /// Comparisons of a process with the matchers that were postponed because its user's share of reads of command lines and environments was used up, or because a signal was pending for it.
    pub DEFERRED: Counter<Count> = "memwarden_workload_match_deferred_total" {}.counting("{process}");
    /// Reads of a process's files that have not returned for 2 seconds and occupy a reader thread, by user ID; absent while there are none.
    pub HANGING: Gauge<Count> = "memwarden_process_reads_hanging" {user}.counting("{read}").budget(64);
    /// Reads of a process's files that did not return within 2 seconds.
    pub HUNG: Counter<Count> = "memwarden_process_reads_hung_total" {}.counting("{read}");
}
