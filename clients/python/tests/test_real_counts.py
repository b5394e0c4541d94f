"""What hundreds of short steps are counted as, with the PyTorch that is installed; skipped where there is none."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

BEGIN = """
import os, time
import torch
import torch.utils.data
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16))
optimizer = torch.optim.AdamW(model.parameters())
def ids(samples=2, length=3):
    return torch.zeros(samples, length, dtype=torch.long)
def train(samples=2):
    model(ids(samples)).sum().backward()
def update(which=optimizer):
    which.step()
    which.zero_grad()
"""


def counted(daemon):
    daemon.wait_end()
    last = daemon.of("step")[-1]
    phases = {each["name"]: each for each in daemon.of("phase") if each["state"] == "end"}
    return last, {name: each["count"] for name, each in phases.items()}, phases


def test_micro_batches_and_evaluations_between_them_are_counted(daemon, python):
    program = """
for step in range(300):
    for _ in range(3):
        train(2 if step < 200 else 5)
    if step % 7 == 0:
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                model(ids(64))
        model.train()
    if step % 11 == 0:
        with torch.no_grad():
            model(ids(128))
    update()
"""
    python(BEGIN + program, fake=False)
    last, counts, _ = counted(daemon)
    samples = 3 * (200 * 2 + 100 * 5)
    assert (last["step"], last["samples"], last["tokens"], last["largest_batch"]) == (300, samples, 3 * samples, 15)
    assert (counts["forward"], counts["backward"], counts["optimizer"]) == (900, 900, 300)
    assert [each for each in daemon.of("prediction") if each["phase"] == "evaluation"]


def test_a_compiled_model_is_compiled_once(daemon, python):
    program = """
compiled = torch.compile(model, backend="eager", fullgraph=True)
@torch.compile(backend="eager")
def joined():
    train()
    update()
for step in range(200):
    compiled(ids()).sum().backward()
    update()
    joined()
    if step == 20:
        torch._dynamo.config.error_on_recompile = True
"""
    python(BEGIN + program, fake=False)
    last, counts, _ = counted(daemon)
    assert last["step"] == 400 and counts["optimizer"] == 400


def test_a_batch_that_took_long_stands_for_itself_only(daemon, python):
    program = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 500
    def __getitem__(self, index):
        if index == 0:
            time.sleep(0.2)
        return torch.zeros(3, dtype=torch.long)
for _ in range(3):
    for batch in torch.utils.data.DataLoader(Data(), batch_size=2):
        model(batch).sum().backward()
        update()
"""
    python(BEGIN + program, fake=False)
    last, counts, phases = counted(daemon)
    assert (last["step"], last["samples"]) == (750, 1500)
    # The end of an epoch is a call as well.
    assert counts["loader"] in (752, 753)
    assert 0.4 <= phases["loader"]["seconds"] < 30, "at 0.2 s each it would be 150 s"


def test_an_optimizer_that_goes_on_alone_is_counted(daemon, python):
    program = """
other = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    train()
    update()
    train()
    update(other)
for _ in range(150):
    train()
    update(other)
for _ in range(170):
    train()
    update()
"""
    python(BEGIN + program, fake=False)
    last, counts, _ = counted(daemon)
    # The one with the most steps counts: 100, then 250 of the other one, then 270.
    assert (last["step"], last["samples"]) == (270, 2 * (200 + 150 + 170)) and counts["optimizer"] == 520


def test_parameters_that_are_added_later_are_predicted(daemon, python):
    program = """
for step in range(300):
    train()
    if step == 250:
        added = torch.nn.Parameter(torch.zeros(1 << 20))
        added.grad = torch.zeros_like(added)
        optimizer.add_param_group({"params": [added]})
    update()
"""
    python(BEGIN + program, fake=False)
    daemon.wait_end()
    due = [each["due_step"] for each in daemon.of("prediction") if each["phase"] == "optimizer"]
    assert 251 in due, due


def test_a_child_counts_its_own_steps(daemon, python):
    program = """
for _ in range(200):
    train()
    update()
child = os.fork()
for _ in range(30 if child == 0 else 50):
    train(3)
    update()
if child:
    os.waitpid(child, 0)
"""
    python(BEGIN + program, fake=False)
    daemon.wait_end(2)
    ends = {}
    for connection in daemon.connections:
        import json

        last = [each for each in map(json.loads, connection.lines) if each["type"] == "step"][-1]
        ends[last["samples"]] = last["step"]
    # The number goes on, the totals are those of the child.
    assert ends == {200 * 2 + 50 * 3: 250, 30 * 3: 230}


def test_what_an_exporter_runs_is_no_training(daemon, python):
    program = """
for _ in range(20):
    train()
    update()
torch.export.export(model, (ids(),), strict=False)
torch.export.export(model, (ids(),), strict=True)
train()
update()
"""
    python(BEGIN + program, fake=False)
    last, counts, _ = counted(daemon)
    assert (last["step"], last["samples"], counts["forward"]) == (21, 42, 21)


@pytest.mark.parametrize("copied", ["pickle.loads(pickle.dumps(given))", "copy.deepcopy(given)"])
def test_a_copy_of_an_optimizer_is_counted(daemon, python, copied):
    program = """
import copy, pickle, sys
import memwarden._auto
kind = sys.modules["torch.optim.optimizer"].Optimizer
followed, kind.__init__ = kind.__init__, kind.__init__.__wrapped__
given = torch.optim.AdamW(model.parameters())
kind.__init__ = followed
assert memwarden._auto._watch is None, "nothing is followed yet"
copied = %s
for _ in range(20):
    train()
    update(copied)
"""
    python(BEGIN.replace("optimizer = torch.optim.AdamW(model.parameters())", "optimizer = None") + program % copied, fake=False)
    daemon.wait_end()
    assert daemon.of("step")[-1]["step"] == 20


def test_parts_load_at_their_first_use(daemon, python, monkeypatch):
    loaded = "\nimport sys\nprint(sorted(name for name in sys.modules if name.startswith('memwarden')))\n"
    shown = python("import torch" + loaded, fake=False)
    assert shown.strip() == "['memwarden', 'memwarden._auto', 'memwarden._base', 'memwarden._process']"
    assert daemon.connections == []
    monkeypatch.setenv("MEMWARDEN_FIT", "off")
    shown = python(BEGIN + "for _ in range(30):\n    train()\n    update()\nmodel.eval()(ids())" + loaded, fake=False)
    assert "_hooks" in shown and "_fit" not in shown
    last, counts, _ = counted(daemon)
    assert (last["step"], last["samples"], counts["forward"]) == (30, 60, 30) and not daemon.of("prediction")
