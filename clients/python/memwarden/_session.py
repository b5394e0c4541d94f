"""The session of a monitor: whether it reports, and how its lines reach the daemon and the log file."""

from __future__ import annotations

import collections
import os
import threading
from typing import Any, Callable, Deque, List, Optional

from ._base import JSON, MOST_ENTRIES, Path, _encode, _getpid, _now, _say
from ._link import _link
from ._process import _load_thread_exit


class _Log:
    """A file that receives every sent line; the older files beside it are `PATH.1`, `PATH.2` and so on."""

    def __init__(self, path: Optional[Path], most_bytes: int, files: int) -> None:
        self.path = None if path is None else os.fspath(path)
        self._most_bytes, self._files = most_bytes, files
        self.clear()

    def clear(self) -> None:
        """Drops the lines that are not written yet."""
        self.lines: Deque[bytes] = collections.deque(maxlen=MOST_ENTRIES)
        self._lock = threading.Lock()

    def write(self) -> None:
        """Appends the lines to the file, and starts a new file when it is full."""
        if self.path is None or not self.lines:
            return
        try:
            self._append(self.path)
        except OSError as error:
            _say("cannot write the log file %s: %s" % (self.path, error.strerror or error))

    def _append(self, path: str) -> None:
        with self._lock:
            lines = [self.lines.popleft() for _ in range(len(self.lines))]
            files = max(1, self._files)
            if os.path.exists(path) and os.path.getsize(path) >= max(4096, self._most_bytes):
                for number in range(files - 1, 0, -1):
                    older = path if number == 1 else "%s.%d" % (path, number - 1)
                    if os.path.exists(older):
                        os.replace(older, "%s.%d" % (path, number))
                if files == 1:
                    os.remove(path)
            with open(path, "ab") as file:
                file.write(b"".join(lines))


class _Session:
    """Whether messages are sent, from `open` to `close`, and to what. All parts of a monitor send through it.

    `start` starts the monitor; `greeting` gives the first lines of each connection.
    """

    def __init__(
        self, start: Callable[[], Any], paths: str, greeting: Callable[[], List[bytes]], log: _Log
    ) -> None:
        self.start, self.log, self.link = start, log, _link(paths, greeting)
        self._paths = paths
        # Whether nothing is said: the program was instrumented without a line in it.
        self.quiet = False
        self.off = os.environ.get("MEMWARDEN_DISABLE", "") not in ("", "0")
        self.ready = self.stopped = False
        self._begin()

    def _begin(self) -> None:
        self.pid = _getpid()
        # Set when the session ends; the threads of the monitor wait for it.
        self.ends = threading.Event()

    def ensure_started(self) -> None:
        """Starts the monitor, unless the user has stopped it."""
        if not self.ready and not self.stopped:
            self.start()

    def open(self) -> None:
        self.ready, self.stopped = True, False
        if not self.link.connect() and not self.quiet and self.log.path is None:
            why = "no daemon listens at %s: nothing is reported until one does"
            if self.link.busy:
                why = "the daemon at %s has a full queue of connections: nothing is reported until it accepts this one"
            _say(why % self._paths)

    def send(self, message: JSON, keep: bool = False) -> None:
        """Sends a message; one with `keep` waits for the next connection if there is none."""
        self.send_line(_encode(message), keep)

    def send_line(self, line: bytes, keep: bool = False) -> None:
        if self.off:
            return
        if self.log.path is not None:
            self.log.lines.append(line)
        self.link.send(line, keep)

    def close(self, ending: JSON) -> None:
        """`ending` are the keys of `bye` that say how the process ends."""
        self.send({"type": "bye", "t": _now(), **ending, "dropped": self.link.dropped})
        self.link.close()
        self.log.write()
        self.ready, self.stopped = False, True
        self._begin()

    def retire(self) -> None:
        """Another monitor of this process replaces this one."""
        self.off, self.ready = True, False
        self.ends.set()
        self.link.close()

    def forked(self) -> None:
        """In a child process."""
        self.link.forked()
        self.log.clear()
        self.ready = False
        self._begin()


class _Worker:
    """A thread that is started at most once a session. `function` gets the event that ends it."""

    def __init__(self, session: _Session, name: str, function: Callable[[threading.Event], None]) -> None:
        self._session, self._name, self._function = session, name, function
        self._ends: Optional[threading.Event] = None

    def start(self) -> None:
        ends = self._session.ends
        if self._ends is not ends:
            self._ends = ends
            _load_thread_exit()
            self._thread = threading.Thread(target=self._function, args=(ends,), name=self._name, daemon=True)
            self._thread.start()

    def join(self, timeout: float) -> None:
        """Waits for the thread of this session, at most `timeout` seconds."""
        if self._ends is self._session.ends and self._thread is not threading.current_thread():
            self._thread.join(timeout)
