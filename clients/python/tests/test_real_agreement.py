"""Ranks that torchrun started on two network namespaces, and Trainers, save at one step and go on from there."""

import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import CLIENT, PATIENCE

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

ADDRESSES = ["10.213.77.1", "10.213.77.2"]

PLAIN = r"""
import os, sys, time
import torch, torch.distributed as dist
import memwarden

folder, last = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)).double())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
first = 0
path = os.path.join(folder, "rank%d.pt" % rank)
if os.path.exists(path):
    loaded = torch.load(path)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    first = loaded["step"]

def save(step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)
    return path

monitor = memwarden.Monitor("plain", min_interval=0)
monitor.on_checkpoint(save)
for step in range(first + 1, last + 1):
    data = torch.rand(4, 8, dtype=torch.double, generator=torch.Generator().manual_seed(step * 100 + rank))
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if last < 10**6:
        os.write(1, b"loss %d %d %s\n" % (rank, step, repr(loss.item()).encode()))
    else:
        time.sleep(0.01)
    monitor.step(step)
monitor.stop()
dist.barrier()
"""

HUGGING_FACE = r"""
import glob, os, sys, time, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
torch.set_num_threads(1)
torch.manual_seed(0)
folder, last = sys.argv[1], int(sys.argv[2])
# The Trainer's device is "cpu:0", where torch knows only "cpu".
torch.serialization.register_package(5, lambda storage: None, lambda storage, at: storage if at.startswith("cpu") else None)
config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
data = [{"input_ids": torch.arange(n, n + 8) % 64, "labels": torch.arange(n, n + 8) % 64} for n in range(64)]
class Printing(Trainer):
    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        if last < 10**6:
            line = "loss %d %d %r\n" % (self.args.process_index, self.state.global_step + 1, loss.item())
            os.write(1, line.encode())
        else:
            time.sleep(0.05)
        return loss
arguments = TrainingArguments(folder, max_steps=last, per_device_train_batch_size=1, report_to=[], learning_rate=0.01,
                              lr_scheduler_type="constant", use_cpu=True, save_strategy="no", disable_tqdm=True,
                              logging_steps=10**6)
trainer = Printing(LlamaForCausalLM(config), arguments, train_dataset=data)
trainer.train(resume_from_checkpoint=next(iter(glob.glob(folder + "/checkpoint-*")), None))
"""

LIGHTNING = r"""
import glob, os, sys, time, torch
import lightning.pytorch as pl
torch.set_num_threads(1)
torch.manual_seed(0)
folder, last = sys.argv[1], int(sys.argv[2])
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        # A loader does not remember where it was: the data depends on the step.
        step = self.global_step + 1
        made = torch.rand(4, 8, generator=torch.Generator().manual_seed(step * 100 + self.global_rank))
        loss = (self.inner(made) - made.sum(1, keepdim=True)).square().mean()
        if last < 10**6:
            os.write(1, ("loss %d %d %r\n" % (self.global_rank, step, loss.item())).encode())
        else:
            time.sleep(0.05)
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.zeros(4096, 5, dtype=torch.long), batch_size=2)
saved = next(iter(glob.glob(folder + "/*.ckpt")), None)
pl.Trainer(max_steps=last, max_epochs=-1, accelerator="cpu", strategy="ddp", devices=2, num_nodes=2,
           logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
           default_root_dir=folder).fit(Module(), data, ckpt_path=saved)
"""


def ip(*arguments):
    return subprocess.run(["ip", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).returncode == 0


@pytest.fixture(scope="module")
def nodes():
    """Two network namespaces with a cable between them, each the start of a command."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip (iproute2)")
    names = ["mwagree%d-%d" % (os.getpid(), n) for n in (0, 1)]
    if not ip("netns", "add", names[0]):
        pytest.skip("network namespaces cannot be made here")
    try:
        assert ip("netns", "add", names[1])
        assert ip("link", "add", "mw0", "netns", names[0], "type", "veth", "peer", "name", "mw0", "netns", names[1])
        for name, address in zip(names, ADDRESSES):
            assert ip("-n", name, "address", "add", address + "/24", "dev", "mw0")
            assert ip("-n", name, "link", "set", "mw0", "up") and ip("-n", name, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            ip("netns", "delete", name)


def torchrun(nodes, program, folder, last, automatic=False):
    """Four ranks, two on each node; their output goes to files."""
    paths = [str(CLIENT / "memwarden" / "auto")] if automatic else [str(CLIENT)]
    env = dict(os.environ, GLOO_SOCKET_IFNAME="mw0", PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS="1")
    env.update(MEMWARDEN_AUTO="1" if automatic else "0", MEMWARDEN_DEBUG="1")
    script = folder.parent / "program.py"
    script.write_text(program)
    folder.mkdir(exist_ok=True)
    started = []
    port = next(_ports)
    for n, node in enumerate(nodes):
        command = [*node, sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
        command += ["--node-rank=%d" % n, "--master-addr=" + ADDRESSES[0], "--master-port=%d" % port, str(script)]
        with open(str(folder) + ".out%d" % n, "wb") as out:
            arguments = [*command, str(folder), str(last)]
            started.append(subprocess.Popen(arguments, env=env, stdout=out, stderr=out, start_new_session=True))
    return started


def shown(folder):
    return "".join(open(str(folder) + ".out%d" % n).read() for n in (0, 1))


def kill(processes):
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


_ports = itertools.count(29600)


def losses(nodes, folder, last, program=PLAIN):
    started = torchrun(nodes, program, folder, last)
    try:
        for process in started:
            assert process.wait(PATIENCE * 3) == 0, shown(folder)
    finally:
        kill(started)
    found = [line.split() for line in shown(folder).splitlines() if line.startswith("loss")]
    return {(rank, int(step)): float(loss) for _, rank, step, loss in found}


def goes_on(nodes, folder, step, program, rel):
    """From the checkpoint of this step, the next 20 have the losses of a run that nobody disturbed."""
    resumed = losses(nodes, folder, step + 20, program)
    undisturbed = losses(nodes, folder.parent / "undisturbed", step + 20, program)
    assert {n for _, n in resumed} == set(range(step + 1, step + 21)) and len(resumed) == 80
    # DDP sums gradients in another order in its first step.
    assert resumed == pytest.approx({key: loss for key, loss in undisturbed.items() if key[1] > step}, rel=rel)
    assert len(set(resumed.values())) > 40, "the losses differ from step to step"


def ask_one(daemon, program, nodes, folder, automatic=False):
    """One rank gets the signal once all train; returns what the ranks say they saved. Then all are killed."""
    started = torchrun(nodes, program, folder, 10**6, automatic)
    try:

        def training(daemon):
            alive = [process.poll() is None for process in started]
            assert all(alive), shown(folder)
            ready = [each for each in daemon.connections if any(b'"step","t"' in line for line in each.lines)]
            return len(ready) == 4

        daemon.wait(training)
        # The launcher is another process: the signal goes to the rank.
        os.kill(daemon.connections[-1].pid, signal.SIGUSR1)
        daemon.wait(lambda daemon: len(done(daemon)) >= 4)
    finally:
        kill(started)
        # Ranks are not in the session of their launcher, and outlive it. The socket names the process at its other end.
        for connection in daemon.connections:
            if not connection.ended:
                os.kill(connection.pid, signal.SIGKILL)
    daemon.wait_end(4)
    return done(daemon)


def done(daemon):
    return [message for message in daemon.of("checkpoint") if message["state"] != "saving"]


def test_a_plain_loop_goes_on_to_the_same_losses(daemon, nodes, tmp_path):
    saved = ask_one(daemon, PLAIN, nodes, tmp_path / "run")
    assert [message["state"] for message in saved] == ["saved"] * 4, saved
    steps = {message["step"] for message in saved}
    assert len(steps) == 1 and len({message["path"] for message in saved}) == 4
    (step,) = steps
    agreed = [event for event in daemon.of("event") if event["name"] == "checkpoint agreed"]
    assert [event["detail"] for event in agreed] == [{"at": step, "ranks": 4, "world": 4}] * 4
    goes_on(nodes, tmp_path / "run", step, PLAIN, 1e-9)


def automatic_hooks():
    # `torch.optim` deletes the name of its own module.
    if not hasattr(__import__("torch.optim.optimizer", fromlist=["Optimizer"]), "register_optimizer_step_post_hook"):
        pytest.skip("this PyTorch has no hooks of all optimizers")


def test_hugging_face_without_a_line_of_ours(daemon, nodes, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    automatic_hooks()
    saved = ask_one(daemon, HUGGING_FACE, nodes, tmp_path / "run", automatic=True)
    assert [message["state"] for message in saved] == ["saved"] * 4, saved
    (step,) = {message["step"] for message in saved}
    state = json.loads((tmp_path / "run" / ("checkpoint-%d" % step) / "trainer_state.json").read_text())
    assert state["global_step"] == step
    assert {"optimizer.pt", "rng_state_0.pth", "rng_state_3.pth"} <= set(os.listdir(os.path.dirname(saved[0]["path"] + "/")))
    goes_on(nodes, tmp_path / "run", step, HUGGING_FACE, 1e-5)


def test_lightning_without_a_line_of_ours(daemon, nodes, tmp_path):
    pytest.importorskip("lightning")
    automatic_hooks()
    import torch

    saved = ask_one(daemon, LIGHTNING, nodes, tmp_path / "run", automatic=True)
    assert [message["state"] for message in saved] == ["saved"] * 4, saved
    (step,) = {message["step"] for message in saved}
    (path,) = {message["path"] for message in saved}
    assert torch.load(path, map_location="cpu")["global_step"] == step
    goes_on(nodes, tmp_path / "run", step, LIGHTNING, 1e-5)
