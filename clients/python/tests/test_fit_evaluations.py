"""Evaluations, and those that Lightning tries before training, with a torch whose allocator the test moves."""

import memwarden
import pytest
from fit_program import GIB, MIB, Loader, Program, evaluate, prediction


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


@pytest.mark.parametrize("batches", [float("inf"), 0.0])
def test_an_evaluation_of_a_stream_is_unknown_after_a_trial(monitor, torch, monkeypatch, batches):
    monkeypatch.setattr(Trainer, "num_val_batches", [batches])
    monkeypatch.delattr(Loader, "__len__")
    program = Program(torch, monitor)
    tries(program, torch, 10)
    program.step(4, 16)
    found = monitor._fit.predictions.of("evaluation", 0)
    assert (found["certainty"], found["basis"]) == ("unknown", "what it keeps of each batch is not known")


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


def test_an_evaluation_is_predicted_from_what_it_keeps_of_its_first_batches(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    loader, begun = Loader(100), torch.cuda.allocated
    evaluate(program, torch, loader, 5, lambda _: 256 * MIB)
    found = prediction(daemon, "evaluation", device="0")
    truth = begun + 100 * 256 * MIB
    assert abs(found["peak"] - truth) <= 0.02 * truth and "measured" not in found, found
    assert (found["certainty"], found["size"]["units"]) == ("estimated", 100) and "256.0 MiB kept of each of 100" in found["basis"]


def test_an_evaluation_that_keeps_nothing_has_the_peak_that_was_measured(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    loader = Loader(8)
    torch.cuda.peak = torch.cuda.allocated
    evaluate(program, torch, loader, 8, lambda _: 0)
    program.fit._evaluations.end()
    found = prediction(daemon, "evaluation", device="0")
    assert found["peak"] == found["measured"] == torch.cuda.allocated + 64 * MIB


def test_an_evaluation_without_a_loader_does_not_read_that_of_training(daemon, monitor, torch):
    program, training = Program(torch, monitor), Loader(100)
    torch.cuda.peak = torch.cuda.allocated
    for count in (1, 2):
        program.fit.plan.loading(training)
        program.step(4, 1)
        for _ in range(3):
            program.fit.evaluation_begins()
        torch.cuda.peak += 64 * MIB * count
        found = monitor._fit.predictions.of("evaluation", 0)
        assert found["basis"] == ("how many batches it has is not known" if count == 1 else "the highest of 1 evaluations")
        program.fit.plan.loading(training)
        program.step(4, 1)
        assert monitor._fit.predictions.of("evaluation", 0)["basis"] == "the highest of %d evaluations" % count


def test_an_evaluation_reads_its_loader_where_training_has_none(daemon, monitor, torch):
    program, loader = Program(torch, monitor), Loader(100)
    for _ in range(2):
        program.step(4, 16)
        evaluate(program, torch, loader, 5, lambda _: 20 * MIB)
        assert monitor._fit.predictions.of("evaluation", 0)["basis"] == "20.0 MiB kept of each of 100 batches"


def test_a_few_batches_before_training_are_no_evaluation(daemon, monitor, torch):
    program = Program(torch, monitor)
    loader, other = Loader(100), Loader(2)
    evaluate(program, torch, loader, 2, lambda _: 0)
    program.fit.plan.loading(other)
    program.step(4, 16)
    monitor.stop()
    daemon.wait_end()
    measured = [message.get("measured") for message in daemon.of("prediction") if message["phase"] == "evaluation"]
    assert measured == [2 * GIB + 64 * MIB], "its peak is known, until it is exceeded"


def test_what_an_evaluation_does_not_keep_after_all_is_withdrawn(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    loader = Loader(5000)
    # The output of the second batch is larger, and lives until the third one's.
    evaluate(program, torch, loader, 9, lambda batch: {1: 20 * MIB, 6: -20 * MIB}.get(batch, 0))

    def peaks():
        return [message["peak"] for message in daemon.of("prediction") if message["phase"] == "evaluation"]

    daemon.wait(lambda _: peaks() and peaks()[-1] < 3 * GIB)
    assert peaks()[0] > 40 * GIB


def test_an_evaluation_that_is_not_the_highest_memory_is_no_more_than_that(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    torch.cuda.peak = 8 * GIB
    loader = Loader(8)
    evaluate(program, torch, loader, 4, lambda _: 20 * MIB)
    program.fit.evaluation_begins()
    for _ in range(4):
        program.fit.evaluation_begins()
    program.fit._evaluations.end()
    found = prediction(daemon, "evaluation", basis="no more than the highest memory before it")
    assert found["peak"] == 8 * GIB and "measured" not in found


def test_a_model_that_generates_is_not_taken_for_an_evaluation_that_keeps_outputs(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    loader = Loader(20000)
    for _ in range(4):
        evaluate(program, torch, loader, 1, lambda _: 8 * MIB, calls=8)
    monitor.stop()
    daemon.wait_end()
    assert [message for message in daemon.of("prediction") if message["phase"] == "evaluation"] == []
