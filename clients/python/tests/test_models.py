"""What a model is made of, with the fake torch."""

from collections.abc import Mapping

import memwarden
import pytest
from memwarden import _fit_optimizer, _models

NAN, INF = float("nan"), float("inf")


def model(torch):
    def weight(values, shape, dtype=torch.float32, device="cuda:0", trained=True):
        return torch.Tensor(values, shape, dtype, device, requires_grad=trained)

    made = torch.nn.Module(
        **{
            "wte.weight": weight([1.0] * 8, (4, 2), trained=False),
            "layers.0.attn.qkv.weight": weight([1.0, NAN, INF, 0.0], (2, 2), torch.bfloat16),
            "layers.0.mlp.up_proj.weight": weight([-INF] * 16, (8, 2), torch.bfloat16),
            "layers.0.attn.qkv.lora_A.weight": weight([0.5] * 2, (1, 2)),
            "norm.weight": weight([1.0] * 2, (2,)),
        }
    )
    made.config = {"model_type": "toy", "n_layer": 1, "n_embd": 2, "n_head": 2, "vocab_size": 4}
    return made


def test_a_model_is_taken_apart(torch):
    made = model(torch)
    weights = dict(made.named_parameters())
    norm = weights["norm.weight"]
    norm.grad = torch.Tensor([NAN, 1.0], device="cuda:0")
    optimizer = torch.optim.AdamW(made.parameters())
    optimizer.state[norm] = {"step": 3, "exp_avg": torch.Tensor([0.0] * 2), "exp_avg_sq": torch.Tensor([0.0] * 2)}
    found = memwarden.analyze_model(made, optimizer)
    assert (found["parameters"], found["trainable"], found["frozen"]) == (32, 24, 8)
    assert (found["parameter_bytes"], found["gradient_bytes"], found["optimizer_bytes"]) == (88, 8, 16)
    assert found["by_dtype"] == {"fp32": 48, "bf16": 40}
    assert found["by_group"] == {"embedding": 32, "attention": 8, "mlp": 32, "lora": 8, "norm": 8}
    assert found["by_device"] == {"cuda:0": 88}
    assert (found["lora"], found["lora_ratio"]) == (2, 2 / 32)
    assert found["largest"][0]["name"] in ("wte.weight", "layers.0.mlp.up_proj.weight")
    assert found["nan"] == ["layers.0.attn.qkv.weight", "norm.weight.grad"]
    assert sorted(found["inf"]) == ["layers.0.attn.qkv.weight", "layers.0.mlp.up_proj.weight"]
    assert found["estimate"]["gradient_bytes"] == 56 and found["estimate"]["optimizer_bytes"] == 112
    assert found["measured_bytes"] == 88 + 8 + 16


def test_values_are_looked_at_with_one_synchronization(torch):
    made = torch.nn.Module(**{"w%d" % n: torch.Tensor([1.0] * 4, device="cuda:0") for n in range(100)})
    found = memwarden.analyze_model(made)
    assert (found["nan"], found["inf"], torch.synchronizations) == ([], [], 1)


def test_the_shape_is_found(torch):
    assert memwarden.describe_model(model(torch)) == {
        "kind": "toy",
        "layers": 1,
        "hidden": 2,
        "heads": 2,
        "kv_heads": 2,
        "head_dim": 1,
        "vocab": 4,
        "ffn": 8,
        "gated": False,
        "parameters": 32,
        "trainable": 24,
    }


def test_wrappers_are_looked_through(torch):
    inner = model(torch)
    wrapped = torch.nn.Module().add(_orig_mod=torch.nn.Module().add(module=inner))
    assert _models._unwrap(wrapped) is inner
    assert memwarden.describe_model(wrapped)["layers"] == 1


def test_a_mixture_of_experts(torch):
    made = torch.nn.Module(**{"layers.0.mlp.experts.0.gate_proj.weight": torch.Tensor([0.0] * 4, (2, 2))})
    made.config = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "first_k_dense_replace": 1,
        "n_shared_experts": 2,
    }
    shape = memwarden.describe_model(made)
    assert (shape["kv_heads"], shape["head_dim"], shape["gated"]) == (4, 128, True)
    assert (shape["experts"], shape["experts_per_token"], shape["expert_ffn"]) == (128, 8, 768)
    assert (shape["shared_expert_ffn"], shape["moe_layers"]) == (1536, 47)


def test_attention_that_does_not_see_all_tokens_is_another_kind(torch):
    for config, kind in (
        ({"sliding_window": 4096}, "mistral with other attention"),
        ({"sliding_window": 4096, "use_sliding_window": False}, "mistral"),
        ({"sliding_window": None}, "mistral"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "mistral with other attention"),
        ({"layer_types": ["full_attention"], "sliding_window": 4096}, "mistral"),
    ):
        made = model(torch)
        made.config = {"model_type": "mistral", **config}
        assert memwarden.describe_model(made)["kind"] == kind


def test_memory_for_training_is_estimated(torch):
    made = model(torch)
    told = memwarden.estimate_training_memory(made, batch=2, sequence=4, flash_attention=False)
    # 34 s b h + 5 a s^2 b bytes a layer at 16 bits; the widest parameters here have 32.
    assert told["activation_bytes"] == 2 * (34 * 4 * 2 * 2 + 5 * 2 * 4 * 4 * 2)
    full = memwarden.estimate_training_memory(made, batch=2, sequence=4, recompute="full")
    assert full["activation_bytes"] == 2 * 2 * 4 * 2 * 2
    assert memwarden.estimate_training_memory(made)["activation_bytes"] is None


class Fields(Mapping):
    """A batch that has no truth value, as a TensorDict."""

    def __init__(self, fields):
        self.fields = fields

    def __getitem__(self, name):
        return self.fields[name]

    def __iter__(self):
        return iter(self.fields)

    def __len__(self):
        return len(self.fields)

    def __bool__(self):
        raise RuntimeError("no truth value")


@pytest.mark.parametrize("passed", [lambda call, fields: call(**fields), lambda call, fields: call(fields), lambda call, fields: call(Fields(fields))])
@pytest.mark.parametrize("also", [{}, {"input_ids": None}])
@pytest.mark.parametrize("name", ["input_ids", "inputs_embeds"])
def test_the_samples_of_a_batch_are_those_of_its_ids_or_embeddings(monitor, torch, passed, also, name):
    made = model(torch)
    optimizer = torch.optim.AdamW(made.parameters())
    monitor.attach(made, optimizer)
    ids = name == "input_ids"
    given = torch.Tensor([1] * 6, (2, 3), torch.int64) if ids else torch.Tensor([1.0] * 12, (2, 3, 2))
    passed(made, {**also, "position_ids": torch.Tensor([1] * 3, (1, 3), torch.int64), name: given})
    optimizer.step()
    assert (monitor._steps.samples, monitor._steps.tokens) == (2, 6)


def test_a_module_of_the_program_that_is_named_sparse_has_no_sparse_gradients(monitor, torch):
    made = model(torch)
    made.sparse = True
    optimizer = torch.optim.AdamW(made.parameters())
    monitor.attach(made, optimizer)
    made(torch.Tensor([1] * 6, (2, 3), torch.int64))
    optimizer.step()
    assert monitor._steps.samples == 2 and not _fit_optimizer.SPARSE


def test_plain_pytorch_is_followed(daemon, torch):
    monitor = memwarden.Monitor(interval=0, min_interval=0)
    made = model(torch)
    optimizer = torch.optim.AdamW(made.parameters())
    monitor.attach(made, optimizer)
    made.training = False
    made(torch.Tensor([1] * 6, (2, 3), torch.int64))
    made.training = True
    for _ in range(2):
        made(torch.Tensor([1] * 6, (2, 3), torch.int64))
        made(input_ids=torch.Tensor([1] * 6, (2, 3), torch.int64))
        optimizer.step()
    monitor.stop()
    daemon.wait_end()
    assert [(step["tokens"], step["samples"]) for step in daemon.of("step")] == [(12, 4), (24, 8)]
    assert daemon.of("hello")[-1]["sequence_length"] == 3
    assert {phase["name"]: phase["count"] for phase in daemon.of("phase") if phase["state"] == "end"} == {"forward": 4, "optimizer": 2}
