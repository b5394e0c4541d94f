//! Published formulas in closed form, as their papers and programs print them.
//!
//! The tests compare the conventions of `flops` with them.

/// A GPT with feed-forward width 4h and as many key heads as heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gpt {
    pub(super) layers: f64,
    pub(super) hidden: f64,
    /// Vocabulary, padding included.
    pub(super) vocab: f64,
    /// Tokens of a sequence.
    pub(super) sequence: f64,
}

impl Gpt {
    fn scaled(&self, factor: f64, attention: f64, logits: f64) -> f64 {
        let Self { layers, hidden, vocab, sequence } = *self;
        factor
            * sequence
            * layers
            * hidden
            * hidden
            * (1.0 + sequence / (attention * hidden) + vocab / (logits * layers * hidden))
    }

    /// Operations of one sequence with every layer's forward pass computed twice:
    /// `96 s L h^2 (1 + s / 6h + V / 16Lh)` (Narayanan et al., arXiv 2104.04473, equation 3).
    pub(super) fn narayanan96(&self) -> f64 {
        self.scaled(96.0, 6.0, 16.0)
    }

    /// Operations of one sequence that the model needs: `72 s L h^2 (1 + s / 6h + V / 12Lh)`
    /// (Korthikanti et al., arXiv 2205.05198, appendix A).
    pub(super) fn model72(&self) -> f64 {
        self.scaled(72.0, 6.0, 12.0)
    }

    /// Operations of one sequence with selective recomputation: `72 s L h^2 (1 + s / 3h + V / 12Lh)`
    /// (Korthikanti et al., arXiv 2205.05198, appendix A).
    pub(super) fn selective72(&self) -> f64 {
        self.scaled(72.0, 3.0, 12.0)
    }

    /// Parameters: `12 L h^2 (1 + 13 / 12h + (V + s) / 12Lh)` (Narayanan et al., arXiv 2104.04473, equation 2).
    pub(super) fn parameters(&self) -> f64 {
        let Self { layers, hidden, vocab, sequence } = *self;
        12.0 * layers
            * hidden
            * hidden
            * (1.0 + 13.0 / (12.0 * hidden) + (vocab + sequence) / (12.0 * layers * hidden))
    }
}

/// Operations of one token: `6N + 12 L H Q T` (Chowdhery et al., arXiv 2204.02311, appendix B; `estimate_mfu` of
/// nanoGPT's model.py, whose N leaves out the position embedding).
pub(super) fn palm(parameters: f64, layers: f64, heads: f64, head_dim: f64, sequence: f64) -> f64 {
    6.0 * parameters + 12.0 * layers * heads * head_dim * sequence
}

/// Operations of one token: `6 (N - N_emb) + 6 L n (d_qk + d_v) s`, N being the active parameters (torchtitan,
/// torchtitan/models/utils.py, `get_dense_model_nparams_and_flops`).
pub(super) fn torchtitan(
    parameters: f64,
    embedding: f64,
    layers: f64,
    heads: f64,
    head_dims: [f64; 2],
    sequence: f64,
) -> f64 {
    6.0 * (parameters - embedding) + 6.0 * layers * heads * head_dims.iter().sum::<f64>() * sequence
}

/// Seconds to train with full recomputation: `8 T P / (n X)`, for T tokens, P parameters, n GPUs that do X
/// operations a second each (Narayanan et al., arXiv 2104.04473, equation 4).
pub(super) fn seconds_to_train(tokens: f64, parameters: f64, gpus: f64, flops_per_gpu: f64) -> f64 {
    8.0 * tokens * parameters / (gpus * flops_per_gpu)
}
