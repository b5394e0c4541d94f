//! Metrics of the `slurm` source.

use crate::model::units::{Count, Flag};

crate::metrics! {
    /// GPU that Slurm allocated to a job, according to the file that a prolog wrote; also while no process of the job uses the GPU. workload is empty while the job has no process on this node; user_id is empty where the file does not name the user. Always 1.
    pub GPU_JOB: Gauge<Flag> = "memwarden_slurm_gpu_job_info" {gpu, uuid, slurm_job_id, user_id, workload}.budget(1_000);
    /// Processes of the job that use the GPU that Slurm allocated to it: 0 for a GPU that is held and not used. Absent where the processes of the GPU are not known.
    pub GPU_PROCESSES: Gauge<Count> = "memwarden_slurm_gpu_job_processes" {gpu, uuid, slurm_job_id, workload}.counting("{process}").budget(1_000);
}
