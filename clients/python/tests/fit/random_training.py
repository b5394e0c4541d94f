"""A training program that a seed chooses: model, data, optimizer and loop. It says what it does on standard output.

    random_training.py SEED [STEPS]

With `TRUTH=FILE` it measures itself, and writes the highest resident memory of each phase; the client must make no
predictions then (`MEMWARDEN_FIT=off`), because both reset the kernel's peak.
"""

import json
import os
import random
import sys
import time

import torch

SEED = int(sys.argv[1])
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 45
TRUTH = os.environ.get("TRUTH")
torch.set_num_threads(1)
torch.manual_seed(SEED)
chance = random.Random(SEED)


class Transformer(torch.nn.Module):
    """Attention that keeps its scores, or the fused one."""

    def __init__(self, vocabulary, width, heads, layers, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        self.up = torch.nn.ModuleList(torch.nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = torch.nn.ModuleList(torch.nn.Linear(4 * width, width) for _ in range(layers))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        if chance.random() < 0.5:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids):
        hidden = self.embedding(input_ids)
        samples, length, width = hidden.shape
        for qkv, out, up, down, norm in zip(self.qkv, self.out, self.up, self.down, self.norms):
            q, k, v = (
                each.view(samples, length, self.heads, -1).transpose(1, 2) for each in qkv(norm(hidden)).chunk(3, -1)
            )
            if self.fused:
                mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                mixed = (q @ k.transpose(-1, -2) / width**0.5).softmax(-1) @ v
            hidden = hidden + out(mixed.transpose(1, 2).reshape(samples, length, width))
            hidden = hidden + down(torch.nn.functional.gelu(up(hidden)))
        return self.head(hidden)


class Perceptron(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.relu(layer(x))
        return x


class Convolution(torch.nn.Module):
    def __init__(self, channels, layers):
        super().__init__()
        self.first = torch.nn.Conv2d(3, channels, 3, padding=1)
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(channels) for _ in range(layers))
        self.head = torch.nn.Linear(channels, 1000)

    def forward(self, x):
        x = self.first(x)
        for layer, norm in zip(self.layers, self.norms):
            x = torch.nn.functional.relu(norm(layer(x)))
        return self.head(x.mean((2, 3)))


class Attribute(torch.utils.data.Dataset):
    """Samples that are tokenized before, as in many scripts of instruction tuning."""

    def __init__(self, samples):
        self.input_ids = [torch.tensor(each["input_ids"]) for each in samples]

    def __len__(self):
        return len(self.input_ids)

    def __getitem__(self, index):
        return {"input_ids": self.input_ids[index].tolist()}


class Hidden(torch.utils.data.Dataset):
    """Samples whose lengths are known only when they are loaded."""

    def __init__(self, samples):
        self.texts = [",".join(map(str, each["input_ids"])) for each in samples]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"input_ids": [int(each) for each in self.texts[index].split(",")]}


def padded(batch):
    longest = max(len(each["input_ids"]) for each in batch)
    rows = [list(each["input_ids"]) + [0] * (longest - len(each["input_ids"])) for each in batch]
    return {"input_ids": torch.tensor(rows)}


def optimizers(parameters):
    optim = torch.optim
    return {
        "sgd": lambda: optim.SGD(parameters, 1e-4),
        "momentum": lambda: optim.SGD(parameters, 1e-4, momentum=0.9),
        "adam": lambda: optim.Adam(parameters, 1e-5),
        "adamw": lambda: optim.AdamW(parameters, 1e-5),
        "adamw foreach": lambda: optim.AdamW(parameters, 1e-5, foreach=True),
        "adamw fused": lambda: optim.AdamW(parameters, 1e-5, fused=True),
        "amsgrad": lambda: optim.AdamW(parameters, 1e-5, amsgrad=True),
        "rmsprop": lambda: optim.RMSprop(parameters, 1e-5, momentum=0.9),
        "adagrad": lambda: optim.Adagrad(parameters, 1e-5),
        "adafactor": lambda: optim.Adafactor(parameters, 1e-5),
    }


def choose():
    kind = chance.choice(["transformer", "transformer", "transformer", "perceptron", "convolution"])
    micro = chance.choice([1, 1, 1, 2])
    count = STEPS * micro
    if kind == "transformer":
        vocabulary, width = chance.choice([2000, 8000, 24000]), chance.choice([128, 256, 384])
        layers, samples = chance.randint(2, 5), chance.choice([2, 4])
        model = Transformer(vocabulary, width, 8, layers, chance.random() < 0.5)
        longest = chance.choice([384, 512, 768])
        typical = chance.uniform(0.15, 0.4) * longest
        lengths = [max(8, min(int(0.7 * longest), int(chance.lognormvariate(0, 0.4) * typical))) for _ in range(count * samples)]
        # The longest sample comes late.
        lengths[chance.randint(count // 2, count - micro - 1) * samples] = longest
        data = [{"input_ids": [chance.randrange(vocabulary) for _ in range(each)]} for each in lengths]
        form = chance.choice(["list", "attribute", "hidden"])
        source = {"list": list, "attribute": Attribute, "hidden": Hidden}[form](data)
        loader = torch.utils.data.DataLoader(source, batch_size=samples, collate_fn=padded)
        about = "%s vocabulary %d width %d layers %d samples %d longest %d %s" % (kind, vocabulary, width, layers, samples, longest, form)
        return model, loader, lambda batch: model(batch["input_ids"]).float().logsumexp(-1).mean(), micro, about
    samples = chance.choice([8, 16, 32])
    if kind == "perceptron":
        width, layers = chance.choice([512, 1024, 2048]), chance.randint(3, 10)
        model, shape, samples = Perceptron(width, layers), (width,), samples * 64
    else:
        width, layers = chance.choice([32, 64]), chance.randint(3, 6)
        model, shape = Convolution(width, layers), (3, 32, 32)
    data = torch.utils.data.TensorDataset(torch.randn(samples * 2, *shape))
    sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=samples * count)
    loader = torch.utils.data.DataLoader(data, batch_size=samples, sampler=sampler)
    return model, loader, lambda batch: model(batch[0]).square().mean(), micro, "%s %d layers %d samples %d" % (kind, width, layers, samples)


def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))


def peak():
    """The highest resident memory since the last call."""
    highest = status("VmHWM")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return highest


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


model, loader, loss, micro, about = choose()
if chance.random() < 0.25:
    for each in list(model.parameters())[: len(list(model.parameters())) // 2]:
        each.requires_grad_(False)
trained = [each for each in model.parameters() if each.requires_grad]
name = chance.choice(sorted(optimizers(trained)))
optimizer = optimizers(trained)[name]()
clips, half, to_none = chance.random() < 0.3, chance.random() < 0.1, chance.random() < 0.8
say("program %s; %s; micro %d%s%s" % (about, name, micro, " clips" if clips else "", " bf16" if half else ""))
truth = {"about": about, "optimizer": name, "steps": [], "files": status("RssFile")}
if TRUTH:
    truth["load"] = peak()
batches = iter(loader)
for step in range(1, STEPS + 1):
    for _ in range(micro):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            value = loss(next(batches)) / micro
        value.backward()
    if clips:
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
    before = peak() if TRUTH else 0
    optimizer.step()
    after = peak() if TRUTH else 0
    optimizer.zero_grad(set_to_none=to_none)
    truth["steps"].append([before, after])
    say("step %d" % step)
    del value
    # As long as a step of a real program takes at least.
    time.sleep(0.0 if TRUTH else 0.05)
say("saves")
folder = os.environ.get("SAVE", "/tmp")
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, os.path.join(folder, "saved-%d.pt" % os.getpid()))
os.remove(os.path.join(folder, "saved-%d.pt" % os.getpid()))
if TRUTH:
    truth["save"] = peak()
    truth["files"] = status("RssFile")
    with open(TRUTH, "w") as file:
        json.dump(truth, file)
say("done")
