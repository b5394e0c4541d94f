//! Metrics of the OTLP receiver. What jobs push is exposed under the names of `training`'s metrics.

use crate::model::units::Count;

crate::metrics! {
    /// Open connections to the OTLP receiver, by peer: workload (the process belongs to a workload) or none (the process is unknown or in no workload).
    pub CONNECTIONS: Gauge<Count> = "memwarden_otlp_receiver_connections" {peer}.counting("{connection}");
    /// Connections that the OTLP receiver refused or closed, by reason: connections (limit of all), user (limit of the user), share (closed for a user with fewer connections), frames (HTTP/2) or idle.
    pub CLOSED: Counter<Count> = "memwarden_otlp_receiver_connections_refused_total" {reason}.counting("{connection}");
    /// Ranks that push to the OTLP receiver, by peer: workload (the process belongs to a workload) or none (the process is unknown or in no workload; the metrics have an empty label workload).
    pub RANKS: Gauge<Count> = "memwarden_otlp_receiver_ranks" {peer}.counting("{rank}");
    /// Ranks that push to the OTLP receiver and whose metrics are not exposed because the rank also reports over the job socket.
    pub HIDDEN: Gauge<Count> = "memwarden_otlp_receiver_ranks_hidden" {}.counting("{rank}");
    /// Requests to the OTLP receiver, by protocol (grpc or http) and outcome: taken (accepted), partial (partly accepted), malformed, too_large, unsupported, busy or slow.
    pub REQUESTS: Counter<Count> = "memwarden_otlp_receiver_requests_total" {protocol, outcome}.counting("{request}");
    /// Points received by the OTLP receiver, by outcome: taken (accepted), unknown (unknown metric, attribute or unit) or refused (not a number, too old, or beyond the limit of ranks or series).
    pub POINTS: Counter<Count> = "memwarden_otlp_receiver_points_total" {outcome}.counting("{point}");
}
