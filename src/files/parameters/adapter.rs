//! `adapter_config.json`, as PEFT writes it beside the tensors of an adapter.

use super::error::{ParameterError, shortened};

/// The configuration of an adapter; keys that it lacks are absent.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Adapter {
    /// The kind, such as `LORA`.
    pub peft_type: Option<String>,
    /// The model it belongs to: a path or a name of the Hugging Face Hub.
    pub base_model: Option<String>,
    /// The rank.
    pub r: Option<u64>,
    /// The numerator of the scale `lora_alpha / r`.
    pub lora_alpha: Option<f64>,
    /// The modules that are adapted; one of the form `all-linear` or an expression where it is not a list.
    pub target_modules: Vec<String>,
    /// Modules that are trained and saved completely.
    pub modules_to_save: Vec<String>,
}

/// Parses the configuration. Unknown keys are ignored, and values of other types count as absent.
///
/// # Errors
/// If it is not a JSON object.
pub fn read_config(bytes: &[u8]) -> Result<Adapter, ParameterError> {
    let config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes)
        .map_err(|source| ParameterError::Json { what: "adapter config", source })?;
    let text = |key: &str| config.get(key)?.as_str().map(shortened);
    let list = |key: &str| match config.get(key) {
        Some(serde_json::Value::String(one)) => vec![shortened(one)],
        Some(serde_json::Value::Array(list)) => {
            list.iter().filter_map(|item| item.as_str()).map(shortened).collect()
        }
        _ => Vec::new(),
    };
    let mut target_modules = list("target_modules");
    // PEFT stores a set, whose order depends on the writer's hashes.
    target_modules.sort_unstable();
    Ok(Adapter {
        peft_type: text("peft_type"),
        base_model: text("base_model_name_or_path"),
        r: config.get("r").and_then(serde_json::Value::as_u64),
        lora_alpha: config.get("lora_alpha").and_then(serde_json::Value::as_f64),
        target_modules,
        modules_to_save: list("modules_to_save"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn configurations_of_peft_are_read() {
        let written = br#"{"base_model_name_or_path":"meta-llama/Llama-3.1-8B","lora_alpha":32,"peft_type":"LORA","r":16,
            "target_modules":["v_proj","q_proj"],"modules_to_save":null,"bias":"none","rank_pattern":{}}"#;
        let found = read_config(written).unwrap();
        assert_eq!(
            (found.peft_type.as_deref(), found.r, found.lora_alpha),
            (Some("LORA"), Some(16), Some(32.0))
        );
        assert_eq!(found.target_modules, ["q_proj", "v_proj"]);
        assert!(found.modules_to_save.is_empty());
        assert_eq!(
            read_config(br#"{"r":"x","target_modules":"all-linear"}"#).unwrap().target_modules,
            ["all-linear"]
        );
        assert!(read_config(b"[]").is_err());
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_config(&bytes);
        }
    }
}
