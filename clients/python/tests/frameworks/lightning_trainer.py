"""Lightning's Trainer: two batches a step, a checkpoint every four steps."""

import glob

import lightning.pytorch as pl
import torch
import truth
from lightning.pytorch.callbacks import ModelCheckpoint

torch.set_num_threads(1)
torch.manual_seed(0)


class Counting(ModelCheckpoint):
    def _save_checkpoint(self, trainer, filepath):
        super()._save_checkpoint(trainer, filepath)
        truth.figures["checkpoints"] += 1


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
        self.losses = []

    def training_step(self, batch, index):
        # A loader does not remember where it was: the data depends on the step.
        made = torch.randint(0, 64, batch.shape, generator=torch.Generator().manual_seed(self.global_step * 10 + index % 2))
        loss = torch.nn.functional.cross_entropy(self.inner(made).flatten(0, 1), made.flatten())
        truth.batch(made.numel(), len(made))
        self.losses.append(loss.item())
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        if len(self.losses) == 2:
            # The rate that the step had: a scheduler comes after it.
            truth.step(self.global_step, sum(self.losses) / 2, 0.01 * 0.9 ** (self.global_step - 1))
            self.losses = []

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


data = torch.utils.data.DataLoader(torch.zeros(4096, 6, dtype=torch.long), batch_size=2)
saver = Counting(truth.FOLDER + "/regular", every_n_train_steps=0 if truth.ENDLESS else 4, save_top_k=-1)
trainer = pl.Trainer(
    max_steps=truth.LAST,
    max_epochs=-1,
    accumulate_grad_batches=2,
    accelerator="cpu",
    logger=False,
    callbacks=[saver],
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=truth.FOLDER,
)
trainer.fit(Module(), data, ckpt_path=next(iter(glob.glob(truth.FOLDER + "/**/memwarden*.ckpt", recursive=True)), None))
truth.end()
