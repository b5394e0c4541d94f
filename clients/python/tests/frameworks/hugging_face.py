"""Hugging Face's Trainer: sequences with padding, two batches a step, a checkpoint every four steps."""

import glob

import torch
import truth
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)
torch.manual_seed(0)


def example(n):
    real = 4 + n % 5
    ids = [(n + place) % 64 if place < real else 0 for place in range(8)]
    labels = [each if place < real else -100 for place, each in enumerate(ids)]
    return {"input_ids": ids, "attention_mask": [int(place < real) for place in range(8)], "labels": labels}


class Counting(Trainer):
    def training_step(self, model, inputs, *arguments, **named):
        truth.batch(inputs["attention_mask"].sum(), len(inputs["input_ids"]))
        return super().training_step(model, inputs, *arguments, **named)


class Logged(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **named):
        self.rate = optimizer.param_groups[0]["lr"]

    def on_log(self, args, state, control, logs=None, **named):
        if "loss" in logs:
            truth.step(state.global_step, logs["loss"], self.rate)

    def on_save(self, args, state, control, **named):
        truth.figures["checkpoints"] += 1


config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
arguments = TrainingArguments(
    truth.FOLDER,
    max_steps=truth.LAST,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    logging_steps=1,
    learning_rate=0.01,
    lr_scheduler_type="constant_with_warmup",
    warmup_steps=4,
    save_strategy="no" if truth.ENDLESS else "steps",
    save_steps=4,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
data = [example(n) for n in range(256)]
trainer = Counting(LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[Logged()])
trainer.train(resume_from_checkpoint=next(iter(glob.glob(truth.FOLDER + "/checkpoint-*")), None))
truth.end()
