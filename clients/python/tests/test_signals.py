"""Requests for a checkpoint beside other handlers of the signal; what cannot save on request says so."""

import ctypes
import faulthandler
import os
import signal
import threading

import memwarden
import pytest
from conftest import PATIENCE

USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2


@pytest.fixture(autouse=True)
def handlers():
    """The handlers of both signals are as before afterwards."""
    kept = {number: signal.getsignal(number) for number in (USR1, USR2)}
    for number in kept:
        signal.signal(number, signal.SIG_DFL)
    # Handlers in C are recognized by Python's own for SIGINT, which is ignored where a shell started this in the background.
    kept[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in kept.items():
        if number != signal.SIGINT:
            faulthandler.unregister(number)
        signal.signal(number, handler)


def told(monitor):
    """What `hello` says now."""
    hello = monitor._identity.hello()
    return hello.get("saves"), hello.get("saves_reason")


def raised(monitor):
    signal.raise_signal(USR1)
    asked = monitor.checkpoint_requested
    monitor.checkpoint_failed()
    return asked


def test_without_a_request_for_it_nothing_is_known(monitor):
    monitor.start()
    assert told(monitor) == (None, None)


def test_a_handler_that_comes_later_is_called_as_well(daemon, monitor):
    called = []
    assert monitor.on_checkpoint_signal()
    signal.signal(USR1, lambda *_: called.append("later"))
    monitor.step(1)
    assert raised(monitor) and called == ["later"]
    assert told(monitor) == (True, None)
    # One that calls the handler before it, which is ours.
    before = signal.getsignal(USR1)
    signal.signal(USR1, lambda *each: (called.append("chains"), before(*each)))
    monitor.step(2)
    assert raised(monitor) and called == ["later", "chains", "later"]
    assert [message["saves"] for message in daemon.wait_for("hello")] == [True]


def test_a_handler_that_is_set_again_and_again_is_left_alone(monitor):
    monitor.on_checkpoint_signal()
    for n in range(100):
        signal.signal(USR1, lambda *_: None)
        monitor.step(n)
    assert told(monitor) == (False, "the program has replaced the handler of SIGUSR1")


@pytest.mark.parametrize("theirs", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_program_that_wants_no_handler_has_none(daemon, monitor, theirs):
    monitor.on_checkpoint_signal()
    monitor.start()
    signal.signal(USR1, theirs)
    monitor.step(1)
    assert signal.getsignal(USR1) is theirs
    monitor._identity.watch()
    daemon.wait(lambda daemon: [each["saves"] for each in daemon.of("hello")][-1:] == [False])
    assert daemon.of("hello")[-1]["saves_reason"] == "the program has replaced the handler of SIGUSR1"
    # What changes back is said as well.
    monitor.on_checkpoint_signal()
    monitor._identity.watch()
    daemon.wait(lambda daemon: [each["saves"] for each in daemon.of("hello")][-1:] == [True])
    assert "saves_reason" not in daemon.of("hello")[-1]


def dumps(tmp_path, chain=False):
    file = open(tmp_path / "dump", "w+")
    # The frames of other threads change while the handler reads them, without the GIL.
    faulthandler.register(USR1, file=file, all_threads=False, chain=chain)
    return file


def test_a_handler_in_c_stays_and_the_daemon_is_told(daemon, monitor, tmp_path):
    with dumps(tmp_path) as file:
        assert not monitor.on_checkpoint_signal()
        monitor.step(1)
        assert not raised(monitor)
        file.seek(0)
        assert "test_signals.py" in file.read(), "faulthandler's is still there"
        (hello,) = daemon.wait_for("hello")
        assert hello["saves"] is False
        assert hello["saves_reason"] == "SIGUSR1 has a handler that is not Python's (faulthandler, sigaction)"


def test_a_handler_in_c_over_one_of_the_program_is_seen(monitor, tmp_path):
    called = []
    signal.signal(USR1, lambda *_: called.append(1))
    with dumps(tmp_path):
        assert not monitor.on_checkpoint_signal()
        assert not raised(monitor) and told(monitor)[0] is False


@pytest.mark.parametrize("chain", [False, True])
def test_a_handler_in_c_that_comes_later_is_seen(daemon, monitor, tmp_path, chain):
    monitor.on_checkpoint_signal()
    monitor.step(1)
    with dumps(tmp_path, chain):
        monitor._identity.watch()
        daemon.wait(lambda daemon: [each["saves"] for each in daemon.of("hello")][-1:] == [False])
        reason = daemon.of("hello")[-1]["saves_reason"]
        assert reason.endswith("has replaced that of SIGUSR1; no checkpoint is saved unless it calls the one before it")
        assert raised(monitor) == chain
    faulthandler.unregister(USR1)
    assert raised(monitor) and told(monitor) == (True, None)


def test_sigaction_of_a_library_is_seen(monitor):
    monitor.on_checkpoint_signal(USR2)
    libc = ctypes.CDLL(None)
    kept = ctypes.create_string_buffer(256)
    assert libc.sigaction(USR2, None, kept) == 0
    libc.signal.restype = ctypes.c_void_p
    function = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    libc.signal(USR2, function)
    try:
        assert told(monitor)[0] is False and "SIGUSR2" in told(monitor)[1]
    finally:
        libc.sigaction(USR2, kept, None)
    assert told(monitor) == (True, None)


def test_training_in_another_thread_cannot_be_asked(daemon, monitor):
    done = []
    thread = threading.Thread(target=lambda: done.append(monitor.on_checkpoint_signal()))
    thread.start()
    thread.join(PATIENCE)
    assert done == [False]
    monitor.start()
    (hello,) = daemon.wait_for("hello")
    assert hello["saves_reason"] == "only the main thread can handle SIGUSR1, and training runs in another"


def test_the_check_of_a_step_is_cheap(monitor):
    import time

    monitor.on_checkpoint_signal()
    keep = monitor._checkpoints.handlers.keep
    begun = time.thread_time()
    for _ in range(10000):
        keep()
    # Microseconds; measured: 0.2.
    assert (time.thread_time() - begun) / 10000 * 1e6 < 5


def test_a_fork_keeps_its_handler(daemon, monitor):
    monitor.on_checkpoint_signal()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if raised(monitor) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert isinstance(memwarden.Monitor, type)
