//! What `gpu` exposes.
//!
//! `gpu` is NVML's index; `uuid` is what identifies a GPU for good, and is
//! empty for one that has not yet said who it is.

use crate::model::desc::Instrument::{Counter as Sum, Gauge as Last, UpDownCounter as UpDown};
use crate::model::units::{Bytes, Celsius, Count, Flag, Hertz, Joules, Ratio, Seconds, Watts};

type Pairs = &'static [(&'static str, &'static str)];

/// In the semantic conventions the UUID is the hardware's id.
const ID: Pairs = &[("uuid", "hw.id")];
const GPU: Pairs = &[("hw.type", "gpu")];
const GENERAL: Pairs = &[("hw.gpu.task", "general")];
const ENCODER: Pairs = &[("hw.gpu.task", "encoder")];
const DECODER: Pairs = &[("hw.gpu.task", "decoder")];
const SENT: Pairs = &[("network.io.direction", "transmit")];
const RECEIVED: Pairs = &[("network.io.direction", "receive")];

crate::metrics! {
    /// How NVML is: 1 for the status it has, 0 for the others.
    pub NVML_STATUS: Gauge<Flag> = "memwarden_nvml_status" {status};
    /// What the call that failed returned when NVML could not be used; absent while it can.
    pub NVML_RETURN_CODE: Gauge<Count> = "memwarden_nvml_return_code" {}.counting("{code}");
    /// The versions of driver, library and the newest CUDA the driver knows; always 1.
    pub DRIVER_INFO: Gauge<Flag> = "memwarden_gpu_driver_info" {driver, nvml, cuda};
    /// The GPUs that the driver counts; absent while it cannot be asked.
    pub GPUS: Gauge<Count> = "memwarden_gpus" {}.counting("{gpu}");

    /// Whether the process that talks to the driver runs and answers.
    pub WORKER_UP: Gauge<Flag> = "memwarden_gpu_worker_up" {};
    /// Workers started because the one before did not end orderly.
    pub WORKER_RESTARTS: Counter<Count> = "memwarden_gpu_worker_restarts_total" {}.counting("{restart}");
    /// Time since the worker was last heard of; absent where none runs.
    pub WORKER_SILENT: Gauge<Seconds> = "memwarden_gpu_worker_silent_seconds" {};
    /// Workers that could not be killed and still hang in the driver.
    pub WORKER_ABANDONED: Gauge<Count> = "memwarden_gpu_worker_abandoned" {}.counting("{process}");
    /// Resident memory of the worker; absent where none runs.
    pub WORKER_MEMORY: Gauge<Bytes> = "memwarden_gpu_worker_resident_memory_bytes" {};
    /// Lines of the worker that were refused because they were too long or not understood.
    pub WORKER_BAD_LINES: Counter<Count> = "memwarden_gpu_worker_bad_lines_total" {}.counting("{line}");

    /// Who the GPU is; always 1.
    pub INFO: Gauge<Flag> = "memwarden_gpu_info" {gpu, uuid, name, serial, pci, minor, vbios, architecture, mig};
    /// How the GPU is: 1 for the status it has, 0 for the others; `unobserved` means that no worker looks at it now.
    pub STATUS: Gauge<Flag> = "memwarden_gpu_status" {gpu, uuid, status};
    /// The function of NVML that does not return, of a GPU whose status is hung; always 1, absent where no GPU hangs or the function is not known.
    pub HUNG_CALL: Gauge<Flag> = "memwarden_gpu_hung_call_info" {gpu, uuid, call};
    /// Time since the GPU last told all it tells; grows while it hangs.
    pub SAMPLE_AGE: Gauge<Seconds> = "memwarden_gpu_sample_age_seconds" {gpu, uuid};
    /// Says why a value is absent: 1 for each field that the GPU does not tell, with NVML's return code.
    pub FIELD_STATUS: Gauge<Flag> = "memwarden_gpu_field_status" {gpu, uuid, field, status, code}.budget(8_000);

    /// Memory of the GPU; absent where the operating system owns it.
    pub MEMORY_TOTAL: Gauge<Bytes> = "memwarden_gpu_memory_total_bytes" {gpu, uuid}
        .semconv("hw.gpu.memory.limit", UpDown, &[], ID);
    /// Memory in use on the GPU, driver-reserved memory excluded where the driver tells it apart.
    pub MEMORY_USED: Gauge<Bytes> = "memwarden_gpu_memory_used_bytes" {gpu, uuid}
        .semconv("hw.gpu.memory.usage", UpDown, &[], ID).peak(&MEMORY_USED_MAX);
    /// Most memory in use on the GPU within the peak window.
    pub MEMORY_USED_MAX: Gauge<Bytes> = "memwarden_gpu_memory_used_max_bytes" {gpu, uuid};
    /// Memory that can still be allocated on the GPU.
    pub MEMORY_FREE: Gauge<Bytes> = "memwarden_gpu_memory_free_bytes" {gpu, uuid};
    /// Memory that the driver and the firmware keep; absent where the driver counts it as used.
    pub MEMORY_RESERVED: Gauge<Bytes> = "memwarden_gpu_memory_reserved_bytes" {gpu, uuid};
    /// Memory in use that no listed process accounts for; absent where the driver does not tell a process's memory.
    pub MEMORY_UNATTRIBUTED: Gauge<Bytes> = "memwarden_gpu_memory_unattributed_bytes" {gpu, uuid};
    /// Size of the BAR1 window, through which the host reaches GPU memory.
    pub BAR1_TOTAL: Gauge<Bytes> = "memwarden_gpu_bar1_total_bytes" {gpu, uuid};
    /// Mapped part of the BAR1 window.
    pub BAR1_USED: Gauge<Bytes> = "memwarden_gpu_bar1_used_bytes" {gpu, uuid};
    /// Memory of one process on the GPU; absent where the driver does not tell.
    pub PROCESS_MEMORY: Gauge<Bytes> = "memwarden_gpu_process_memory_bytes" {gpu, uuid, pid}.budget(4_000);
    /// Share of the time that one process ran on the SMs, in the newest of the driver's samples; absent where it did not run.
    pub PROCESS_SM: Gauge<Ratio> = "memwarden_gpu_process_sm_utilization_ratio" {gpu, uuid, pid}.budget(4_000);
    /// Processes on the GPU.
    pub PROCESSES: Gauge<Count> = "memwarden_gpu_processes" {gpu, uuid}.counting("{process}");

    /// Share of the time that any kernel ran on the GPU; not how much of the GPU it filled.
    pub UTILIZATION: Gauge<Ratio> = "memwarden_gpu_utilization_ratio" {gpu, uuid}
        .semconv("hw.gpu.utilization", Last, GENERAL, ID);
    /// Share of the time that GPU memory was read or written.
    pub MEMORY_UTILIZATION: Gauge<Ratio> = "memwarden_gpu_memory_controller_utilization_ratio" {gpu, uuid};
    /// Share of the time that the video encoder worked.
    pub ENCODER_UTILIZATION: Gauge<Ratio> = "memwarden_gpu_encoder_utilization_ratio" {gpu, uuid}
        .semconv("hw.gpu.utilization", Last, ENCODER, ID);
    /// Share of the time that the video decoder worked.
    pub DECODER_UTILIZATION: Gauge<Ratio> = "memwarden_gpu_decoder_utilization_ratio" {gpu, uuid}
        .semconv("hw.gpu.utilization", Last, DECODER, ID);

    /// Temperature of the GPU's die.
    pub TEMPERATURE: Gauge<Celsius> = "memwarden_gpu_temperature_celsius" {gpu, uuid}
        .semconv("hw.temperature", Last, GPU, ID).peak(&TEMPERATURE_MAX);
    /// Highest temperature of the GPU's die within the peak window.
    pub TEMPERATURE_MAX: Gauge<Celsius> = "memwarden_gpu_temperature_max_celsius" {gpu, uuid};
    /// Temperature of the GPU's memory.
    pub MEMORY_TEMPERATURE: Gauge<Celsius> = "memwarden_gpu_memory_temperature_celsius" {gpu, uuid};
    /// Temperature at which the hardware slows down or shuts down.
    pub TEMPERATURE_THRESHOLD: Gauge<Celsius> = "memwarden_gpu_temperature_threshold_celsius" {gpu, uuid, threshold};
    /// Power the GPU draws.
    pub POWER: Gauge<Watts> = "memwarden_gpu_power_watts" {gpu, uuid}
        .semconv("hw.power", Last, GPU, ID).peak(&POWER_MAX);
    /// Most power the GPU drew within the peak window.
    pub POWER_MAX: Gauge<Watts> = "memwarden_gpu_power_max_watts" {gpu, uuid};
    /// Power limit that the driver enforces.
    pub POWER_LIMIT: Gauge<Watts> = "memwarden_gpu_power_limit_watts" {gpu, uuid};
    /// Energy used since the driver was loaded.
    pub ENERGY: Counter<Joules> = "memwarden_gpu_energy_joules_total" {gpu, uuid}
        .semconv("hw.energy", Sum, GPU, ID);

    /// Clock, by part: graphics, sm, memory.
    pub CLOCK: Gauge<Hertz> = "memwarden_gpu_clock_hertz" {gpu, uuid, clock};
    /// Highest clock of a part.
    pub CLOCK_LIMIT: Gauge<Hertz> = "memwarden_gpu_clock_limit_hertz" {gpu, uuid, clock};
    /// Performance state, from 0 (fastest) to 15.
    pub PERFORMANCE_STATE: Gauge<Count> = "memwarden_gpu_performance_state" {gpu, uuid}.counting("{state}");
    /// Whether the clocks are held back now, by reason.
    pub THROTTLED: Gauge<Flag> = "memwarden_gpu_throttled" {gpu, uuid, reason}.budget(4_000);
    /// Time that the clocks were held back since the driver was loaded, by reason.
    pub THROTTLED_TIME: Counter<Seconds> = "memwarden_gpu_throttle_seconds_total" {gpu, uuid, reason}.budget(4_000);

    /// Whether ECC is on.
    pub ECC_ENABLED: Gauge<Flag> = "memwarden_gpu_ecc_enabled" {gpu, uuid};
    /// Memory errors, by whether they were corrected: `volatile` since the driver was loaded, `aggregate` in the GPU's life.
    pub ECC_ERRORS: Counter<Count> = "memwarden_gpu_ecc_errors_total" {gpu, uuid, error, scope}.counting("{error}");
    /// Rows of GPU memory that were replaced by spare ones, by the kind of error.
    pub REMAPPED_ROWS: Gauge<Count> = "memwarden_gpu_remapped_rows" {gpu, uuid, error}.counting("{row}");
    /// Whether rows are to be replaced at the next reset.
    pub REMAP_PENDING: Gauge<Flag> = "memwarden_gpu_row_remap_pending" {gpu, uuid};
    /// Whether a row could not be replaced; such a GPU is to be returned.
    pub REMAP_FAILURE: Gauge<Flag> = "memwarden_gpu_row_remap_failure" {gpu, uuid};
    /// Whether pages are to be retired at the next reset.
    pub RETIREMENT_PENDING: Gauge<Flag> = "memwarden_gpu_page_retirement_pending" {gpu, uuid};
    /// Critical errors (XIDs), told by NVML or the kernel log, since memwarden started.
    pub XID_ERRORS: Counter<Count> = "memwarden_gpu_xid_errors_total" {gpu, uuid, xid, severity}.counting("{error}").budget(4_000);
    /// What an XID means, for every XID that was told since memwarden started; always 1.
    pub XID_MEANING: Gauge<Flag> = "memwarden_gpu_xid_meaning_info" {xid, severity, meaning};
    /// Critical errors (XIDs) in the kernel log of GPUs that have not said who they are; they move to `memwarden_gpu_xid_errors_total` once they have.
    pub UNPLACED_XIDS: Counter<Count> = "memwarden_gpu_unplaced_xid_errors_total" {pci, xid, severity}.counting("{error}").budget(300);

    /// Bytes the GPU sent over PCIe.
    pub PCIE_SENT: Counter<Bytes> = "memwarden_gpu_pcie_sent_bytes_total" {gpu, uuid}
        .semconv("hw.gpu.io", Sum, SENT, ID);
    /// Bytes the GPU received over PCIe.
    pub PCIE_RECEIVED: Counter<Bytes> = "memwarden_gpu_pcie_received_bytes_total" {gpu, uuid}
        .semconv("hw.gpu.io", Sum, RECEIVED, ID);
    /// Packets that had to be sent again over PCIe.
    pub PCIE_REPLAYS: Counter<Count> = "memwarden_gpu_pcie_replays_total" {gpu, uuid}.counting("{replay}");
    /// PCIe generation, of the link as it is now (`current`) and as it could be (`maximum`).
    pub PCIE_GENERATION: Gauge<Count> = "memwarden_gpu_pcie_link_generation" {gpu, uuid, state}.counting("{generation}");
    /// PCIe lanes, of the link as it is now (`current`) and as it could be (`maximum`).
    pub PCIE_WIDTH: Gauge<Count> = "memwarden_gpu_pcie_link_width" {gpu, uuid, state}.counting("{lane}");
    /// NVLink links that are up.
    pub NVLINK_ACTIVE: Gauge<Count> = "memwarden_gpu_nvlink_active_links" {gpu, uuid}.counting("{link}");
    /// Bytes the GPU sent over all NVLink links: `data` without, `raw` with the protocol's own.
    pub NVLINK_SENT: Counter<Bytes> = "memwarden_gpu_nvlink_sent_bytes_total" {gpu, uuid, traffic};
    /// Bytes the GPU received over all NVLink links: `data` without, `raw` with the protocol's own.
    pub NVLINK_RECEIVED: Counter<Bytes> = "memwarden_gpu_nvlink_received_bytes_total" {gpu, uuid, traffic};
    /// Errors on all NVLink links, by kind.
    pub NVLINK_ERRORS: Counter<Count> = "memwarden_gpu_nvlink_errors_total" {gpu, uuid, error}.counting("{error}");

    /// Whether the GPU is partitioned (MIG).
    pub MIG_ENABLED: Gauge<Flag> = "memwarden_gpu_mig_enabled" {gpu, uuid};
    /// A MIG instance; `parent` is the GPU's UUID; always 1.
    pub MIG_INFO: Gauge<Flag> = "memwarden_gpu_mig_info" {gpu, uuid, gpu_instance, compute_instance, parent, name};
    /// Memory of the MIG instance.
    pub MIG_TOTAL: Gauge<Bytes> = "memwarden_gpu_mig_memory_total_bytes" {gpu, uuid, gpu_instance, compute_instance};
    /// Memory in use on the MIG instance.
    pub MIG_USED: Gauge<Bytes> = "memwarden_gpu_mig_memory_used_bytes" {gpu, uuid, gpu_instance, compute_instance};
    /// Memory that can still be allocated on the MIG instance.
    pub MIG_FREE: Gauge<Bytes> = "memwarden_gpu_mig_memory_free_bytes" {gpu, uuid, gpu_instance, compute_instance};
    /// Memory of the MIG instance that the driver keeps; absent where the driver counts it as used.
    pub MIG_RESERVED: Gauge<Bytes> = "memwarden_gpu_mig_memory_reserved_bytes" {gpu, uuid, gpu_instance, compute_instance};
}
