"""Zero code: what sitecustomize does, and what it leaves alone."""

import os
import shutil
import subprocess
import sys

import memwarden
import pytest
from memwarden import _hooks
from conftest import CLIENT

TRAIN = """
import torch
torch.cuda.initialize()
weight = torch.Tensor([1.0] * 4, (2, 2), requires_grad=True)
model = torch.nn.Module(**{"wte.weight": weight})
model.config = {"model_type": "gpt", "n_layer": 2, "n_embd": 2, "n_head": 1, "vocab_size": 2}
criterion = torch.nn.Module()
first, second = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(model.parameters())
loader = torch.utils.data.dataloader._BaseDataLoaderIter([1, 2, 3])
for _ in loader:
    criterion(1)
    model(input_ids=torch.Tensor([1] * 6, (2, 3), torch.int64))
    torch.Tensor([1.0]).backward()
    first.step()
    second.step()
assert torch.autograd.calls == 3
"""


def test_a_program_is_instrumented(daemon, python):
    python(TRAIN)
    daemon.wait_end()
    assert len(daemon.connections) == 1
    hello = daemon.of("hello")[-1]
    assert (hello["framework"], hello["sequence_length"], hello["precision"]) == ("torch", 3, "fp32")
    assert (hello["model"]["layers"], hello["model"]["parameters"]) == (2, 4)
    # Two optimizers step in turn: three steps, not six.
    last = daemon.of("step")[-1]
    assert (last["step"], last["tokens"], last["samples"]) == (3, 18, 6)
    counts = {phase["name"]: phase["count"] for phase in daemon.of("phase") if phase["state"] == "end"}
    assert counts["forward"] == 3 and counts["backward"] == 3 and counts["optimizer"] == 6
    assert daemon.of("bye")


NESTED = """
import torch
class Outer(torch.nn.Module):
    def forward(self, ids):
        return self._modules["inner"](ids)
inner = torch.nn.Module(**{"wte.weight": torch.Tensor([1.0] * 4, (2, 2), requires_grad=True)})
inner.config = {"model_type": "gpt", "n_layer": 2, "n_embd": 2, "n_head": 1, "vocab_size": 2}
ids = torch.Tensor([1] * 6, (2, 3), torch.int64)
"""


def test_modules_within_each_other_count_once(daemon, python):
    made = "outer = Outer().add(inner=inner)\noptimizer = torch.optim.AdamW(inner.parameters())\n"
    python(NESTED + made + "for _ in range(3):\n    outer(ids)\n    inner(ids)\n    optimizer.step()\n")
    daemon.wait_end()
    assert daemon.of("step")[-1]["tokens"] == 3 * 2 * 6
    assert daemon.of("hello")[-1]["model"]["kind"] == "gpt"


def test_what_wraps_the_model_later_is_found(daemon, python):
    made = "optimizer = torch.optim.AdamW(inner.parameters())\nouter = Outer().add(inner=inner)\n"
    # As if compiled: what is inside is not called any more.
    made += "Outer.forward = lambda self, ids: None\n"
    python(NESTED + made + "for _ in range(3):\n    outer(ids)\n    optimizer.step()\n")
    daemon.wait_end()
    assert daemon.of("step")[-1]["tokens"] == 2 * 6, "the first step's are not known"


def test_a_program_that_fails_says_what_it_ended_with(daemon, python):
    assert "ValueError: too many" in python(TRAIN + "raise ValueError('too many')\n", fails=True)
    daemon.wait_end()
    assert daemon.of("bye")[-1]["reason"] == "ValueError"


def test_only_steps_where_wanted(daemon, python):
    python(TRAIN, auto="steps")
    daemon.wait_end()
    assert daemon.of("step")[-1]["step"] == 3 and daemon.of("phase") == []


@pytest.mark.parametrize("auto", ["", "0"])
def test_off_it_is_off(daemon, python, auto):
    python(TRAIN + "import sys; assert 'memwarden' not in sys.modules", auto=auto)
    assert daemon.connections == []


def test_without_torch_nothing_is_imported_or_said(daemon, python):
    modules = "import sys; print(sorted(sys.modules))"
    plain, armed = python(modules, auto="0", fake=False), python(modules, fake=False)
    assert plain == armed and "memwarden" not in armed
    assert daemon.connections == []


def test_asking_for_torch_is_not_importing_it(daemon, python):
    python("import importlib.util\nassert importlib.util.find_spec('torch')\n" + TRAIN)
    daemon.wait_end()
    assert daemon.of("step")[-1]["step"] == 3


def test_a_torch_that_cannot_be_imported_fails_as_before(python, tmp_path):
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('libcudart.so.12')")
    program = "try:\n    import torch\nexcept ImportError as error:\n    print(error)"
    assert python(program, paths=[tmp_path], fake=False).strip() == "libcudart.so.12"
    program += "\nimport sys; assert 'memwarden' not in sys.modules"
    assert python(program, paths=[tmp_path], fake=False).strip() == "libcudart.so.12"


def test_the_loader_and_the_finder_are_as_before(python):
    program = """
import sys, torch
assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_Finder"]
assert "exec_module" not in vars(torch.__spec__.loader)
assert type(torch.__loader__).__name__ == "SourceFileLoader"
"""
    python(program)


def test_another_sitecustomize_runs_as_well(daemon, python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = __file__\nown = 1\n")
    program = "import builtins, sitecustomize\nassert sitecustomize.own == 1\nprint(builtins.theirs)\n"
    assert python(program + TRAIN, paths=[tmp_path]).strip() == str(tmp_path / "sitecustomize.py")
    daemon.wait_end()
    assert daemon.of("step")


def test_copies_of_ours_run_the_next_one_once(daemon, python, tmp_path):
    """As under `memwarden run` within itself or within a task prolog of Slurm, each of which adds a copy."""
    copy, link, theirs = tmp_path / "copy", tmp_path / "link", tmp_path / "theirs"
    shutil.copytree(CLIENT / "memwarden/auto", copy)
    link.symlink_to(copy)
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import builtins\nbuiltins.ran = getattr(builtins, 'ran', 0) + 1\n")
    program = "import builtins, sitecustomize\nprint(builtins.ran, sitecustomize.__file__)\n"
    shown = python(program + TRAIN, paths=[copy, link, theirs, copy])
    assert shown.split() == ["1", str(theirs / "sitecustomize.py")]
    daemon.wait_end()
    assert len(daemon.connections) == 1 and daemon.of("step")[-1]["step"] == 3


CHAINING = """
import builtins, os, sys
builtins.ran = getattr(builtins, "ran", 0) + 1
sys.path.remove(os.path.dirname(__file__))
del sys.modules["sitecustomize"]
import sitecustomize
"""


def test_another_tool_that_chains_as_well_does_not_come_back(python, tmp_path):
    tool, theirs = tmp_path / "tool", tmp_path / "theirs"
    tool.mkdir()
    theirs.mkdir()
    (tool / "sitecustomize.py").write_text(CHAINING)
    (theirs / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = getattr(builtins, 'theirs', 0) + 1\n")
    program = "import builtins, sitecustomize\nprint(builtins.ran, builtins.theirs)\n"
    assert python(program, paths=[tool, theirs]).split() == ["1", "1"]


def test_children_are_instrumented_and_importers_stay_unseen(daemon, python):
    program = """
import subprocess, sys, torch
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
    python(program, TRAIN)
    daemon.wait_end()
    assert len(daemon.connections) == 1


def test_a_forked_worker_of_the_loader_stays_unseen(daemon, python):
    program = TRAIN + "import os\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)\n"
    python(program)
    daemon.wait_end()
    assert len(daemon.connections) == 1


def test_inference_on_a_device_is_seen_without_a_step(daemon, python):
    program = "import torch, sys\ntorch.cuda.initialize()\nsys.stdin.read()\n"
    env = dict(os.environ, MEMWARDEN_AUTO="1")
    env["PYTHONPATH"] = os.pathsep.join([str(CLIENT / "memwarden/auto"), str(CLIENT / "tests/fake_torch")])
    process = subprocess.Popen([sys.executable, "-c", program], env=env, stdin=subprocess.PIPE)
    daemon.wait_for("mem")
    process.communicate(b"")
    assert process.returncode == 0


LOADING = """
import os, signal, sys, threading, time, torch
begun, goes_on = threading.Event(), threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "memwarden._hooks":
            begun.set()
            goes_on.wait()
sys.meta_path.insert(0, Slow())
torch.cuda.initialize()
begun.wait()
threading.Timer(0.5, goes_on.set).start()
"""


def test_an_optimizer_that_is_made_while_the_hooks_are_loaded_is_followed(daemon, python):
    python(LOADING + TRAIN)
    daemon.wait_end()
    last = daemon.of("step")[-1]
    assert (last["step"], last["samples"], last["tokens"]) == (3, 6, 18)


def test_a_child_that_is_forked_while_the_hooks_are_loaded_can_load_them(daemon, python):
    program = """
child = os.fork()
if child == 0:
    import memwarden._hooks
    os._exit(7)
for _ in range(200):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        break
    time.sleep(0.1)
else:
    os.kill(child, signal.SIGKILL)
assert status == 7 << 8, "the child waits for a thread of its parent"
"""
    python(LOADING + program)


def test_an_optimizer_that_was_pickled_is_reported(daemon, python, tmp_path):
    program = "import pickle, sys, torch\nwith open(sys.argv[1], sys.argv[2]) as file:\n    "
    made = "pickle.dump(torch.optim.AdamW([torch.Tensor([1.0])]), file)\n"
    python(program + made, str(tmp_path / "optimizer"), "wb", auto="0")
    python(program + "pickle.load(file).step()\n", str(tmp_path / "optimizer"), "rb")
    daemon.wait_end()
    assert daemon.of("step")[-1]["step"] == 1


def test_inference_on_a_device_is_reported_at_once(daemon, python):
    program = """
import threading, torch
import memwarden._auto as auto
threads = [each for each in threading.enumerate() if each.name == "memwarden"]
torch.cuda.initialize()
threads[0].join()
assert auto._watch.monitor._session.ready
"""
    python(program)


def test_a_program_that_speaks_for_itself_is_not_spoken_for(daemon, python):
    program = (
        """
import memwarden, torch
monitor = memwarden.Monitor(min_interval=0, interval=0)
monitor.start()
"""
        + TRAIN
        + "\nmonitor.step(77)\nmonitor.stop()\n"
    )
    python(program, paths=[CLIENT])
    daemon.wait_end()
    assert [step["step"] for step in daemon.of("step")] == [77]


def test_a_program_that_has_spoken_for_itself_is_not_spoken_for_later(daemon, python):
    program = """
import memwarden, torch
with memwarden.Monitor(min_interval=0, interval=0) as monitor:
    monitor.step()
del monitor
""" + TRAIN
    python(program, paths=[CLIENT])
    daemon.wait_end()
    assert len(daemon.of("hello")) == 1


def test_where_the_folder_is():
    shown = subprocess.run([sys.executable, "-m", "memwarden"], cwd=str(CLIENT), stdout=subprocess.PIPE, check=True)
    line = shown.stdout.decode()
    printed = subprocess.run(["sh", "-c", line + 'printf %s "$PYTHONPATH"'], env={"PYTHONPATH": "/b"}, stdout=-1)
    assert printed.stdout.decode() == "%s:/b" % (CLIENT / "memwarden/auto")


def test_a_folder_named_memwarden_is_not_the_package(daemon, python, tmp_path):
    # As above a checkout: Python takes the folder for a package without code.
    (tmp_path / "memwarden").mkdir()
    python(TRAIN, folder=str(tmp_path))
    daemon.wait_end()
    assert daemon.of("step")[-1]["step"] == 3


def test_a_framework_that_is_not_instrumented_is_named_once(python, tmp_path):
    for name in ("jax", "tensorflow"):
        (tmp_path / (name + ".py")).touch()
    check = "import subprocess, sys\nshown = subprocess.run([sys.executable, '-c', sys.argv[1]], stderr=-1)\n"
    check += "print(shown.returncode, shown.stderr.decode())"
    text = "memwarden: no training figures: jax is not instrumented without a line in the program"
    both = "import jax, tensorflow"
    # The last one that was imported is at the end first.
    shown = python(check, both, paths=[tmp_path], fake=False).strip()
    assert shown in ("0 " + text, "0 " + text.replace("jax", "tensorflow"))
    assert python(check, "import jax", paths=[tmp_path], fake=False).strip() == "0 " + text
    for quiet in ("import importlib.util as u; u.find_spec('jax')", "import jax, torch", "import jax, memwarden as m; m.Monitor"):
        assert python(check, quiet, paths=[tmp_path, CLIENT]).strip() == "0", quiet
    assert python(check, "import jax", auto="0", paths=[tmp_path], fake=False).strip() == "0"


def test_parts_of_the_model_that_only_it_calls_are_followed_no_longer(torch):
    watch = _hooks._Watch(memwarden.Monitor(interval=0))
    weights = {"a": torch.Tensor([0.0], (4, 4)), "b": torch.Tensor([0.0], (4, 4))}
    part, inner = torch.nn.Module(a=weights["a"]), torch.nn.Module(**weights)
    outer = torch.nn.Module(**weights)
    removed = []

    class Handle:
        def __init__(self, name):
            self.name = name

        def remove(self):
            removed.append(self.name)

    for name, module in (("outer", outer), ("inner", inner), ("part", part)):
        watch.followed.append(lambda module=module: module)
        watch._inner[id(module)] = watch.followed[-1], [Handle(name)]
    watch._inner.pop(id(outer))
    watch._unfollow_inner()
    # That with all parameters is called by evaluations.
    assert removed == ["part"] and watch._inner is None
