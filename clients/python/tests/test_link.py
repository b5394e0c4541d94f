"""The socket: whole lines, in order, and nobody waits."""

import json
import multiprocessing
import os
import socket
import threading
import time

import memwarden
from memwarden import _base, _link


def test_a_connection_begins_with_hello_and_ends_with_bye(daemon):
    with memwarden.Monitor("run 7", rank=3, world=8, data_parallel=4, interval=0) as monitor:
        monitor.step(1)
    daemon.wait_end()
    hello, step, bye = daemon.all()
    assert (hello["type"], hello["v"], hello["run"]) == ("hello", 1, "run 7")
    assert (hello["rank"], hello["world"], hello["data_parallel"]) == (3, 8, 4)
    assert (step["type"], bye["type"], bye["reason"]) == ("step", "bye", "finished")


def test_without_a_daemon_nothing_happens(path):
    monitor = memwarden.Monitor(interval=0, min_interval=0)
    for n in range(100):
        monitor.step(n)
    assert monitor.dropped == 100 and not monitor.connected
    monitor.stop()


def test_a_daemon_that_hangs_costs_whole_lines_and_no_time(path):
    from conftest import Daemon

    daemon = Daemon(path, read=False)
    monitor = memwarden.Monitor(interval=0, min_interval=0)
    begun = time.monotonic()
    sent = 20000
    for n in range(1, sent + 1):
        monitor.step(n, tokens=1)
    assert time.monotonic() - begun < 20
    assert 0 < monitor.dropped < sent
    daemon.resume()
    # Everything that was taken is read before the last line can be sent.
    taken = sent - monitor.dropped
    daemon.wait(lambda daemon: len(daemon.of("step")) >= taken - 1)
    monitor.step(sent + 1)
    monitor.stop()
    daemon.wait_end()
    steps = daemon.of("step")
    assert len(steps) == taken + 1
    numbers = [step["step"] for step in steps]
    assert numbers == sorted(numbers) and numbers[-1] == sent + 1
    # Totals lose nothing.
    assert steps[-1]["tokens"] == sent and steps[-1]["dropped"] == sent - taken


class Narrow:
    """A socket that takes a few bytes at a time, or none."""

    def __init__(self, takes):
        self.takes, self.got = list(takes), b""

    def send(self, data, flags):
        assert flags == socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        many = self.takes.pop(0) if self.takes else len(data)
        if many == 0:
            raise BlockingIOError
        self.got += data[:many]
        return min(many, len(data))

    def close(self):
        pass


def link(*takes):
    made = _link._Link("/nowhere", list)
    made._socket = Narrow(takes)
    return made


def test_what_went_out_in_part_is_finished_first():
    torn = link(2, 0, 1, 0)
    torn.send(b"abcdef\n")
    assert torn._socket.got == b"ab"
    torn.send(b"dropped\n")
    torn.send(b"also\n")
    assert torn._socket.got == b"abc" and torn.dropped == 2
    # The socket is full once more, then not.
    torn.send(b"third\n")
    assert torn.dropped == 3
    torn.send(b"next\n")
    assert torn._socket.got == b"abcdef\nnext\n"


def test_lines_to_keep_wait_and_others_are_dropped():
    full = link(0, 0, 0)
    full.send(b"keep 1\n", keep=True)
    full.send(b"drop\n")
    full.send(b"keep 2\n", keep=True)
    assert full._socket.got == b"" and full.dropped == 1
    full.send(b"now\n")
    assert full._socket.got == b"keep 1\nkeep 2\nnow\n"


def test_kept_lines_are_bounded():
    lone = _link._Link("/nowhere", list)
    for _ in range(1000):
        lone.send(b"x\n", keep=True)
    assert len(lone._queue) == _base.MOST_KEPT and lone.dropped == 1000 - _base.MOST_KEPT


def test_the_rest_of_a_torn_line_dies_with_its_connection():
    torn = link(3)
    torn.send(b"abcdef\n")

    def lost(data, flags):
        raise BrokenPipeError

    torn._socket.send = lost
    torn.send(b"x\n")
    assert torn._rest == b"" and not torn.connected and torn.dropped == 2


def test_a_new_daemon_is_told_everything_that_is_cumulative(daemon, monitor):
    monitor.step(1, tokens=100)
    with monitor.phase("forward"):
        pass
    daemon.wait_for("step")
    daemon.stop()
    # Nobody listens: noticed without sending, then retried later and later.
    link = monitor._session.link
    link.keep_up()
    assert not monitor.connected
    monitor.step(2, tokens=100)
    monitor.checkpoint_saved("/tmp/x")
    assert monitor.dropped == 1
    before = len(daemon.all())
    # The pause is half a second, which a busy machine may exceed before the next line.
    link._retry_at += 60
    daemon.restart()
    link.keep_up()
    assert not monitor.connected, "there is a pause between two tries"
    link._retry_at = 0
    link.keep_up()
    monitor.step(3, tokens=100)
    daemon.wait_for("step", 3)
    kinds = [message["type"] for message in daemon.all()[before:]]
    assert kinds == ["hello", "step", "phase", "checkpoint", "step"]
    assert [step["tokens"] for step in daemon.of("step")] == [100, 200, 300]


def test_retries_are_ever_rarer(path):
    lone = _link._Link(str(path), list)
    pauses = []
    for _ in range(10):
        lone._retry_at = 0
        assert not lone.connect()
        pauses.append(lone._retry_after)
    assert pauses[:3] == [1.0, 2.0, 4.0] and pauses[-1] == _base.LAST_RETRY


def test_a_forked_child_speaks_for_itself(daemon, monitor):
    monitor.step(41, tokens=10)
    daemon.wait_for("step")
    child = os.fork()
    if child == 0:
        monitor.step(1, tokens=1)
        monitor.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    daemon.wait_end()
    monitor.step(42, tokens=10)
    daemon.wait_for("step", 3)
    parents, childs = daemon.connections
    assert parents.pid == os.getpid() and childs.pid == child
    assert not parents.ended
    assert [json.loads(line)["tokens"] for line in parents.lines if b'"step"' in line][1:] == [20]
    # The child's totals are its own.
    step = json.loads(childs.lines[1])
    assert (step["step"], step["tokens"], step["dropped"]) == (1, 1, 0)


def test_the_end_of_a_parent_is_seen_while_its_child_lives(daemon, monitor):
    monitor.step(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(0)
    # Without goodbye, as when it is killed.
    monitor._session.link._lose()
    daemon.wait_end()
    os.write(writer, b"x")
    os.waitpid(child, 0)


def _spawned(path, rank):
    os.environ.update(MEMWARDEN_JOB_SOCKET=path, RANK=str(rank), WORLD_SIZE="2")
    monitor = memwarden.Monitor(interval=0)
    monitor.step(1)
    monitor.stop()


def test_spawned_processes_speak(daemon):
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_spawned, args=(daemon.path, rank)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    daemon.wait_end(2)
    assert {hello["rank"] for hello in daemon.of("hello")} == {0, 1}


def test_lines_of_several_threads_stay_whole(daemon):
    monitor = memwarden.Monitor(interval=0.001, min_interval=0)
    monitor._allocator.send = lambda: None  # Its lines could be dropped too.
    monitor.start()

    def speak(name):
        for n in range(500):
            monitor.record(name, {"n": n})

    threads = [threading.Thread(target=speak, args=("thread %d" % n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monitor.stop()
    daemon.wait_end()
    events = daemon.of("event")
    assert len(events) + monitor.dropped == 2000
    for thread in range(4):
        own = [event["detail"]["extra"]["n"] for event in events if event["name"] == "thread %d" % thread]
        assert own == sorted(own)


def test_several_sockets_each_get_everything(daemon, path, monkeypatch):
    from conftest import Daemon

    second = Daemon(str(path) + "2")
    monkeypatch.setenv("MEMWARDEN_JOB_SOCKET", "%s:%s2:%s3" % (path, path, path))
    monitor = memwarden.Monitor(interval=0, min_interval=0)
    monitor.step(1)
    monitor.stop()
    for listening in (daemon, second):
        listening.wait_end()
        assert [message["type"] for message in listening.all()] == ["hello", "step", "bye"]
        assert listening.of("bye")[0]["dropped"] == 0
    second.stop()


def test_a_full_queue_is_no_absent_daemon_and_is_waited_for_by_the_thread_of_the_monitor(path, capsys):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(0)
    others = []
    while True:
        other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        others.append(other)
        other.setblocking(False)
        try:
            other.connect(str(path))
        except BlockingIOError:
            break
    monitor = memwarden.Monitor(interval=0)
    monitor.start()
    assert "has a full queue of connections" in capsys.readouterr().err
    link = monitor._session.link
    assert not link.connect() and link.busy and link._retry_at == 0

    def accept():
        time.sleep(0.2)
        others.extend(listener.accept()[0] for _ in others[:])

    accepting = threading.Thread(target=accept)
    accepting.start()
    # One wait is a second, which a busy machine may exceed.
    while not link.connected:
        link.keep_up()
    assert not link.busy and link._socket.getblocking() is False
    accepting.join()
    monitor.stop()
    for other in [*others, listener]:
        other.close()
