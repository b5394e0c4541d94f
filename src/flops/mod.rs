//! Floating point operations of training: per token, per iteration and per GPU, and MFU, the share of the peak.
//!
//! Public tools count by different conventions: the same job prints 11 % less on Megatron 0.12 than on 0.11. So each
//! value here names its [`Convention`], and is absent where a size of the model is missing.

mod parameters;
pub mod peaks;
mod shape;
#[cfg(test)]
mod tests;

pub use parameters::{active_parameters, parameters};
pub use shape::Shape;

use crate::model::fit::Recompute;
use crate::model::units::real;
use shape::{Family, Sizes};

/// The longest accepted sequence, in tokens.
const LONGEST_SEQUENCE: u64 = 1 << 32;

/// How operations are counted; exposed as a label, never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Convention {
    /// The operations that the model requires, with attention over all pairs of tokens (Megatron-LM to core 0.11,
    /// `num_floating_point_operations` of megatron/training/training.py; PaLM's appendix B).
    Full,
    /// The operations that the model requires, with causal attention, over half of the pairs (Megatron-LM from core
    /// 0.12).
    Causal,
    /// Six operations per parameter and token, without attention (Kaplan et al., arXiv 2001.08361; for a mixture of
    /// experts, the active parameters).
    SixN,
    /// The operations that the GPUs execute: [`Convention::Full`] plus recomputation in the backward pass.
    Hardware(Recompute),
}

impl Convention {
    pub const fn label(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Causal => "causal",
            Self::SixN => "6n",
            Self::Hardware(_) => "hardware",
        }
    }
}

/// Operations of forward and backward pass of one token in a sequence of `sequence` tokens.
///
/// With `L` layers, hidden width `h`, `n` heads and `g` key heads of width `d`, feed-forward width `f`, vocabulary
/// `V` and sequence `s`: `6 [ L (h (nd + 2gd) + nd h) + m h (f L_dense + (k f_expert + f_shared) L_moe) + h V ] +
/// 12 nd s L`, `m` being 3 with a gate and 2 without; causal attention is `6 nd s L`. That is Megatron-LM's
/// `num_floating_point_operations` (core 0.10 to HEAD; routers, norms and biases are not counted there either).
/// Hardware with selective recomputation counts attention twice, as Korthikanti et al. do (arXiv 2205.05198),
/// with full recomputation the layers 4/3 times and the logits once (Narayanan et al., arXiv 2104.04473).
///
/// Where only some parameters are trained (LoRA), the weight gradients, a third of the products with weights, count
/// by the trainable share: the others are not computed.
///
/// Absent where a size is missing or the kind of model is not one that these formulas are known to describe:
/// [`why_unknown`] says which.
pub fn flops_per_token(shape: &Shape, sequence: u64, convention: Convention) -> Option<f64> {
    let trained = (2.0 + shape.trained()) / 3.0;
    if convention == Convention::SixN {
        return positive(6.0 * active_parameters(shape)? * trained);
    }
    if why_unknown(shape, sequence).is_some() {
        return None;
    }
    let parts = Parts::of(&shape.sizes()?, real(sequence));
    let needed = trained * (parts.weights + parts.logits);
    positive(match convention {
        Convention::SixN => return None,
        Convention::Full | Convention::Hardware(Recompute::None) => needed + parts.attention,
        Convention::Causal => needed + parts.attention / 2.0,
        Convention::Hardware(Recompute::Selective) => needed + 2.0 * parts.attention,
        Convention::Hardware(Recompute::Full) => {
            needed + parts.attention + (parts.weights + parts.attention) / 3.0
        }
    })
}

/// Why the formulas have no value for this model at this length of its sequences.
pub fn why_unknown(shape: &Shape, sequence: u64) -> Option<String> {
    match (&shape.kind, Family::of(shape.kind.as_deref())) {
        (None, _) => Some("the kind of the model is not reported".to_owned()),
        (Some(kind), Family::Unknown) => Some(format!("no formula is known for models of kind {kind}")),
        _ if shape.sizes().is_none() => {
            Some("a size of the model is missing or contradicts another".to_owned())
        }
        _ if !(1..=LONGEST_SEQUENCE).contains(&sequence) => Some("no sequence length is reported".to_owned()),
        _ => None,
    }
}

/// Operations of one token, by purpose.
struct Parts {
    /// Products with the weights of the layers.
    weights: f64,
    /// Scores and their products with the values, over the whole square.
    attention: f64,
    /// The output layer.
    logits: f64,
}

impl Parts {
    fn of(sizes: &Sizes, sequence: f64) -> Self {
        Self {
            weights: 6.0 * (sizes.layers * sizes.attention_weights() + sizes.visited_ffn_weights()),
            attention: 12.0 * sizes.query * sequence * sizes.layers,
            logits: 6.0 * sizes.hidden * sizes.vocab,
        }
    }
}

/// Operations a second that one GPU achieves, from the tokens a second of **one rank**.
///
/// A rank's own tokens are those of its data-parallel replica, and `world / data_parallel` GPUs share the work on
/// them; so the job does `data_parallel` times as much, on `world` GPUs. Nothing for a `data_parallel` that is zero
/// or does not divide `world`.
pub fn flops_per_gpu(
    flops_per_token: f64,
    rank_tokens_per_second: f64,
    world: u64,
    data_parallel: u64,
) -> Option<f64> {
    if world == 0 || data_parallel == 0 || !world.is_multiple_of(data_parallel) {
        return None;
    }
    positive(flops_per_token * rank_tokens_per_second * real(data_parallel) / real(world))
}

/// The share of the peak, 0 to 1; both in operations per second.
pub fn utilization(flops_per_second: f64, peak: f64) -> Option<f64> {
    if peak > 0.0 { positive(flops_per_second / peak) } else { None }
}

/// A measured or counted quantity that is finite and above zero.
fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}
