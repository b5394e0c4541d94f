//! Metrics of the `logs` source in addition to those of `training`: values of the whole job, and the state of
//! following.
//!
//! `log` is the path as configured.

use crate::model::units::{Bytes, Count, Flag, Number, PerSecond, Ratio, Seconds};

crate::metrics! {
    /// Followed training log, its workload and the framework that its lines belong to; always 1.
    pub INFO: Gauge<Flag> = "memwarden_log_info" {log, workload, framework};
    /// Files followed for the configured log path.
    pub FILES: Gauge<Count> = "memwarden_log_files" {log}.counting("{file}");
    /// Time since the training log was last checked for new lines; grows while its file system does not respond.
    pub PASS_AGE: Gauge<Seconds> = "memwarden_log_pass_age_seconds" {log};
    /// Lines read from the training log.
    pub LINES: Counter<Count> = "memwarden_log_lines_total" {log}.counting("{line}");
    /// Lines of the training log in a known format.
    pub RECOGNIZED: Counter<Count> = "memwarden_log_recognized_lines_total" {log}.counting("{line}");
    /// Lines of the training log longer than 64 KiB, of which the rest was not read.
    pub CUT: Counter<Count> = "memwarden_log_cut_lines_total" {log}.counting("{line}");
    /// Bytes read from the training log.
    pub READ: Counter<Bytes> = "memwarden_log_read_bytes_total" {log};
    /// Bytes of the training log that were skipped because it grows faster than it is read.
    pub SKIPPED_BYTES: Counter<Bytes> = "memwarden_log_skipped_bytes_total" {log};
    /// Times that the training log was replaced or truncated.
    pub ROTATIONS: Counter<Count> = "memwarden_log_rotations_total" {log}.counting("{rotation}");
    /// Files of the training log that cannot be followed, each counted once, by reason: not_regular (a pipe, a device or a folder), binary, untrusted (a link, or a file that not everybody may read, where others can write in a folder of the path), permission or io.
    pub ERRORS: Counter<Count> = "memwarden_log_errors_total" {log, kind}.counting("{file}");

    /// Time since the last value was read from the workload's log.
    pub AGE: Gauge<Seconds> = "memwarden_training_log_age_seconds" {workload, rank};
    /// GPU out-of-memory messages in the workload's logs, by cause: fragmentation (enough memory was reserved, in blocks too small), exhaustion, or unknown (the message has no sizes).
    pub OOMS: Counter<Count> = "memwarden_training_oom_messages_total" {workload, cause}.counting("{message}");
    /// Duration of a phase (forward, backward or optimizer) of the last steps, per step, as reported in the workload's log.
    pub PHASE_LAST: Gauge<Seconds> = "memwarden_training_phase_last_duration_seconds" {workload, rank, phase};
    /// Loss scale factor of mixed-precision training, as last reported in the workload's log.
    pub LOSS_SCALE: Gauge<Number> = "memwarden_training_loss_scale" {workload, rank}.counting("{factor}");
    /// Optimizer steps that the job is configured to take, as reported in its log.
    pub STEPS_PLANNED: Gauge<Count> = "memwarden_training_planned_steps" {workload}.counting("{step}");
    /// Tokens that all ranks of the job have trained on, as reported in its log; decreases when the job resumes from a checkpoint.
    pub JOB_TOKENS: Gauge<Count> = "memwarden_training_job_tokens" {workload}.counting("{token}");
    /// Samples that all ranks of the job have trained on, as reported in its log; decreases when the job resumes from a checkpoint.
    pub JOB_SAMPLES: Gauge<Count> = "memwarden_training_job_samples" {workload}.counting("{sample}");
    /// Samples of one optimizer step over all ranks (global batch size), as reported in the job's log.
    pub GLOBAL_BATCH: Gauge<Count> = "memwarden_training_global_batch_samples" {workload}.counting("{sample}");
    /// Tokens per second that all ranks of the job train on, as reported in its log.
    pub JOB_TOKEN_RATE: Gauge<PerSecond> = "memwarden_training_job_throughput_tokens_per_second" {workload}.counting("{token}/s");
    /// Samples per second that all ranks of the job train on, as reported in its log.
    pub JOB_SAMPLE_RATE: Gauge<PerSecond> = "memwarden_training_job_throughput_samples_per_second" {workload}.counting("{sample}/s");
    /// Tokens per second that one GPU of the job trains on, as reported in its log.
    pub GPU_TOKEN_RATE: Gauge<PerSecond> = "memwarden_training_gpu_throughput_tokens_per_second" {workload}.counting("{token}/s");
    /// Samples per second that one GPU of the job trains on, as reported in its log.
    pub GPU_SAMPLE_RATE: Gauge<PerSecond> = "memwarden_training_gpu_throughput_samples_per_second" {workload}.counting("{sample}/s");
    /// Floating-point operations per second of one GPU, as computed by the training framework with a convention that it does not report.
    pub REPORTED_FLOPS: Gauge<PerSecond> = "memwarden_training_reported_flops_per_second" {workload}.counting("{flop}/s");
    /// Model FLOPs utilization (MFU), 0 to 1, as computed by the training framework with its own table of peak rates.
    pub REPORTED_MFU: Gauge<Ratio> = "memwarden_training_reported_mfu_ratio" {workload};
}
