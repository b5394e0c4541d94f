"""How a program ends: the last message to the daemon, and the last line on standard error."""

import json
import os
import subprocess
import sys
import types

import pytest
from conftest import CLIENT

from memwarden import _ending

ENDS = {
    "pass": ("finished", "finished", None, None),
    "raise SystemExit(0)": ("finished", "finished", None, None),
    "raise ValueError('secret')": ("exception", "ValueError", None, None),
    "with monitor.phase('outer'):\n with monitor.phase('forward'): int('secret')": ("exception", "ValueError", None, "forward"),
    "next(iter(()))": ("exception", "StopIteration", None, None),
    "raise KeyboardInterrupt": ("interrupted", "KeyboardInterrupt", None, None),
    "monitor._phases.begin('optimizer'); raise MemoryError('secret')": ("out_of_memory", "MemoryError", "host", "optimizer"),
    "raise OSError(12, 'secret')": ("out_of_memory", "OSError", "host", None),
    "raise OSError(2, 'secret')": ("exception", "FileNotFoundError", None, None),
    "raise OSError(28, 'secret', '/data/secret')": ("out_of_space", "OSError", "disk", None),
    "raise OSError(122, 'secret')": ("out_of_space", "OSError", "disk", None),
    "try: raise OSError(28, 'secret')\nexcept OSError: raise RuntimeError('unexpected pos 64 vs 0')": ("out_of_space", "OSError", "disk", None),
    "try: raise OSError(28, 'secret')\nexcept OSError: raise ValueError from None": ("exception", "ValueError", None, None),
    "try: raise MemoryError\nexcept MemoryError: raise KeyError(1)": ("exception", "KeyError", None, None),
    "raise OSError(28, 'inotify watch limit reached')": ("exception", "OSError", None, None),
    "def make():\n if 0: SemLock()\n raise OSError(28, 'secret')\nmake()": ("exception", "OSError", None, None),
    "raise OSError(28, 'secret', '/dev/shm/secret')": ("out_of_space", "OSError", "shm", None),
    "raise RuntimeError('unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)')": (
        "out_of_space",
        "RuntimeError",
        "shm",
        None,
    ),
    "raise RuntimeError('[enforce fail] . PytorchStreamWriter failed writing file data/0: file write failed')": (
        "out_of_space",
        "RuntimeError",
        "disk",
        None,
    ),
    "raise RuntimeError('CUDA out of memory. Tried')": ("out_of_memory", "RuntimeError", "device", None),
    "raise RuntimeError('[enforce fail] DefaultCPUAllocator: can not allocate')": ("out_of_memory", "RuntimeError", "host", None),
    "try: raise RuntimeError('CUDA error: out of memory')\nexcept RuntimeError as e: raise KeyError(1) from e": (
        "out_of_memory",
        "RuntimeError",
        "device",
        None,
    ),
    # A type that computes its text, a hook that replaces the interpreter's, an error in a thread, and one that was handled.
    "class Odd(RuntimeError):\n def __str__(self): raise 1\nOdd.__qualname__ = 'O\\x1b' * 99\nraise Odd": (
        "exception",
        "O?" * 32,
        None,
        None,
    ),
    "sys.excepthook = lambda *_: None; raise ValueError": ("exception", "ValueError", None, None),
    "t = threading.Thread(target=int, args=('x',)); t.start(); t.join()": ("finished", "finished", None, None),
    "try: int('x')\nexcept ValueError: pass": ("finished", "finished", None, None),
    "monitor._fit.verdicts.aborts = True; raise SystemExit(80)": ("aborted", "will not fit", None, None),
}


def test_a_program_that_ends_at_its_limit_of_memory_keeps_its_exit_code(daemon):
    program = (
        "import resource, memwarden\nresource.setrlimit(resource.RLIMIT_AS, (600 << 20,) * 2)\nmonitor = memwarden.Monitor()\n"
        "monitor.step(1)\nheld = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(CLIENT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, "MemoryError" in done.stderr) == (1, True), done


GROW = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"
LIMITS = {
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n" + GROW: ("out_of_memory", "address_space", 1 << 30),
    "resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 300 << 20))\n" + GROW: ("out_of_memory", "data", 300 << 20),
    # Of two limits, the one that was reached.
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 300 << 20))\n"
    + GROW: ("out_of_memory", "data", 300 << 20),
    # No limit refused it.
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); [0] * (1 << 62)": ("out_of_memory", None, None),
    "resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0)); bytearray(1 << 60)": ("out_of_memory", None, None),
    "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); held = [open('/dev/null') for _ in range(300)]": (
        "exception",
        "open_files",
        200,
    ),
    "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); raise OSError(27, 'secret')": ("exception", "file_size", 4096),
    "import errno; raise BlockingIOError(errno.EAGAIN, 'secret')": ("exception", None, None),
    # What a failed fork(2) and a thread that cannot be started raise, by the names of functions in the frame that raises: as root,
    # no limit is in force.
    "class os: fork = staticmethod(lambda: [].secret)\ntry: os.fork()\nexcept AttributeError: pass\nraise BlockingIOError(11, '')": (
        "exception",
        "processes",
        None,
    ),
    "import _thread\nif not _thread.start_new_thread: pass\n" + 'raise RuntimeError("can\'t start new thread")': (
        "exception",
        "processes",
        None,
    ),
    "import _thread\nif not _thread.start_new_thread: pass\nraise RuntimeError('other')": ("exception", None, None),
}


@pytest.mark.parametrize("how", LIMITS)
def test_the_last_message_names_the_limit_that_was_reached(daemon, python, how):
    end, limit, value = LIMITS[how]
    program = "import resource, memwarden\nmonitor = memwarden.Monitor()\nmonitor.step(1)\n"
    python(program + how, paths=(CLIENT,), fails=True)
    daemon.wait_end()
    (bye,) = daemon.of("bye")
    assert (bye["end"], bye.get("limit"), bye.get("limit_value")) == (end, limit, value)
    assert "secret" not in json.dumps(daemon.all())


FULL = "monitor._allocator.failed(0, 4 << 30, 80 << 30, 1 << 30)\nwith monitor.phase('backward'): raise RuntimeError('CUDA out of memory')"
LAST_LINES = {
    "raise MemoryError": "the host refused an allocation",
    FULL: "an allocation of 4.0 GiB on GPU 0 failed: 1.0 GiB of 80.0 GiB free, in the phase backward",
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); held = [open('/dev/null') for _ in range(300)]": (
        "the limit of open files (ulimit -n, 200) was reached"
    ),
    "raise OSError(28, 'x')": "no space was left on the disk, or for this user",
    "raise ValueError": None,
    "": None,
}


@pytest.mark.parametrize("how", LAST_LINES)
@pytest.mark.parametrize("listens", [True, False])
def test_the_last_line_of_standard_error_says_what_memory_was_missing(daemon, how, listens):
    """It follows the traceback; without a daemon the client stays silent."""
    program = "import os, sys, memwarden\nmonitor = memwarden.Monitor()\nmonitor.step(1)\nprint(os.getpid())\n" + how
    socket = {} if listens else {"MEMWARDEN_JOB_SOCKET": "/nonexistent"}
    environment = {**os.environ, "PYTHONPATH": str(CLIENT), **socket}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "memwarden:" in line and "no daemon" not in line]
    line = LAST_LINES[how]
    assert said == (["memwarden: %s; `memwarden why %s` says more" % (line, done.stdout.strip())] if line and listens else []), done
    assert not said or done.stderr.splitlines()[-1] == said[0]


@pytest.mark.parametrize("how", ENDS)
def test_the_last_message_says_how_the_program_ends(daemon, python, how):
    program = "import sys, threading, memwarden\nmonitor = memwarden.Monitor()\nmonitor.step(1)\n"
    python(program + how, paths=(CLIENT,), fails=ENDS[how][0] != "finished")
    daemon.wait_end()
    (bye,) = daemon.of("bye")
    assert tuple(bye.get(key) for key in ("end", "reason", "resource", "phase")) == ENDS[how]
    assert "secret" not in json.dumps(daemon.all())


@pytest.mark.parametrize("text", ["basic_ios::clear: iostream error", "[enforce fail at inline_container.cc:815] . unexpected pos 64 vs 0"])
@pytest.mark.parametrize(
    ("file", "free", "expected"),
    [
        ("/data/secret.pt", 0, "disk"),
        ("/dev/shm/secret.pt", 0, "shm"),
        ("/data/secret.pt", 1 << 30, None),
        (None, 0, None),
    ],
)
def test_a_checkpoint_that_cannot_be_written_found_no_space_where_none_is_free(monkeypatch, text, file, free, expected):
    monkeypatch.setattr(os, "statvfs", lambda _: types.SimpleNamespace(f_bavail=free, f_frsize=1))
    names = {"__name__": "torch.serialization"}
    exec("def save(obj, f): raise RuntimeError(obj)", names)
    with pytest.raises(RuntimeError) as raised:
        names["save"](text, file)
    found = _ending.described(raised.value)
    assert (found["end"], found.get("resource")) == ("exception" if expected is None else "out_of_space", expected)
