"""The ranks of a run agree on the step of a checkpoint: with a store that all of them share, in one process."""

import sys
import threading
import time
import types

import memwarden
import pytest
from conftest import PATIENCE
from memwarden import _agreement
from memwarden._agreement import _Agreement


class Store:
    """What torch's stores have in common; `broken` raises, `hangs` waits until it is set."""

    def __init__(self, compares=True):
        self.values, self.lock, self.calls = {}, threading.Lock(), 0
        self.broken, self.hangs, self.compares = False, None, compares

    def _call(self):
        self.calls += 1
        if self.hangs is not None:
            self.hangs.wait(PATIENCE)
        if self.broken:
            raise RuntimeError("Connection reset by peer")

    def add(self, key, value):
        self._call()
        with self.lock:
            self.values[key] = int(self.values.get(key, 0)) + value
            return self.values[key]

    def compare_set(self, key, expected, desired):
        self._call()
        if not self.compares:
            raise RuntimeError("Not implemented")
        with self.lock:
            if str(self.values.get(key, "")) == expected:
                self.values[key] = int(desired)
            return str(self.values.get(key, expected)).encode()


class Rank:
    def __init__(self):
        self.told, self.saved = [], []
        self.agreement = _Agreement(lambda what, detail: self.told.append((what, detail)))

    def step(self, n):
        if self.agreement.boundary(n):
            self.saved.append(n)
            self.agreement.done()


@pytest.fixture
def store():
    return Store()


def steady(rank):
    """100 steps a second, whatever the clock of the test says."""
    rank.agreement._rates.append(100.0)
    rank.agreement._measure = lambda now: None
    return rank


@pytest.fixture
def ranks(monkeypatch, store):
    """Four, whose threads are the test itself; steps of 10 ms, so that a proposal is 300 steps ahead."""
    monkeypatch.setattr(_agreement, "default_store", lambda: (store, 4))
    monkeypatch.setattr(_agreement, "DECISION_WAIT", 0.01)
    monkeypatch.setattr(_agreement, "LEAD_POLLS", 30)
    made = [Rank() for _ in range(4)]
    for rank in made:
        steady(rank).agreement.boundary(100)
    tick(made)
    return made


def tick(ranks, rounds=4):
    for _ in range(rounds):
        for rank in ranks:
            rank.agreement._next = 0.0
            rank.agreement.tick()


def run(ranks, first, last):
    for n in range(first, last + 1):
        for rank in ranks:
            rank.step(n)


def test_all_ranks_save_at_the_step_that_one_was_asked_for(ranks):
    ranks[2].agreement.ask()
    tick(ranks)
    run(ranks, 101, 1000)
    assert [rank.saved for rank in ranks] == [[400]] * 4
    assert ranks[0].told == [("agreed", {"at": 400, "ranks": 4, "world": 4})]


def test_without_compare_set_as_well(ranks, store):
    store.compares = False
    ranks[0].agreement.ask()
    ranks[3].agreement.ask()
    tick(ranks)
    run(ranks, 101, 500)
    assert [rank.saved for rank in ranks] == [[400]] * 4


def test_two_ranks_that_ask_at_once_yield_one_step(ranks):
    ranks[3].agreement.reached = 105
    ranks[0].agreement.ask()
    ranks[3].agreement.ask()
    tick(ranks)
    run(ranks, 106, 1000)
    tick(ranks)
    run(ranks, 1001, 2000)
    assert [rank.saved for rank in ranks] == [[400]] * 4, "and the request of the other is answered by it"


def test_a_later_request_is_another_save(ranks):
    ranks[0].agreement.ask()
    tick(ranks)
    run(ranks, 101, 500)
    ranks[1].agreement.ask()
    tick(ranks)
    run(ranks, 501, 1000)
    assert [rank.saved for rank in ranks] == [[400, 800]] * 4


def test_ranks_of_one_node_agree_within_a_second(monkeypatch, store):
    """With their threads: two ranks with steps of 10 ms."""
    monkeypatch.setattr(_agreement, "default_store", lambda: (store, 2))
    ranks, ends = [Rank(), Rank()], threading.Event()
    threads = [threading.Thread(target=rank.agreement.run, args=(ends,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    taken = []
    try:
        step, deadline = 0, time.monotonic() + PATIENCE
        # The best of several, since the machine may be busy.
        while min(taken, default=9) > 0.9 and time.monotonic() < deadline:
            asked, before = time.monotonic(), len(ranks[0].saved)
            ranks[1].agreement.ask()
            while len(ranks[0].saved) == before and ranks[1].agreement.asked and time.monotonic() < deadline:
                step += 1
                for rank in ranks:
                    rank.step(step)
                time.sleep(0.01)
            if len(ranks[0].saved) > before:
                taken.append(time.monotonic() - asked)
    finally:
        ends.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert min(taken) <= 0.9, taken
    assert ranks[0].saved == ranks[1].saved


def test_a_rank_that_is_past_the_step_makes_a_later_one(ranks):
    ranks[0].agreement.ask()
    tick(ranks[:3])
    run(ranks[3:], 101, 600)
    tick(ranks)
    run(ranks[:3], 101, 600)
    tick(ranks)
    # Twice as far ahead as in the first round.
    assert {rank.agreement.at for rank in ranks} == {1200}
    run(ranks, 601, 1300)
    assert [rank.saved for rank in ranks] == [[1200]] * 4


def test_a_rank_that_does_not_confirm_before_the_step_makes_none_save(ranks):
    ranks[0].agreement.ask()
    # The thread of rank 3 has not run: its training thread goes on beside the others.
    tick(ranks[:3])
    run(ranks, 101, 500)
    assert [rank.saved for rank in ranks] == [[]] * 4
    tick(ranks)
    assert {rank.agreement.at for rank in ranks} == {1100}, "the next round"
    run(ranks, 501, 1200)
    assert [rank.saved for rank in ranks] == [[1100]] * 4


def test_after_several_rounds_in_vain_the_request_has_failed(ranks):
    ranks[0].agreement.ask()
    for round in range(1, 6):
        tick(ranks[:3], 1)
        run(ranks, round * 10000, round * 10000 + 5000)
        tick(ranks[:3], 1)
    failed = [detail["reason"] for what, detail in ranks[0].told if what == "failed"]
    assert failed == ["a rank was past the agreed step in each of 4 rounds"]
    assert all(not rank.saved for rank in ranks) and not ranks[0].agreement.asked


def test_a_rank_that_evaluates_is_waited_for(ranks):
    ranks[1].agreement.ask()
    tick(ranks)
    run(ranks, 101, 399)
    tick(ranks, 20)
    assert {rank.agreement.at for rank in ranks} == {400}
    run(ranks, 400, 401)
    assert [rank.saved for rank in ranks] == [[400]] * 4


def test_training_that_ends_before_the_step_says_so(ranks):
    ranks[1].agreement.ask()
    tick(ranks)
    run(ranks, 101, 200)
    for rank in ranks:
        rank.agreement.end()
    reason = "training ended at step 200, before the agreed step 400"
    assert [rank.told[-1] for rank in ranks] == [("failed", {"reason": reason})] * 4


def test_a_rank_that_left_is_not_waited_for(ranks, monkeypatch):
    monkeypatch.setattr(_agreement, "SETTLE", 0.0)
    ranks[3].agreement.leave()
    ranks[0].agreement.ask()
    tick(ranks[:3])
    run(ranks[:3], 101, 500)
    assert [rank.saved for rank in ranks] == [[400], [400], [400], []]
    assert ranks[0].told[-1][1]["ranks"] == 3


def test_the_only_rank_with_a_client_saves_alone_and_says_so(monkeypatch, store):
    monkeypatch.setattr(_agreement, "default_store", lambda: (store, 4))
    monkeypatch.setattr(_agreement, "SETTLE", 0.0)
    rank = Rank()
    rank.agreement.boundary(7)
    rank.agreement.ask()
    tick([rank])
    run([rank], 8, 9)
    assert rank.saved == [8]
    assert rank.told == [("local", {"reason": "no other rank of 4 runs the client"})]


def test_a_group_without_a_store_saves_alone_and_says_so(monkeypatch):
    monkeypatch.setattr(_agreement, "default_store", lambda: (None, 4))
    rank = Rank()
    rank.agreement.ask()
    tick([rank])
    run([rank], 1, 2)
    assert rank.saved == [1] and rank.told == [("local", {"reason": "the process group has no store"})]


def test_a_member_that_comes_late_leaves_decided_rounds_out(ranks, monkeypatch, store):
    ranks[0].agreement.ask()
    tick(ranks)
    run(ranks, 101, 500)
    ranks[3].agreement.leave()
    ranks[3] = steady(Rank())
    ranks[3].agreement.boundary(500)
    tick(ranks)
    ranks[3].agreement.ask()
    tick(ranks)
    run(ranks, 501, 1000)
    assert [rank.saved for rank in ranks] == [[400, 800]] * 3 + [[800]]


def test_a_restart_has_its_own_rounds(ranks, store, monkeypatch):
    ranks[0].agreement.ask()
    tick(ranks)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = [Rank() for _ in range(4)]
    for rank in again:
        rank.agreement.boundary(10)
    tick(again)
    assert [rank.agreement.at for rank in again] == [None] * 4
    assert store.values["memwarden/1/members"] == 4


def test_a_store_that_fails_fails_the_request_and_not_the_training(ranks, store, monkeypatch):
    monkeypatch.setattr(_agreement, "GIVE_UP", 0.0)
    store.broken = True
    rank = ranks[0]
    rank.agreement.ask()
    wake = threading.Event()
    thread = threading.Thread(target=rank.agreement.run, args=(wake,), daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not rank.agreement._error and time.monotonic() < deadline:
        time.sleep(0.01)
    rank.agreement.watch()
    wake.set()
    thread.join(PATIENCE)
    assert rank.told == [("failed", {"reason": "the store failed: Connection reset by peer"})]
    run([rank], 101, 1000)
    assert rank.saved == []


def test_a_store_that_hangs_does_not_hold_up_training(ranks, store, monkeypatch):
    monkeypatch.setattr(_agreement, "GIVE_UP", 0.0)
    store.hangs = threading.Event()
    rank = ranks[0]
    rank.agreement.ask()
    wake = threading.Event()
    thread = threading.Thread(target=rank.agreement.run, args=(wake,), daemon=True)
    thread.start()
    run([rank], 101, 1000)
    rank.agreement.watch()
    assert rank.told == [("failed", {"reason": "no agreement after 0 s"})] and rank.saved == []
    store.hangs.set()
    wake.set()
    thread.join(PATIENCE)


def test_threads_of_many_ranks(monkeypatch, store):
    """Real threads, with steps that all ranks take together, as an all-reduce makes them."""
    monkeypatch.setattr(_agreement, "default_store", lambda: (store, 8))
    ranks = [Rank() for _ in range(8)]
    wake = threading.Event()
    threads = [threading.Thread(target=rank.agreement.run, args=(wake,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    n = 0
    while not all(rank.saved for rank in ranks) and time.monotonic() < deadline:
        n += 1
        if n == 100:
            ranks[5].agreement.ask()
            ranks[6].agreement.ask()
        for rank in ranks:
            rank.step(n)
        time.sleep(0.01)
    wake.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len({tuple(rank.saved) for rank in ranks}) == 1 and len(ranks[0].saved) == 1
    assert store.values["memwarden/0/members"] == 0, "all have left"


def test_a_connection_of_our_own():
    class Tcp:
        def __init__(self, host, port, **named):
            self.host, self.port, self.named = host, port, named

    prefix = types.SimpleNamespace(underlying_store=types.SimpleNamespace(underlying_store=Tcp("h", 1)))
    own = _agreement.connect(prefix)
    assert (own.host, own.port, own.named["is_master"], own.named["wait_for_workers"]) == ("h", 1, False, False)
    assert own.named["timeout"].total_seconds() == _agreement.STORE_TIMEOUT
    timeouts = []
    clone = types.SimpleNamespace(set_timeout=timeouts.append)
    assert _agreement.connect(types.SimpleNamespace(clone=lambda: clone)) is clone and timeouts
    other = types.SimpleNamespace()
    assert _agreement.connect(other) is other


# The monitor around it


def distributed(monkeypatch, store, world, collective=None):
    module = types.ModuleType("torch.distributed")
    module.is_available = module.is_initialized = lambda: True
    module.get_world_size, module.get_rank = lambda: world, lambda: 0
    module.get_backend = lambda: "mpi"
    module.ReduceOp = types.SimpleNamespace(MAX="max")
    module.all_reduce = collective
    inner = types.ModuleType("torch.distributed.distributed_c10d")
    inner._get_default_store = lambda: store
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", inner)


def test_on_checkpoint_saves_within_step_and_acknowledges(daemon, monitor):
    saved = []
    assert monitor.on_checkpoint(lambda step: saved.append(step) or "/scratch/%d.pt" % step)
    monitor.step(1)
    monitor.request_checkpoint()
    monitor.step(2)
    monitor.step(3)
    assert saved == [2]
    saving, done = daemon.wait_for("checkpoint", 2)
    assert (saving["state"], saving["step"], done["state"], done["path"]) == ("saving", 2, "saved", "/scratch/2.pt")


def test_a_save_that_raises_is_a_failed_checkpoint(daemon, monitor, monkeypatch):
    monkeypatch.setattr("memwarden._base.DEBUG", False)

    def save(step):
        raise OSError("No space left on device")

    monitor.on_checkpoint(save)
    monitor.request_checkpoint()
    monitor.step(1)
    monitor.step(2)
    _, failed = daemon.wait_for("checkpoint", 2)
    assert (failed["state"], failed["reason"]) == ("failed", "OSError: No space left on device")
    assert len(daemon.of("checkpoint")) == 2 and not monitor.checkpoint_requested


def test_with_several_ranks_a_request_waits_for_the_agreed_step(daemon, monitor, monkeypatch, store):
    distributed(monkeypatch, store, 2)
    monkeypatch.setattr(_agreement, "SETTLE", 0.0)
    monitor.step(1)
    monitor._checkpoints.take_part()
    other = Rank()
    other.agreement.boundary(1)
    monitor.request_checkpoint()
    assert not monitor.checkpoint_requested, "not before all ranks do"
    deadline = time.monotonic() + PATIENCE
    while monitor._checkpoints.agreement.at is None or other.agreement.at is None:
        assert time.monotonic() < deadline, monitor._checkpoints.agreement.__dict__
        other.agreement._next = 0.0
        other.agreement.tick()
        time.sleep(0.01)
    while not monitor.checkpoint_requested:
        assert time.monotonic() < deadline, monitor._checkpoints.agreement.__dict__
        other.agreement._next = 0.0
        other.agreement.tick()
        if monitor._checkpoints.agreement._plan.decided.is_set():
            monitor.step()
    assert monitor._steps.last == store.values["memwarden/0/1/at"]
    with monitor.checkpoint("/tmp/x"):
        pass
    assert not monitor.checkpoint_requested


def test_ranks_of_a_group_without_a_store_agree_by_an_all_reduce(daemon, monkeypatch, torch):
    flags = []

    def all_reduce(flag, op):
        flags.append((flag.item(), op))
        flag.value = 1

    distributed(monkeypatch, None, 2, all_reduce)

    class Flag:
        def __init__(self, values, device):
            self.value = values[0]

        def item(self):
            return self.value

    torch.tensor = Flag
    monitor = memwarden.Monitor(interval=0, min_interval=0, agree_every=5)
    saved = []
    monitor.on_checkpoint(saved.append)
    for n in range(1, 8):
        monitor.step(n)
    monitor.stop()
    assert flags == [(0, "max")] and saved == [5], "another rank was asked"


def test_trainers_of_a_program_without_a_line_of_ours_save(daemon, monitor, monkeypatch):
    from memwarden._trainers import save_by_trainers

    class Trainer:
        def __init__(self):
            self.callbacks = []
            self.callback_handler = types.SimpleNamespace(callbacks=self.callbacks)
            self.default_root_dir, self.global_step, self.saved = "/scratch", 3, []

        def add_callback(self, callback):
            self.callbacks.append(callback)

        def save_checkpoint(self, path):
            self.saved.append(path)

    class Other(Trainer):
        pass

    monkeypatch.setitem(sys.modules, "transformers.trainer", types.SimpleNamespace(Trainer=Trainer))
    hugging_face = Trainer()
    import signal

    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        theirs = []
        signal.signal(signal.SIGUSR1, lambda *_: theirs.append(1))
        assert save_by_trainers(monitor) == 1 and save_by_trainers(monitor) == 1
        assert len(hugging_face.callbacks) == 1
        control = types.SimpleNamespace(should_save=False)
        arguments, state = types.SimpleNamespace(output_dir="/o"), types.SimpleNamespace(global_step=9)
        monitor.step(1)
        signal.raise_signal(signal.SIGUSR1)
        assert theirs == [1], "the program's own handler is called once"
        monitor.step(2)
        (callback,) = hugging_face.callbacks
        callback.on_step_begin(arguments, state, control)
        callback.on_step_end(arguments, state, control)
        callback.on_save(arguments, state, control)
        assert control.should_save
        monkeypatch.setitem(sys.modules, "transformers.trainer", None)
        monkeypatch.setitem(sys.modules, "lightning.pytorch.trainer.trainer", types.SimpleNamespace(Trainer=Other))
        lightning = Other()
        assert save_by_trainers(monitor) == 1
        monitor.request_checkpoint()
        lightning.callbacks[0].on_train_batch_end(lightning, None, None, None, 0)
        assert lightning.saved == ["/scratch/memwarden-step=3.ckpt"]
    finally:
        signal.signal(signal.SIGUSR1, before)
    told = [(each["state"], each["step"], each.get("path")) for each in daemon.wait_for("checkpoint", 4)]
    last = "/scratch/memwarden-step=3.ckpt"
    assert told == [
        ("saving", 9, None),
        ("saved", 9, "/o/checkpoint-9"),
        ("saving", 3, last),
        ("saved", 3, last),
    ]
