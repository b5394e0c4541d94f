//! The shape of a model, as the job reports it, and the sizes derived from it.
//!
//! Nothing is guessed: a size that the model's kind does not determine and that was not reported leaves the formulas
//! that require it without a value.

use crate::model::units::real;

/// The largest accepted dimension: far above any model, and products of a few are exact in `f64`.
const LARGEST_DIMENSION: u64 = 1 << 24;
/// The largest accepted number of parameters, 2^50.
const MOST_PARAMETERS: u64 = 1 << 50;

/// The `model` object of the job protocol's `hello`. A size of zero counts as not reported.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(default)]
pub struct Shape {
    /// The kind, as Hugging Face's `model_type`; `Family` lists those that are known.
    pub kind: Option<String>,
    pub layers: Option<u64>,
    /// Width of the residual stream.
    pub hidden: Option<u64>,
    /// Width of a dense layer's feed-forward network.
    pub ffn: Option<u64>,
    /// Query heads.
    pub heads: Option<u64>,
    /// Key and value heads; the number of query heads where not reported.
    pub kv_heads: Option<u64>,
    /// Width of a head; hidden / heads where not reported.
    pub head_dim: Option<u64>,
    /// Entries of the vocabulary, padding included.
    pub vocab: Option<u64>,
    /// Whether the feed-forward network has a gate (SwiGLU, GeGLU): three matrices in place of two.
    pub gated: Option<bool>,
    /// Experts of a mixture layer, shared ones excluded.
    pub experts: Option<u64>,
    /// Experts that each token visits.
    pub experts_per_token: Option<u64>,
    /// Width of one expert; `ffn` where not reported.
    pub expert_ffn: Option<u64>,
    /// Width of the shared experts of a layer together.
    pub shared_expert_ffn: Option<u64>,
    /// Layers that are mixtures; all where not reported.
    pub moe_layers: Option<u64>,
    /// All parameters, experts included.
    pub parameters: Option<u64>,
    /// The parameters that are trained.
    pub trainable: Option<u64>,
    /// Whether the output layer shares the weights of the input embedding.
    pub tied_embeddings: Option<bool>,
}

/// Family of a model: its properties beyond the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Biases everywhere, learned positions, two matrices (GPT-2, GPT-3, Megatron's default).
    Gpt,
    /// No biases, rotary positions, a gate (LLaMA, Mistral, Aquila, Mixtral).
    Llama,
    /// As LLaMA, with biases on query, key and value (Qwen2, Qwen2.5).
    Qwen2,
    /// As LLaMA, with a norm on query and key, and a head dimension of its own (Qwen3).
    Qwen3,
    /// Causal attention over all tokens in every layer; norms, biases and gate differ between the kinds.
    Plain,
    /// Not reported, or a kind whose layers may be others than the formulas describe.
    Unknown,
}

/// The kinds that the formulas describe, as Hugging Face's `model_type`: decoders whose every layer has query, key,
/// value and output matrices and attends to all earlier tokens. A kind that is not here gets no value.
const KINDS: [(Family, &[&str]); 5] = [
    (Family::Gpt, &["gpt", "gpt2", "gpt3"]),
    (Family::Llama, &["llama", "llama2", "llama3", "mistral", "mixtral", "aquila", "aquila2", "aquila3"]),
    (Family::Qwen2, &["qwen", "qwen2", "qwen2_5", "qwen2_moe"]),
    (Family::Qwen3, &["qwen3", "qwen3_moe"]),
    (
        Family::Plain,
        &[
            "gpt_neox",
            "gptj",
            "opt",
            "bloom",
            "phi",
            "phi3",
            "stablelm",
            "starcoder2",
            "gemma",
            "olmo",
            "olmo2",
            "olmoe",
            "granite",
            "granitemoe",
            "cohere",
            "internlm",
            "internlm2",
            "baichuan",
            "yi",
            "smollm3",
            "glm",
            "glm4",
            "helium",
            "nemotron",
            "arcee",
            "seed_oss",
        ],
    ),
];

impl Family {
    pub(super) fn of(kind: Option<&str>) -> Self {
        let kind = kind.unwrap_or_default().to_ascii_lowercase().replace(['-', '.'], "_");
        let found = KINDS.iter().find(|(_, kinds)| kinds.contains(&kind.as_str()));
        found.map_or(Self::Unknown, |(family, _)| *family)
    }
}

/// The sizes of a model, all of them known, each exact in `f64`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sizes {
    pub(super) family: Family,
    pub(super) layers: f64,
    pub(super) hidden: f64,
    /// Query heads times the head dimension.
    pub(super) query: f64,
    /// Key (or value) heads times the head dimension.
    pub(super) keys: f64,
    pub(super) head_dim: f64,
    pub(super) vocab: f64,
    /// Matrices of a feed-forward network.
    pub(super) matrices: f64,
    pub(super) dense_layers: f64,
    pub(super) ffn: f64,
    pub(super) moe_layers: f64,
    pub(super) experts: f64,
    pub(super) experts_per_token: f64,
    pub(super) expert_ffn: f64,
    pub(super) shared_ffn: f64,
}

/// A reported size, if it is valid.
fn valid(size: Option<u64>) -> Option<u64> {
    size.filter(|size| (1..=LARGEST_DIMENSION).contains(size))
}

/// A size as a float, for the formulas.
fn number(size: u64) -> f64 {
    // The largest dimension fits; a larger value is not a valid size.
    u32::try_from(size).map_or(f64::NAN, f64::from)
}

impl Shape {
    /// The sizes of the model; absent where one is missing, contradicts another, or exceeds the accepted range.
    pub(super) fn sizes(&self) -> Option<Sizes> {
        let family = Family::of(self.kind.as_deref());
        let all = [self.layers, self.hidden, self.heads, self.vocab];
        let [Some(layers), Some(hidden), Some(heads), Some(vocab)] = all.map(valid) else { return None };
        let head_dim = match valid(self.head_dim) {
            Some(given) => given,
            None => hidden.is_multiple_of(heads).then_some(hidden / heads)?,
        };
        let kv_heads = valid(self.kv_heads).unwrap_or(heads);
        let gated = match (self.gated, family) {
            (Some(gated), _) => gated,
            (None, Family::Gpt) => false,
            (None, Family::Plain | Family::Unknown) => return None,
            (None, _) => true,
        };
        let ffn = valid(self.ffn).or((family == Family::Gpt).then_some(4 * hidden));
        let experts = valid(self.experts).unwrap_or(0);
        let moe_layers = if experts == 0 { 0 } else { valid(self.moe_layers).unwrap_or(layers) };
        let dense_layers = layers.checked_sub(moe_layers)?;
        let (chosen, expert_ffn, shared) = match moe_layers {
            0 => (0, 0, 0),
            _ => (
                valid(self.experts_per_token).filter(|chosen| *chosen <= experts)?,
                valid(self.expert_ffn).or(ffn)?,
                valid(self.shared_expert_ffn).unwrap_or(0),
            ),
        };
        let ffn = if dense_layers == 0 { 0 } else { ffn? };
        (kv_heads <= heads).then_some(Sizes {
            family,
            layers: number(layers),
            hidden: number(hidden),
            query: number(heads) * number(head_dim),
            keys: number(kv_heads) * number(head_dim),
            head_dim: number(head_dim),
            vocab: number(vocab),
            matrices: if gated { 3.0 } else { 2.0 },
            dense_layers: number(dense_layers),
            ffn: number(ffn),
            moe_layers: number(moe_layers),
            experts: number(experts),
            experts_per_token: number(chosen),
            expert_ffn: number(expert_ffn),
            shared_ffn: number(shared),
        })
    }

    pub(super) fn reported_parameters(&self) -> Option<f64> {
        self.parameters.filter(|all| (1..=MOST_PARAMETERS).contains(all)).map(real)
    }

    /// The trainable share of the parameters, 0 to 1; 1 where not reported.
    pub(super) fn trained(&self) -> f64 {
        match (self.parameters, self.trainable) {
            (Some(all), Some(trained)) if all > 0 && trained < all => real(trained) / real(all),
            _ => 1.0,
        }
    }
}
