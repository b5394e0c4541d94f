"""What grows inside Python, for a process whose memory grows."""

import sys
import time
import types

import pytest
from memwarden import _evidence


class Leaking:
    """A type of the program."""


@pytest.fixture
def evidence(monitor, monkeypatch):
    """Of a process whose memory the test sets."""
    size = types.SimpleNamespace(now=0)
    monkeypatch.setattr(_evidence, "_memory", lambda: size.now)
    monkeypatch.setattr(_evidence, "APART", 0.0)
    # A call of the garbage collector takes as long as a busy machine lets it.
    monkeypatch.setattr(_evidence, "LONGEST_CALL", float("inf"))
    monitor.start()
    found = monitor._evidence

    def grow():
        size.now += _evidence.GROWN
        found.watch()

    found.watch()
    found.grow = grow
    return found


def test_types_that_grow_are_sent(daemon, evidence):
    evidence.grow()
    kept = [Leaking() for _ in range(5000)]
    evidence.grow()
    (message,) = daemon.wait_for("evidence")
    (item,) = [item for item in message["items"] if "Leaking" in item["name"]]
    size = 5000 * sys.getsizeof(kept[0])
    expected = {"what": "type", "name": "test_evidence.Leaking", "now": 5000, "more": 5000}
    assert item == dict(expected, bytes=size, more_bytes=size)
    assert message["seconds"] > 0 and len(kept) == 5000


def test_arrays_and_byte_strings_are_found_in_what_refers_to_them(daemon, evidence, monkeypatch):
    class Array:
        dtype, shape, nbytes, base = "float32", (1024, 2048), 8 << 20, None

    monkeypatch.setitem(sys.modules, "numpy", types.SimpleNamespace(ndarray=Array))
    evidence.grow()
    class Odd(list):
        def __iter__(self):
            raise ValueError("it is not called")

    kept = [[Array() for _ in range(4)], {"all": bytearray(20 << 20)}, [bytes(1100) for _ in range(20000)], Odd([1])]
    kept.append(kept[0])
    kept.append(list(kept[0]))  # Each counts once.
    evidence.grow()
    items = {item["name"]: item for item in daemon.wait_for("evidence")[-1]["items"] if item["what"] != "type"}
    arrays = {"what": "array", "name": "fp32[1024, 2048]", "now": 4, "more": 4}
    assert items["fp32[1024, 2048]"] == dict(arrays, bytes=32 << 20, more_bytes=32 << 20)
    assert items["bytearray"]["more_bytes"] >= 20 << 20 and items["bytearray"]["what"] == "byte string"
    # Of a long list a part is looked at.
    assert abs(items["bytes"]["more"] / 20000 - 1) < 0.1 and items["bytes"]["more_bytes"] >= 19000 * 1100


def test_what_takes_most_comes_first_also_in_attributes(daemon, evidence):
    class Record:
        def __init__(self):
            self.buffer = bytearray(20000)

    evidence.grow()
    kept = [Record() for _ in range(2000)]
    evidence.grow()
    items = daemon.wait_for("evidence")[-1]["items"]
    first = items[0]
    assert (first["what"], first["name"], first["more"]) == ("byte string", "bytearray", 2000)
    assert first["more_bytes"] == 2000 * 20000
    # To look at them creates no dictionary for each.
    assert not any(item["name"] == "builtins.dict" for item in items) and len(kept) == 2000


def test_few_large_tensors_are_sent(daemon, evidence, monkeypatch):
    class Tensor:
        dtype, grad_fn, shape = "torch.float32", None, (1024, 1024)

        def element_size(self):
            return 4

        def nelement(self):
            return 1 << 20

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    evidence.grow()
    kept = [Tensor() for _ in range(3)]
    evidence.grow()
    assert daemon.of("evidence") == []
    kept += [Tensor() for _ in range(6)]
    evidence.grow()
    (message,) = daemon.wait_for("evidence")
    assert message["items"] == [{"what": "tensor", "name": "fp32[1024, 1024]", "now": 9, "more": 6, "bytes": 9 << 22, "more_bytes": 6 << 22}]


def test_growth_of_native_code_is_said_to_be_no_python_object(daemon, evidence):
    evidence.grow()
    evidence.grow()
    (message,) = daemon.wait_for("evidence")
    assert message["items"] == []


def test_the_first_counts_are_near_each_other(monitor, monkeypatch):
    found, size, clock, counted = _evidence._Evidence(monitor._session), iter(range(0, 10 << 30, 64 << 20)), [0.0], []
    monkeypatch.setattr(_evidence, "_memory", lambda: next(size))
    monkeypatch.setattr(_evidence, "_clock", lambda: clock[0])
    found.count = lambda: counted.append(clock[0]) or {}
    for second in range(300):
        clock[0] = float(second)
        if second % 10 == 0:
            found.watch()
    assert counted[:6] == [10.0, 30.0, 50.0, 70.0, 130.0, 190.0]


def test_without_growth_nothing_is_counted(daemon, evidence, monkeypatch):
    monkeypatch.setattr(evidence, "count", None)
    for _ in range(10):
        evidence.watch()
    assert daemon.of("evidence") == []


def test_one_switch_turns_it_off(monitor, monkeypatch):
    monkeypatch.setenv("MEMWARDEN_EVIDENCE", "0")
    off = _evidence._Evidence(monitor._session)
    sizes = iter(range(0, 10 << 30, 1 << 30))
    monkeypatch.setattr(_evidence, "_memory", lambda: next(sizes))
    off.count = None
    off.watch()
    off.watch()


def test_a_collector_that_takes_long_is_not_asked_again(evidence, monkeypatch):
    monkeypatch.setattr(_evidence, "LONGEST_CALL", 0.0)
    evidence.grow()
    monkeypatch.setattr(evidence, "count", None)
    evidence.grow()


def test_open_figures_and_lines_are_named(daemon, evidence, monkeypatch):
    import tracemalloc

    numbers = [1]
    pyplot = types.SimpleNamespace(get_fignums=lambda: numbers)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    tracemalloc.start()
    try:
        evidence.grow()
        numbers = list(range(40))
        kept = [bytearray(1 << 20) for _ in range(8)]
        evidence.grow()
    finally:
        tracemalloc.stop()
    (message,) = daemon.wait_for("evidence")
    items = {item["what"]: item for item in message["items"]}
    assert items["open figure"] == {"what": "open figure", "name": "matplotlib", "now": 40, "more": 39}
    line = next(item for item in message["items"] if item["what"] == "line")
    assert "test_evidence.py:" in line["name"] and line["more"] >= len(kept) << 20


def test_no_object_is_kept(evidence):
    import gc
    import weakref

    leaking = Leaking()
    reference = weakref.ref(leaking)
    evidence.grow()
    del leaking
    gc.collect()
    assert reference() is None


def test_the_training_thread_is_not_held_up(evidence, monkeypatch):
    """Of a million objects, the longest part of the count, during which no other thread runs, is a small one.

    In CPU time, which other load does not change.
    """
    kept = [[] for _ in range(10**6)]
    monkeypatch.setattr(_evidence, "_clock", time.thread_time)
    begun = time.thread_time()
    evidence.count()
    whole = time.thread_time() - begun
    print("longest part %.1f ms of %.1f ms, of %d objects" % (evidence.stall * 1e3, whole * 1e3, len(kept)))
    assert 0 < evidence.stall < whole / 4
