//! Classifies tensors by part of the model, by their names.
//!
//! Supports the names of Hugging Face Transformers, Megatron-LM, LLaMA's own release, GPT-2, GPT-NeoX, BERT, T5,
//! Mixtral, PEFT and PyTorch's optimizers.

use crate::model::names::named;

named! {
    /// A part of a model.
    #[derive(serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Group {
        /// Tokens, positions, patches.
        Embedding = "embedding",
        /// Query, key, value and output projections.
        Attention = "attention",
        /// Feed-forward layers, experts and their routers.
        Mlp = "mlp",
        /// Normalization.
        Norm = "norm",
        /// The output layer: logits or classes.
        Head = "head",
        /// Low-rank and other adapters.
        Lora = "lora",
        /// Optimizer state, saved with the model.
        Optimizer = "optimizer",
        /// Tensors with unknown names.
        Other = "other",
    }
}

/// How words, separated by spaces, are found in a name.
enum Test {
    /// A component between dots is one of them.
    Is(&'static str),
    /// The name contains one of them.
    Has(&'static str),
}

/// The rules in order of precedence: a normalization inside attention is a normalization, a LoRA of a projection is
/// LoRA.
const RULES: &[(Group, Test)] = &[
    (Group::Optimizer, Test::Is("optimizer optimizer_states optimizer_state_dict optim exp_avg exp_avg_sq")),
    (Group::Optimizer, Test::Is("max_exp_avg_sq momentum_buffer")),
    (Group::Lora, Test::Has("lora_ lora. lokr_ hada_ adapter prompt_encoder ia3")),
    (Group::Norm, Test::Has("norm ln_ _ln batch_norm")),
    (Group::Norm, Test::Is("ln1 ln2 ln bn1 bn2 bn3 bn")),
    (Group::Head, Test::Is("lm_head head heads embed_out classifier score output_layer")),
    (Group::Head, Test::Is("predictions cls seq_relationship qa_outputs value_head v_head")),
    (Group::Embedding, Test::Has("embed")),
    (Group::Embedding, Test::Is("wte wpe shared cls_token pos_emb tok_emb")),
    (Group::Attention, Test::Has("attn attention qkv")),
    (
        Group::Attention,
        Test::Is("q_proj k_proj v_proj o_proj out_proj wq wk wv wo query key value rotary_emb"),
    ),
    (Group::Mlp, Test::Has("mlp ffn feed_forward feedforward expert moe dense_h_to_4h")),
    (Group::Mlp, Test::Has("dense_4h_to_h densereludense intermediate")),
    (Group::Mlp, Test::Is("gate_proj up_proj down_proj fc1 fc2 c_fc w1 w2 w3 linear1 linear2")),
];

/// The part of the model that a tensor of this name belongs to.
pub fn group_of(name: &str) -> Group {
    let lower = name.to_ascii_lowercase();
    let fits = |test: &Test| match test {
        Test::Is(words) => lower.split('.').any(|component| words.split(' ').any(|word| word == component)),
        Test::Has(words) => words.split(' ').any(|word| lower.contains(word)),
    };
    if let Some((group, _)) = RULES.iter().find(|(_, test)| fits(test)) {
        return *group;
    }
    let mut components = lower.split('.').filter(|part| !matches!(*part, "module" | "model" | "state_dict"));
    match (components.next(), components.any(|component| component == "dense")) {
        // The name of the head in LLaMA's own release; the layers of BERT end in output.dense.
        (Some("output"), _) => Group::Head,
        (_, true) if lower.contains("output.dense") => Group::Mlp,
        _ => Group::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_known_models_have_a_group() {
        let expected = [
            ("model.embed_tokens.weight", Group::Embedding),
            ("model.layers.0.self_attn.q_proj.weight", Group::Attention),
            ("model.layers.0.self_attn.q_norm.weight", Group::Norm),
            ("model.layers.0.mlp.gate_proj.weight", Group::Mlp),
            ("model.layers.0.block_sparse_moe.experts.3.w1.weight", Group::Mlp),
            ("model.layers.0.input_layernorm.weight", Group::Norm),
            ("lm_head.weight", Group::Head),
            ("output.weight", Group::Head),
            ("tok_embeddings.weight", Group::Embedding),
            ("layers.4.feed_forward.w2.weight", Group::Mlp),
            ("layers.4.attention.wo.weight", Group::Attention),
            ("transformer.h.0.attn.c_attn.weight", Group::Attention),
            ("h.0.ln_1.bias", Group::Norm),
            ("wpe.weight", Group::Embedding),
            ("gpt_neox.layers.0.mlp.dense_h_to_4h.weight", Group::Mlp),
            ("embed_out.weight", Group::Head),
            ("bert.encoder.layer.0.attention.output.dense.weight", Group::Attention),
            ("bert.encoder.layer.0.attention.output.LayerNorm.weight", Group::Norm),
            ("bert.encoder.layer.0.output.dense.bias", Group::Mlp),
            ("cls.predictions.decoder.weight", Group::Head),
            ("model.language_model.output_layer.weight", Group::Head),
            ("base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight", Group::Lora),
            ("optimizer.state.0.exp_avg", Group::Optimizer),
            ("conv1.weight", Group::Other),
            ("", Group::Other),
        ];
        for (name, group) in expected {
            assert_eq!(group_of(name), group, "{name}");
        }
    }
}
