//! What `otlp` exposes of itself. What jobs push has the names of `training`'s metrics.

use crate::model::units::Count;

crate::metrics! {
    /// Connections to the OTLP receiver, by who has them: a process of a workload, or nobody that is known.
    pub CONNECTIONS: Gauge<Count> = "memwarden_otlp_receiver_connections" {peer}.counting("{connection}");
    /// Connections that the OTLP receiver turned away or closed, by reason: connections, user (the limits of both), share (its place was given to a user who had fewer), idle.
    pub CLOSED: Counter<Count> = "memwarden_otlp_receiver_connections_refused_total" {reason}.counting("{connection}");
    /// Ranks that push, by whom the kernel sees behind them: a process of a workload, or nobody that is known, whose figures have no workload.
    pub RANKS: Gauge<Count> = "memwarden_otlp_receiver_ranks" {peer}.counting("{rank}");
    /// Ranks that push and whose figures are not shown, because the rank speaks over the job socket.
    pub HIDDEN: Gauge<Count> = "memwarden_otlp_receiver_ranks_hidden" {}.counting("{rank}");
    /// Requests to the OTLP receiver, by protocol (grpc, http) and by what became of them: taken, partial, malformed, too_large, unsupported, busy, slow.
    pub REQUESTS: Counter<Count> = "memwarden_otlp_receiver_requests_total" {protocol, outcome}.counting("{request}");
    /// Points pushed, by what became of them: taken, unknown (no metric, attribute or unit that is known), refused (no figure, too old, or too many ranks or series).
    pub POINTS: Counter<Count> = "memwarden_otlp_receiver_points_total" {outcome}.counting("{point}");
}
