"""One seed, all ranks of a run: the agreement on a step with a simulated clock, store and training.

The code of `_agreement` runs as it is, with two threads for each rank as in a program, of which one runs at a time, in an order
that the seed decides. `MEMWARDEN_SEEDS` and `MEMWARDEN_FIRST_SEED` play other seeds.
"""

import heapq
import os
import random
import threading
import types

import pytest
from memwarden import _agreement


class Over(BaseException):
    """The simulation ends."""


class Simulation:
    """Threads that run one at a time, each until it sleeps; the seed decides for how long."""

    def __init__(self, seed):
        self.random, self.now, self.over = random.Random(seed), 0.0, False
        self.waiting, self.count, self.trace = [], 0, []
        self.main, self.current, self.errors = threading.Semaphore(0), None, []

    def note(self, *what):
        self.trace.append("%9.4f %s" % (self.now, " ".join(map(str, what))))

    def start(self, work, at=0.0):
        fiber = types.SimpleNamespace(turn=threading.Semaphore(0), ended=False, killed=False)

        def run():
            fiber.turn.acquire()
            try:
                if not self.over:
                    work()
            except Over:
                pass
            except BaseException as error:
                self.errors.append(error)
            fiber.ended = True
            self.main.release()

        fiber.thread = threading.Thread(target=run, daemon=True)
        fiber.thread.start()
        self._push(at, fiber)
        return fiber

    def _push(self, at, fiber):
        self.count += 1
        heapq.heappush(self.waiting, (at, self.count, fiber))

    def sleep(self, seconds):
        fiber = self.current
        self._push(self.now + seconds, fiber)
        self.main.release()
        fiber.turn.acquire()
        if self.over or fiber.killed:
            raise Over

    def wait(self, ready, timeout):
        end, pause = self.now + timeout, 0.002
        while not ready() and self.now < end:
            self.sleep(min(pause, max(end - self.now, 0.0001)))
            pause = min(2 * pause, 0.05)
        return ready()

    def play(self, seconds):
        while self.waiting and not self.errors:
            at, _, fiber = heapq.heappop(self.waiting)
            self.over = self.over or at > seconds
            self.now, self.current = max(self.now, min(at, seconds)), fiber
            fiber.turn.release()
            self.main.acquire()
        self.over = True
        while self.waiting:
            self.current = heapq.heappop(self.waiting)[2]
            self.current.turn.release()
            self.main.acquire()
        if self.errors:
            raise self.errors[0]


class Event:
    def __init__(self, simulation):
        self.simulation, self.value = simulation, False

    def set(self):
        self.value = True

    def is_set(self):
        return self.value

    def wait(self, timeout):
        return self.simulation.wait(self.is_set, timeout)


class Lock:
    def __init__(self, simulation):
        self.simulation, self.held = simulation, False

    def acquire(self, timeout=0.0):
        taken = self.simulation.wait(lambda: not self.held, timeout)
        self.held = True
        return taken

    def release(self):
        if not self.held:
            raise RuntimeError("release unlocked lock")
        self.held = False


class Store:
    """A store with delays; where it `fails`, some calls raise, before or after they have had their effect."""

    def __init__(self, simulation, compares, fails, slow):
        self.simulation, self.compares, self.fails, self.slow = simulation, compares, fails, slow
        self.values = {}

    def _call(self, work):
        chance, sleep = self.simulation.random, self.simulation.sleep
        failure = chance.random() if self.fails else 1.0
        sleep(chance.uniform(0.0001, 0.003))
        if failure < 0.01:
            raise RuntimeError("Connection reset by peer")
        result = work()
        sleep(chance.uniform(0.2, 7.0) if self.slow and chance.random() < 0.02 else chance.uniform(0.0001, 0.003))
        if failure < 0.02:
            raise RuntimeError("Connection reset by peer")
        return result

    def add(self, key, value):
        def work():
            self.values[key] = int(self.values.get(key, 0)) + value
            return self.values[key]

        return self._call(work)

    def compare_set(self, key, expected, desired):
        if not self.compares:
            raise RuntimeError("Not implemented")

        def work():
            if str(self.values.get(key, "")) == expected:
                self.values[key] = int(desired)
            return str(self.values.get(key, expected)).encode()

        return self._call(work)


def play(seed, monkeypatch, sabotage=None):
    """What is wrong with this seed; nothing where all ranks save the same steps. Also returns the number of saves."""
    simulation = Simulation(seed)
    chance = simulation.random
    monkeypatch.setattr(_agreement, "_clock", lambda: simulation.now)
    monkeypatch.setattr(_agreement, "random", types.SimpleNamespace(uniform=chance.uniform))
    own = types.SimpleNamespace(Event=lambda: Event(simulation), Lock=lambda: Lock(simulation))
    monkeypatch.setattr(_agreement, "threading", own)
    world, together = chance.randint(2, 6), chance.random() < 0.6
    fails, slow = chance.random() < 0.25, chance.random() < 0.25
    store = Store(simulation, chance.random() < 0.8, fails, slow)
    monkeypatch.setattr(_agreement, "default_store", lambda: (store, world))
    pace, steps = chance.choice([0.005, 0.02, 0.1]), 400
    ranks = []

    def train(rank):
        for n in range(1, steps + 1):
            simulation.sleep(pace * chance.uniform(0.8, 1.2) + (0.5 if chance.random() < 0.001 else 0.0))
            rank.reached = n
            if together:
                # A collective: no rank begins its next step before all have ended this one.
                simulation.wait(lambda: all(other.reached >= n for other in ranks), 1e9)
            if rank.agreement.boundary(n):
                rank.saved.append(n)
                simulation.note("rank", rank.number, "saves step", n)
                simulation.sleep(chance.uniform(0.01, 0.5))
                rank.agreement.done()
        rank.agreement.end()
        rank.wake.set()

    for number in range(world):
        rank = types.SimpleNamespace(number=number, saved=[], told=[], reached=0, wake=Event(simulation))

        def tell(what, detail, rank=rank):
            rank.told.append((what, detail))
            simulation.note("rank", rank.number, what, detail)

        rank.agreement = _agreement._Agreement(tell)
        if sabotage:
            sabotage(rank.agreement, simulation)
        ranks.append(rank)
    for rank in ranks:
        late = chance.uniform(0.0, 2.0)
        simulation.start(lambda rank=rank: train(rank), late)
        simulation.start(lambda rank=rank: rank.agreement.run(rank.wake), late + chance.uniform(0.0, 0.2))
    for _ in range(chance.randint(1, 3)):
        rank, at = chance.choice(ranks), chance.uniform(0.5, steps * pace)

        def ask(rank=rank):
            simulation.note("rank", rank.number, "is asked")
            rank.agreement.ask()

        simulation.start(ask, at)
    simulation.play(steps * pace * 3 + 90.0)
    saved = sorted({n for rank in ranks for n in rank.saved})
    alone = any(what == "local" for rank in ranks for what, _ in rank.told)
    agreed = [detail for rank in ranks for what, detail in rank.told if what == "agreed"]
    for n in saved:
        for rank in ranks:
            # A rank that did not save says so, and only where the store did not answer in time.
            excused = (slow or fails) and any(what == "failed" for what, _ in rank.told)
            # Nor are ranks waited for whose first call of the store takes longer than SETTLE, which is said.
            few = slow and any(detail.get("at") == n and detail["ranks"] < world for detail in agreed)
            if n not in rank.saved and rank.reached > n and not (excused or few or alone):
                what = "seed %d: step %d was saved by some ranks, and not by rank %d" % (seed, n, rank.number)
                return "\n".join(simulation.trace + [what]), len(saved)
    for rank in ranks:
        if rank.agreement.asked:
            return "\n".join(simulation.trace + ["seed %d: rank %d waits for ever" % (seed, rank.number)]), len(saved)
    return None, len(saved)


def seeds(usual):
    first = int(os.environ.get("MEMWARDEN_FIRST_SEED", "0"))
    return range(first, first + int(os.environ.get("MEMWARDEN_SEEDS", usual)))


def test_all_ranks_save_the_same_step_or_none_does(monkeypatch):
    saves = 0
    for seed in seeds("40"):
        wrong, count = play(seed, monkeypatch)
        assert wrong is None, wrong
        saves += count
    assert saves > 0


def test_a_seed_plays_the_same_each_time(monkeypatch):
    def never(agreement, simulation):
        traces.append(simulation.trace)

    traces = []
    for _ in range(2):
        play(3, monkeypatch, never)
    assert traces[0] and traces[0] == traces[-1]


def does_not_confirm(agreement, simulation):
    """Decides to save without waiting for the others."""
    add = agreement._add
    agreement._add = lambda name, value, shared=False: 99 if (name, value) == ("confirmed", 0) else add(name, value, shared)


def ignores_being_late(agreement, simulation):
    """A rank that is past the step confirms it all the same."""
    join = agreement._join

    def joined(at):
        reached, agreement.reached = agreement.reached, 0
        join(at)
        agreement.reached = max(reached, agreement.reached)

    agreement._join = joined


def does_not_wait_for_the_decision(agreement, simulation):
    arrive = agreement._arrive

    def arrived():
        if agreement._plan is not None:
            agreement._plan.decided.wait = lambda timeout: agreement._plan.decided.is_set()
        return arrive()

    agreement._arrive = arrived


@pytest.mark.parametrize("sabotage", [does_not_confirm, ignores_being_late, does_not_wait_for_the_decision])
def test_a_planted_defect_is_found(monkeypatch, sabotage):
    for seed in range(1000):
        wrong, _ = play(seed, monkeypatch, sabotage)
        if wrong is not None:
            print("seed %d" % seed)
            return
    raise AssertionError("not found")
