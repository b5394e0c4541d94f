"""With the PyTorch that is installed, on the CPU; skipped where there is none."""

import importlib.util
import json
import os
import signal
import subprocess
import sys

import memwarden
import pytest
from conftest import CLIENT, PATIENCE, REPOSITORY

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)
TRAIN = REPOSITORY / "examples/train.py"
SMALL = ["--batch", "4", "--sequence", "16", "--width", "32", "--threads", "1"]


def train(*arguments, **environment):
    env = dict(os.environ, MEMWARDEN_AUTO="1", MEMWARDEN_DEBUG="1", PYTHONPATH=str(CLIENT / "memwarden/auto"), **environment)
    command = [sys.executable, str(TRAIN), *SMALL, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    shown, _ = process.communicate(timeout=PATIENCE * 5)
    assert process.returncode == 0, shown
    # What is predicted is on standard error.
    return "".join(line for line in shown.splitlines(True) if not line.startswith("memwarden: "))


def test_the_example_is_instrumented_without_a_line_of_ours(daemon):
    assert "memwarden" not in TRAIN.read_text()
    finish(train("--steps", 30))
    daemon.wait_end()
    last = daemon.of("step")[-1]
    assert (last["step"], last["tokens"], last["samples"]) == (30, 30 * 64, 120)
    counts = {phase["name"]: phase["count"] for phase in daemon.of("phase") if phase["state"] == "end"}
    assert (counts["forward"], counts["backward"], counts["optimizer"]) == (30, 30, 30)
    assert counts["loader"] in (29, 30)
    model = daemon.of("hello")[-1]["model"]
    expected = {"kind": "gpt", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 4, "head_dim": 8, "ffn": 128}
    assert expected.items() <= model.items() and model["parameters"] == 8192 + 512 + 2 * 12576 + 64
    assert daemon.of("hello")[-1]["precision"] == "fp32"
    assert not any("devices" in mem for mem in daemon.of("mem")), "a CPU has no allocator of ours"


def test_the_example_learns_the_same_with_and_without(path):
    plain = finish(train("--steps", 40, MEMWARDEN_DISABLE="1"))
    assert finish(train("--steps", 40)) == plain and "loss" in plain


def test_the_example_saves_when_asked_and_continues(daemon, tmp_path):
    process = train("--steps", 10**9, "--checkpoint", tmp_path, "--every", 10**9)
    daemon.wait_for("step")
    process.send_signal(signal.SIGTERM)
    shown = finish(process)
    assert "saved" in shown
    saved = int(shown.split("saved")[0].split("step ")[-1].rstrip(": "))
    again = finish(train("--steps", saved + 5, "--checkpoint", tmp_path))
    assert "step %d: goes on" % saved in again
    daemon.wait_end(2)
    assert os.listdir(tmp_path) == ["last.pt"]
    daemon.wait_end()
    assert daemon.connections[-1].lines and daemon.of("step")[-1]["step"] == saved + 5, "the steps go on as well"


def test_nan_and_infinity_are_found():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).bfloat16())
    model[0](torch.ones(8)).sum().backward()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
        model[0].weight[0, 1] = float("inf")
        model[1].bias[3] = -float("inf")
        model[0].bias.grad[0] = float("nan")
        # Large, and finite.
        model[2].weight.fill_(3e38)
    found = memwarden.analyze_model(model)
    assert found["nan"] == ["0.weight", "0.bias.grad"]
    assert sorted(found["inf"]) == ["0.weight", "1.bias"]
    assert found["unchecked"] == []
    assert found["parameter_bytes"] == 2 * 72 * 4 + 72 * 2 and found["gradient_bytes"] == 72 * 4


def test_optimizer_state_is_measured_as_estimated():
    import torch

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(64)).sum().backward()
    optimizer.step()
    found = memwarden.analyze_model(model, optimizer)
    # Two moments each, and a step count of 4 bytes a parameter.
    assert found["optimizer_bytes"] == 2 * found["parameter_bytes"] + 8
    assert found["estimate"]["optimizer_bytes"] == 2 * found["parameter_bytes"]


def test_plain_pytorch(daemon):
    import torch

    model = torch.nn.Embedding(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = memwarden.Monitor(interval=0, min_interval=0)
    monitor.attach(model, optimizer)
    for _ in range(3):
        model(torch.zeros(2, 5, dtype=torch.long)).sum().backward()
        optimizer.step()
    monitor.step(4, loss=torch.tensor(1.5, requires_grad=True))
    monitor.stop()
    daemon.wait_end()
    assert [step.get("tokens") for step in daemon.of("step")] == [10, 20, 30, 30]
    assert daemon.of("step")[-1]["loss"] == 1.5


COMPILED = """
import torch
model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16))
compiled = torch.compile(model, backend="eager", fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    compiled(torch.zeros(2, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

@torch.compile(backend="eager")
def step(ids):
    model(ids).sum().backward()
    optimizer.step()

for _ in range(3):
    step(torch.zeros(2, 4, dtype=torch.long))
"""


def test_compiled_models_are_followed(daemon, python):
    python(COMPILED, fake=False)
    daemon.wait_end()
    last = daemon.of("step")[-1]
    assert last["step"] >= 5 and last["tokens"] >= 5 * 8
    assert daemon.of("hello")[-1]["model"]["kind"] == "sequential"


STEPS = """
import torch
model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
ids = torch.zeros(2, 4, dtype=torch.long)
"""
CLOSURE = """
import time
def closure():
    optimizer.zero_grad()
    loss = model(ids).sum()
    loss.backward()
    time.sleep(0.1)
    return loss
for n in range(5):
    optimizer.step(closure) if n % 2 else optimizer.step(closure=closure)
"""


def test_the_optimizer_phase_is_without_its_closure(daemon, python):
    python(STEPS + CLOSURE, fake=False)
    daemon.wait_end()
    phases = {phase["name"]: phase for phase in daemon.of("phase") if phase["state"] == "end"}
    assert phases["optimizer"]["count"] == phases["forward"]["count"] == 5
    # Of the half second that the closures took; generous where the machine is busy.
    assert phases["optimizer"]["seconds"] < 0.3
    assert daemon.of("step")[-1]["learning_rate"] == 0.5


SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for n in range(4):
    loss = model(ids).sum()
    scaler.scale(loss * float("inf") if n == 1 else loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_steps_that_a_scaler_skips_are_counted(daemon, python):
    import torch

    if not hasattr(getattr(torch, "amp", None), "GradScaler"):
        pytest.skip("this PyTorch has no GradScaler for CPUs")
    python(STEPS + SCALED, fake=False)
    daemon.wait_end()
    last = daemon.of("step")[-1]
    assert (last["step"], last["skipped"]) == (3, 1)
    assert last["tokens"] == 4 * 8, "those of a skipped step were trained on as well"


def test_masks_on_a_device_are_added_up_there():
    import torch
    from memwarden._tokens import _OnDevice, _Tokens

    tokens = _Tokens()
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    for kind in (torch.long, torch.bool, torch.float):
        tokens.add(2, 3, mask.to(kind))
        assert tokens.take() == 3
    # Of another shape: that of attention itself.
    tokens.add(2, 3, mask[:, None])
    tokens.add(2, 3, None)
    assert tokens.take() == 12
    counter = _OnDevice("cpu", torch.zeros((), dtype=torch.int64))
    tokens._devices["a device"] = counter
    counter.add(mask)
    counter.add(mask.bool())
    assert (tokens.take(), tokens.take()) == (6, 0)


def test_before_the_first_step_gradients_and_states_are_unknown():
    import torch

    model = torch.nn.Linear(4, 4)
    found = memwarden.analyze_model(model, torch.optim.AdamW(model.parameters()))
    assert (found["gradient_bytes"], found["optimizer_bytes"]) == (None, None)
    assert found["measured_bytes"] == found["parameter_bytes"] == 80
    plain = memwarden.analyze_model(model, torch.optim.SGD(model.parameters()))
    assert plain["optimizer_bytes"] == 0, "it has none"


DISTRIBUTED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_ranks_of_torchrun(daemon, tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text(DISTRIBUTED)
    env = dict(os.environ, MEMWARDEN_AUTO="1", MEMWARDEN_DEBUG="1", PYTHONPATH=str(CLIENT / "memwarden/auto"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run(command, env=env, check=True, timeout=PATIENCE * 5, stderr=subprocess.DEVNULL)
    daemon.wait_end(2)
    assert {(hello["rank"], hello["local_rank"], hello["world"]) for hello in daemon.of("hello")} == {
        (0, 0, 2),
        (1, 1, 2),
    }
    assert len(daemon.connections) == 2, "the launcher itself trains nothing"
    assert {hello["data_parallel"] for hello in daemon.of("hello") if "model" in hello} == {2}


HUGGING_FACE = """
import torch, sys
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2)
data = [{"input_ids": torch.arange(16) % 64, "labels": torch.arange(16) % 64} for _ in range(16)]
callbacks = []
"""
OURS = """
import memwarden
monitor = memwarden.Monitor(min_interval=0)
class Ask(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            monitor.request_checkpoint()
callbacks = [Ask(), memwarden.HuggingFaceCallback(monitor)]
assert isinstance(callbacks[1], TrainerCallback)
"""
RUN = """
arguments = TrainingArguments(sys.argv[1], max_steps=4, per_device_train_batch_size=2, logging_steps=1,
                              report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
                              include_num_input_tokens_seen=True)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=callbacks).train()
"""


def test_hugging_face(daemon, python, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    python(HUGGING_FACE + OURS + RUN, str(tmp_path), auto="0", fake=False, paths=[CLIENT])
    daemon.wait_end()
    steps = daemon.of("step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert steps[-1]["samples"] == 8 and steps[-1]["tokens"] == 4 * 2 * 16
    assert all("loss" in step and "learning_rate" in step for step in steps)
    model = daemon.of("hello")[-1]["model"]
    assert (model["kind"], model["kv_heads"], model["ffn"], model["gated"]) == ("llama", 2, 48, True)
    (saved,) = [message for message in daemon.of("checkpoint") if message["state"] == "saved"]
    assert saved["path"] == str(tmp_path / "checkpoint-2")
    assert daemon.of("params")[0]["parameters"] == model["parameters"]


def test_hugging_face_without_a_line(daemon, python, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    python(HUGGING_FACE + RUN, str(tmp_path), fake=False)
    daemon.wait_end()
    last = daemon.of("step")[-1]
    assert (last["step"], last["tokens"], last["samples"]) == (4, 128, 8)
    assert daemon.of("hello")[-1]["model"]["kind"] == "llama"


def test_hugging_face_ends_in_an_evaluation(daemon, python, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    program = HUGGING_FACE + RUN.replace("max_steps=4", "max_steps=4, eval_strategy='steps', eval_steps=2")
    # The second evaluation fails in its second batch.
    fails = """
calls = []
def compute(*_, **__):
    calls.append(1)
    if len(calls) == 4:
        raise MemoryError
class Failing(Trainer):
    def prediction_step(self, *arguments, **more):
        found = super().prediction_step(*arguments, **more)
        compute()
        return found
"""
    program = program.replace("Trainer(Llama", fails + "Failing(Llama").replace("callbacks=callbacks", "callbacks=callbacks, eval_dataset=data[:16]")
    python(program, str(tmp_path), fake=False, fails=True)
    daemon.wait_end()
    assert daemon.of("bye")[-1]["phase"] == "evaluation"
    ended = [each for each in daemon.of("phase") if each["name"] == "evaluation" and each["state"] == "end"]
    assert ended[-1]["count"] == 1


LIGHTNING = """
import memwarden, torch, sys
import lightning.pytorch as pl
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Embedding(16, 4)
    def training_step(self, batch, index):
        return self.inner(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
monitor = memwarden.Monitor(min_interval=0)
data = torch.utils.data.DataLoader(torch.zeros(24, 5, dtype=torch.long), batch_size=2)
pl.Trainer(max_steps=4, accumulate_grad_batches=2, accelerator="cpu", logger=False, enable_checkpointing=False,
           enable_progress_bar=False, default_root_dir=sys.argv[1],
           callbacks=[memwarden.LightningCallback(monitor)]).fit(Module(), data)
"""


def test_lightning(daemon, python, tmp_path):
    pytest.importorskip("lightning")
    python(LIGHTNING, str(tmp_path), auto="0", fake=False, paths=[CLIENT])
    daemon.wait_end()
    assert [step["step"] for step in daemon.of("step")] == [1, 2, 3, 4]
    assert [step["tokens"] for step in daemon.of("step")] == [20, 40, 60, 80]
    assert daemon.of("params")[0]["parameters"] == 64
    json.dumps(daemon.all())


def test_lightning_ends_in_a_validation(daemon, python, tmp_path):
    pytest.importorskip("lightning")
    program = LIGHTNING.replace("fit(Module(), data)", "fit(Module(), data, data)").replace("max_steps=4", "max_steps=99, max_epochs=99")
    # Those that are tried before training, a validation, and the first batch of the next one.
    fails = """
calls = []
def validation_step(module, batch, index):
    calls.append(1)
    if len(calls) == 2 + 12 + 1:
        raise MemoryError
Module.validation_step = validation_step
monitor ="""
    python(program.replace("\nmonitor =", fails), str(tmp_path), auto="0", fake=False, paths=[CLIENT], fails=True)
    daemon.wait_end()
    assert daemon.of("bye")[-1]["phase"] == "evaluation"
    ended = [each for each in daemon.of("phase") if each["name"] == "evaluation" and each["state"] == "end"]
    assert ended[-1]["count"] == 2


def test_a_followed_model_can_be_copied_and_saved(monitor, tmp_path):
    import copy
    import pickle

    import torch

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    monitor.attach(model, optimizer)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert model._forward_pre_hooks, "it is followed"
    copy.deepcopy(model)(torch.ones(2, 4))
    torch.optim.swa_utils.AveragedModel(model).update_parameters(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(loaded(torch.ones(2, 4)), model(torch.ones(2, 4)))
    assert b"memwarden" not in pickle.dumps(model)
