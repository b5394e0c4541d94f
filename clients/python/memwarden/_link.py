"""The connection to the daemon: a Unix stream socket whose calls never block."""

from __future__ import annotations

import collections
import errno
import select
import socket
import struct
import threading
import time
from typing import Any, Callable, Deque, List, Optional, Sequence, Tuple

from ._base import DEFAULT_SOCKET, FIRST_RETRY, LAST_RETRY, LONGEST_LINE, MOST_KEPT, SEND_FLAGS, _getpid


# Seconds that the thread of the monitor waits for a place in the queue of the daemon.
LONGEST_CONNECT = 1.0


class _Link:
    """Sends whole lines to the daemon, in order, without waiting.

    Whoever has the lock sends; others leave their line in the queue, and the one with the lock takes it along.
    A line that does not fit is dropped and counted; of a line that went out in part, the rest goes first.
    """

    def __init__(self, path: str, greeting: Callable[[], List[bytes]]) -> None:
        self.path = path
        self.dropped = 0
        self.connections = 0
        # Whether the daemon listens, and its queue of connections was full.
        self.busy = False
        self._greeting = greeting
        self._pid = _getpid()
        self._socket: Optional[socket.socket] = None
        # Gets each line that the daemon sends.
        self.receiver: Optional[Callable[[bytes], None]] = None
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queue: Deque[Tuple[bytes, bool]] = collections.deque()
        self._rest = self._received = b""
        self._receiving = threading.Lock()
        self._retry_after = FIRST_RETRY
        self._retry_at = 0.0

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def send(self, line: bytes, keep: bool = False) -> None:
        """Sends a line, or drops it; a line with `keep` waits for the next connection."""
        if self._pid != _getpid():
            self.forked()
        if not line or (self._socket is None and not keep):
            self.dropped += 1
            return
        self._queue.append((line, keep))
        self.drain()

    def drain(self) -> None:
        while self._queue or self._rest:
            if not self._lock.acquire(False):
                return
            try:
                if not self._flush():
                    return
            finally:
                self._lock.release()

    def _flush(self) -> bool:
        """Whether all lines were sent; with the lock held."""
        queue = self._queue
        if self._rest:
            sent = self._write(self._rest)
            # Empty by now if the connection was lost.
            self._rest = self._rest[sent:]
            if self._rest or self._socket is None:
                return self._shed()
        while queue:
            if self._socket is None:
                return self._shed()
            line, keep = queue.popleft()
            sent = self._write(line)
            if sent == len(line):
                continue
            if sent:
                self._rest = line[sent:]
            elif keep:
                queue.appendleft((line, keep))
            else:
                self.dropped += 1
            return self._shed()
        return True

    def _write(self, data: bytes) -> int:
        if self._socket is None:
            return 0
        try:
            return self._socket.send(data, SEND_FLAGS)
        except BlockingIOError:
            return 0
        except OSError:
            self._lose()
            return 0

    def _shed(self) -> bool:
        """Drops lines without `keep`; always False."""
        keep = []
        for _ in range(len(self._queue)):
            line = self._queue.popleft()
            if line[1]:
                keep.append(line)
            else:
                self.dropped += 1
        self.dropped += max(0, len(keep) - MOST_KEPT)
        self._queue.extendleft(reversed(keep[-MOST_KEPT:]))
        return False

    def _lose(self) -> None:
        lost, self._socket, self._received = self._socket, None, b""
        # The rest of an incomplete line has no meaning for the next connection.
        self.dropped += 1 if self._rest else 0
        self._rest = b""
        if lost is not None:
            lost.close()

    def connect(self, wait: float = 0.0) -> bool:
        """Connects if not connected and the last failure is long enough ago, where the daemon accepts within `wait` seconds.

        Not on the hot path."""
        if self._pid != _getpid():
            self.forked()
        if self._socket is not None:
            return True
        if time.monotonic() < self._retry_at:
            return False
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The time limit of Python's own calls does not apply to a queue that is full.
            limit = struct.pack("@ll", int(wait), int(wait % 1 * 1e6))
            fresh.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            fresh.setblocking(wait > 0)
            fresh.connect(self.path)
            fresh.setblocking(False)
            self.busy = False
        except OSError as error:
            fresh.close()
            self.busy = error.errno == errno.EAGAIN
            if self.busy:
                return False  # Tried again at the next interval: others have filled the queue of the daemon.
            self._retry_at = time.monotonic() + self._retry_after
            self._retry_after = min(self._retry_after * 2, LAST_RETRY)
            return False
        self._retry_after, self._retry_at = FIRST_RETRY, 0.0
        with self._lock:
            self._rest = b""
            self._queue.extendleft((line, False) for line in reversed(self._greeting()))
            self._socket = fresh
            self.connections += 1
        self.drain()
        return self._socket is not None

    def receive(self) -> None:
        """Reads what the daemon has sent; never waits."""
        current = self._socket
        if current is None or self.receiver is None or not self._receiving.acquire(blocking=False):
            return  # Another thread reads.
        try:
            self._received += current.recv(LONGEST_LINE, socket.MSG_DONTWAIT)
            *lines, self._received = self._received.split(b"\n")
            self._received = self._received[:LONGEST_LINE]
        except OSError:
            return  # Nothing, or the connection ended, which `keep_up` detects.
        finally:
            self._receiving.release()
        for line in lines:
            self.receiver(line)

    def keep_up(self) -> None:
        """Called at intervals: detects the daemon's exit, connects again, sends the rest of incomplete lines."""
        self.receive()
        current = self._socket
        if current is not None:
            poll = select.poll()
            poll.register(current.fileno(), 0)
            if poll.poll(0):
                with self._lock:
                    self._lose()
        self.connect(LONGEST_CONNECT)
        self.drain()

    def forked(self) -> None:
        """In a child: drops the connection and the lines of the parent."""
        inherited, self._socket = self._socket, None
        if inherited is not None:
            inherited.close()
        self._pid = _getpid()
        self.dropped = self.connections = 0
        self._reset()

    def close(self) -> None:
        if self._pid != _getpid():
            return self.forked()
        self.drain()
        with self._lock:
            self._lose()
            self._queue.clear()


class _Links:
    """Several sockets, each of which receives all lines: under `memwarden run` its own and the daemon's."""

    def __init__(self, paths: Sequence[str], greeting: Callable[[], List[bytes]]) -> None:
        self.links = [_Link(path, greeting) for path in paths]

    @property
    def receiver(self) -> Optional[Callable[[bytes], None]]:
        return self.links[0].receiver

    @receiver.setter
    def receiver(self, receiver: Optional[Callable[[bytes], None]]) -> None:
        for link in self.links:
            link.receiver = receiver

    def receive(self) -> None:
        for link in self.links:
            link.receive()

    @property
    def dropped(self) -> int:
        # Lines for a socket that never had a listener are not counted as lost.
        return max((link.dropped for link in self.links if link.connections), default=self.links[0].dropped)

    @property
    def connected(self) -> bool:
        return any(link.connected for link in self.links)

    def send(self, line: bytes, keep: bool = False) -> None:
        for link in self.links:
            link.send(line, keep)

    @property
    def busy(self) -> bool:
        return any(link.busy for link in self.links)

    def connect(self) -> bool:
        return any([link.connect() for link in self.links])

    def keep_up(self) -> None:
        for link in self.links:
            link.keep_up()

    def forked(self) -> None:
        for link in self.links:
            link.forked()

    def close(self) -> None:
        for link in self.links:
            link.close()


def _link(paths: str, greeting: Callable[[], List[bytes]]) -> Any:
    each = list(dict.fromkeys(path for path in paths.split(":") if path))
    return _Link(each[0], greeting) if len(each) == 1 else _Links(each or [DEFAULT_SOCKET], greeting)
