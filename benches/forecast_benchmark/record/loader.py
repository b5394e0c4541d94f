#!/usr/bin/env python3
"""PyTorch on the CPU: a small network with DataLoader workers, evaluations and checkpoints, and a leak if asked for.

usage: loader.py KEPT_GRAPHS_PER_100_STEPS EVALUATION_EVERY CHECKPOINT_EVERY

The leak is a loss that is kept with its graph, as `total += loss` does. Each epoch of 200 steps starts new workers.
"""
import os
import sys
import tempfile
import time

import torch

kept_per_100, eval_every, save_every = (int(word) for word in sys.argv[1:4])
torch.manual_seed(0)
torch.set_num_threads(1)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 3200

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(512, generator=generator), torch.randn(1, generator=generator)


model = torch.nn.Sequential(
    torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)
)
optimizer = torch.optim.Adam(model.parameters())
folder = tempfile.mkdtemp(prefix="benchmark-loader-")
kept, step = [], 0
while True:
    for features, target in torch.utils.data.DataLoader(Samples(), batch_size=16, num_workers=2):
        step += 1
        loss = torch.nn.functional.mse_loss(model(features), target)
        if step % 100 < kept_per_100:
            kept.append(loss)
        optimizer.zero_grad()
        if step % 100 >= kept_per_100:
            loss.backward()
            optimizer.step()
        if eval_every and step % eval_every == 0:
            with torch.no_grad():
                results = [model(torch.randn(4096, 512)) for _ in range(4)]
                hidden = [model[:4](torch.randn(4096, 512)) for _ in range(4)]
            time.sleep(5)
            del results, hidden
        if save_every and step % save_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, os.path.join(folder, "last.pt"))
        time.sleep(0.25)
