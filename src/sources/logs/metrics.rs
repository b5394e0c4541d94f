//! What `logs` exposes beside the metrics of `training`: what frameworks print of the whole job, and the tail's state.
//!
//! `log` is the path as it was configured.

use crate::model::units::{Bytes, Count, Flag, Number, PerSecond, Ratio, Seconds};

crate::metrics! {
    /// A log whose lines are understood; always 1.
    pub INFO: Gauge<Flag> = "memwarden_log_info" {log, workload, framework};
    /// Files that are followed.
    pub FILES: Gauge<Count> = "memwarden_log_files" {log}.counting("{file}");
    /// Time since the log was last looked at; grows where its file system does not answer.
    pub PASS_AGE: Gauge<Seconds> = "memwarden_log_pass_age_seconds" {log};
    /// Lines read of the log.
    pub LINES: Counter<Count> = "memwarden_log_lines_total" {log}.counting("{line}");
    /// Lines whose form is known.
    pub RECOGNIZED: Counter<Count> = "memwarden_log_recognized_lines_total" {log}.counting("{line}");
    /// Lines longer than 64 KiB, whose rest was passed over.
    pub CUT: Counter<Count> = "memwarden_log_cut_lines_total" {log}.counting("{line}");
    /// Bytes read of the log.
    pub READ: Counter<Bytes> = "memwarden_log_read_bytes_total" {log};
    /// Bytes passed over because the log grows faster than it is read.
    pub SKIPPED_BYTES: Counter<Bytes> = "memwarden_log_skipped_bytes_total" {log};
    /// Times that a file was replaced or cut.
    pub ROTATIONS: Counter<Count> = "memwarden_log_rotations_total" {log}.counting("{rotation}");
    /// Files that are not followed, counted once each, by reason: not_regular (a pipe, a device, a folder), binary, untrusted (a link, or a file that not everybody may read, where others can write in a folder of the path), permission, io.
    pub ERRORS: Counter<Count> = "memwarden_log_errors_total" {log, kind}.counting("{file}");

    /// Time since a figure was read of the workload's log.
    pub AGE: Gauge<Seconds> = "memwarden_training_log_age_seconds" {workload, rank};
    /// Messages in logs about GPU memory that did not suffice, by cause: fragmentation (the allocator held enough, in pieces), exhaustion, unknown (the message has no figures).
    pub OOMS: Counter<Count> = "memwarden_training_oom_messages_total" {workload, cause}.counting("{message}");
    /// How long a phase of the last steps took, each: forward, backward, optimizer; by the framework's log.
    pub PHASE_LAST: Gauge<Seconds> = "memwarden_training_phase_last_duration_seconds" {workload, rank, phase};
    /// The factor of the loss in the backward pass.
    pub LOSS_SCALE: Gauge<Number> = "memwarden_training_loss_scale" {workload, rank}.counting("{factor}");
    /// Optimizer steps that the job will take, by its log.
    pub STEPS_PLANNED: Gauge<Count> = "memwarden_training_planned_steps" {workload}.counting("{step}");
    /// Tokens that all ranks together have trained on, by the job's log; a job that goes on from a checkpoint goes back.
    pub JOB_TOKENS: Gauge<Count> = "memwarden_training_job_tokens" {workload}.counting("{token}");
    /// Samples that all ranks together have trained on, by the job's log; a job that goes on from a checkpoint goes back.
    pub JOB_SAMPLES: Gauge<Count> = "memwarden_training_job_samples" {workload}.counting("{sample}");
    /// Samples of one step, all ranks together, by the job's log.
    pub GLOBAL_BATCH: Gauge<Count> = "memwarden_training_global_batch_samples" {workload}.counting("{sample}");
    /// Tokens that all ranks together train on in a second, by the job's log.
    pub JOB_TOKEN_RATE: Gauge<PerSecond> = "memwarden_training_job_throughput_tokens_per_second" {workload}.counting("{token}/s");
    /// Samples that all ranks together train on in a second, by the job's log.
    pub JOB_SAMPLE_RATE: Gauge<PerSecond> = "memwarden_training_job_throughput_samples_per_second" {workload}.counting("{sample}/s");
    /// Tokens that one GPU trains on in a second, by the job's log.
    pub GPU_TOKEN_RATE: Gauge<PerSecond> = "memwarden_training_gpu_throughput_tokens_per_second" {workload}.counting("{token}/s");
    /// Samples that one GPU trains on in a second, by the job's log.
    pub GPU_SAMPLE_RATE: Gauge<PerSecond> = "memwarden_training_gpu_throughput_samples_per_second" {workload}.counting("{sample}/s");
    /// Operations a second of one GPU, by the framework's own count, whose convention it does not tell.
    pub REPORTED_FLOPS: Gauge<PerSecond> = "memwarden_training_reported_flops_per_second" {workload}.counting("{flop}/s");
    /// Share of the peak, by the framework's own count and its own table of peaks.
    pub REPORTED_MFU: Gauge<Ratio> = "memwarden_training_reported_mfu_ratio" {workload};
}
