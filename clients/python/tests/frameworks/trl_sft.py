"""TRL's SFTTrainer: sequences of different lengths, padded by its collator."""

import glob

import datasets
import torch
import truth
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

torch.set_num_threads(1)
torch.manual_seed(0)


class Counting(SFTTrainer):
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


vocabulary = {"<pad>": 0, "<eos>": 1, **{"w%d" % n: n + 2 for n in range(62)}}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>")), pad_token="<pad>", eos_token="<eos>"
)
config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
rows = [{"input_ids": [2 + (n + place) % 62 for place in range(3 + n % 14)]} for n in range(256)]
arguments = SFTConfig(
    truth.FOLDER,
    max_steps=truth.LAST,
    per_device_train_batch_size=2,
    logging_steps=1,
    learning_rate=0.01,
    lr_scheduler_type="constant",
    save_strategy="no" if truth.ENDLESS else "steps",
    save_steps=4,
    use_cpu=True,
    bf16=False,
    report_to=[],
    disable_tqdm=True,
    max_length=32,
    gradient_checkpointing=False,
)
trainer = Counting(
    LlamaForCausalLM(config),
    arguments,
    train_dataset=datasets.Dataset.from_list(rows),
    processing_class=tokenizer,
    callbacks=[Logged()],
)
trainer.train(resume_from_checkpoint=next(iter(glob.glob(truth.FOLDER + "/checkpoint-*")), None))
truth.end()
