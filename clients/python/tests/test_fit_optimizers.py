"""The first step of optimizers in unusual programs, with a torch whose allocator the test moves."""

import memwarden
import pytest
from fit_program import GIB, MIB, Program, prediction


def last(monitor, phase, place):
    """What was predicted last, whether it was sent or not."""
    return monitor._fit.predictions.of(phase, place)


def kept(torch, size, place):
    return torch.Tensor([0.0], (size // 4,), device=place)


class Offloaded(Program):
    """All parameters are on the host, and the activations on the GPU."""

    def __init__(self, torch, monitor):
        super().__init__(torch, monitor)
        weight = torch.Tensor([0.0], (1024, 1024), requires_grad=True)
        self.optimizer.param_groups[0]["params"] = [weight]
        self.weight = weight


def test_a_model_whose_parameters_are_on_the_host_is_predicted_on_the_gpu(daemon, monitor, torch):
    program = Offloaded(torch, monitor)
    for length in (16, 24, 40, 64):
        program.step(4, length)
    found = prediction(daemon, "step", resource="device", step=4)
    assert abs(found["peak"] - torch.cuda.peak) <= 0.01 * torch.cuda.peak and found["device"] == "0"
    host = prediction(daemon, "optimizer", resource="host")
    assert host["basis"] == "gradients 0 B, state of AdamW 8.0 MiB"
    assert not last(monitor, "optimizer", 0), "the optimizer takes nothing there"
    # The state that is kept on the host was made.
    assert prediction(daemon, "optimizer", resource="host", step=0)["held"] <= last(monitor, "optimizer", None)["measured"]


@pytest.mark.parametrize("bytes_elsewhere, places", [(0, [0]), (4096, [0]), (8 * MIB, [0, 1])])
def test_devices_are_those_on_which_there_is_a_part_of_the_model(monitor, torch, bytes_elsewhere, places):
    program = Program(torch, monitor)
    torch.cuda.elsewhere = bytes_elsewhere
    program.fit.forward_begins(1, 8)
    assert program.fit.first_step.places == places


def test_a_run_on_the_host_is_predicted_there_although_there_is_a_gpu(monitor, torch):
    program = Offloaded(torch, monitor)
    torch.cuda.allocated = 0
    program.fit.forward_begins(1, 8)
    assert program.fit.first_step.places == [None]


class Divided(Program):
    """A model on two GPUs, whose second part is frozen: each token takes a quarter as much there."""

    def step(self, samples, length):
        cuda, fit, size = self.torch.cuda, self.fit, samples * length * MIB // 4
        cuda.elsewhere = GIB
        forward_ends = fit.forward_ends

        def ends(output):
            cuda.elsewhere = GIB + size
            cuda.peak_elsewhere = max(cuda.peak_elsewhere, GIB + 2 * size)
            forward_ends(output)

        fit.forward_ends = ends
        super().step(samples, length)
        fit.forward_ends = forward_ends


def test_steps_of_a_model_on_two_devices_are_predicted_on_each(daemon, monitor, torch):
    program = Divided(torch, monitor)
    program.fit.plan._longest = (128, "the longest sample of the data")
    for length in (16, 24, 40, 64):
        program.step(4, length)
    for place, truth in ((0, program.static + 512 * MIB * 3 // 2), (1, GIB + 512 * MIB // 2)):
        found = last(monitor, "step", place)
        assert abs(found["peak"] - truth) <= 0.02 * truth, (place, found)
    assert not last(monitor, "optimizer", 1), "nothing is trained there"


def step_of(program, allocates, highest):
    """A first step of the optimizer that keeps `allocates` bytes, and whose highest is `highest`."""
    cuda, torch = program.torch.cuda, program.torch
    program.weight.grad = kept(torch, 4 * MIB, "cuda:0")
    program.fit.before_step(program.optimizer)
    cuda.peak = max(cuda.peak, highest)
    cuda.allocated += allocates
    program.optimizer.state[program.weight] = {"exp_avg": kept(torch, allocates, "cuda:0")}
    program.fit.after_step(program.optimizer)


def test_what_an_optimizer_took_is_not_the_peak_of_what_was_before_it(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.fit.forward_begins(1, 8)
    # As while a model is loaded.
    torch.cuda.peak = 40 * GIB
    step_of(program, 8 * MIB, 3 * GIB)
    found = last(monitor, "optimizer", 0)
    assert found["measured"] == 2 * GIB + 8 * MIB
    assert found["basis"].endswith("; it took at most 40.0 GiB, the highest before it")
    program.fit.step_ended()
    assert last(monitor, "step", 0).get("peak", 0) < 4 * GIB


def test_what_an_optimizer_took_is_its_peak_where_that_is_the_highest(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.fit.forward_begins(1, 8)
    step_of(program, 8 * MIB, 3 * GIB)
    found = last(monitor, "optimizer", 0)
    assert found["measured"] == 3 * GIB and "at most" not in found["basis"]


def test_parameters_that_are_added_are_predicted_before_their_first_step(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    added = torch.Tensor([0.0], (2048, 1024), device="cuda:0", requires_grad=True)
    added.grad = torch.Tensor([0.0], (2048, 1024), device="cuda:0")
    program.optimizer.param_groups.append({"params": [added]})
    program.fit.before_step(program.optimizer)
    found = prediction(daemon, "optimizer", step=1)
    assert found["peak"] - found["held"] == 2 * 8 * MIB and "measured" not in found
    program.optimizer.state[added] = {"exp_avg": kept(torch, 16 * MIB, "cuda:0")}
    torch.cuda.allocated += 16 * MIB
    program.fit.after_step(program.optimizer)
    assert last(monitor, "optimizer", 0)["measured"] == torch.cuda.allocated
    assert not program.fit.first_step.before(program.optimizer), "it is predicted once"


def test_parameters_that_are_unfrozen_between_steps_that_are_not_measured_are_predicted(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    program.optimizer.param_groups[0]["params"][1].requires_grad = True
    assert not program.fit.batches.dirty
    program.fit.refresh()
    found = prediction(daemon, "optimizer", step=1, measured=None)
    assert found["peak"] - found["held"] == 4 * MIB + 8 * MIB


def test_parameters_that_are_frozen_for_a_while_are_not_predicted_again(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    assert "measured" in last(monitor, "optimizer", 0)
    for _ in range(20):
        for requires_grad in (False, True):
            program.weight.requires_grad = requires_grad
            program.fit.refresh()
            assert "measured" in last(monitor, "optimizer", 0)


def test_an_optimizer_that_is_made_later_leaves_what_is_known_of_the_first(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    later = torch.optim.AdamW([torch.Tensor([0.0], (1024,), device="cuda:0", requires_grad=True)])
    program.fit.made(later)
    program.fit.refresh()
    assert "measured" in last(monitor, "optimizer", 0) and not program.fit.first_step.before(program.optimizer)


def test_many_groups_are_added_one_after_another(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.step(4, 16)
    for _ in range(20):
        program.optimizer.param_groups.append({"params": [kept(torch, 4 * MIB, "cuda:0")]})
        assert program.fit.first_step.before(program.optimizer)
        program.fit.first_step.after(program.optimizer)


def test_a_step_that_makes_no_state_confirms_nothing(daemon, monitor, torch):
    program = Program(torch, monitor)
    program.optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    for _ in range(3):
        # A fused optimizer is called although the gradients overflowed, or a wrapper has no state of its own.
        program.fit.forward_begins(1, 8)
        program.fit.before_step(program.optimizer)
        program.fit.after_step(program.optimizer)
        found = last(monitor, "optimizer", 0)
        assert "measured" not in found and found["peak"] == found["held"] + 4 * MIB + 8 * MIB
    step_of(program, 8 * MIB, 0)
    assert last(monitor, "optimizer", 0)["measured"] == torch.cuda.allocated


def test_the_program_resets_the_peak_in_a_phase(monitor, torch):
    from memwarden._fit_memory import highest_since, mark

    torch.cuda.initialize()
    torch.cuda.allocated, torch.cuda.peak = 2 * GIB, 9 * GIB
    begun = mark(0)
    torch.cuda.peak = 3 * GIB
    assert highest_since(0, begun) == (3 * GIB, 3 * GIB)
    torch.cuda.peak = 9 * GIB
    assert highest_since(0, begun) == (2 * GIB, 9 * GIB)
    assert memwarden._process._allocated_on(0)[1] == 9 * GIB, "nothing resets it"


@pytest.mark.parametrize("place, size, certainty", [("cuda:0", 4 * MIB, "unknown"), ("cuda:0", 4096, "estimated"), ("cpu", 4 * MIB, "estimated")])
def test_state_that_is_paged_is_no_memory_of_the_allocator(monitor, torch, place, size, certainty):
    class PagedAdamW8bit(torch.optim.Optimizer):
        is_paged = True

    PagedAdamW8bit.__module__ = "bitsandbytes.optim.adamw"
    torch.cuda.initialize()
    optimizer = PagedAdamW8bit([torch.Tensor([0.0], (size // 4,), device=place, requires_grad=True)])
    monitor._fit.made(optimizer)
    monitor._fit.forward_begins(1, 8)
    found = last(monitor, "optimizer", 0 if place == "cuda:0" else None)
    assert found["certainty"] == certainty
    assert certainty != "unknown" or found["basis"] == "PagedAdamW8bit: its state is paged between the host and the device"


def test_optimizers_that_are_made_in_each_step_are_predicted_a_few_times(daemon, monitor, torch, monkeypatch):
    program = Program(torch, monitor)
    program.step(4, 16)
    tries = []
    monkeypatch.setattr(program.fit.first_step, "predict", lambda _: tries.append(1))
    for _ in range(100):
        inner = torch.optim.AdamW([program.weight])
        program.fit.made(inner)
        program.fit.before_step(inner)
        inner.state[program.weight] = {"exp_avg": program.weight}
        program.fit.after_step(inner)
    assert 0 < len(tries) < 10


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


def test_a_step_that_is_captured_once_and_replayed_keeps_its_predictions(daemon, monitor, torch):
    program = Program(torch, monitor)
    # The hooks run while the graph is captured, and in no replay.
    program.step(4, 16)
    before = {phase: last(monitor, phase, 0) for phase in ("optimizer", "step")}
    for number in range(2, 200):
        monitor.step(number, tokens=64)
        monitor._fit.refresh()
    assert {phase: last(monitor, phase, 0) for phase in before} == before
    assert before["step"]["measured"] and before["optimizer"]["measured"] and torch.synchronizations == 0


def test_an_optimizer_that_has_not_stepped_yet_may_take_more(daemon, monitor, torch):
    program = Program(torch, monitor)
    other = torch.optim.AdamW([torch.Tensor([0.0], (64 * 1024, 1024), device="cuda:0", requires_grad=True)])
    monitor._fit.made(other)
    program.step(4, 16)
    found = last(monitor, "optimizer", 0)
    assert "AdamW has not stepped yet" in found["basis"] and found["peak_p90"] - found["peak"] == 3 * 256 * MIB
    assert "measured" not in found and found["peak"] == found["held"]
    step = last(monitor, "step", 0)
    assert step["peak_p90"] - step["peak"] >= 3 * 256 * MIB


def test_an_optimizer_whose_state_grows_leaves_the_step_a_least_amount(daemon, monitor, torch):
    program = Program(torch, monitor)
    type(program.optimizer).__name__, name = "LBFGS", type(program.optimizer).__name__
    try:
        program.step(4, 16)
    finally:
        type(program.optimizer).__name__ = name
    step = last(monitor, "step", 0)
    assert step["least"] and step["basis"].startswith("LBFGS: its state grows with its history")
