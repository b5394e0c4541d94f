"""DeepSpeed's ZeRO stage 1 on two ranks, with two groups of parameters."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
import truth

torch.set_num_threads(1)
torch.manual_seed(0)
deepspeed.init_distributed("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
groups = [{"params": model[0].parameters(), "weight_decay": 0.0}, {"params": model[1].parameters(), "weight_decay": 0.1}]
configuration = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "steps_per_print": 10**9,
}
optimizer = torch.optim.AdamW(groups, lr=0.01)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)
for n in range(1, truth.LAST + 1):
    ids = torch.randint(0, 64, (2, 6), generator=torch.Generator().manual_seed(n * 10 + rank))
    loss = torch.nn.functional.cross_entropy(engine(ids).flatten(0, 1), ids.flatten())
    truth.batch(ids.numel(), len(ids))
    engine.backward(loss)
    engine.step()
    truth.step(n, loss.item(), 0.01)
truth.end()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
