//! The classes and functions that a checkpoint may reference.

use std::collections::BTreeSet;

use super::{NAMES_LISTED, Options, dotted};
use crate::files::parameters::error::ParameterError;
use crate::files::pickle::{Arena, Made};

/// The functions that `torch.load(weights_only=True)` calls (torch/_weights_only_unpickler.py of 2.9), and plain
/// containers: a module, and names separated by spaces.
const NAMES: &[(&str, &str)] = &[
    ("collections", "OrderedDict defaultdict Counter deque"),
    ("argparse", "Namespace"),
    ("_codecs", "encode"),
    ("torch", "Size device dtype Generator Tensor tensor get_default_dtype layout"),
    ("torch.serialization", "_get_layout"),
    ("torch.storage", "UntypedStorage TypedStorage"),
    ("torch.nn.parameter", "Parameter UninitializedParameter Buffer"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch.optim.lr_scheduler", "LambdaLR StepLR CosineAnnealingLR OneCycleLR"),
    ("numpy", "dtype ndarray"),
    ("numpy.core.multiarray", "_reconstruct scalar"),
    ("numpy._core.multiarray", "_reconstruct scalar"),
    ("pathlib", "Path PosixPath PurePosixPath"),
    ("datetime", "datetime date timedelta"),
    ("decimal", "Decimal"),
    ("fractions", "Fraction"),
    ("uuid", "UUID"),
    // Classes that only hold values.
    ("torch.distributed.checkpoint.metadata", DISTRIBUTED),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix"),
    ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties MEM_FORMAT_ENCODING"),
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler DynamicLossScaler"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
    ("builtins", BUILTINS),
    ("__builtin__", BUILTINS),
];

const DISTRIBUTED: &str = "Metadata TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata TensorProperties \
                           MetadataIndex StorageMeta _MEM_FORMAT_ENCODING";

const BUILTINS: &str =
    "set frozenset bytearray bytes complex slice range int float str bool list dict tuple object";

fn is_harmless(module: &[u8], name: &[u8]) -> bool {
    let listed = |(of, names): &(&str, &str)| {
        of.as_bytes() == module && names.split(' ').any(|known| known.as_bytes() == name)
    };
    NAMES.iter().any(listed)
        // These functions only rebuild tensors.
        || (module == b"torch._utils" && name.starts_with(b"_rebuild_"))
        || (module == b"torch" && (name.ends_with(b"Storage") || super::rebuild::is_dtype(name)))
        // Completely saved modules of PyTorch, and classes of TorchScript, whose code is not in the pickle.
        || module.starts_with(b"torch.nn.modules.")
        || module.starts_with(b"__torch__")
}

/// Rejects a pickle that would call any other function, or adds a note; includes objects that are not reachable from
/// the root.
pub(super) fn check(
    arena: &Arena<'_>,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<(), ParameterError> {
    let mut called = BTreeSet::new();
    for object in arena.objects().iter().filter(|object| object.made != Made::Persistent) {
        let harmless = match arena.global(object.function) {
            Some((module, name)) => is_harmless(module, name),
            None => false,
        };
        if harmless {
            continue;
        }
        let name = dotted(arena, object.function).unwrap_or_else(|| "the result of another call".to_owned());
        if !options.any_class {
            return Err(ParameterError::Calls { offset: object.at, name });
        }
        called.insert(name);
    }
    if !called.is_empty() {
        let mut names: Vec<&str> = called.iter().map(String::as_str).take(NAMES_LISTED).collect();
        let more = format!("and {} more", called.len().saturating_sub(NAMES_LISTED));
        if called.len() > NAMES_LISTED {
            names.push(&more);
        }
        notes.push(format!(
            "loading it would call functions that are not known to be harmless: {}",
            names.join(", ")
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_reach_the_system_are_not_harmless() {
        for (module, name) in [
            ("os", "system"),
            ("posix", "system"),
            ("builtins", "eval"),
            ("__builtin__", "getattr"),
            ("subprocess", "Popen"),
            ("torch", "load"),
            ("torch", "classes"),
            ("torch._utils", "os"),
            ("collections", "OrderedDict.fromkeys"),
            ("torch.nn", "modules.linear.Linear"),
        ] {
            assert!(!is_harmless(module.as_bytes(), name.as_bytes()), "{module}.{name}");
        }
        for (module, name) in
            [("torch", "BFloat16Storage"), ("torch", "float8_e5m2"), ("torch._utils", "_rebuild_parameter")]
        {
            assert!(is_harmless(module.as_bytes(), name.as_bytes()), "{module}.{name}");
        }
    }
}
