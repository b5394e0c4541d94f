//! Metrics of the `gpu` source.
//!
//! The label `gpu` is NVML's index. `uuid` identifies a GPU permanently and is
//! empty while the GPU has not reported it.

use crate::model::desc::Instrument::{Counter as Sum, Gauge as Last, UpDownCounter as UpDown};
use crate::model::units::{
    Bytes, BytesPerSecond, Celsius, Count, Flag, Hertz, Joules, Ratio, Seconds, Watts,
};

type Pairs = &'static [(&'static str, &'static str)];

/// OpenTelemetry's semantic conventions use the UUID as `hw.id`.
const ID: Pairs = &[("uuid", "hw.id")];
const GPU: Pairs = &[("hw.type", "gpu")];
const GENERAL: Pairs = &[("hw.gpu.task", "general")];
const ENCODER: Pairs = &[("hw.gpu.task", "encoder")];
const DECODER: Pairs = &[("hw.gpu.task", "decoder")];
const SENT: Pairs = &[("network.io.direction", "transmit")];
const RECEIVED: Pairs = &[("network.io.direction", "receive")];

crate::metrics! {
    /// Status of NVML: 1 for the current status, 0 for the others.
    pub NVML_STATUS: Gauge<Flag> = "memwarden_nvml_status" {status};
    /// Return code of the NVML call that failed; absent while NVML works.
    pub NVML_RETURN_CODE: Gauge<Count> = "memwarden_nvml_return_code" {}.counting("{code}");
    /// Versions of the NVIDIA driver and of NVML, and the newest CUDA version that the driver supports; always 1.
    pub DRIVER_INFO: Gauge<Flag> = "memwarden_gpu_driver_info" {driver, nvml, cuda};
    /// GPUs that the driver reports; absent while the driver cannot be queried.
    pub GPUS: Gauge<Count> = "memwarden_gpus" {}.counting("{gpu}");

    /// Whether the GPU worker process runs and responds.
    pub WORKER_UP: Gauge<Flag> = "memwarden_gpu_worker_up" {};
    /// Starts of the GPU worker process after the previous one ended abnormally.
    pub WORKER_RESTARTS: Counter<Count> = "memwarden_gpu_worker_restarts_total" {}.counting("{restart}");
    /// Time since the last message of the GPU worker process; absent while none runs.
    pub WORKER_SILENT: Gauge<Seconds> = "memwarden_gpu_worker_last_message_age_seconds" {};
    /// GPU worker processes that could not be killed and still hang in the driver.
    pub WORKER_ABANDONED: Gauge<Count> = "memwarden_gpu_worker_abandoned" {}.counting("{process}");
    /// Resident memory of the GPU worker process; absent while none runs.
    pub WORKER_MEMORY: Gauge<Bytes> = "memwarden_gpu_worker_resident_memory_bytes" {};
    /// Messages of the GPU worker process that were rejected because they were too long or invalid.
    pub WORKER_BAD_LINES: Counter<Count> = "memwarden_gpu_worker_bad_lines_total" {}.counting("{line}");

    /// Identity of the GPU: UUID, name, serial number, PCI address, vendor (nvidia, amd or intel) and others as labels; always 1.
    pub INFO: Gauge<Flag> = "memwarden_gpu_info" {gpu, uuid, name, serial, pci, minor, vbios, architecture, mig, vendor};
    /// Status of the GPU: 1 for the current status (ok, lost, hung, unknown_error or unobserved), 0 for the others; unobserved means that no GPU worker reads it now. A GPU that the kernel has and the driver does not list is lost, with its PCI address in the label gpu.
    pub STATUS: Gauge<Flag> = "memwarden_gpu_status" {gpu, uuid, status};
    /// NVML function, or file of sysfs, that does not return, of a GPU whose status is hung; always 1, absent while no GPU hangs or the function is not known.
    pub HUNG_CALL: Gauge<Flag> = "memwarden_gpu_hung_call_info" {gpu, uuid, call};
    /// Time since the last complete sample of the GPU; grows while the GPU hangs.
    pub SAMPLE_AGE: Gauge<Seconds> = "memwarden_gpu_sample_age_seconds" {gpu, uuid};
    /// Reason why a value of the GPU is absent: 1 for each field that the GPU does not report, with NVML's return code.
    pub FIELD_STATUS: Gauge<Flag> = "memwarden_gpu_field_status" {gpu, uuid, field, status, code}.budget(8_000);

    /// Total memory of the GPU; absent where the operating system manages it.
    pub MEMORY_TOTAL: Gauge<Bytes> = "memwarden_gpu_memory_total_bytes" {gpu, uuid}
        .semconv("hw.gpu.memory.limit", UpDown, &[], ID);
    /// Memory in use on the GPU, without memory reserved by the driver where the driver reports it separately.
    pub MEMORY_USED: Gauge<Bytes> = "memwarden_gpu_memory_used_bytes" {gpu, uuid}
        .semconv("hw.gpu.memory.usage", UpDown, &[], ID);
    /// Largest memory in use on the GPU since the previous tick, from the samples and the reads of memory between them (memwarden_gpu_memory_polls_total).
    pub MEMORY_USED_PEAK: Gauge<Bytes> = "memwarden_gpu_memory_used_peak_bytes" {gpu, uuid}.peak(&MEMORY_USED_MAX);
    /// Largest memory in use on the GPU within the peak window, with peaks between samples (memwarden_gpu_memory_used_peak_bytes).
    pub MEMORY_USED_MAX: Gauge<Bytes> = "memwarden_gpu_memory_used_max_bytes" {gpu, uuid};
    /// Reads of the GPU's memory between samples, since memwarden started: 13 per second while the memory does not change and 50 while it changes or is nearly used up, or fewer if they take more CPU than allowed.
    pub MEMORY_POLLS: Counter<Count> = "memwarden_gpu_memory_polls_total" {gpu, uuid}.counting("{read}");
    /// Memory of the GPU that can still be allocated.
    pub MEMORY_FREE: Gauge<Bytes> = "memwarden_gpu_memory_free_bytes" {gpu, uuid};
    /// Memory of the GPU reserved by the driver and the firmware; absent where the driver counts it as used.
    pub MEMORY_RESERVED: Gauge<Bytes> = "memwarden_gpu_memory_reserved_bytes" {gpu, uuid};
    /// Memory in use on the GPU that belongs to no listed process; absent where the driver does not report the memory of each process.
    pub MEMORY_UNATTRIBUTED: Gauge<Bytes> = "memwarden_gpu_memory_unattributed_bytes" {gpu, uuid};
    /// Always 1, of a GPU without memory of its own, or with little, whose processes allocate from the memory of the host: GB10 and Jetson, where the driver reports the memory of processes and none of the GPU, and APUs of AMD that can map more of the host than the firmware sets aside for them. Absent for other GPUs.
    pub USES_HOST_MEMORY: Gauge<Flag> = "memwarden_gpu_uses_host_memory" {gpu, uuid};
    /// Size of the GPU's BAR1 window, through which the host accesses GPU memory.
    pub BAR1_TOTAL: Gauge<Bytes> = "memwarden_gpu_bar1_total_bytes" {gpu, uuid};
    /// Mapped part of the GPU's BAR1 window, through which the host accesses GPU memory.
    pub BAR1_USED: Gauge<Bytes> = "memwarden_gpu_bar1_used_bytes" {gpu, uuid};
    /// Memory of one process on the GPU; absent where the driver does not report it.
    pub PROCESS_MEMORY: Gauge<Bytes> = "memwarden_gpu_process_memory_bytes" {gpu, uuid, pid}.budget(4_000);
    /// Share of time in which one process ran on the GPU's streaming multiprocessors or compute engines, in the newest sample of the driver, 0 to 1; absent where it did not run, or where the driver does not count its time.
    pub PROCESS_SM: Gauge<Ratio> = "memwarden_gpu_process_sm_utilization_ratio" {gpu, uuid, pid}.budget(4_000);
    /// Share of time in which one process used the GPU's video encoder, in the newest sample of the driver, 0 to 1; absent where it did not use it.
    pub PROCESS_ENCODER: Gauge<Ratio> = "memwarden_gpu_process_encoder_utilization_ratio" {gpu, uuid, pid}.budget(4_000);
    /// Share of time in which one process used the GPU's video decoder, in the newest sample of the driver, 0 to 1; absent where it did not use it.
    pub PROCESS_DECODER: Gauge<Ratio> = "memwarden_gpu_process_decoder_utilization_ratio" {gpu, uuid, pid}.budget(4_000);
    /// Processes that use the GPU.
    pub PROCESSES: Gauge<Count> = "memwarden_gpu_processes" {gpu, uuid}.counting("{process}");
    /// Processes that use the GPU and are none that is known to memwarden: in a pid namespace of its own, the driver lists pids of the host, and only a process with a device of NVIDIA open is taken for the one that is meant. Absent for none. Let memwarden see the pids of the host (docker --pid=host, hostPID of a pod).
    pub PROCESSES_UNKNOWN: Gauge<Count> = "memwarden_gpu_processes_unknown" {gpu, uuid}.counting("{process}");

    /// Share of time in which at least one kernel ran on the GPU, 0 to 1; not the share of the GPU that the kernels occupied.
    pub UTILIZATION: Gauge<Ratio> = "memwarden_gpu_utilization_ratio" {gpu, uuid}
        .semconv("hw.gpu.utilization", Last, GENERAL, ID);
    /// Share of time in which GPU memory was read or written, 0 to 1.
    pub MEMORY_UTILIZATION: Gauge<Ratio> = "memwarden_gpu_memory_controller_utilization_ratio" {gpu, uuid};
    /// Share of time in which the GPU's video encoder was busy, 0 to 1.
    pub ENCODER_UTILIZATION: Gauge<Ratio> = "memwarden_gpu_encoder_utilization_ratio" {gpu, uuid}
        .semconv("hw.gpu.utilization", Last, ENCODER, ID);
    /// Share of time in which the GPU's video decoder was busy, 0 to 1.
    pub DECODER_UTILIZATION: Gauge<Ratio> = "memwarden_gpu_decoder_utilization_ratio" {gpu, uuid}
        .semconv("hw.gpu.utilization", Last, DECODER, ID);

    /// Share of time in which the GPU's graphics and compute engine was busy since the previous sample, 0 to 1; absent where the GPU lacks GPM (before Hopper), as are the other activities.
    pub ENGINE_ACTIVITY: Gauge<Ratio> = "memwarden_gpu_engine_activity_ratio" {gpu, uuid};
    /// Share of the GPU's streaming multiprocessors that were busy, on average since the previous sample, 0 to 1.
    pub SM_ACTIVITY: Gauge<Ratio> = "memwarden_gpu_sm_activity_ratio" {gpu, uuid};
    /// Warps that were active, as a share of those that the GPU's streaming multiprocessors can hold, on average since the previous sample, 0 to 1.
    pub SM_OCCUPANCY: Gauge<Ratio> = "memwarden_gpu_sm_occupancy_ratio" {gpu, uuid};
    /// Share of time in which a pipe of the GPU's streaming multiprocessors was active, on average since the previous sample, 0 to 1, by pipe: tensor, fp64, fp32, fp16 or integer.
    pub PIPE_ACTIVITY: Gauge<Ratio> = "memwarden_gpu_pipe_activity_ratio" {gpu, uuid, pipe};
    /// Bandwidth of the GPU's memory that was used, as a share of the maximum, on average since the previous sample, 0 to 1.
    pub DRAM_ACTIVITY: Gauge<Ratio> = "memwarden_gpu_dram_activity_ratio" {gpu, uuid};

    /// Temperature of the GPU's die.
    pub TEMPERATURE: Gauge<Celsius> = "memwarden_gpu_temperature_celsius" {gpu, uuid}
        .semconv("hw.temperature", Last, GPU, ID).peak(&TEMPERATURE_MAX);
    /// Highest temperature of the GPU's die within the peak window.
    pub TEMPERATURE_MAX: Gauge<Celsius> = "memwarden_gpu_temperature_max_celsius" {gpu, uuid};
    /// Temperature of the GPU's memory.
    pub MEMORY_TEMPERATURE: Gauge<Celsius> = "memwarden_gpu_memory_temperature_celsius" {gpu, uuid};
    /// Temperature at which the GPU slows down or shuts down, by threshold.
    pub TEMPERATURE_THRESHOLD: Gauge<Celsius> = "memwarden_gpu_temperature_threshold_celsius" {gpu, uuid, threshold};
    /// Power draw of the GPU.
    pub POWER: Gauge<Watts> = "memwarden_gpu_power_watts" {gpu, uuid}
        .semconv("hw.power", Last, GPU, ID).peak(&POWER_MAX);
    /// Highest power draw of the GPU within the peak window.
    pub POWER_MAX: Gauge<Watts> = "memwarden_gpu_power_max_watts" {gpu, uuid};
    /// Power limit of the GPU that the driver enforces.
    pub POWER_LIMIT: Gauge<Watts> = "memwarden_gpu_power_limit_watts" {gpu, uuid};
    /// Energy that the GPU used since the driver was loaded.
    pub ENERGY: Counter<Joules> = "memwarden_gpu_energy_joules_total" {gpu, uuid}
        .semconv("hw.energy", Sum, GPU, ID);

    /// Current clock frequency of the GPU, by clock: graphics, sm or memory.
    pub CLOCK: Gauge<Hertz> = "memwarden_gpu_clock_hertz" {gpu, uuid, clock};
    /// Maximum clock frequency of the GPU, by clock.
    pub CLOCK_LIMIT: Gauge<Hertz> = "memwarden_gpu_clock_limit_hertz" {gpu, uuid, clock};
    /// Performance state of the GPU, from 0 (fastest) to 15 (slowest).
    pub PERFORMANCE_STATE: Gauge<Count> = "memwarden_gpu_performance_state" {gpu, uuid}.counting("{state}");
    /// Whether the GPU's clocks are currently throttled, by reason.
    pub THROTTLED: Gauge<Flag> = "memwarden_gpu_throttled" {gpu, uuid, reason}.budget(4_000);
    /// Time in which the GPU's clocks were throttled since the driver was loaded, by reason.
    pub THROTTLED_TIME: Counter<Seconds> = "memwarden_gpu_throttle_seconds_total" {gpu, uuid, reason}.budget(4_000);

    /// Whether ECC is enabled on the GPU.
    pub ECC_ENABLED: Gauge<Flag> = "memwarden_gpu_ecc_enabled" {gpu, uuid};
    /// ECC memory errors of the GPU, corrected and uncorrected; scope volatile counts since the driver was loaded, aggregate over the GPU's lifetime.
    pub ECC_ERRORS: Counter<Count> = "memwarden_gpu_ecc_errors_total" {gpu, uuid, error, scope}.counting("{error}")
        .semconv("hw.errors", Sum, GPU, &[("uuid", "hw.id"), ("error", "error.type")]).only("scope", "aggregate");
    /// Rows of GPU memory that were replaced by spare rows, by kind of error.
    pub REMAPPED_ROWS: Gauge<Count> = "memwarden_gpu_remapped_rows" {gpu, uuid, error}.counting("{row}");
    /// Whether rows of GPU memory will be remapped at the next GPU reset.
    pub REMAP_PENDING: Gauge<Flag> = "memwarden_gpu_row_remap_pending" {gpu, uuid};
    /// Whether a row of GPU memory could not be remapped; such a GPU should be replaced.
    pub REMAP_FAILURE: Gauge<Flag> = "memwarden_gpu_row_remap_failure" {gpu, uuid};
    /// Banks of GPU memory by the spare rows that they have left: max (all of them), high, partial, low or none; with none, the next error of a row cannot be remapped.
    pub REMAP_BANKS: Gauge<Count> = "memwarden_gpu_row_remap_banks" {gpu, uuid, spare_rows}.counting("{bank}");
    /// Pages of GPU memory that were retired, by cause: single_bit or double_bit errors.
    pub RETIRED_PAGES: Gauge<Count> = "memwarden_gpu_retired_pages" {gpu, uuid, cause}.counting("{page}");
    /// Whether pages of GPU memory will be retired at the next GPU reset.
    pub RETIREMENT_PENDING: Gauge<Flag> = "memwarden_gpu_page_retirement_pending" {gpu, uuid};
    /// XID errors of the GPU, reported by NVML or the kernel log, since memwarden started.
    pub XID_ERRORS: Counter<Count> = "memwarden_gpu_xid_errors_total" {gpu, uuid, xid, severity}.counting("{error}").budget(4_000);
    /// Number of the newest XID error of the GPU since memwarden started; 0 where there was none, which is not the number of an XID.
    pub NEWEST_XID: Gauge<Count> = "memwarden_gpu_newest_xid" {gpu, uuid}.counting("{xid}");
    /// Meaning of each XID reported since memwarden started, and its severity by the table; that of an event is a label of memwarden_gpu_xid_errors_total. Always 1.
    pub XID_MEANING: Gauge<Flag> = "memwarden_gpu_xid_meaning_info" {xid, severity, meaning};
    /// XID errors in the kernel log of GPUs that NVML has not identified yet, by PCI address; once identified, they are counted in memwarden_gpu_xid_errors_total.
    pub UNPLACED_XIDS: Counter<Count> = "memwarden_gpu_unattributed_xid_errors_total" {pci, xid, severity}.counting("{error}").budget(300);

    /// Bytes that the GPU sent over PCIe.
    pub PCIE_SENT: Counter<Bytes> = "memwarden_gpu_pcie_sent_bytes_total" {gpu, uuid}
        .semconv("hw.gpu.io", Sum, SENT, ID);
    /// Bytes that the GPU received over PCIe.
    pub PCIE_RECEIVED: Counter<Bytes> = "memwarden_gpu_pcie_received_bytes_total" {gpu, uuid}
        .semconv("hw.gpu.io", Sum, RECEIVED, ID);
    /// Traffic of the GPU over PCIe since the previous sample, by direction: sent or received; absent where the GPU lacks GPM (before Hopper).
    pub PCIE_RATE: Gauge<BytesPerSecond> = "memwarden_gpu_pcie_traffic_bytes_per_second" {gpu, uuid, direction};
    /// PCIe packets of the GPU that were retransmitted.
    pub PCIE_REPLAYS: Counter<Count> = "memwarden_gpu_pcie_replays_total" {gpu, uuid}.counting("{replay}");
    /// PCIe generation of the GPU's link: current, and the maximum that the link supports.
    pub PCIE_GENERATION: Gauge<Count> = "memwarden_gpu_pcie_link_generation" {gpu, uuid, state}.counting("{generation}");
    /// PCIe lanes of the GPU's link: current, and the maximum that the link supports.
    pub PCIE_WIDTH: Gauge<Count> = "memwarden_gpu_pcie_link_width" {gpu, uuid, state}.counting("{lane}");
    /// NVLink links of the GPU that are active.
    pub NVLINK_ACTIVE: Gauge<Count> = "memwarden_gpu_nvlink_active_links" {gpu, uuid}.counting("{link}");
    /// Bytes that the GPU sent over all NVLink links: data is without protocol overhead, raw includes it.
    pub NVLINK_SENT: Counter<Bytes> = "memwarden_gpu_nvlink_sent_bytes_total" {gpu, uuid, traffic};
    /// Bytes that the GPU received over all NVLink links: data is without protocol overhead, raw includes it.
    pub NVLINK_RECEIVED: Counter<Bytes> = "memwarden_gpu_nvlink_received_bytes_total" {gpu, uuid, traffic};
    /// Errors on all NVLink links of the GPU, by kind of error.
    pub NVLINK_ERRORS: Counter<Count> = "memwarden_gpu_nvlink_errors_total" {gpu, uuid, error}.counting("{error}");

    /// Traffic of the GPU over all NVLink links since the previous sample, by direction: sent or received; absent where the GPU lacks GPM (before Hopper).
    pub NVLINK_RATE: Gauge<BytesPerSecond> = "memwarden_gpu_nvlink_traffic_bytes_per_second" {gpu, uuid, direction};
    /// Whether one NVLink link of the GPU is active; absent unless `nvlink_links` is on, as are the other metrics of one link.
    pub LINK_ACTIVE: Gauge<Flag> = "memwarden_gpu_nvlink_link_active" {gpu, uuid, link};
    /// Bytes that the GPU sent over one NVLink link: data is without protocol overhead, raw includes it.
    pub LINK_SENT: Counter<Bytes> = "memwarden_gpu_nvlink_link_sent_bytes_total" {gpu, uuid, link, traffic};
    /// Bytes that the GPU received over one NVLink link: data is without protocol overhead, raw includes it.
    pub LINK_RECEIVED: Counter<Bytes> = "memwarden_gpu_nvlink_link_received_bytes_total" {gpu, uuid, link, traffic};
    /// Errors on one NVLink link of the GPU, by kind of error: replay, recovery or crc_flit.
    pub LINK_ERRORS: Counter<Count> = "memwarden_gpu_nvlink_link_errors_total" {gpu, uuid, link, error}.counting("{error}");

    /// Action that the driver requests to recover the GPU: 1 for the current one (none, gpu_reset, node_reboot, drain_p2p or drain_and_reset), 0 for the others; absent before driver 570.
    pub RECOVERY_ACTION: Gauge<Flag> = "memwarden_gpu_recovery_action" {gpu, uuid, action};

    /// How the GPU is virtualized: none, passthrough, vgpu (this machine has a part of the GPU), host_vgpu or host_vsga (it gives parts away); always 1.
    pub VIRTUALIZATION: Gauge<Flag> = "memwarden_gpu_virtualization_info" {gpu, uuid, mode};
    /// Whether confidential compute is enabled, in which the GPU's memory is encrypted.
    pub CONFIDENTIAL: Gauge<Flag> = "memwarden_gpu_confidential_compute_enabled" {gpu, uuid};
    /// Memory of the GPU by kind, protected or unprotected, while confidential compute is enabled.
    pub CONFIDENTIAL_MEMORY: Gauge<Bytes> = "memwarden_gpu_confidential_compute_memory_bytes" {gpu, uuid, kind};

    /// Whether MIG (multi-instance GPU) mode is enabled.
    pub MIG_ENABLED: Gauge<Flag> = "memwarden_gpu_mig_enabled" {gpu, uuid};
    /// Identity of a MIG instance; the label parent is the UUID of its GPU. Always 1.
    pub MIG_INFO: Gauge<Flag> = "memwarden_gpu_mig_info" {gpu, uuid, gpu_instance, compute_instance, parent, name};
    /// Total memory of the MIG instance.
    pub MIG_TOTAL: Gauge<Bytes> = "memwarden_gpu_mig_memory_total_bytes" {gpu, uuid, gpu_instance, compute_instance};
    /// Memory in use on the MIG instance.
    pub MIG_USED: Gauge<Bytes> = "memwarden_gpu_mig_memory_used_bytes" {gpu, uuid, gpu_instance, compute_instance};
    /// Memory of the MIG instance that can still be allocated.
    pub MIG_FREE: Gauge<Bytes> = "memwarden_gpu_mig_memory_free_bytes" {gpu, uuid, gpu_instance, compute_instance};
    /// Memory of the MIG instance reserved by the driver; absent where the driver counts it as used.
    pub MIG_RESERVED: Gauge<Bytes> = "memwarden_gpu_mig_memory_reserved_bytes" {gpu, uuid, gpu_instance, compute_instance};
    /// Streaming multiprocessors of the MIG instance.
    pub MIG_MULTIPROCESSORS: Gauge<Count> = "memwarden_gpu_mig_multiprocessors" {gpu, uuid, gpu_instance, compute_instance}.counting("{multiprocessor}");
    /// As memwarden_gpu_engine_activity_ratio, of the MIG device's GPU instance; compute instances of one GPU instance have the same value.
    pub MIG_ENGINE: Gauge<Ratio> = "memwarden_gpu_mig_engine_activity_ratio" {gpu, uuid, gpu_instance, compute_instance};
    /// As memwarden_gpu_sm_activity_ratio, of the MIG device's GPU instance.
    pub MIG_SM: Gauge<Ratio> = "memwarden_gpu_mig_sm_activity_ratio" {gpu, uuid, gpu_instance, compute_instance};
    /// As memwarden_gpu_sm_occupancy_ratio, of the MIG device's GPU instance.
    pub MIG_OCCUPANCY: Gauge<Ratio> = "memwarden_gpu_mig_sm_occupancy_ratio" {gpu, uuid, gpu_instance, compute_instance};
    /// As memwarden_gpu_pipe_activity_ratio, of the MIG device's GPU instance.
    pub MIG_PIPE: Gauge<Ratio> = "memwarden_gpu_mig_pipe_activity_ratio" {gpu, uuid, gpu_instance, compute_instance, pipe};
    /// As memwarden_gpu_dram_activity_ratio, of the MIG device's GPU instance.
    pub MIG_DRAM: Gauge<Ratio> = "memwarden_gpu_mig_dram_activity_ratio" {gpu, uuid, gpu_instance, compute_instance};
}
