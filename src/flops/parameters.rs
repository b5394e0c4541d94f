//! Number of parameters of a model: all of them, and the active ones, which a token uses.

use super::positive;
use super::shape::{Family, Shape, Sizes};
use crate::model::units::real;

impl Sizes {
    /// Weights of one layer's attention: query, keys and values, output.
    pub(super) fn attention_weights(&self) -> f64 {
        self.hidden * (2.0 * self.query + 2.0 * self.keys)
    }

    /// Weights of one expert.
    fn expert(&self) -> f64 {
        self.matrices * self.hidden * self.expert_ffn
    }

    /// Weights of the feed-forward networks of all layers that a token visits, routers excluded.
    pub(super) fn visited_ffn_weights(&self) -> f64 {
        self.dense_layers * self.matrices * self.hidden * self.ffn
            + self.moe_layers
                * (self.experts_per_token * self.expert() + self.matrices * self.hidden * self.shared_ffn)
    }

    /// Weights of the experts that a token does not visit.
    fn idle(&self) -> f64 {
        self.moe_layers * (self.experts - self.experts_per_token) * self.expert()
    }
}

/// All parameters of the model from its sizes; `positions` are the learned ones of a GPT, in tokens.
///
/// A GPT has `12 L h^2 (1 + 13 / 12h + (V + s) / 12Lh)` (Narayanan et al., arXiv 2104.04473, where the feed-forward
/// width is 4h) and 2h for its last norm; the others as their modeling files in Hugging Face's transformers build
/// them: two norms a layer and one at the end, a router a mixture layer, biases on query, key and value in Qwen2,
/// norms on query and key in Qwen3. Absent for other kinds, or where it was not reported whether the embeddings are
/// tied (those of a GPT are).
pub fn parameters(shape: &Shape, positions: u64) -> Option<f64> {
    let sizes = shape.sizes()?;
    let embedding = sizes.vocab * sizes.hidden;
    let matrices = sizes.layers * sizes.attention_weights() + sizes.visited_ffn_weights() + sizes.idle();
    let routers = sizes.moe_layers * sizes.experts * sizes.hidden;
    let norms = (2.0 * sizes.layers + 1.0) * sizes.hidden;
    let (small, tied) = match sizes.family {
        Family::Gpt => {
            // Two norms with biases, and the biases of query, keys, values, output and both matrices.
            let biases = 6.0 * sizes.hidden + sizes.query + 2.0 * sizes.keys;
            let ffn = sizes.dense_layers * sizes.ffn;
            let learned = real(positions) * sizes.hidden;
            (
                sizes.layers * biases + 2.0 * sizes.hidden + ffn + learned,
                shape.tied_embeddings.unwrap_or(true),
            )
        }
        Family::Llama => (norms, shape.tied_embeddings?),
        Family::Qwen2 => (norms + sizes.layers * (sizes.query + 2.0 * sizes.keys), shape.tied_embeddings?),
        Family::Qwen3 => (norms + 2.0 * sizes.layers * sizes.head_dim, shape.tied_embeddings?),
        Family::Plain | Family::Unknown => return None,
    };
    positive(matrices + routers + small + if tied { embedding } else { 2.0 * embedding })
}

/// The active parameters, which one token uses: all that were reported (or are derived from the sizes), without the
/// experts that the token does not use.
///
/// Absent for a mixture of experts whose sizes are unknown.
pub fn active_parameters(shape: &Shape) -> Option<f64> {
    let all = shape.reported_parameters().or_else(|| parameters(shape, 0))?;
    if shape.experts.is_none_or(|experts| experts == 0) {
        return Some(all);
    }
    // Only the sizes of the experts matter here, whatever the attention is.
    let plain = Shape { gated: Some(shape.gated.unwrap_or(true)), ..shape.clone() };
    positive(all - plain.sizes()?.idle())
}
