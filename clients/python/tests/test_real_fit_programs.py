"""Predictions of unusual programs with the PyTorch that is installed, on the CPU; skipped where there is none."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import CLIENT, PATIENCE

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch  # noqa: E402
from memwarden._fit_optimizer import foresee  # noqa: E402
from memwarden._fit_plan import is_in_memory  # noqa: E402

MIB = 1 << 20
# 16 MiB of parameters: an optimizer's state is larger than what code takes that runs the first time.
MODEL = """
import time
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)))
def batch():
    return model(torch.ones(8, 1024)).square().mean()
"""
# The thread of the monitor predicts once a second.
REST = "\ntime.sleep(2.2)\n"


def predictions(daemon, phase, resource="host"):
    daemon.wait_end()
    each = [message for message in daemon.of("prediction") if message["phase"] == phase]
    return [message for message in each if message["resource"] == resource]


def is_state(message, sets, gradients=0):
    """Whether it expects so many tensors for each parameter, and gradients."""
    return "gradients %s, state of" % ("%.1f MiB" % (16 * gradients) if gradients else "0 B") in message["basis"] and (
        " %.1f MiB" % (16 * sets) in message["basis"]
    )


SCALED = """
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for n in range(4):
    loss = batch()
    scaler.scale(loss * float("inf") if n < 2 else loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_steps_that_a_scaler_skips_leave_the_prediction(daemon, python):
    if not hasattr(getattr(torch, "amp", None), "GradScaler"):
        pytest.skip("this PyTorch has no GradScaler for CPUs")
    python(MODEL + SCALED, fake=False)
    found = predictions(daemon, "optimizer")
    assert [message["step"] for message in daemon.of("step")][0] == 1 and daemon.of("step")[0]["skipped"] == 2
    *before, after = found
    assert before and all("measured" not in message and message["step"] == 0 for message in before)
    assert is_state(before[-1], 2) and after["measured"] > after["held"]


ACCUMULATED = """
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for n in range(16):
    batch().backward()
    if n % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_micro_batches_that_are_accumulated_are_one_step(daemon, python):
    python(MODEL + ACCUMULATED + REST, fake=False)
    first, second, measured = predictions(daemon, "optimizer")
    assert is_state(first, 1, gradients=1) and is_state(second, 1)
    assert second["held"] >= first["held"] + 16 * MIB and measured["measured"] > second["held"]
    steps = predictions(daemon, "step")
    assert [message["step"] for message in daemon.of("step")][-1] == 4
    assert steps and "all 4 batches so far have the same size" in steps[0]["basis"], steps


CLOSURES = """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=3)
def closure():
    optimizer.zero_grad()
    loss = batch()
    loss.backward()
    return loss
for n in range(3):
    optimizer.step(closure)
"""


def test_an_optimizer_with_a_history_is_unknown_and_its_closures_are_measured(daemon, python):
    python(MODEL + CLOSURES + REST, fake=False)
    found = predictions(daemon, "optimizer")
    assert found and all(message["certainty"] == "unknown" and "peak" not in message for message in found)
    assert found[0]["basis"] == "LBFGS: its state grows with its history"
    assert predictions(daemon, "step")[-1]["certainty"] != "unknown"


SGD_WITH_CLOSURE = CLOSURES.replace("LBFGS(model.parameters(), max_iter=2, history_size=3)", "AdamW(model.parameters())")


def test_a_closure_has_its_gradients_still_to_come(daemon, python):
    python(MODEL + SGD_WITH_CLOSURE, fake=False)
    first, measured = predictions(daemon, "optimizer")[0], predictions(daemon, "optimizer")[-1]
    assert is_state(first, 2, gradients=1) and first["step"] == 0
    assert measured["measured"] >= first["held"] + 48 * MIB


COMPILED = """
import warnings
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
model = torch.compile(model, backend="eager")
@torch.compile(backend="eager")
def step():
    optimizer.step()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for n in range(4):
        batch().backward()
        step()
        optimizer.zero_grad()
print([str(each.message) for each in caught if "trace" in str(each.message)])
"""


def test_a_compiled_step_is_predicted_and_measured_and_the_client_is_not_compiled(daemon, python):
    assert python(MODEL + COMPILED + REST, fake=False).strip() == "[]"
    found = predictions(daemon, "optimizer")
    assert found[0]["certainty"] == "exact" and is_state(found[0], 2)
    assert "measured" in found[-1], "what was measured stays"
    assert [message["step"] for message in daemon.of("step")][-1] == 4
    # A model that is compiled after its optimizer was made is found after the first step.
    assert "all 3 batches so far have the same size" in predictions(daemon, "step")[-1]["basis"]


def test_a_capturable_optimizer_keeps_its_counters_on_the_device():
    parameter = torch.nn.Parameter(torch.ones(1000))
    found = foresee([torch.optim.AdamW([parameter], capturable=True)], False)
    assert found.exact and found.needs[None].state == 2 * 4000 + 4


LATE = """
first = torch.optim.SGD(model[:2].parameters(), 0.1, momentum=0.9)
def step(*optimizers):
    batch().backward()
    for each in optimizers:
        each.step()
        each.zero_grad()
for _ in range(2):
    step(first)
# A second one, and the first one anew.
second = torch.optim.AdamW(model[2:].parameters())
step(first, second)
first = torch.optim.AdamW(model[:2].parameters())
step(first, second)
first.add_param_group({"params": [torch.nn.Parameter(torch.ones(1024, 1024))]})
first.param_groups[-1]["params"][0].grad = torch.ones(1024, 1024)
step(first, second)
"""


def test_optimizers_that_are_made_later_or_twice_and_added_parameters_are_predicted_before_their_steps(daemon, python):
    python(MODEL + LATE, fake=False)
    found = [message for message in predictions(daemon, "optimizer") if "measured" in message]
    expected = [("SGD", 8), ("AdamW", 16), ("AdamW", 16), ("AdamW", 8)]
    assert len(found) == len(expected), found
    for message, (kind, size) in zip(found, expected):
        assert "state of %s %.1f MiB" % (kind, size) in message["basis"], message
    assert [message["step"] for message in daemon.of("step")][-1] == 5, "steps of an optimizer that is made anew go on"


UNFROZEN = """
model[1].requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters())
def step():
    batch().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(20):
    step()
model[1].requires_grad_(True)
time.sleep(2.2)
step()
"""


def test_parameters_that_are_unfrozen_are_predicted_although_steps_are_not_measured_any_more(daemon, python):
    python(MODEL + UNFROZEN, fake=False)
    found = [message for message in predictions(daemon, "optimizer") if message["step"] >= 20]
    assert "gradients 16.0 MiB, state of AdamW 8.0 MiB" in found[0]["basis"] and "measured" not in found[0]
    assert "measured" in found[-1]


def eight_bit(package):
    """An optimizer whose step calls kernels, and keeps what that of the package keeps, without its common tables."""

    class AdamW8bit(torch.optim.Optimizer):
        block_size = 256

        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1, "betas": (0.9, 0.999), "optim_bits": 8})

        def step(self, closure=None):
            for each in self.param_groups[0]["params"]:
                small = each.numel() < 4096 or (package == "torchao" and each.numel() % 256 != 0)
                kind = torch.float32 if small else torch.uint8
                for name in ("1", "2"):
                    self.state[each]["state" + name] = torch.zeros(each.shape, dtype=kind)
                    if not small:
                        self.state[each]["absmax" + name] = torch.zeros(-(-each.numel() // 256))

    AdamW8bit.__module__ = package + ".optim.adamw"
    return AdamW8bit([torch.nn.Parameter(torch.ones(size)) for size in (1000, 4096, 100_001)])


def held(optimizer):
    tensors = (value for each in optimizer.state.values() for value in each.values())
    return sum(each.numel() * each.element_size() for each in tensors)


@pytest.mark.parametrize("package", ["bitsandbytes", "torchao"])
def test_eight_bit_state_is_estimated_by_a_table(package):
    optimizer = eight_bit(package)
    found = foresee([optimizer], False)
    assert not optimizer.state and not found.exact
    optimizer.step()
    assert found.needs[None].state == held(optimizer)
    for each in optimizer.param_groups[0]["params"]:
        each.grad = torch.ones_like(each)
    assert foresee([optimizer], True).needs[None].state == 0


def test_eight_bit_state_that_no_table_has_is_unknown():
    found = foresee([eight_bit("deepspeed")], False)
    assert found.needs is None and found.why == "AdamW8bit: its step cannot be tried, and its state is not known"


RANKS = """
import json, os, sys, torch
import torch.distributed as dist
from memwarden._fit_optimizer import foresee
kind, file = sys.argv[1:]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(333, 640), torch.nn.ReLU(), torch.nn.Linear(640, 77), torch.nn.Linear(77, 3))
if kind == "zero":
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
    optimizers = [optimizer, optimizer.optim]
else:
    from torch.distributed.fsdp import FullyShardedDataParallel
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=kind == "fsdp1 with views")
    optimizers = [torch.optim.AdamW(model.parameters())]
early = foresee(optimizers, gradients_exist=False).needs[None]
model(torch.ones(2, 333)).sum().backward()
late = foresee(optimizers, gradients_exist=True).needs[None]
optimizers[0].step()
size = lambda each: each.numel() * each.element_size()
state = sum(size(value) for each in optimizers[-1].state.values() for value in each.values() if torch.is_tensor(value))
gradients = sum(size(each.grad) for each in model.parameters() if each.grad is not None)
with open(file + os.environ["RANK"], "w") as file:
    json.dump([early.state, late.state, state, early.gradients, gradients], file)
dist.barrier()
# Threads of gloo can abort a process that ends.
os._exit(0)
"""


def two_ranks(tmp_path, text, *arguments, **env):
    program = tmp_path / "program.py"
    program.write_text(text)
    env = dict(os.environ, OMP_NUM_THREADS="1", **dict({"PYTHONPATH": str(CLIENT)}, **env))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = subprocess.run([*command, *arguments], env=env, stdout=-1, stderr=-1, timeout=PATIENCE * 5)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


@pytest.mark.parametrize("kind", ["zero", "fsdp1", "fsdp1 with views"])
def test_state_and_gradients_of_each_rank(tmp_path, kind):
    two_ranks(tmp_path, RANKS, kind, str(tmp_path / "rank"))
    whole = 4 * (333 * 640 + 640 + 640 * 77 + 77 + 77 * 3 + 3)
    for rank in (0, 1):
        early, late, state, foreseen, gradients = json.loads((tmp_path / ("rank%d" % rank)).read_text())
        assert late == state and foreseen == gradients
        # The counters of parameters of which this rank has no part are never made.
        assert state <= early <= state + 16 * 6
        assert (gradients == whole) if kind == "zero" else (0.4 * whole < gradients < 0.6 * whole)


SHARDED_SAVE = """
import os, sys, time, torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
if sys.argv[2] == "fsdp2":
    from torch.distributed.fsdp import fully_shard
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    from torch.distributed.fsdp import FullyShardedDataParallel
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=sys.argv[2] != "fsdp1")
optimizer = torch.optim.AdamW(model.parameters())
for n in range(2):
    model(torch.ones(2, 512)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
# The first save says where files go, which the thread of the monitor looks up.
torch.save({}, sys.argv[1] + str(dist.get_rank()))
sys.modules["memwarden._monitor"]._automatic._fit.refresh()
if sys.argv[2] == "fsdp2":
    own, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": own, "optimizer": state}, checkpoint_id=sys.argv[1])
dist.barrier()
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1", "fsdp1 with views"])
def test_a_sharded_save_writes_the_shard_of_each_rank(tmp_path, daemon, kind):
    folder = tmp_path / "checkpoint"
    two_ranks(tmp_path, SHARDED_SAVE, str(folder), kind, PYTHONPATH=str(CLIENT / "memwarden" / "auto"), MEMWARDEN_AUTO="1")
    daemon.wait_end(2)
    whole = 4 * 4 * (512 * 512 + 512)
    found = [message for message in daemon.of("prediction") if message["phase"] == "save"]
    ranks = [[json.loads(line) for line in connection.lines] for connection in daemon.connections]
    disk = [[each for each in rank if each["type"] == "prediction" and each["resource"] == "disk"][-1] for rank in ranks]
    assert len(disk) == 2 and all("of this rank; the whole model 4.0 MiB" in message["basis"] for message in disk)
    for message in disk:
        assert abs(message["peak"] - 3 * whole / 2) <= 0.01 * whole
    # The first rank may write all.
    assert max(message["peak_p90"] for message in disk) >= 3 * whole
    host = [message for message in found if message["resource"] == "host" and "measured" not in message]
    assert sum("gathered on this rank" in message["basis"] for message in host) == 1
    if kind == "fsdp2":
        files = [each.stat().st_size for each in folder.glob("*.distcp")]
        assert len(files) == 2 and all(abs(size - disk[0]["peak"]) <= 0.02 * size for size in files)
        assert [message for message in found if "measured" in message], "the save was measured"


def planted(python, framework, kind, folder):
    """A run of a Trainer in which this phase takes more than all before it."""
    if importlib.util.find_spec({"hugging_face": "transformers"}.get(framework, framework)) is None:
        pytest.skip("%s is not installed" % framework)
    python((CLIENT / "tests/fit/planted.py").read_text(), framework, kind, str(folder), fake=False)


def test_an_evaluation_of_lightning_is_predicted_from_the_batches_that_are_tried(daemon, python, tmp_path):
    planted(python, "lightning", "evaluation", tmp_path)
    found = predictions(daemon, "evaluation")
    early = [message for message in found if message["step"] < 12]
    truth = max(message["measured"] for message in found if "the highest of" in message["basis"])
    assert early and all("of which 2 were tried" in message["basis"] for message in early), early
    for message in early[1:]:
        assert abs(message["peak"] - truth) <= 0.1 * truth and message["peak_p90"] > message["peak"], (message, truth)


def test_a_save_of_a_trainer_to_memory_takes_its_files_from_the_host(daemon, python):
    if not is_in_memory("/dev/shm"):
        pytest.skip("/dev/shm is not a tmpfs here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        planted(python, "hugging_face", "save", folder)
        latest = max(Path(folder).glob("checkpoint-*"), key=lambda each: each.stat().st_mtime)
        size = sum(each.stat().st_size for each in latest.iterdir())
    before = [message for message in predictions(daemon, "save") if "measured" not in message][-1]
    shm = predictions(daemon, "save", "shm")[-1]
    assert abs(shm["peak"] - size) <= 0.02 * size and "free" in shm
    assert size * 0.98 <= before["peak"] - before["held"] <= size * 1.1 and "in memory" in before["basis"]


SPARSE = """
model = torch.nn.Embedding(1 << 16, 64, sparse=True)
optimizer = torch.optim.%s(model.parameters())
for _ in range(3):
    model(torch.arange(8)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "SparseAdam"])
def test_sparse_gradients_are_unknown_before_they_exist(daemon, python, optimizer):
    python(MODEL + SPARSE % optimizer + REST, fake=False)
    found = predictions(daemon, "optimizer")
    assert found and all(each["certainty"] == "unknown" and "gradients are sparse" in each["basis"] for each in found)


OWN_EVALUATION = """
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    batch().backward()
    optimizer.step()
model.eval()
kept = [model(torch.ones(1024, 1024)) for _ in range(8)]
model.train()
batch().backward()
optimizer.step()
"""


def test_an_evaluation_of_its_own_is_unknown_until_it_has_ended(daemon, python):
    python(MODEL + OWN_EVALUATION + REST, fake=False)
    first, *_, last = predictions(daemon, "evaluation")
    assert first["certainty"] == "unknown" and "without torch.no_grad()" in first["basis"]
    assert last["measured"] > 64 * MIB and "the highest of 1 evaluations" in last["basis"]
