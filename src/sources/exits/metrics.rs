//! Metrics of the `exits` source.

use crate::model::units::Count;

crate::metrics! {
    /// Processes of the host that ended since memwarden started, by how: success (exit code 0), failure (another exit code) or signal.
    pub EXITS: Counter<Count> = "memwarden_host_process_exits_total" {how}.counting("{process}");
    /// Times that the kernel dropped reports of ended processes, or of signals, because memwarden did not read them in time; the exit status or the sender of some is unknown.
    pub OVERRUNS: Counter<Count> = "memwarden_host_process_exit_overruns_total" {}.counting("{overrun}");
}
