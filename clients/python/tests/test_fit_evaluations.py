"""Evaluations that Lightning tries before training, with a torch whose allocator the test moves."""

import memwarden
import pytest
from test_fit import MIB, Loader, Program, evaluate


class Trainer:
    """As Lightning's."""

    num_val_batches, enable_validation, sanity_checking = [100], True, True
    default_root_dir, checkpoint_callback = "/", None


def tries(program, torch, keeps, passing=(0, 0), buffers=(0, 0)):
    """Two batches of an evaluation with 100, as Lightning tries them before training; outputs of so many MiB live for one only."""
    loader, before = Loader(100), torch.cuda.allocated
    program.trainer = Trainer()
    program.fit.plan.trainer(program.trainer, lightning=True)
    callback = memwarden.LightningCallback(program.monitor)
    for batch in (0, 1):
        program.fit.plan.loading(loader)
        program.fit.evaluation_begins()
        torch.cuda.peak = max(torch.cuda.peak, torch.cuda.allocated + 64 * MIB)
        torch.cuda.allocated += (keeps + passing[batch] + buffers[batch]) * MIB
        output = torch.Tensor([0.0], (passing[batch] * MIB // 4,), device="cuda:0")
        callback.on_validation_batch_end(program.trainer, None, {"logits": output}, None, batch)
        torch.cuda.allocated -= passing[batch] * MIB
    torch.cuda.allocated = before + sum(buffers) * MIB
    program.static += sum(buffers) * MIB


CASES = [{}, {"passing": (8, 40)}, {"buffers": (32, 0)}, {"buffers": (0, 32)}, {"passing": (40, 8), "buffers": (32, 0)}]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("keeps", [0, 10])
def test_an_evaluation_that_is_tried_before_training_is_predicted(monitor, torch, keeps, case):
    program = Program(torch, monitor)
    tries(program, torch, keeps, **case)
    program.step(4, 16)
    found = monitor._fit.predictions.of("evaluation", 0)
    extra = 64 - keeps + keeps * 100
    assert found["held"] + extra * MIB - 50 * MIB <= found["peak"] <= found["held"] + (extra + 50) * MIB, found
    assert found["certainty"] == "estimated" and "kept of each of 100 batches, of which 2 were tried" in found["basis"]
    # An evaluation itself tells more.
    evaluate(program, torch, Loader(100), 5, lambda _: 20 * MIB)
    found = monitor._fit.predictions.of("evaluation", 0)
    assert found["basis"] == "20.0 MiB kept of each of 100 batches" and found["peak"] >= found["held"] + 1900 * MIB
    monitor._fit.plan_phases()
    assert monitor._fit.predictions.of("evaluation", 0)["basis"] == found["basis"]


def test_an_evaluation_of_which_nothing_was_tried_is_unknown(monitor, torch):
    program = Program(torch, monitor)
    trainer = Trainer()
    program.fit.plan.trainer(trainer, lightning=True)
    program.step(4, 16)
    found = monitor._fit.predictions.of("evaluation", 0)
    assert (found["certainty"], found["basis"]) == ("unknown", "what it keeps of each batch is not known")
    evaluate(program, torch, Loader(100), 5, lambda _: 20 * MIB)
    assert monitor._fit.predictions.of("evaluation", 0)["certainty"] == "estimated"
    monitor._fit.plan_phases()
    assert monitor._fit.predictions.of("evaluation", 0)["certainty"] == "estimated", "what is known stays"
