//! What `training` exposes: what jobs told over the job socket, and the socket's own state.
//!
//! `rank` is the global rank a process gave itself. Where two of one workload
//! gave themselves the same, the later one's has its pid behind it: `0@4711`.

use crate::model::units::{Bytes, Count, Flag, Joules, Number, PerSecond, Ratio, Seconds};

/// Devices, phases and groups: a few of each rank.
const SEVERAL: usize = 8_000;
/// The series of one metric at most.
pub(super) const MOST_SERIES: usize = SEVERAL;

/// A histogram takes 21 points.
const HISTOGRAMS: usize = 10_000;

crate::metrics! {
    /// A process that reported itself over the job socket; always 1. gpu and uuid are empty where it is on none or on several, run is the user's name for the run.
    pub INFO: Gauge<Flag> = "memwarden_rank_info"
        {workload, rank, local_rank, world, pid, gpu, uuid, run, client, framework, framework_version, precision, recompute};
    /// Processes of the workload that reported themselves and are connected.
    pub RANKS: Gauge<Count> = "memwarden_training_ranks" {workload}.counting("{rank}");
    /// Connected processes of the workload that gave themselves a rank that another one has.
    pub CONFLICTS: Gauge<Count> = "memwarden_training_rank_conflicts" {workload}.counting("{rank}");
    /// Time since the rank was last heard of.
    pub MESSAGE_AGE: Gauge<Seconds> = "memwarden_training_message_age_seconds" {workload, rank};

    /// The number of the last optimizer step.
    pub STEP: Gauge<Count> = "memwarden_training_step" {workload, rank}.counting("{step}");
    /// Optimizer steps since the rank connected.
    pub STEPS: Counter<Count> = "memwarden_training_steps_total" {workload, rank}.counting("{step}");
    /// How long optimizer steps took, those told one by one.
    pub STEP_DURATION: Histogram<Seconds> = "memwarden_training_step_duration_seconds" {workload, rank, le}.budget(HISTOGRAMS);
    /// How long the last optimizer step took.
    pub STEP_LAST: Gauge<Seconds> = "memwarden_training_step_last_duration_seconds" {workload, rank};
    /// Tokens the rank itself has trained on since its process began.
    pub TOKENS: Counter<Count> = "memwarden_training_tokens_total" {workload, rank}.counting("{token}");
    /// Tokens the rank itself trains on in a second, over half a minute or a few steps; falls when steps stay out.
    pub TOKEN_RATE: Gauge<PerSecond> = "memwarden_training_throughput_tokens_per_second" {workload, rank}.counting("{token}/s");
    /// Samples the rank itself has trained on since its process began.
    pub SAMPLES: Counter<Count> = "memwarden_training_samples_total" {workload, rank}.counting("{sample}");
    /// The loss of the last step; absent where it was not finite.
    pub LOSS: Gauge<Number> = "memwarden_training_loss" {workload, rank}.counting("{loss}");
    /// The learning rate of the last step.
    pub LEARNING_RATE: Gauge<Number> = "memwarden_training_learning_rate" {workload, rank}.counting("{rate}");
    /// The norm of the gradients of the last step; absent where it was not finite.
    pub GRAD_NORM: Gauge<Number> = "memwarden_training_gradient_norm" {workload, rank}.counting("{norm}");
    /// Steps that an overflow of the loss scale skipped.
    pub SKIPPED: Counter<Count> = "memwarden_training_skipped_steps_total" {workload, rank}.counting("{step}");
    /// Steps whose loss or gradients were not finite.
    pub NAN: Counter<Count> = "memwarden_training_nonfinite_steps_total" {workload, rank}.counting("{step}");

    /// Time spent in a phase of the steps: forward, backward, optimizer, loader, or the job's own.
    pub PHASE_SECONDS: Counter<Seconds> = "memwarden_training_phase_seconds_total" {workload, rank, phase}.budget(SEVERAL);
    /// Times the phase ended.
    pub PHASES: Counter<Count> = "memwarden_training_phases_total" {workload, rank, phase}.counting("{phase}").budget(SEVERAL);
    /// The highest allocation seen in the phase since the process began.
    pub PHASE_PEAK: Gauge<Bytes> = "memwarden_training_phase_allocated_peak_bytes" {workload, rank, phase}.budget(SEVERAL);
    /// The phase the rank is in; always 1, absent between phases.
    pub PHASE_NOW: Gauge<Flag> = "memwarden_training_phase_info" {workload, rank, phase};

    /// Memory of live tensors by the job's own allocator. device is the ordinal the process counts with, gpu the node's index, empty where the driver does not confirm it.
    pub ALLOCATED: Gauge<Bytes> = "memwarden_training_allocator_allocated_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// The most memory of live tensors since the process began or reset its peak.
    pub ALLOCATED_PEAK: Gauge<Bytes> = "memwarden_training_allocator_allocated_peak_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Memory of live tensors and of those that wait for a stream.
    pub ACTIVE: Gauge<Bytes> = "memwarden_training_allocator_active_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Memory the allocator took from the device.
    pub RESERVED: Gauge<Bytes> = "memwarden_training_allocator_reserved_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// The most memory the allocator took from the device.
    pub RESERVED_PEAK: Gauge<Bytes> = "memwarden_training_allocator_reserved_peak_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// What the program asked for, before rounding.
    pub REQUESTED: Gauge<Bytes> = "memwarden_training_allocator_requested_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Free parts of segments in use, which cannot be given back to the device.
    pub INACTIVE_SPLIT: Gauge<Bytes> = "memwarden_training_allocator_inactive_split_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Free segments, which can be given back.
    pub RELEASABLE: Gauge<Bytes> = "memwarden_training_allocator_releasable_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// The largest free block inside reserved segments.
    pub LARGEST_FREE: Gauge<Bytes> = "memwarden_training_allocator_largest_free_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Times the allocator freed its cache and tried again because the device had no memory.
    pub RETRIES: Counter<Count> = "memwarden_training_allocator_retries_total" {workload, rank, device, gpu}.counting("{retry}").budget(SEVERAL);
    /// Times the allocator gave up, by its own count.
    pub ALLOCATOR_OOMS: Counter<Count> = "memwarden_training_allocator_ooms_total" {workload, rank, device, gpu}.counting("{failure}").budget(SEVERAL);
    /// Memory free on the device, as the job sees it.
    pub DEVICE_FREE: Gauge<Bytes> = "memwarden_training_device_free_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Memory of the device, as the job sees it.
    pub DEVICE_TOTAL: Gauge<Bytes> = "memwarden_training_device_total_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Resident memory of the rank's process, as the kernel counts it.
    pub PROCESS_RSS: Gauge<Bytes> = "memwarden_training_process_rss_bytes" {workload, rank};
    /// Page-locked host memory of the rank.
    pub PINNED: Gauge<Bytes> = "memwarden_training_pinned_bytes" {workload, rank};

    /// Elements of the rank's parameters, by kind: all, trainable, lora.
    pub PARAMETERS: Gauge<Count> = "memwarden_training_parameters" {workload, rank, kind}.counting("{element}").budget(SEVERAL);
    /// Memory of the rank's model, by kind: parameters, gradients, optimizer.
    pub MODEL: Gauge<Bytes> = "memwarden_training_model_bytes" {workload, rank, kind}.budget(SEVERAL);
    /// Memory of the rank's parameters, by data type.
    pub BY_DTYPE: Gauge<Bytes> = "memwarden_training_parameters_dtype_bytes" {workload, rank, dtype}.budget(SEVERAL);
    /// Memory of the rank's parameters, by group of layers; the smallest of more than 16 are told together as other.
    pub BY_GROUP: Gauge<Bytes> = "memwarden_training_parameters_group_bytes" {workload, rank, group}.budget(SEVERAL);
    /// Parameter tensors that are not finite, by what they hold: nan, inf.
    pub NONFINITE: Gauge<Count> = "memwarden_training_nonfinite_tensors" {workload, rank, kind}.counting("{tensor}");

    /// Times an allocator of the workload gave up, as told when it happened; kept for an hour after its last rank ended.
    pub OOMS: Counter<Count> = "memwarden_training_ooms_total" {workload}.counting("{failure}");
    /// What became of the rank's last checkpoint: 1 for the state it is in (saving, saved, failed), 0 for the others.
    pub CHECKPOINT: Gauge<Flag> = "memwarden_training_checkpoint_state" {workload, rank, state};
    /// The step of the rank's last checkpoint.
    pub CHECKPOINT_STEP: Gauge<Count> = "memwarden_training_checkpoint_step" {workload, rank}.counting("{step}");
    /// When the rank last saved a checkpoint, in seconds since 1970.
    pub CHECKPOINT_SAVED: Gauge<Seconds> = "memwarden_training_checkpoint_saved_timestamp_seconds" {workload, rank};
    /// Lines that the rank's client could not send, because it never waits.
    pub DROPPED: Counter<Count> = "memwarden_training_client_dropped_total" {workload, rank}.counting("{line}");

    /// Processes connected to the job socket, those included that did not report themselves.
    pub CLIENTS: Gauge<Count> = "memwarden_training_clients" {}.counting("{client}");
    /// Processes turned away from the job socket, by reason: clients, user (the limits of both), share (its place was given to a user who had fewer), system.
    pub REFUSED: Counter<Count> = "memwarden_training_clients_refused_total" {reason}.counting("{client}");
    /// Processes that connected to the job socket and were gone, another user's, or perhaps another process by the time they were looked at: what they tell has no workload.
    pub UNPROVEN: Counter<Count> = "memwarden_training_clients_unproven_total" {}.counting("{client}");
    /// Messages understood, by type.
    pub MESSAGES: Counter<Count> = "memwarden_training_messages_total" {kind}.counting("{message}");
    /// Lines and messages that were not taken in, or not wholly, by what was wrong with them.
    pub ERRORS: Counter<Count> = "memwarden_training_errors_total" {kind}.counting("{error}");
    /// Bytes read from the job socket.
    pub RECEIVED: Counter<Bytes> = "memwarden_training_received_bytes_total" {};
    /// Times a process was not read for a while because it sent more than it may.
    pub PAUSED: Counter<Count> = "memwarden_training_client_pauses_total" {}.counting("{pause}");
    /// Operations a second that one GPU achieves for the rank, by how they are counted: full, causal, 6n, hardware; absent where the model's shape, its sequence length or its tokens are not told.
    pub FLOPS: Gauge<PerSecond> = "memwarden_training_flops_per_second" {workload, rank, convention}.counting("{flop}/s");
    /// The same as a share of what the GPU can do with dense matrices of the rank's precision; absent for a GPU whose peak is not known.
    pub MFU: Gauge<Ratio> = "memwarden_training_mfu_ratio" {workload, rank, convention};
    /// Energy of the GPUs that the workload's ranks are on, for one token, over half a minute or a few steps; absent where a GPU does not tell its energy or is shared with others.
    pub JOULES_PER_TOKEN: Gauge<Joules> = "memwarden_training_token_energy_joules" {workload};
}
