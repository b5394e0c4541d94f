"""A training program on the fake GPU of the tests, in which one phase takes more memory than there is.

    planted_gpu.py optimizer|longest|evaluation|save FOLDER
"""

import os
import sys
import time
import types

import memwarden
import torch

KIND, FOLDER = sys.argv[1:]
GIB, MIB = 1 << 30, 1 << 20
# Bytes of the GPU, of a token in forward, and of a batch of an evaluation.
TOTAL, TOKEN, OUTPUT = 24 * GIB, 4 * MIB, 256 * MIB
# Seconds of a phase, so that the daemon samples it.
PAUSE = 5.0
cuda = torch.cuda
cuda.initialize()
cuda.mem_get_info = lambda device: (TOTAL if device else TOTAL - cuda.cached, TOTAL)
cuda.get_device_properties = lambda device: types.SimpleNamespace(total_memory=TOTAL, uuid="5f1d2a7c-%d" % device, name="Fake GPU")


def hold(size):
    if size > TOTAL:
        sys.exit(print("out of memory", flush=True) or 3)
    cuda.allocated = size
    cuda.peak = max(cuda.peak, size)
    cuda.cached = max(cuda.cached, size)


class Trainer:
    args = types.SimpleNamespace(output_dir=FOLDER)


def on_gpu(size, **more):
    return torch.Tensor([0.0], (size // 4096, 1024), device="cuda:0", **more)


weights = 7 * GIB if KIND == "optimizer" else GIB
cuda.peak = cuda.cached = 0
hold(weights)
weight = on_gpu(weights, requires_grad=True)
optimizer = torch.optim.AdamW([weight])
monitor = memwarden.Monitor(interval=0.2, min_interval=0.1)
fit = monitor._fit
fit.made(optimizer)
model = torch.nn.Module(weight=weight)
fit.plan.model(model, lambda: [optimizer])
if KIND == "longest":
    fit.plan._longest = (1024, "the longest sample of the data")
if KIND == "save":
    trainer = Trainer()
    fit.plan.trainer(trainer)
    os.statvfs = lambda path: types.SimpleNamespace(f_frsize=4096, f_bavail=256, f_blocks=1 << 20)
torch.optim.optimizer.register_optimizer_step_pre_hook(lambda optimizer, *_: fit.before_step(optimizer))
torch.optim.optimizer.register_optimizer_step_post_hook(lambda optimizer, *_: fit.after_step(optimizer))
monitor.start()


def step(number, samples, length):
    static = weights if number == 1 else 4 * weights
    fit.forward_begins(samples, length)
    time.sleep(PAUSE if number == 1 else 0.1)
    hold(static + samples * length * TOKEN)
    fit.forward_ends(None)
    hold(static + samples * length * TOKEN * 3 // 2)
    weight.grad = on_gpu(weights)
    hold(max(static, 2 * weights))
    if number == 1:
        time.sleep(PAUSE)
        hold(4 * weights)
    optimizer.step()
    if not optimizer.state:
        optimizer.state[weight] = {name: on_gpu(weights) for name in ("exp_avg", "exp_avg_sq")}
    monitor.step(number, tokens=samples * length)


lengths = [16, 24, 16, 32, 24, 40, 16, 64] * 2
for number, length in enumerate(lengths, 1):
    step(number, 4, length)
print("trained", flush=True)
time.sleep(PAUSE)
if KIND == "longest":
    step(len(lengths) + 1, 4, 1024)
if KIND == "evaluation":


    class Loader:
        def __len__(self):
            return 100

    loader = Loader()
    for _ in range(100):
        fit.plan.loading(loader)
        fit.evaluation_begins()
        hold(cuda.allocated + OUTPUT)
        time.sleep(0.1)
if KIND == "save":
    sys.exit(print("no space left", flush=True) or 3)
