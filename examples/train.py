"""A small GPT that learns to write like its own source. Runs on a CPU, or on a GPU where there is one.

    python examples/train.py --steps 200 --checkpoint /tmp/run

USR1 asks for a checkpoint, TERM and INT for one and the end; begun again with the same folder, it goes on from there.
"""

import argparse
import math
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    block_size: int = 64
    vocab_size: int = 256
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 128


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.n_head
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.out = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.n_embd)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd)
        )

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.position = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.n_layer) if "out" in name else 0.02)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Windows(Dataset):
    """Every window of the text, and the same one byte later."""

    def __init__(self, text, length):
        self.data, self.length = torch.tensor(list(text)), length

    def __len__(self):
        return len(self.data) - self.length

    def __getitem__(self, start):
        window = self.data[start : start + self.length + 1]
        return window[:-1], window[1:]


def save(path, model, optimizer, config, step):
    """As a whole or not at all: a job that is ended meanwhile keeps the checkpoint before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "config": asdict(config), "step": step}
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    print(f"step {step}: saved {path}", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--checkpoint", type=Path, help="folder to save to, and to go on from")
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--text", type=Path, default=Path(__file__), help="what to learn")
    parser.add_argument("--log", type=int, default=20, help="steps between two lines")
    return parser.parse_args()


def main():
    args = arguments()
    asked = {"save": False, "stop": False}
    signal.signal(signal.SIGUSR1, lambda *_: asked.update(save=True))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.update(save=True, stop=True))

    torch.manual_seed(0)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = Config(block_size=args.sequence, n_layer=args.layers, n_embd=args.width)
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    path = args.checkpoint / "last.pt" if args.checkpoint else None
    step = 0
    if path and path.exists():
        state = torch.load(path, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"step {step}: goes on from {path}", flush=True)

    data = DataLoader(Windows(args.text.read_bytes(), args.sequence), args.batch, shuffle=True, drop_last=True)
    model.train()
    while step < args.steps and not asked["stop"]:
        for inputs, targets in data:
            logits = model(inputs.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % args.log == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if path and (asked["save"] or step % args.every == 0 or step == args.steps):
                asked["save"] = False
                save(path, model, optimizer, config, step)
            if step >= args.steps or asked["stop"]:
                break


if __name__ == "__main__":
    main()
