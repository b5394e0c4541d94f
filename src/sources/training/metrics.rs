//! Metrics of the `training` source: what jobs report over the job socket, and the state of the socket.
//!
//! `rank` is the global rank that a process reports. If two processes of one workload
//! report the same rank, the label of the later one ends with its pid: `0@4711`.

use crate::model::units::{Bytes, Count, Flag, Joules, Number, PerSecond, Ratio, Seconds};

/// Series of metrics with several series per rank, such as one per device, phase or group.
const SEVERAL: usize = 8_000;
/// Most series of one metric.
pub(super) const MOST_SERIES: usize = SEVERAL;

/// A histogram takes 21 points.
const HISTOGRAMS: usize = 10_000;

crate::metrics! {
    /// Rank of a training run: a process that reports as one over the job socket, or, with an empty label client, that the launcher of its job started as one; always 1. The labels gpu and uuid are empty where the process uses no GPU or several; run is the training run on all nodes, and world is its number of ranks.
    pub INFO: Gauge<Flag> = "memwarden_rank_info"
        {workload, rank, local_rank, world, pid, gpu, uuid, run, client, framework, framework_version, precision, recompute};
    /// Processes of the workload that are connected to the job socket as ranks.
    pub RANKS: Gauge<Count> = "memwarden_training_ranks" {workload}.counting("{rank}");
    /// Number of ranks of the workload's run on all nodes, as its ranks report it or as its launcher has set it; absent where that is unknown.
    pub WORLD: Gauge<Count> = "memwarden_training_world_size" {workload}.counting("{rank}");
    /// Connected processes of the workload that report a rank that another process has.
    pub CONFLICTS: Gauge<Count> = "memwarden_training_rank_conflicts" {workload}.counting("{rank}");
    /// Time since the last message of the rank.
    pub MESSAGE_AGE: Gauge<Seconds> = "memwarden_training_message_age_seconds" {workload, rank};

    /// Number of the rank's last optimizer step.
    pub STEP: Gauge<Count> = "memwarden_training_step" {workload, rank}.counting("{step}");
    /// Time since the rank's last optimizer step; absent before the first one.
    pub STEP_AGE: Gauge<Seconds> = "memwarden_training_step_age_seconds" {workload, rank};
    /// Optimizer steps of the rank since it connected.
    pub STEPS: Counter<Count> = "memwarden_training_steps_total" {workload, rank}.counting("{step}");
    /// Duration of the rank's optimizer steps that were reported individually.
    pub STEP_DURATION: Histogram<Seconds> = "memwarden_training_step_duration_seconds" {workload, rank, le}.budget(HISTOGRAMS);
    /// Duration of the rank's last optimizer step.
    pub STEP_LAST: Gauge<Seconds> = "memwarden_training_step_last_duration_seconds" {workload, rank};
    /// Tokens that this rank alone has trained on since its process started.
    pub TOKENS: Counter<Count> = "memwarden_training_tokens_total" {workload, rank}.counting("{token}");
    /// Tokens per second that this rank alone trains on, averaged over 30 seconds or a few steps; decreases while no step is reported.
    pub TOKEN_RATE: Gauge<PerSecond> = "memwarden_training_throughput_tokens_per_second" {workload, rank}.counting("{token}/s");
    /// Samples that this rank alone has trained on since its process started.
    pub SAMPLES: Counter<Count> = "memwarden_training_samples_total" {workload, rank}.counting("{sample}");
    /// Loss of the rank's last step; absent where it was not finite.
    pub LOSS: Gauge<Number> = "memwarden_training_loss" {workload, rank}.counting("{loss}");
    /// Learning rate of the rank's last step.
    pub LEARNING_RATE: Gauge<Number> = "memwarden_training_learning_rate" {workload, rank}.counting("{rate}");
    /// Norm of the gradients of the rank's last step; absent where it was not finite.
    pub GRAD_NORM: Gauge<Number> = "memwarden_training_gradient_norm" {workload, rank}.counting("{norm}");
    /// Steps of the rank that were skipped because gradients overflowed at the current loss scale.
    pub SKIPPED: Counter<Count> = "memwarden_training_skipped_steps_total" {workload, rank}.counting("{step}");
    /// Steps of the rank whose loss or gradients were NaN or infinite.
    pub NAN: Counter<Count> = "memwarden_training_nonfinite_steps_total" {workload, rank}.counting("{step}");

    /// Time that the rank spent in a phase: forward, backward, optimizer, loader, evaluation, or a phase that the job defines.
    pub PHASE_SECONDS: Counter<Seconds> = "memwarden_training_phase_seconds_total" {workload, rank, phase}.budget(SEVERAL);
    /// Times that the rank completed a phase of its steps.
    pub PHASES: Counter<Count> = "memwarden_training_phases_total" {workload, rank, phase}.counting("{phase}").budget(SEVERAL);
    /// Largest allocated memory of the rank in a phase of its steps since the process started.
    pub PHASE_PEAK: Gauge<Bytes> = "memwarden_training_phase_allocated_peak_bytes" {workload, rank, phase}.budget(SEVERAL);
    /// Phase of the step that the rank is currently in; always 1, absent between phases.
    pub PHASE_NOW: Gauge<Flag> = "memwarden_training_phase_info" {workload, rank, phase};

    /// Memory of live tensors in the rank's allocator. The label device is the ordinal that the process uses; gpu is the index on the node, empty where the driver does not confirm it.
    pub ALLOCATED: Gauge<Bytes> = "memwarden_training_allocator_allocated_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Largest memory of live tensors in the rank's allocator since the process started or reset its peak.
    pub ALLOCATED_PEAK: Gauge<Bytes> = "memwarden_training_allocator_allocated_peak_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Memory in active blocks of the rank's allocator: live tensors, and freed tensors still in use by a stream.
    pub ACTIVE: Gauge<Bytes> = "memwarden_training_allocator_active_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Memory that the rank's allocator reserved from the device.
    pub RESERVED: Gauge<Bytes> = "memwarden_training_allocator_reserved_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Largest memory that the rank's allocator reserved from the device since the process started or reset its peak.
    pub RESERVED_PEAK: Gauge<Bytes> = "memwarden_training_allocator_reserved_peak_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Memory that the program requested from the rank's allocator, before rounding.
    pub REQUESTED: Gauge<Bytes> = "memwarden_training_allocator_requested_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Free memory of the rank's allocator in segments that are in use (inactive split); it cannot be released to the device.
    pub INACTIVE_SPLIT: Gauge<Bytes> = "memwarden_training_allocator_inactive_split_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Memory of the rank's allocator in unused segments; it can be released to the device.
    pub RELEASABLE: Gauge<Bytes> = "memwarden_training_allocator_releasable_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Largest free block inside the reserved segments of the rank's allocator.
    pub LARGEST_FREE: Gauge<Bytes> = "memwarden_training_allocator_largest_free_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Times that the rank's allocator freed its cache and retried because the device had no memory.
    pub RETRIES: Counter<Count> = "memwarden_training_allocator_retries_total" {workload, rank, device, gpu}.counting("{retry}").budget(SEVERAL);
    /// Out-of-memory errors of the rank's allocator, as counted by the allocator.
    pub ALLOCATOR_OOMS: Counter<Count> = "memwarden_training_allocator_ooms_total" {workload, rank, device, gpu}.counting("{failure}").budget(SEVERAL);
    /// Free memory of the device, as reported by the rank, or as the driver reports it to the daemon.
    pub DEVICE_FREE: Gauge<Bytes> = "memwarden_training_device_free_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Total memory of the device, as reported by the rank.
    pub DEVICE_TOTAL: Gauge<Bytes> = "memwarden_training_device_total_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Resident memory (RSS) of the rank's process.
    pub PROCESS_RSS: Gauge<Bytes> = "memwarden_training_process_rss_bytes" {workload, rank};
    /// Pinned (page-locked) host memory of the rank.
    pub PINNED: Gauge<Bytes> = "memwarden_training_pinned_bytes" {workload, rank};

    /// Elements of the rank's model parameters, by kind: all, trainable or lora.
    pub PARAMETERS: Gauge<Count> = "memwarden_training_parameters" {workload, rank, kind}.counting("{element}").budget(SEVERAL);
    /// Memory of the rank's model, by kind: parameters, gradients or optimizer.
    pub MODEL: Gauge<Bytes> = "memwarden_training_model_bytes" {workload, rank, kind}.budget(SEVERAL);
    /// Memory of the rank's model parameters, by data type.
    pub BY_DTYPE: Gauge<Bytes> = "memwarden_training_parameters_dtype_bytes" {workload, rank, dtype}.budget(SEVERAL);
    /// Memory of the rank's model parameters, by group of layers; of more than 16 groups, the smallest are summed as other.
    pub BY_GROUP: Gauge<Bytes> = "memwarden_training_parameters_group_bytes" {workload, rank, group}.budget(SEVERAL);
    /// Parameter tensors of the rank that contain non-finite values, by kind: nan or inf.
    pub NONFINITE: Gauge<Count> = "memwarden_training_nonfinite_tensors" {workload, rank, kind}.counting("{tensor}");

    /// Highest memory that the rank predicts to hold in a phase (optimizer, step, evaluation, generation or save) on a resource (device, host, shm or disk; for shm and disk, what the phase adds), as quantiles (estimate p50 or p90); absent where it cannot be predicted.
    pub PREDICTED_PEAK: Gauge<Bytes> = "memwarden_fit_predicted_peak_bytes" {workload, rank, phase, resource, device, gpu, estimate}.budget(SEVERAL);
    /// Highest memory that the rank has measured in a phase on a resource, to be compared with its prediction; absent before the phase has occurred.
    pub PREDICTION_MEASURED: Gauge<Bytes> = "memwarden_fit_measured_peak_bytes" {workload, rank, phase, resource, device, gpu}.budget(SEVERAL);

    /// Out-of-memory errors of the workload's allocators, as reported when they occurred; kept for an hour after the workload's last rank ended.
    pub OOMS: Counter<Count> = "memwarden_training_ooms_total" {workload}.counting("{failure}");
    /// State of the rank's last checkpoint: 1 for the current state (saving, saved or failed), 0 for the others.
    pub CHECKPOINT: Gauge<Flag> = "memwarden_training_checkpoint_state" {workload, rank, state};
    /// Optimizer step of the rank's last checkpoint.
    pub CHECKPOINT_STEP: Gauge<Count> = "memwarden_training_checkpoint_step" {workload, rank}.counting("{step}");
    /// Unix time at which the rank last saved a checkpoint.
    pub CHECKPOINT_SAVED: Gauge<Seconds> = "memwarden_training_checkpoint_saved_timestamp_seconds" {workload, rank};
    /// Messages that the rank's client dropped because the job socket was full; the client never blocks.
    pub DROPPED: Counter<Count> = "memwarden_training_client_dropped_total" {workload, rank}.counting("{line}");

    /// Processes connected to the job socket, including processes that did not report a rank.
    pub CLIENTS: Gauge<Count> = "memwarden_training_clients" {}.counting("{client}");
    /// Processes disconnected from the job socket, by reason: clients (limit of all), user (limit of the user), share (disconnected for a user with fewer connections) or system.
    pub REFUSED: Counter<Count> = "memwarden_training_clients_refused_total" {reason}.counting("{client}");
    /// Connections to the job socket whose process could not be verified (it ended, belongs to another user, or its pid may be reused); their metrics have an empty label workload.
    pub UNPROVEN: Counter<Count> = "memwarden_training_clients_unproven_total" {}.counting("{client}");
    /// Valid messages received over the job socket, by kind.
    pub MESSAGES: Counter<Count> = "memwarden_training_messages_total" {kind}.counting("{message}");
    /// Lines and messages received over the job socket that were rejected wholly or in part, by kind of error.
    pub ERRORS: Counter<Count> = "memwarden_training_errors_total" {kind}.counting("{error}");
    /// Bytes received over the job socket.
    pub RECEIVED: Counter<Bytes> = "memwarden_training_received_bytes_total" {};
    /// Times that reading from a process was paused because it exceeded the message rate of the job socket.
    pub PAUSED: Counter<Count> = "memwarden_training_client_pauses_total" {}.counting("{pause}");
    /// Floating-point operations per second that the rank achieves on one GPU, by counting convention: full, causal, 6n or hardware; absent where tokens are not reported, and of every convention but 6n where memwarden_training_flops_unknown_info has the reason.
    pub FLOPS: Gauge<PerSecond> = "memwarden_training_flops_per_second" {workload, rank, convention}.counting("{flop}/s");
    /// Why operations per second are counted by no formula but 6n: the kind of the model is not one that is known, or a size is not reported; always 1.
    pub FLOPS_UNKNOWN: Gauge<Flag> = "memwarden_training_flops_unknown_info" {workload, rank, reason};
    /// Model FLOPs utilization (MFU): operations per second that the rank achieves as a share of the GPU's dense peak at the rank's precision, 0 to 1; absent for a GPU whose peak is unknown.
    pub MFU: Gauge<Ratio> = "memwarden_training_mfu_ratio" {workload, rank, convention};
    /// Tokens per second that the workload's ranks on this node train on, each replica's counted once; absent where a rank reports no tokens or no parallel layout.
    pub WORKLOAD_TOKEN_RATE: Gauge<PerSecond> = "memwarden_training_workload_tokens_per_second" {workload}.counting("{token}/s");
    /// Energy of the GPUs of the workload's ranks per token, averaged over 30 seconds or a few steps; absent where a GPU reports no energy or is shared with other workloads.
    pub JOULES_PER_TOKEN: Gauge<Joules> = "memwarden_training_energy_per_token_joules" {workload};
}
