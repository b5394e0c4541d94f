"""Ray Train's TorchTrainer with two workers."""

import os
import sys

import ray
import ray.train
import ray.train.torch
import truth


def train(arguments):
    sys.path.insert(0, arguments["here"])
    import torch
    import truth

    torch.manual_seed(0)
    context = ray.train.get_context()
    rank = context.get_world_rank()
    truth.figures.update(rank=rank, world=context.get_world_size())
    inner = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
    model = ray.train.torch.prepare_model(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for n in range(1, arguments["last"] + 1):
        ids = torch.randint(0, 64, (2, 6), generator=torch.Generator().manual_seed(n * 10 + rank))
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        truth.batch(ids.numel(), len(ids))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step(n, loss.item(), 0.01)
    # Ray kills its workers: what is sent once a second must have been sent.
    import time

    time.sleep(2.5)
    with open(os.path.join(arguments["folder"], "truth%d" % rank), "w") as file:
        import json

        file.write("TRUTH %s\n" % json.dumps(dict(truth.figures, losses=truth.losses)))


here = os.path.dirname(os.path.abspath(__file__))
ray.init(num_cpus=3, include_dashboard=False, log_to_driver=True)
scaling = ray.train.ScalingConfig(num_workers=2, use_gpu=False)
run = ray.train.RunConfig(storage_path=truth.FOLDER)
arguments = {"last": truth.LAST, "here": here, "folder": truth.FOLDER}
ray.train.torch.TorchTrainer(train, train_loop_config=arguments, scaling_config=scaling, run_config=run).fit()
for rank in range(2):
    with open(os.path.join(truth.FOLDER, "truth%d" % rank)) as file:
        os.write(1, file.read().encode())
ray.shutdown()
