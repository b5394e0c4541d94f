"""A daemon to talk to, and a torch that runs anywhere."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parent
REPOSITORY = CLIENT.parent.parent
sys.path.insert(0, str(CLIENT))

import memwarden  # noqa: E402
from memwarden import _base, _process  # noqa: E402

# Generous: the machine may be busy. Nothing waits longer than it has to.
PATIENCE = 60.0


class Connection:
    def __init__(self, accepted):
        self.socket = accepted
        self.lines, self.ended = [], False
        self.pid = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


class Daemon:
    """Listens as the daemon does; `read=False` makes it one that hangs."""

    def __init__(self, path, read=True):
        self.path, self.connections = str(path), []
        self._changed = threading.Condition()
        self._reading = threading.Event()
        if read:
            self._reading.set()
        self._open()

    def _open(self):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener):
        while True:
            try:
                connection = Connection(listener.accept()[0])
            except OSError:
                return
            with self._changed:
                self.connections.append(connection)
                self._changed.notify_all()
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection):
        self._reading.wait()
        try:
            with connection.socket.makefile("rb") as lines:
                for line in lines:
                    with self._changed:
                        connection.lines.append(line)
                        self._changed.notify_all()
        except OSError:
            pass
        with self._changed:
            connection.ended = True
            self._changed.notify_all()

    def resume(self):
        self._reading.set()

    def stop(self):
        """As when it is killed: the file of the socket stays."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            try:
                connection.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.socket.close()

    def restart(self):
        os.unlink(self.path)
        self._open()

    def wait(self, ready):
        with self._changed:
            assert self._changed.wait_for(lambda: ready(self), PATIENCE), self.all()

    def all(self):
        return [json.loads(line) for connection in self.connections for line in connection.lines]

    def of(self, kind):
        return [message for message in self.all() if message["type"] == kind]

    def wait_for(self, kind, count=1):
        self.wait(lambda daemon: len(daemon.of(kind)) >= count)
        return self.of(kind)

    def wait_end(self, count=1):
        self.wait(lambda daemon: sum(connection.ended for connection in daemon.connections) >= count)


@pytest.fixture
def path(tmp_path):
    """Short: a socket's path has at most 107 bytes."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="mw")
    yield Path(folder) / "job.sock"
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, path):
    for name in list(os.environ):
        if name.startswith(("MEMWARDEN_", "SLURM_", "OMPI_", "PMI", "MPI_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MEMWARDEN_JOB_SOCKET", str(path))
    monkeypatch.setattr(_base, "DEBUG", True)


@pytest.fixture
def daemon(path):
    listening = Daemon(path)
    yield listening
    listening.stop()


@pytest.fixture
def monitor(daemon):
    """Without its thread: what happens once a second, tests do themselves."""
    made = memwarden.Monitor(interval=0, min_interval=0)
    yield made
    made.stop()


@pytest.fixture
def torch(monkeypatch):
    """The fake, in this process, fresh."""
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "torch"}
    for name in kept:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(HERE / "fake_torch"))
    import torch

    _process._device_properties.cache_clear()
    yield torch
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.fixture
def python(path):
    """Runs Python with a program's text in a process of its own."""

    def run(program, *arguments, auto="1", paths=(), fake=True, folder=None, fails=False):
        places = [str(CLIENT / "memwarden" / "auto"), *map(str, paths)] + ([str(HERE / "fake_torch")] if fake else [])
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(places), MEMWARDEN_DEBUG="1", MEMWARDEN_AUTO=auto)
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, env=env, cwd=folder, stdout=-1, stderr=-1, timeout=PATIENCE * 5)
        assert (done.returncode != 0) == fails, done.stderr.decode()
        return done.stderr.decode() if fails else done.stdout.decode()

    return run
