"""Predictions of the next phases, with a torch whose allocator the test moves."""

import json
import shutil
import socket
import threading
import time
from types import SimpleNamespace

import memwarden
import pytest
from conftest import PATIENCE
from memwarden import _fit_plan, _fit_verdict
from memwarden._fit_size import Batch, Curve, Footprint, Sizes, predicted

GIB = 1 << 30
MIB = 1 << 20


def prediction(daemon, phase, **wanted):
    """The last prediction of a phase that has these values."""

    def found(daemon):
        each = [message for message in daemon.of("prediction") if message["phase"] == phase]
        return [message for message in each if all(message.get(key) == value for key, value in wanted.items())]

    daemon.wait(found)
    return found(daemon)[-1]


class Program:
    """A model on the fake GPU: each step allocates 1 MiB a token until the end of forward, and half as much above it."""

    def __init__(self, torch, monitor):
        torch.cuda.initialize()
        self.torch, self.fit = torch, monitor._fit
        self.monitor = monitor
        weight = torch.Tensor([0.0], (1024, 1024), device="cuda:0", requires_grad=True)
        frozen = torch.Tensor([0.0], (1024, 1024), device="cuda:0")
        self.optimizer = torch.optim.AdamW([weight, frozen])
        self.static, self.n = 2 * GIB, 0
        torch.cuda.allocated = torch.cuda.peak = self.static
        monitor._fit.made(self.optimizer)
        torch.optim.optimizer.register_optimizer_step_pre_hook(lambda optimizer, *_: self.fit.before_step(optimizer))
        torch.optim.optimizer.register_optimizer_step_post_hook(lambda optimizer, *_: self.fit.after_step(optimizer))
        self.weight = weight

    def step(self, samples, length):
        cuda, tokens = self.torch.cuda, samples * length
        cuda.allocated = self.static
        self.fit.forward_begins(samples, length)
        cuda.allocated = self.static + tokens * MIB
        cuda.peak = max(cuda.peak, cuda.allocated)
        self.fit.forward_ends(None)
        cuda.peak = max(cuda.peak, self.static + tokens * MIB * 3 // 2)
        cuda.allocated = self.static
        self.weight.grad = self.torch.Tensor([0.0], (1024, 1024), device="cuda:0")
        self.optimizer.step()
        if not self.optimizer.state:
            self.optimizer.state[self.weight] = {
                name: self.torch.Tensor([0.0], (1024, 1024), device="cuda:0") for name in ("exp_avg", "exp_avg_sq")
            }
            self.static += 8 * MIB
        self.n += 1
        self.monitor.step(self.n, tokens=tokens)
        self.monitor._fit.refresh()


def test_the_optimizers_state_is_predicted_before_the_first_forward_and_before_the_first_step(daemon, monitor, torch):
    program = Program(torch, monitor)
    monitor.start()
    program.fit.forward_begins(2, 8)
    early = prediction(daemon, "optimizer", device="0")
    # The fake has no meta tensors: the table of names, so that it is an estimate.
    assert (early["certainty"], early["held"], early["due_step"]) == ("estimated", 2 * GIB, 1)
    assert early["peak"] - early["held"] == 4 * MIB + 8 * MIB
    program.weight.grad = torch.Tensor([0.0], (1024, 1024), device="cuda:0")
    torch.cuda.allocated += 4 * MIB
    program.fit.before_step(program.optimizer)
    late = prediction(daemon, "optimizer", held=2 * GIB + 4 * MIB)
    assert late["peak"] - late["held"] == 8 * MIB, "the gradients are there"


def test_the_largest_batch_is_predicted_from_smaller_ones(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.fit.plan._longest = (512, "the longest sample of the data")
    for length in (16, 16, 32, 24, 40, 16, 64):
        program.step(4, length)
    found = prediction(daemon, "step", step=7)
    assert (found["certainty"], found["size"]["units"], found["size"]["length"]) == ("estimated", 2048, 512)
    truth = program.static + 2048 * MIB * 3 // 2
    assert abs(found["peak"] - truth) <= 0.02 * truth and found["peak_p90"] >= found["peak"]
    assert "longest sample of the data" in found["basis"]


def test_the_first_steps_are_measured_and_then_few(daemon, monitor, torch, monkeypatch):
    program, measured = Program(torch, monitor), []
    ends = program.fit.batches.forward_ends
    monkeypatch.setattr(
        program.fit.batches, "forward_ends", lambda output: (measured.append(program.fit.batches.measuring), ends(output))
    )
    for _ in range(200):
        program.step(2, 8)
    assert [number for number, each in enumerate(measured) if each] == [*range(16), 128]
    # A larger one is measured at once.
    program.step(2, 16)
    assert measured[-1]


class Loader:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


def evaluate(program, torch, loader, batches, keeps, calls=1):
    """`keeps` says what is kept of each batch."""
    for batch in range(batches):
        program.fit.plan.loading(loader)
        for _ in range(calls):
            program.fit.evaluation_begins()
        torch.cuda.peak = max(torch.cuda.peak, torch.cuda.allocated + 64 * MIB)
        torch.cuda.allocated += keeps(batch)


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
    program.fit.evaluation_ends()
    found = prediction(daemon, "evaluation", device="0")
    assert found["peak"] == found["measured"] == torch.cuda.allocated + 64 * MIB


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
    program.fit.evaluation_ends()
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


def test_state_that_is_allocated_in_a_later_step_is_no_activation():
    footprint = Footprint()
    begun, lengths = 1000.0, [10, 20, 30, 40, 50, 60]
    for number, length in enumerate(lengths):
        batch = Batch(4 * length, 4, length)
        footprint.settle(begun)
        footprint.forward(batch, begun, begun + 8.0 * length, starts=True)
        footprint.base = begun
        # Experts that are used for the first time; a buffer of a library.
        begun += {2: 5000.0, 3: 16.0}.get(number, 0.0)
    footprint.settle(begun)
    curve = footprint.activations.curve(0.0)
    assert footprint.activations.seen(Batch(120, 4, 30)) is None and footprint.activations.seen(Batch(160, 4, 40)) == 304.0
    assert abs(curve.at(Batch(400, 4, 100)) - 800.0) <= 40.0


def test_what_rises_above_the_activations_lies_between_its_bounds():
    footprint = Footprint()
    for units, reached, resident, peak in ((100, 1100, 1000, 1150), (200, 1200, 1060, 1310), (0, 1000, 1000, 1001)):
        footprint.rose(Batch(units), reached, resident, 1000, peak)
    # At least 50 / 100 and (110 - 60) / 200 bytes a unit, at most 50 / 100 and 110 / 200.
    assert footprint.rise() == (0.5, 0.0)


def test_code_that_runs_the_first_time_is_no_part_of_what_rises():
    footprint = Footprint()
    footprint.rose(Batch(100), 1100, 1000, 1000, 1190)
    footprint.read_code(40.0)
    assert footprint.rise() == (0.5, 0.0)


def test_what_rises_grows_with_the_length_where_backward_computes_scores_again():
    def rise(*batches):
        footprint = Footprint()
        for batch, size in batches:
            footprint.rose(batch, 1000.0, 1000.0, 1000.0, 1000.0 + size)
        return footprint.rise()

    def bytes_of(batch):
        return 2.0 * batch.units + 0.5 * batch.units * batch.length

    shorter, longer = Batch(16, 2, 8), Batch(64, 2, 32)
    assert rise((shorter, bytes_of(shorter)), (longer, bytes_of(longer))) == (2.0, 0.5)
    # Nothing shrinks with the size.
    assert rise((Batch(16, 2, 8), 1.0), (Batch(64, 2, 32), 640.0)) == (0.0, 10.0 / 32)
    # More samples of the same length, or less for each token of a longer batch, are nothing of that.
    assert rise((Batch(16, 2, 8), 32.0), (Batch(64, 8, 8), 160.0)) == (2.5, 0.0)
    assert rise((Batch(16, 2, 8), 32.0), (Batch(64, 2, 32), 64.0)) == (1.0, 0.0)


def test_a_longer_batch_uses_little_of_what_malloc_keeps():
    footprint = Footprint()
    for length in (10, 20, 30, 40):
        footprint.forward(Batch(length, 1, length), 1000.0, 1000.0 + length, starts=True)
    footprint.rose(Batch(40, 1, 40), 1040, 1000, 1000, 1080)
    footprint.base, footprint.kept = 1000.0, 100.0
    least = 1000.0 + 2 * 80
    assert least + 0.8 * 100.0 <= footprint.curve(0.0).at(Batch(80, 1, 80)) < least + 100.0
    assert footprint.spread >= 0.03 * footprint.base
    assert not footprint.keeps(1105.0) and footprint.kept == 100.0
    assert footprint.keeps(1200.0) and footprint.kept == 200.0, "a step that was not measured made malloc keep more"
    # On a GPU, where the allocator's counters are exact.
    footprint.kept = 0.0
    assert footprint.spread == 0.0 and footprint.curve(0.0).at(Batch(80, 1, 80)) == least


class Samples:
    """A data set of `rows`, which may be in any of its attributes."""

    def __init__(self, count, **attributes):
        self.count = count
        vars(self).update(attributes)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        raise AssertionError("no sample is loaded")


class Subset:
    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices


def test_lengths_of_samples_in_memory_are_read(torch):
    from memwarden._fit_plan import _longest

    rows = [[1] * 3, [1] * 9, [1] * 5]
    tensors = [torch.Tensor(row, (len(row),), dtype=torch.int64) for row in rows]
    for dataset in (
        [{"input_ids": row} for row in rows],
        Samples(3, input_ids=rows),
        Samples(3, input_ids=tensors, labels=tensors),
        Samples(3, encodings={"input_ids": rows, "attention_mask": rows}),
        Samples(3, examples=[{"input_ids": row} for row in rows]),
    ):
        assert _longest(dataset) == 9, vars(dataset) if not isinstance(dataset, list) else dataset
    assert _longest(Subset([{"input_ids": row} for row in rows], [0, 2])) == 5, "a part of them"
    for dataset in (
        Samples(3, texts=["a" * 50] * 3),
        Samples(2, input_ids=rows),
        Samples(3, paths=[[1] * 9] * 3),
        Samples(3, examples=[("a text", 1)] * 3, data_mean=torch.Tensor([0.0], ())),
        [("a text", 1)] * 3,
        Subset(Samples(3, input_ids=rows), [0]),
        iter(rows),
        None,
    ):
        assert _longest(dataset) is None


def test_lengths_that_the_batches_exceed_are_not_believed():
    from memwarden._fit_plan import Plan
    from memwarden._fit_size import Batch

    plan = Plan()
    plan._longest, plan._differ = (9, "the longest sample of the data"), True
    assert plan.largest(Batch(8, 2, 4), 3)[:2] == (Batch(18, 2, 9), "the longest sample of the data")
    assert "largest of 3 batches" in plan.largest(Batch(24, 2, 12), 3).source


def test_the_longest_text_stands_for_the_longest_sample_where_batches_are_as_long_as_texts():
    from memwarden._fit_plan import Plan, _characters
    from memwarden._fit_size import Batch

    words = [10 + 7 * number % 50 for number in range(100)] + [200]
    for data in (["a" * 4 * each for each in words], Samples(101, names=["b"] * 7, texts=["a" * 4 * each for each in words])):
        assert _characters(data) == sorted(4 * each for each in words)
    assert _characters([{"label": "x", "text": "a" * 9}, {"label": "y", "text": "a" * 5}]) == [5, 9]
    assert _characters(Samples(2, examples=[("a" * 3, 1), ("a" * 2, 0)])) == [2, 3]
    for data in ([], [1, 2], Samples(3, values=[[1], [2], [3]]), iter(words), SimpleNamespace(texts=["a"]), None):
        assert _characters(data) == []

    def longest(lengths):
        plan = Plan()
        plan._characters = sorted(4 * each for each in words)
        for length in lengths:
            plan.output(None, Batch(length, 1, length))
        return plan.largest(Batch(max(lengths), 1, max(lengths)), len(lengths))

    batch, source, longer = longest(words[:16])
    assert abs(batch.units - 200) < 30 and source == "about the longest text of the data" and longer > 0.0
    for lengths in (words[:15], [min(each, 40) for each in words[:16]], [8 + 5 * (each // 20) ** 4 for each in words[:16]]):
        assert "the largest of" in longest(lengths).source, lengths


def test_what_each_new_size_allocates_for_good_is_expected_of_those_to_come():
    def growth(bytes_of, lengths, left=1000, longest=100):
        footprint, begun, seen = Footprint(), 1000.0, set()
        for length in lengths:
            footprint.forward(Batch(length, 1, length), begun, begun + 8.0 * length, starts=True)
            begun += 0.0 if length in seen else bytes_of(len(seen))
            seen.add(length)
        return footprint.growth(left, Batch(longest, 1, longest))

    # Of the lengths 41 to 100, 10 have occurred.
    assert abs(growth(lambda _: 16.0, range(40, 51)) - 50 * 16.0) < 1.0
    assert growth(lambda _: 16.0, range(40, 51), left=0) == 0.0
    assert 0.0 < growth(lambda _: 16.0, [*range(40, 51), *[45] * 8], left=10) < 5 * 16.0, "sizes are new less often"
    assert growth(lambda count: 5000.0 * (count == 3), range(40, 51)) == 0.0, "parameters that are used now"
    assert growth(lambda _: 16.0, range(40, 43)) == 0.0, "too few"


def test_batches_of_the_same_size_are_exact_although_the_peak_is_never_reset(daemon, monitor, torch):
    program = Program(torch, monitor)
    for _ in range(4):
        program.step(4, 16)
    daemon.wait(lambda daemon: any("same size" in message["basis"] for message in daemon.of("prediction")))
    found = prediction(daemon, "step", certainty="exact")
    assert found["peak"] == found["peak_p90"] == program.static + 64 * MIB * 3 // 2
    assert "same size" in found["basis"]


def test_a_prediction_that_does_not_change_is_sent_once(daemon, monitor, torch):
    program = Program(torch, monitor)
    for _ in range(20):
        program.step(4, 16)
    monitor.stop()
    daemon.wait_end()
    assert len([message for message in daemon.of("prediction") if message["phase"] == "step"]) <= 3


def test_a_daemon_that_starts_later_receives_the_predictions(path, monitor, torch, daemon):
    program = Program(torch, monitor)
    program.step(4, 16)
    daemon.wait_for("prediction")
    daemon.stop()
    daemon.restart()

    def again(daemon):
        monitor._session.link._retry_at = 0.0
        monitor._session.link.keep_up()
        fresh = daemon.connections[1:]
        return any(b'"optimizer"' in line and b"prediction" in line for each in fresh for line in each.lines)

    until = time.monotonic() + PATIENCE
    while not again(daemon):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_off_it_predicts_nothing(daemon, torch, monkeypatch):
    monkeypatch.setenv("MEMWARDEN_FIT", "off")
    monitor = memwarden.Monitor(interval=0, min_interval=0)
    Program(torch, monitor).step(4, 16)
    monitor.stop()
    daemon.wait_end()
    assert daemon.of("step") and daemon.of("prediction") == []


def answer(daemon, verdict, text):
    daemon.wait_for("prediction")
    line = json.dumps({"type": "verdict", "verdict": verdict, "text": text}) + "\n"
    daemon.connections[-1].socket.sendall(line.encode())


def test_the_verdict_is_printed_once_and_again_when_it_becomes_worse(daemon, monitor, torch, capsys):
    program = Program(torch, monitor)
    program.step(4, 16)
    answer(daemon, "fits", "peak 2.1 of 79.1 GiB; all fits\u001b[2J")
    monitor._session.link.receive()
    monitor._fit.refresh()
    monitor._fit.refresh()
    assert capsys.readouterr().err == "memwarden: peak 2.1 of 79.1 GiB; all fits?[2J\n"
    answer(daemon, "fits", "another number")
    monitor._session.link.receive()
    assert capsys.readouterr().err == ""
    for text in ("the longest batch may not fit", "another number"):
        answer(daemon, "tight", text)
        monitor._session.link.receive()
    assert capsys.readouterr().err == "memwarden: the longest batch may not fit\n"
    answer(daemon, "will_not_fit", "the longest batch needs 83 GiB")
    monitor._session.link.receive()
    assert capsys.readouterr().err == "memwarden: the longest batch needs 83 GiB\n"
    assert daemon.wait_for("hello")[-1]["verdicts"] is True


def test_without_a_verdict_the_sizes_are_printed(daemon, monitor, torch, capsys, monkeypatch):
    monkeypatch.setattr(_fit_verdict, "LINE_WAIT", -1.0)
    program = Program(torch, monitor)
    program.step(4, 16)
    shown = capsys.readouterr().err
    assert shown.startswith("memwarden: optimizer needs") and "step needs 2.1 GiB on GPU 0" in shown, shown


@pytest.mark.parametrize("line", [b"\xff", b"[]", b'{"type":"verdict","verdict":[1]}', b"{" * 100000, b'{"type":3}'])
def test_a_line_that_is_not_a_verdict_is_ignored(daemon, monitor, torch, line, monkeypatch):
    monkeypatch.setattr("memwarden._base.DEBUG", False)
    Program(torch, monitor).step(4, 16)
    monitor._fit.received(line)
    assert not (monitor._fit.verdicts.last or {}).get("verdict") == "will_not_fit"


def test_what_will_not_fit_is_printed_before_the_first_step(daemon, monitor, torch, capsys):
    program = Program(torch, monitor)
    monitor.start()
    program.fit.forward_begins(2, 8)
    assert monitor._fit.awaits
    answer(daemon, "will_not_fit", "the optimizer needs 120 GiB")
    daemon.wait(lambda _: (monitor._session.link.receive(), monitor._fit.verdicts.last)[1])
    assert capsys.readouterr().err == "memwarden: the optimizer needs 120 GiB\n"
    program.step(2, 8)
    assert monitor._fit.awaits, "for the verdict on what was predicted after the step"
    answer(daemon, "fits", "the largest step fits")
    daemon.wait(lambda _: (monitor._session.link.receive(), monitor._fit.predictions.answered.is_set())[1])
    monitor._fit.refresh()
    assert not monitor._fit.awaits and capsys.readouterr().err == "memwarden: the largest step fits\n"


def test_a_verdict_on_earlier_predictions_is_not_taken_for_the_line(daemon, monitor, torch, capsys):
    program = Program(torch, monitor)
    monitor.start()
    program.fit.forward_begins(2, 8)
    early = monitor._fit.predictions.sequence
    program.step(2, 8)
    late = monitor._fit.predictions.sequence
    assert 0 < early < late
    # The daemon answers a sample after it has read a prediction.
    for sequence, text in ((early, "the first optimizer step fits"), (late, "the largest step fits")):
        assert monitor._fit.awaits and not monitor._fit.predictions.answered.is_set()
        message = {"type": "verdict", "verdict": "fits", "text": text, "sequence": sequence}
        monitor._fit.received(json.dumps(message).encode())
        monitor._fit.refresh()
    assert capsys.readouterr().err == "memwarden: the largest step fits\n"


def test_earlier_runs_are_told_at_once_and_once(daemon, monitor, capsys):
    monitor.start()
    past = json.dumps({"type": "past", "text": "the last run of this command died after step 8\x1b"}).encode()
    for _ in range(2):
        monitor._fit.received(past)
    assert capsys.readouterr().err == "memwarden: the last run of this command died after step 8?\n"
    monitor._identity.facts.update(rank=1, world=2)
    monitor._fit.received(past.replace(b"8", b"9"))
    assert capsys.readouterr().err == ""


def test_a_run_that_will_not_fit_ends_before_the_optimizers_first_step(daemon, torch, monkeypatch, capsys):
    monkeypatch.setenv("MEMWARDEN_FIT", "abort")
    monitor = memwarden.Monitor(interval=0, min_interval=0)
    monitor.start()
    program = Program(torch, monitor)

    def judge():
        daemon.wait_for("prediction")
        answer(daemon, "will_not_fit", "the optimizer needs 120 GiB")

    judge = threading.Thread(target=judge)
    judge.start()
    monkeypatch.setattr(_fit_verdict, "ABORT_WAIT", PATIENCE)
    with pytest.raises(SystemExit) as ended:
        program.step(4, 16)
    judge.join()
    assert ended.value.code == 80 and not program.optimizer.state
    assert capsys.readouterr().err == "memwarden: the optimizer needs 120 GiB\n"
    monitor.stop()


def test_without_a_daemon_abort_waits_for_nobody(torch, monkeypatch):
    monkeypatch.setenv("MEMWARDEN_FIT", "abort")
    monkeypatch.setattr(_fit_verdict, "ABORT_WAIT", 10 * PATIENCE)
    monitor = memwarden.Monitor(interval=0, min_interval=0)
    begun = time.monotonic()
    Program(torch, monitor).step(4, 16)
    assert time.monotonic() - begun < PATIENCE
    monitor.stop()


def test_a_line_that_comes_in_pieces_is_one_line(monitor, daemon, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    daemon.wait_for("prediction")
    accepted = daemon.connections[-1].socket
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    for piece in (b'{"type":"verdict","ver', b'dict":"tight","text":"close"}\n{"type'):
        accepted.sendall(piece)
        monitor._session.link.receive()
    assert monitor._fit.verdicts.last["verdict"] == "tight"


# -- the curve


def test_a_line_is_found_through_noise_and_a_square_only_where_it_helps():
    straight, bent = Sizes(), Sizes()
    for place, length in enumerate((64, 128, 200, 256, 300, 400, 500)):
        batch = Batch(4 * length, 4, length)
        straight.add(batch, 1000.0 * batch.units + (7919 * place % 11 - 5) * 2000.0)
        bent.add(batch, 1000.0 * batch.units + 3.0 * batch.units * length)
    line = straight.curve(0.0)
    assert line.per_square == 0.0 and abs(line.at(Batch(8000, 4, 2000)) / 8e6 - 1) < 0.05
    curve = bent.curve(0.0)
    assert abs(curve.per_square - 3.0) < 0.01
    assert abs(curve.at(Batch(8000, 4, 2000)) / (8e6 + 3.0 * 8000 * 2000) - 1) < 0.01


def test_a_square_is_found_in_short_batches_some_of_which_have_buffers_of_libraries():
    sizes = Sizes()
    for place, length in enumerate((42, 48, 34, 35, 46, 43, 41, 31, 44)):
        batch = Batch(4 * length, 4, length)
        buffers = 0.1 * 4000.0 * batch.units if place in (1, 5) else 0.0
        sizes.add(batch, 4000.0 * batch.units + 9.0 * batch.units * length + buffers)
    longest = Batch(4096, 4, 1024)
    assert abs(sizes.curve(0.0).at(longest) / (4000.0 * 4096 + 9.0 * 4096 * 1024) - 1) < 0.05
    # Two lengths can differ by anything.
    two = Sizes()
    for length, size in ((10, 100.0), (20, 210.0)):
        two.add(Batch(length, 1, length), size)
    assert two.curve(0.0).per_square == 0.0


def test_one_size_gives_the_line_from_nothing():
    sizes = Sizes()
    sizes.add(Batch(64, 4, 16), 640.0)
    assert sizes.curve(0.0) == Curve(0.0, 10.0, 0.0, 0.0)
    assert Sizes().curve(0.0) is None


def test_sizes_that_are_near_each_other_do_not_turn_the_line():
    sizes = Sizes()
    # The first has buffers of libraries.
    sizes.add(Batch(152, 2, 76), 1520.0)
    sizes.add(Batch(150, 2, 75), 900.0)
    assert 6.0 <= sizes.curve(0.0).at(Batch(768, 2, 384)) / 768 <= 10.0
    early, later = (predicted(Curve(100.0, 1.0, 0.0, 0.0), Batch(50), None, early) for early in (True, False))
    assert early[0] == later[0] and early[1] > later[1] + 10.0


def test_the_kept_sizes_are_bounded_and_the_largest_stay():
    sizes = Sizes()
    for units in range(1000):
        sizes.add(Batch(units), float(units))
    assert len(sizes) == 256 and sizes.seen(Batch(999)) == 999.0 and sizes.seen(Batch(0)) is None


def test_a_size_that_was_seen_has_no_doubt():
    assert predicted(Curve(100.0, 1.0, 0.0, 5.0), Batch(50), 151.0) == (151.0, 151.0)
    p50, p90 = predicted(Curve(100.0, 1.0, 0.0, 5.0), Batch(50), None)
    assert p50 == 150.0 < p90


def test_a_step_with_a_closure_has_its_gradients_still_to_come(daemon, monitor, torch):
    program = Program(torch, monitor)
    monitor.start()
    program.fit.before_step(program.optimizer)
    found = prediction(daemon, "optimizer")
    assert found["peak"] - found["held"] == 4 * MIB + 8 * MIB


def test_an_optimizer_that_is_made_later_is_predicted_before_its_own_first_step(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    weight = torch.Tensor([0.0], (2048, 1024), device="cuda:0", requires_grad=True)
    weight.grad = torch.Tensor([0.0], (2048, 1024), device="cuda:0")
    later = torch.optim.AdamW([weight])
    later.step()
    found = prediction(daemon, "optimizer", step=1)
    assert found["peak"] - found["held"] == 2 * 8 * MIB


def test_parameters_that_are_unfrozen_are_predicted_again(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    frozen = program.optimizer.param_groups[0]["params"][1]
    frozen.requires_grad = True
    program.fit.batches.dirty = True
    program.fit.refresh()
    found = prediction(daemon, "optimizer", step=1, measured=None)
    assert found["peak"] - found["held"] == 4 * MIB + 8 * MIB and "measured" not in found


def test_a_model_on_two_devices_has_a_prediction_for_each(daemon, monitor, torch):
    torch.cuda.initialize()
    each = [torch.Tensor([0.0], (256, 1024), device="cuda:%d" % place, requires_grad=True) for place in (0, 1)]
    optimizer = torch.optim.AdamW(each)
    monitor.start()
    monitor._fit.made(optimizer)
    monitor._fit.forward_begins(1, 8)
    for place in "01":
        found = prediction(daemon, "optimizer", device=place)
        assert found["peak"] - found["held"] == 3 * MIB


def test_a_save_is_predicted_and_learned(daemon, monitor, torch):
    program = Program(torch, monitor)
    model = torch.nn.Module(weight=program.weight)
    program.fit.plan.model(model, lambda: [program.optimizer])
    program.step(4, 16)
    disk = prediction(daemon, "save", resource="disk")
    assert disk["held"] == 0 and disk["peak"] == 4 * MIB + 8 * MIB
    # From a device, safetensors copies all, and torch.save one tensor.
    host = prediction(daemon, "save", resource="host")
    assert abs(host["peak"] - host["held"] - 8 * MIB) <= MIB
    with monitor.checkpoint("/tmp/x", 1):
        pass
    learned = prediction(daemon, "save", resource="host", step=1, certainty="estimated")
    daemon.wait(lambda daemon: any("measured" in each for each in daemon.of("prediction") if each["phase"] == "save"))
    assert learned["resource"] == "host"


def test_what_is_free_for_a_save_is_stated(daemon, monitor, torch, tmp_path):
    program = Program(torch, monitor)
    model = torch.nn.Module(weight=program.weight)
    program.fit.plan.model(model, lambda: [program.optimizer])
    program.step(4, 16)
    assert "free" not in prediction(daemon, "save", resource="disk"), "the folder is not known"
    program.fit.plan.folder = str(tmp_path / "not" / "yet" / "there")
    program.fit.refresh()
    found = program.fit.predictions.messages[("save", "disk", None)]
    assert abs(found["free"] - shutil.disk_usage(tmp_path).free) <= GIB
    daemon.wait(lambda daemon: any("free" in each for each in daemon.of("prediction")))
    before = len(daemon.of("prediction"))
    program.fit.predictions.state_free(program.fit.plan.folder)
    assert program.fit.predictions.messages[("save", "disk", None)] == found and len(daemon.of("prediction")) == before


def test_a_folder_that_cannot_be_asked_has_no_free_bytes(monkeypatch):
    assert _fit_plan.free_of("") is None
    assert _fit_plan.free_of("/proc/self/cmdline/x") is not None
    monkeypatch.setattr("os.statvfs", lambda path: (_ for _ in ()).throw(PermissionError()))
    assert _fit_plan.free_of("/") is None


def test_data_that_states_its_lengths_is_not_read():
    class Data:
        lengths = [3, 900, 5]

        def __len__(self):
            return 3

    class Loader:
        _dataset = Data()

    assert _fit_plan.Plan()._lengths(Loader()) == (900, "the longest sample of the data")
    Data.lengths = [3]
    assert _fit_plan.Plan()._lengths(Loader()) is None
