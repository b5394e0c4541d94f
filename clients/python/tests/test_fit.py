"""Predictions of the next phases, and what is said of them, with a torch whose allocator the test moves."""

import json
import socket
import threading
import time

import memwarden
import pytest
from conftest import PATIENCE
from fit_program import GIB, MIB, Program, prediction
from memwarden import _fit_verdict


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


def test_the_first_pass_over_the_data_is_reported_while_it_lasts(daemon, monitor, torch):
    class Iterator(list):
        """Of three batches, and with weak references."""

    program, first = Program(torch, monitor), Iterator((0, 1, 2))
    said = []
    for _ in first:
        program.fit.plan.loading(first)
        program.step(4, 16)
        said.append(json.loads(program.fit.batches._steps.line).get("first_pass_left"))
    program.fit.plan.loading(Iterator((0, 1)))
    assert (said, program.fit.plan.first_pass_left()) == ([2, 1, None], None)


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


def test_a_line_that_differs_in_its_numbers_only_is_printed_once(daemon, monitor, torch, capsys):
    program = Program(torch, monitor)
    monitor.start()
    program.fit.forward_begins(2, 8)
    shown = []
    # Before the first step, as the line after it, and when nothing has changed but memory that is free.
    for text in ("the save needs 4.3 GiB: 1.3 GiB is available", "the save needs 4.3 GiB: 998.5 MiB is available"):
        message = {"type": "verdict", "verdict": "will_not_fit", "text": text}
        monitor._fit.received(json.dumps(message).encode())
        program.step(2, 8)
        shown += capsys.readouterr().err.splitlines()
    assert shown == ["memwarden: the save needs 4.3 GiB: 1.3 GiB is available"]
    monitor._fit.received(json.dumps(dict(message, verdict="fits", text="the save needs 4.3 GiB and fits")).encode())
    monitor._fit.verdicts.say(monitor._fit.verdicts.last)
    assert capsys.readouterr().err == "memwarden: the save needs 4.3 GiB and fits\n"


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


@pytest.fixture
def aborts(daemon, torch, monkeypatch):
    """A program with `MEMWARDEN_FIT=abort` whose predictions no longer change by its steps."""
    monkeypatch.setenv("MEMWARDEN_FIT", "abort")
    monkeypatch.setattr(_fit_verdict, "ABORT_WAIT", 0.0)
    monitor = memwarden.Monitor(interval=0, min_interval=0)
    program = Program(torch, monitor)
    for _ in range(4):
        program.step(4, 16)
    yield program
    monitor.stop()


def save(program, held=800, more=400, spread=10, basis="state dict of 9 MiB", **keys):
    """The prediction of a save; sizes in MiB. Returns its number."""
    peak = (held + more) * MIB
    program.fit.predictions.state("save", None, peak, held=held * MIB, p90=peak + spread * MIB, basis=basis, **keys)
    return program.fit.predictions.sequence


def ends(program, sequence):
    """Whether the program ends itself in its next step, after the verdict on the predictions up to this number."""
    message = {"type": "verdict", "verdict": "will_not_fit", "text": "the save will not fit", "sequence": sequence}
    program.fit.received(json.dumps(message).encode())
    try:
        program.step(4, 16)
    except SystemExit as ended:
        return ended.code == 80
    return False


def test_a_daemon_that_is_always_one_restatement_behind_ends_a_run(aborts):
    # As the resident memory of a Trainer moves from second to second.
    behind = save(aborts, held=863)
    assert behind < save(aborts, held=799) < save(aborts, held=945)
    assert ends(aborts, behind)


@pytest.mark.parametrize(
    "change",
    [
        {"more": 520},
        {"more": 300},
        {"spread": 200},
        {"basis": "the save that was measured"},
        {"exact": True},
        {"due_step": 40},
        {"held": 500, "more": 550},
    ],
)
def test_a_verdict_on_a_prediction_that_changed_ends_nothing(aborts, change):
    behind = save(aborts)
    ahead = save(aborts, **change)
    assert ahead > behind and not ends(aborts, behind)
    assert ends(aborts, ahead)


def test_a_verdict_from_before_a_phase_was_predicted_ends_nothing(aborts):
    behind = save(aborts)
    aborts.fit.predictions.state("evaluation", None, 100 * MIB, held=0, basis="logits")
    assert not ends(aborts, behind)
    assert ends(aborts, aborts.fit.predictions.sequence)


def test_predictions_that_change_without_a_verdict_take_no_more_memory(aborts):
    for held in range(100):
        save(aborts, held=800 + 40 * (held % 2))
    assert max(len(sent) for sent in aborts.fit.predictions._sent.values()) <= 64
    save(aborts)
    assert not ends(aborts, 1) and ends(aborts, aborts.fit.predictions.sequence)


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
