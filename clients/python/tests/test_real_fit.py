"""Predictions with the PyTorch that is installed, on the CPU; skipped where there is none."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from conftest import CLIENT, PATIENCE

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import memwarden  # noqa: E402
import torch  # noqa: E402
from memwarden._fit_optimizer import foresee  # noqa: E402

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p),
    "adam with amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p),
    "adamw with lists": lambda p: torch.optim.AdamW(p, foreach=True),
    "fused adamw": lambda p: torch.optim.AdamW(p, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "two groups": lambda p: torch.optim.AdamW([{"params": p[:2], "lr": 0.1}, {"params": p[2:], "amsgrad": True}]),
}


def model(dtype=torch.float32):
    layers = [torch.nn.Embedding(100, 32), torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 32)]
    head = torch.nn.Linear(32, 100, bias=False)
    head.weight = layers[0].weight  # Tied.
    return torch.nn.Sequential(*layers, head).to(dtype)


def trained(module):
    return [each for each in module.parameters() if each.requires_grad]


def backward(module):
    module(torch.zeros(2, 3, dtype=torch.long)).float().sum().backward()


def held(optimizer):
    values = (value for each in optimizer.state.values() for value in each.values())
    return sum(value.numel() * value.element_size() for value in values if torch.is_tensor(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_exact(name, dtype):
    module = model(dtype)
    module[1].weight.requires_grad_(False)
    optimizer = OPTIMIZERS[name](trained(module))
    random, before = torch.random.get_rng_state(), held(optimizer)
    weights = [each.clone() for each in trained(module)]
    early = foresee([optimizer], gradients_exist=False)
    backward(module)
    late = foresee([optimizer], gradients_exist=True)
    assert all(torch.equal(one, two) for one, two in zip(weights, trained(module))), "the model is as before"
    assert torch.equal(random, torch.random.get_rng_state()) and held(optimizer) == before
    optimizer.step()
    gradients = sum(each.grad.numel() * each.grad.element_size() for each in trained(module))
    for foreseen, expected in ((early, gradients), (late, 0)):
        assert foreseen.exact and list(foreseen.needs) == [None]
        assert (foreseen.needs[None].gradients, foreseen.needs[None].state) == (expected, held(optimizer) - before)
    again = foresee([optimizer], gradients_exist=True)
    assert again.needs[None].state == 0


def test_a_prediction_changes_nothing_of_the_optimizer():
    module = model()
    optimizer = torch.optim.AdamW(trained(module), lr=torch.tensor(0.1))
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    hooks = __import__("torch.optim.optimizer", fromlist=["Optimizer"])
    handle = hooks.register_optimizer_step_post_hook(lambda *_: calls.append(2))
    keys = set(vars(optimizer))
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    assert foresee([optimizer], gradients_exist=False).exact
    handle.remove()
    assert not calls and not optimizer.state and set(vars(optimizer)) == keys
    assert groups == [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    assert all(each.grad is None for each in trained(module))


def test_without_gradients_a_parameter_has_no_state():
    module = model()
    optimizer = torch.optim.AdamW(trained(module))
    torch.nn.functional.linear(torch.ones(1, 64), module[3].weight).sum().backward()
    found = foresee([optimizer], gradients_exist=True).needs[None]
    optimizer.step()
    assert found.state == held(optimizer) == 2 * module[3].weight.numel() * 4 + 4


def test_parameters_that_are_unfrozen_later_are_still_to_come():
    module = model()
    module[1].requires_grad_(False)
    optimizer = torch.optim.AdamW(module.parameters())
    backward(module)
    optimizer.step()
    module[1].requires_grad_(True)
    found = foresee([optimizer], gradients_exist=False).needs[None]
    assert found.gradients == 4 * (32 * 64 + 64) and found.state == 2 * found.gradients + 2 * 4


def test_low_rank_adapters():
    base = model().requires_grad_(False)
    adapters = [torch.nn.Parameter(torch.zeros(32, 4)), torch.nn.Parameter(torch.zeros(4, 64))]
    optimizer = torch.optim.AdamW([*base.parameters(), *adapters])
    found = foresee([optimizer], gradients_exist=False).needs[None]
    for each in adapters:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    assert found.state == held(optimizer) and found.gradients == 4 * (32 * 4 + 4 * 64)


class Unusual(torch.optim.Optimizer):
    """Keeps a tensor of another type and shape, and decides by a value."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                if not state:
                    state["half"] = torch.zeros(each.numel() // 2, dtype=torch.float64, device=each.device)
                    state["rows"] = torch.zeros(each.shape[:1]).to(each)
                if each.grad.norm() > 1.0:
                    each.mul_(0.5)


def test_any_class_is_tried():
    module = torch.nn.Linear(16, 8)
    optimizer = Unusual(module.parameters())
    found = foresee([optimizer], gradients_exist=False)
    for each in module.parameters():
        each.grad = torch.ones_like(each)
    with torch.no_grad():
        optimizer.step()
    assert found.exact and found.needs[None].state == held(optimizer) == 8 * (64 + 4) + 4 * (8 + 8)


class Touching(Unusual):
    """Uses memory that is not the parameters', as an optimizer with tables does."""

    table = torch.ones(100)

    def step(self, closure=None):
        self.table.mul_(2.0)


class Communicating(Unusual):
    def step(self, closure=None):
        torch.distributed.all_reduce(self.param_groups[0]["params"][0].grad)


@pytest.mark.parametrize("kind", [Touching, Communicating])
def test_a_step_that_would_have_an_effect_is_not_tried(kind):
    found = foresee([kind(torch.nn.Linear(4, 4).parameters())], gradients_exist=False)
    assert found.needs is None and found.why.startswith(kind.__name__)
    assert torch.equal(Touching.table, torch.ones(100))


def test_what_cannot_be_predicted_is_unknown():
    found = foresee([torch.optim.LBFGS(model().parameters())], gradients_exist=False)
    assert found.needs is None and found.why == "LBFGS: its state grows with its history"
    sparse = torch.nn.Embedding(10, 4, sparse=True)
    sparse(torch.zeros(1, dtype=torch.long)).sum().backward()
    found = foresee([torch.optim.SparseAdam(sparse.parameters())], gradients_exist=True)
    assert found.needs is None and found.why == "SparseAdam: its gradients are sparse"


@pytest.fixture
def sparse():
    """Makes a model that the hooks follow."""
    fit = memwarden.Monitor(interval=0)._fit

    def make():
        made = torch.nn.Embedding(10, 4, sparse=True)
        fit.follows(made)
        return made

    return make


def test_a_parameter_in_the_place_of_a_sparse_one_is_not_sparse(sparse):
    gone = [sparse() for _ in range(200)]
    places = {id(each.weight) for each in gone}
    gone.clear()
    made = [torch.nn.Linear(4, 4, bias=False) for _ in range(1000)]
    linear = next(each for each in made if id(each.weight) in places)
    assert foresee([torch.optim.AdamW(linear.parameters())], gradients_exist=False).exact


def test_the_gradient_of_a_sparse_layer_counts_once_it_exists(sparse):
    made = sparse()
    optimizer = torch.optim.AdamW(made.parameters())
    assert "sparse" in foresee([optimizer], gradients_exist=False).why
    made(torch.zeros(1, dtype=torch.long)).sum().backward()
    assert "sparse" in foresee([optimizer], gradients_exist=True).why
    made.weight.grad = made.weight.grad.to_dense()
    assert foresee([optimizer], gradients_exist=True).exact
    made.weight.grad = None
    found = foresee([optimizer], gradients_exist=True)
    assert found.exact and not found.needs, "it takes no part in the step"


def test_temporary_tensors_of_lists_are_as_large_as_all_of_them():
    parameters = [torch.nn.Parameter(torch.zeros(1000)) for _ in range(10)]
    one = foresee([torch.optim.Adam(parameters, foreach=False)], gradients_exist=False).needs[None]
    all = foresee([torch.optim.Adam(parameters, foreach=True)], gradients_exist=False).needs[None]
    fused = foresee([torch.optim.Adam(parameters, fused=True)], gradients_exist=False).needs[None]
    assert 4000 <= one.temporary <= 2 * 4000 and all.temporary == 10 * one.temporary and fused.temporary == 0


SHARDED = """
import json, os, sys, torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from memwarden._fit_optimizer import foresee
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(33, 64), torch.nn.Linear(64, 7))
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
early = foresee([optimizer], gradients_exist=False).needs[None]
model(torch.ones(2, 33)).sum().backward()
late = foresee([optimizer], gradients_exist=True).needs[None]
optimizer.step()
local = lambda each: each.to_local() if hasattr(each, "to_local") else each
size = lambda each: local(each).numel() * local(each).element_size()
state = sum(size(value) for each in optimizer.state.values() for value in each.values() if torch.is_tensor(value))
gradients = sum(size(each.grad) for each in model.parameters())
whole = sum(each.numel() * 4 for each in model.parameters())
with open(sys.argv[1] + os.environ["RANK"], "w") as file:
    json.dump([early.state, late.state, state, early.gradients, gradients, whole], file)
dist.destroy_process_group()
"""


def test_shards_of_two_ranks_are_exact(tmp_path):
    program = tmp_path / "sharded.py"
    program.write_text(SHARDED)
    env = dict(os.environ, PYTHONPATH=str(CLIENT), OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = subprocess.run([*command, str(tmp_path / "rank")], env=env, stdout=-1, stderr=-1, timeout=PATIENCE * 5)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    for rank in (0, 1):
        early, late, state, foreseen, gradients, whole = json.loads((tmp_path / ("rank%d" % rank)).read_text())
        assert early == late == state and foreseen == gradients
        assert 0.4 * whole < gradients < 0.6 * whole, "a shard"


TRAIN = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
width = 256
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, width)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(24))
        self.head = torch.nn.Linear(width, 1000)
    def forward(self, input_ids):
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = torch.nn.functional.gelu(layer(hidden))
        return self.head(hidden)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for length in [64, 96, 80, 128, 112, 96, 160, 144] * 2 + [1024]:
    for part in range(2):
        model(torch.zeros(8, length, dtype=torch.long)).float().logsumexp(-1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    import time; time.sleep(0.01)
# The thread of the monitor predicts once a second.
time.sleep(2.5)
"""


def test_the_longest_batch_is_near_its_line(daemon, python):
    python(TRAIN, fake=False)
    daemon.wait_end()
    steps = [message for message in daemon.of("prediction") if message["phase"] == "step"]
    optimizer = [message for message in daemon.of("prediction") if message["phase"] == "optimizer"]
    assert optimizer[0]["certainty"] == "exact" and optimizer[0]["step"] == 0
    last = steps[-1]
    # On the host, malloc makes two steps of a size differ.
    assert last["size"]["units"] == 8 * 1024 and last["certainty"] == "estimated"
    before = [message for message in steps if message["size"]["units"] < 8 * 1024][-1]["size"]
    foreseen = before["fixed"] + 8 * 1024 * (before["per_unit"] + before["per_square"] * 1024)
    assert abs(foreseen - last["measured"]) <= 0.15 * last["measured"], (before, last)


def test_an_optimizer_that_holds_others_is_not_stepped():
    class Both(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"betas": (0.9, 0.999)})
            self.others = [torch.optim.Adam(group["params"]) for group in self.param_groups]

        def step(self, closure=None):
            for each in self.others:
                each.step()

    parameter = torch.nn.Parameter(torch.ones(8))
    optimizer = Both([parameter])
    parameter.grad = torch.ones(8)
    foresee([optimizer], True)
    assert not optimizer.others[0].state
    optimizer.step()


def test_two_optimizers_of_one_parameter_have_one_gradient():
    parameter = torch.nn.Parameter(torch.ones(1000))
    optimizers = [torch.optim.SGD([parameter], 0.1, momentum=0.9), torch.optim.SGD([parameter], 0.1)]
    foreseen = foresee(optimizers, False)
    assert foreseen.needs[None].gradients == 4000 and foreseen.needs[None].state == 4000 and not foreseen.exact
