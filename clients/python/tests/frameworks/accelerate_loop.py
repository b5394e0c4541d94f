"""A loop of accelerate on two ranks: two batches a step, and a mask."""

import os

import accelerate
import torch
import truth

torch.set_num_threads(1)
torch.manual_seed(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))

    def forward(self, input_ids, attention_mask):
        return self.inner(input_ids)


accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
mask = torch.tensor([1, 1, 1, 1, 0, 0])
data = [{"input_ids": torch.arange(n, n + 6) % 64 * mask, "attention_mask": mask} for n in range(2048)]
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
n, losses = 0, []
for batch in loader:
    with accelerator.accumulate(model):
        out = model(**batch)
        loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), batch["input_ids"].flatten())
        truth.batch(batch["attention_mask"].sum(), len(batch["input_ids"]))
        losses.append(loss.item())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        n += 1
        truth.step(n, sum(losses) / len(losses), 0.01)
        losses = []
    if n == truth.LAST:
        break
truth.end()
accelerator.end_training()
