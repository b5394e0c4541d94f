"""A loop of torchrun's ranks with DistributedDataParallel. With "ours", one line saves on request."""

import os
import sys

import torch
import torch.distributed as dist
import truth

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inner = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
path = os.path.join(truth.FOLDER, "rank%d.pt" % rank)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
first = 0
if os.path.exists(path):
    loaded = torch.load(path)
    first = loaded.pop("step")
    for name, part in parts.items():
        part.load_state_dict(loaded[name])


def save(step):
    torch.save(dict({name: part.state_dict() for name, part in parts.items()}, step=step), path)
    truth.figures["checkpoints"] += 1
    return path


if "ours" in sys.argv:
    import memwarden

    monitor = memwarden.Monitor(min_interval=0)
    monitor.on_checkpoint(save)
for n in range(first + 1, truth.LAST + 1):
    ids = torch.randint(0, 64, (2, 6), generator=torch.Generator().manual_seed(n * 10 + rank))
    loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    truth.batch(ids.numel(), len(ids))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    truth.step(n, loss.item(), scheduler.get_last_lr()[0])
    scheduler.step()
    if "ours" in sys.argv:
        monitor.step(n, tokens=ids.numel(), samples=len(ids), loss=loss.item(), learning_rate=truth.figures["learning_rate"])
truth.end()
dist.barrier()
dist.destroy_process_group()
