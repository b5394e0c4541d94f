//! Metrics of the `exits` source.

use crate::model::units::{Count, Flag};

crate::metrics! {
    /// Processes of the host that ended since memwarden started, by how: success (exit code 0), failure (another exit code) or signal.
    pub EXITS: Counter<Count> = "memwarden_host_process_exits_total" {how}.counting("{process}");
    /// Whether memwarden can read who sends signals, which takes CAP_PERFMON and the tracing file system of the kernel: 1, or 0 where it cannot, so that it is not known who ended a process.
    pub SENDERS: Gauge<Flag> = "memwarden_host_signal_senders_known" {};
    /// Times that the kernel dropped reports of ended processes, or of signals, because memwarden did not read them in time; the exit status or the sender of some is unknown.
    pub OVERRUNS: Counter<Count> = "memwarden_host_process_exit_overruns_total" {}.counting("{overrun}");
}
