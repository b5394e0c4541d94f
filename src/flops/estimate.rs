//! Estimates the GPU memory of a training job before it begins, in addition to the measured values.

use super::shape::count;
use super::{Shape, positive};

/// Distribution of the job over GPUs; each value at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// GPUs that share each layer.
    pub tensor_parallel: u64,
    /// GPUs that share the layers.
    pub pipeline_parallel: u64,
    /// Replicas of the model.
    pub data_parallel: u64,
    /// Whether the replicas share the optimizer's state.
    pub distributed_optimizer: bool,
    /// Sequences in one forward pass.
    pub micro_batch: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
}

/// The estimate for the GPU with the most memory in use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Parameters, gradients and optimizer state.
    pub state: f64,
    /// Activations between forward and backward pass.
    pub activations: f64,
}

/// The estimate of Megatron-LM (megatron/training/theoretical_memory_usage.py), for mixed precision with Adam: 18
/// bytes a parameter (2 parameter, 4 gradient, 12 optimizer and master copy), or 6 + 12 / data-parallel with the
/// distributed optimizer; activations of a layer `s b h (18 + 4 f / h)` with sequence parallelism and selective
/// recomputation, shared by the tensor-parallel GPUs. A first pipeline stage holds as many microbatches as there are
/// stages, so its activations are those of all layers.
///
/// Embeddings are counted as if spread evenly. Absent where sizes are missing, or for a mixture of experts, whose
/// activations this formula does not describe.
pub fn estimate(shape: &Shape, layout: &Layout) -> Option<Estimate> {
    let sizes = shape.sizes()?;
    let [tensor, pipeline, replicas] =
        [layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel].map(count);
    if tensor < 1.0 || pipeline < 1.0 || replicas < 1.0 || sizes.moe_layers > 0.0 {
        return None;
    }
    let all = shape.reported_parameters().or_else(|| super::parameters(shape, layout.sequence))?;
    let each = if layout.distributed_optimizer { 6.0 + 12.0 / replicas } else { 18.0 };
    let tokens = count(layout.sequence) * count(layout.micro_batch);
    let layer = tokens * sizes.hidden * (18.0 + 4.0 * sizes.ffn / sizes.hidden);
    Some(Estimate {
        state: positive(each * all / (tensor * pipeline))?,
        activations: positive(layer * sizes.layers / tensor)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_175b_model_on_its_published_layout() {
        let shape = Shape {
            kind: Some("gpt".to_owned()),
            layers: Some(96),
            hidden: Some(12288),
            heads: Some(96),
            vocab: Some(51200),
            ..Shape::default()
        };
        let layout = Layout {
            tensor_parallel: 8,
            pipeline_parallel: 8,
            data_parallel: 8,
            distributed_optimizer: false,
            micro_batch: 1,
            sequence: 2048,
        };
        let plain = estimate(&shape, &layout).unwrap();
        assert!((plain.state / 174.6e9 * 64.0 - 18.0).abs() < 0.01, "{plain:?}");
        // 34 s b h a layer where f = 4h.
        assert!((plain.activations - 34.0 * 2048.0 * 12288.0 * 96.0 / 8.0).abs() < 1.0);
        let shared = estimate(&shape, &Layout { distributed_optimizer: true, ..layout }).unwrap();
        assert!((shared.state / plain.state - 7.5 / 18.0).abs() < 1e-12);
        assert_eq!(estimate(&shape, &Layout { tensor_parallel: 0, ..layout }), None);
    }
}
