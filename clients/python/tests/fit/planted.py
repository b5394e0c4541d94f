"""A run of a Trainer, in which one phase takes much more memory than those before it.

    planted.py hugging_face|lightning optimizer|longest|evaluation|save FOLDER
"""

import random
import sys
import time

import torch

FRAMEWORK, KIND, FOLDER = sys.argv[1:4]
STEPS = 24
torch.set_num_threads(1)
torch.manual_seed(0)
chance = random.Random(0)
# The optimizer's state and a save are large beside the activations of short samples, or the other way round.
VOCABULARY, WIDTH, LAYERS = {"optimizer": (40000, 384, 1), "save": (30000, 384, 1)}.get(KIND, (4000, 256, 4))
SHORTEST, TYPICAL = (4, 8) if KIND in ("optimizer", "save") else (16, 48)
LONGEST = 1024 if KIND == "longest" else TYPICAL


def samples(count):
    lengths = [chance.randint(SHORTEST, TYPICAL) for _ in range(count)]
    lengths[count * 3 // 4] = LONGEST
    return [{"input_ids": ids, "labels": ids} for ids in ([chance.randrange(VOCABULARY) for _ in range(each)] for each in lengths)]


def padded(batch):
    longest = max(len(each["input_ids"]) for each in batch)
    rows = torch.tensor([each["input_ids"] + [0] * (longest - len(each["input_ids"])) for each in batch])
    return {"input_ids": rows, "labels": rows}


def say(text):
    print(text, flush=True)


def hugging_face():
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=8, n_positions=1024, bos_token_id=0, eos_token_id=0
    )
    # The gradients of tied weights are added in backward, which takes as much as the optimizer's state then.
    config.tie_word_embeddings = KIND not in ("optimizer", "save")

    class Says(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            say("step %d" % state.global_step)
            time.sleep(0.1)

    evaluates = KIND == "evaluation"
    arguments = transformers.TrainingArguments(
        output_dir=FOLDER,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=16,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=STEPS // 2,
        save_strategy="steps" if KIND == "save" else "no",
        save_steps=STEPS // 2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        arguments,
        train_dataset=samples(4 * STEPS),
        eval_dataset=samples(640) if evaluates else None,
        data_collator=padded,
        compute_metrics=(lambda _: {}) if evaluates else None,
        callbacks=[Says()],
    )
    trainer.train()


def lightning():
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
            layer = lambda: torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)  # noqa: E731
            self.layers = torch.nn.ModuleList(layer() for _ in range(LAYERS))
            self.head = torch.nn.Linear(WIDTH, VOCABULARY)
            self.kept = []

        def forward(self, input_ids):
            hidden = self.embedding(input_ids)
            for layer in self.layers:
                hidden = layer(hidden)
            return self.head(hidden)

        def training_step(self, batch, index):
            say("step %d" % self.global_step)
            time.sleep(0.1)
            logits = self(batch["input_ids"])
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

        def validation_step(self, batch, index):
            # As metrics do that need all predictions.
            self.kept.append(self(batch["input_ids"]))

        def on_validation_epoch_end(self):
            self.kept.clear()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-5)

    saves = L.pytorch.callbacks.ModelCheckpoint(FOLDER, every_n_train_steps=STEPS // 2)
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saves] if KIND == "save" else [],
        enable_checkpointing=KIND == "save",
        val_check_interval=STEPS // 2,
        limit_val_batches=None if KIND == "evaluation" else 0,
        default_root_dir=FOLDER,
    )
    loader = lambda count, size: torch.utils.data.DataLoader(samples(count), size, collate_fn=padded)  # noqa: E731
    trainer.fit(Module(), loader(4 * STEPS, 4), loader(640, 16) if KIND == "evaluation" else None)


say("begins")
{"hugging_face": hugging_face, "lightning": lightning}[FRAMEWORK]()
with open("/proc/self/status") as file:
    say("files %d" % next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssFile:")))
say("done")
