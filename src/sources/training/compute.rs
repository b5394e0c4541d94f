//! FLOP rate and MFU of a rank, from the shape of its model and its tokens; the formulas are those of
//! `crate::flops`.

use super::metrics as m;
use super::rank::Rank;
use super::rank_identity::RankIdentity;
use crate::flops::peaks::{self, Override, Precision};
use crate::flops::{self, Convention, Shape};
use crate::formats::messages::{self, Hello, Model};
use crate::model::fit::Recompute;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::{Flag, PerSecond, Ratio};

/// Puts operations per second and MFU, by counting convention.
pub(super) fn put(
    rank: &Rank,
    hello: &Hello,
    identity: &RankIdentity,
    at: Timestamp,
    overrides: &[Override],
    out: &mut Batch,
) {
    let (Some(model), Some(tokens)) = (&hello.model, rank.token_rate.per_second(at)) else { return };
    let Some(replicas) = replicas(hello) else { return };
    let shape = shape(model);
    let recompute = hello.recompute.unwrap_or(Recompute::None);
    let conventions =
        [Convention::Full, Convention::Causal, Convention::SixN, Convention::Hardware(recompute)];
    let peak = peak(hello, overrides);
    let sequence = hello.sequence_length.unwrap_or(0);
    if let Some(reason) = flops::why_unknown(&shape, sequence) {
        let [workload, rank] = identity.labels();
        out.put(&m::FLOPS_UNKNOWN, &[workload, rank, reason.into()], Flag(true));
    }
    for convention in conventions {
        let each = flops::flops_per_token(&shape, sequence, convention)
            .and_then(|each| flops::flops_per_gpu(each, tokens, world(hello), replicas));
        let Some(each) = each else { continue };
        let [workload, rank] = identity.labels();
        let labels: [Label; 3] = [workload, rank, convention.label().into()];
        out.put_some(&m::FLOPS, &labels, PerSecond::new(each));
        let share = peak.and_then(|peak| flops::utilization(each, peak));
        out.put_some(&m::MFU, &labels, share.and_then(Ratio::new));
    }
}

fn world(hello: &Hello) -> u64 {
    hello.world.unwrap_or(1)
}

/// Number of replicas of the model; a process without other ranks is one replica, reported or not.
pub(super) fn replicas(hello: &Hello) -> Option<u64> {
    let replicas = hello.data_parallel.or_else(|| (world(hello) == 1).then_some(1));
    replicas.filter(|replicas| *replicas > 0 && world(hello).is_multiple_of(*replicas))
}

/// The peak of the rank's device at its precision; nothing if its devices differ.
fn peak(hello: &Hello, overrides: &[Override]) -> Option<f64> {
    let precision = Precision::from_name(hello.precision.as_deref()?)?;
    let mut names = hello.devices.iter().flatten().map(|(_, device)| device.name.as_deref());
    let first = names.next()??;
    names.all(|name| name == Some(first)).then(|| peaks::peak(first, precision, overrides)).flatten()
}

/// Converts the reported model to the input of the formulas.
fn shape(model: &messages::Model) -> Shape {
    let Model { layers, hidden, ffn, heads, kv_heads, head_dim, vocab, gated, .. } = *model;
    let Model { experts, experts_per_token, expert_ffn, shared_expert_ffn, moe_layers, .. } = *model;
    Shape {
        kind: model.kind.clone(),
        layers,
        hidden,
        ffn,
        heads,
        kv_heads,
        head_dim,
        vocab,
        gated,
        experts,
        experts_per_token,
        expert_ffn,
        shared_expert_ffn,
        moe_layers,
        parameters: model.parameters,
        trainable: model.trainable,
        ..Shape::default()
    }
}
