"""The callback classes, with stand-ins for the frameworks and without a framework."""

import json
import pickle
import sys
import textwrap
import types

import memwarden
import pytest


def arguments(**more):
    return types.SimpleNamespace(per_device_train_batch_size=4, gradient_accumulation_steps=2, output_dir="/o", **more)


def state(step, tokens=0):
    return types.SimpleNamespace(global_step=step, num_input_tokens_seen=tokens)


def test_hugging_face_steps_get_the_loss_that_is_logged_after_them(daemon, monitor):
    callback = memwarden.HuggingFaceCallback(monitor, analyze=False)
    control = types.SimpleNamespace(should_save=False)
    callback.on_train_begin(arguments(), state(0), control)
    callback.on_step_end(arguments(), state(1, 64), control)
    callback.on_log(arguments(), state(1, 64), control, logs={"loss": 2.5, "epoch": 1})
    monitor.request_checkpoint()
    callback.on_step_end(arguments(), state(2, 128), control)
    assert control.should_save
    callback.on_save(arguments(), state(2, 128), control)
    callback.on_train_end(arguments(), state(2), control)
    daemon.wait_end()
    steps = [(each["step"], each.get("loss"), each["tokens"], each["samples"]) for each in daemon.of("step")]
    assert steps == [(1, 2.5, 64, 8), (2, None, 128, 16)]
    saving, saved = daemon.of("checkpoint")
    assert (saving["state"], saving["step"]) == ("saving", 2)
    assert (saved["state"], saved["path"], saved["step"]) == ("saved", "/o/checkpoint-2", 2)


def test_lightning_counts_accumulated_batches_as_one_step(daemon, monitor, torch):
    callback = memwarden.LightningCallback(monitor, analyze=False)
    trainer = types.SimpleNamespace(global_step=0, world_size=2, accumulate_grad_batches=2, save_checkpoint=None)
    batch = {"input_ids": torch.Tensor([1] * 6, (2, 3), torch.int64)}
    callback.on_train_start(trainer, None)
    # The Trainer has divided both losses by the number of batches.
    callback.on_train_batch_end(trainer, None, {"loss": 4.5}, batch, 0)
    trainer.global_step = 1
    callback.on_train_batch_end(trainer, None, {"loss": 0.75}, batch, 1)
    callback.on_exception(trainer, None, KeyError())
    daemon.wait_end()
    (step,) = daemon.of("step")
    assert (step["step"], step["tokens"], step["samples"], step["loss"]) == (1, 12, 4, 5.25)
    assert daemon.of("hello")[-1]["data_parallel"] == 2
    assert daemon.of("bye")[-1]["reason"] == "KeyError"


TRAINED = """
import sys, types, memwarden, torch
monitor = memwarden.Monitor(interval=0)
model = torch.nn.Module(weight=torch.Tensor([1.0] * 4, (2, 2), requires_grad=True))
ids = torch.Tensor([1] * 6, (2, 3), torch.int64)

def evaluate(*batches):
    model.training = False
    for _ in batches:
        model(ids)
    model.training = True
"""
HUGGING_FACE = """
callback = memwarden.HuggingFaceCallback(monitor, analyze=False)
told = types.SimpleNamespace(output_dir="/o"), types.SimpleNamespace(global_step=1), None
evaluate(0)
callback.on_train_begin(*told, model=model, optimizer=torch.optim.AdamW(model.parameters()))
evaluate(1, 2)
callback.on_evaluate(*told)
evaluate(3)
callback.on_step_begin(*told)
model(ids)
evaluate(4)
"""
LIGHTNING = """
callback = memwarden.LightningCallback(monitor, analyze=False)
trainer = types.SimpleNamespace(save_checkpoint=None, sanity_checking=False)
for _ in range(2):
    callback.on_validation_start(trainer, model)
    callback.on_validation_end(trainer, model)
callback.on_validation_start(trainer, model)
"""


@pytest.mark.parametrize("program", [HUGGING_FACE, LIGHTNING], ids=["hugging_face", "lightning"])
def test_an_evaluation_of_a_trainer_is_a_phase(daemon, python, program):
    from conftest import CLIENT

    python(TRAINED + program + "raise MemoryError\n", auto="0", paths=[CLIENT], fails=True)
    daemon.wait_end()
    assert daemon.of("bye")[-1]["phase"] == "evaluation"
    told = [each for each in daemon.of("phase") if each["name"] == "evaluation"]
    assert told[0]["state"] == "begin" and told[-1]["count"] == 2


def test_an_unused_callback_can_be_pickled():
    for kind in (memwarden.HuggingFaceCallback, memwarden.LightningCallback):
        copy = pickle.loads(pickle.dumps(kind(analyze=False)))
        assert type(copy) is kind and isinstance(copy.monitor, memwarden.Monitor)


FRAMEWORKS = [
    ("transformers", "TrainerCallback", "HuggingFaceCallback"),
    ("lightning.pytorch", "Callback", "LightningCallback"),
    ("pytorch_lightning", "Callback", "LightningCallback"),
]


@pytest.mark.parametrize("package, base, name", FRAMEWORKS)
def test_a_callback_is_a_subclass_of_the_frameworks(python, tmp_path, package, base, name):
    folder = tmp_path.joinpath(*package.split("."))
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("class %s:\n    pass\n" % base)
    program = """
        import sys
        import memwarden
        memwarden.Monitor
        assert {package!r} not in sys.modules, "imported before it is needed"
        from memwarden import {name}
        from {package} import {base}
        class Own({name}):
            pass
        assert isinstance(Own(analyze=False), {base})
    """
    from conftest import CLIENT

    text = textwrap.dedent(program).format(package=package, base=base, name=name)
    python(text, auto="0", fake=False, paths=[CLIENT, tmp_path])


def test_importing_the_package_imports_nothing_else(python):
    from conftest import CLIENT

    program = "import sys, json; before = set(sys.modules); import memwarden; print(json.dumps(sorted(set(sys.modules) - before)))"
    assert json.loads(python(program, auto="0", fake=False, paths=[CLIENT])) == ["memwarden"]


def test_every_public_name_is_there():
    for name in memwarden.__all__:
        assert getattr(memwarden, name).__name__ == name and name in dir(memwarden)
    with pytest.raises(AttributeError):
        memwarden.no_such_name  # noqa: B018
    assert "memwarden._monitor" in sys.modules
