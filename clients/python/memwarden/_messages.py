"""The messages of a monitor: its greeting, and how lines reach the daemon and the log file."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Deque, List, Optional

from . import __version__
from ._base import JSON, PROTOCOL, _encode, _guarded, _hide
from ._process import _accelerator, _device_properties, _devices, _torch, launcher_rank


class _Messages:
    """What every part of a monitor uses: its facts, its state, and sending."""

    _off: bool
    _ready: bool
    _stopped: bool
    _step: int
    _facts: JSON
    _model: Optional[JSON]
    _params: Optional[JSON]
    _hello_sent: Optional[JSON]
    _link: Any
    _last_line: bytes
    _log_path: Optional[str]
    _log_bytes: int
    _log_files: int
    _log_lines: Deque[bytes]
    _log_lock: threading.Lock

    if TYPE_CHECKING:

        def start(self) -> Any: ...

        def _wants(self, n: int) -> bool: ...

    def _send(self, message: JSON, keep: bool = False) -> None:
        self._send_line(_encode(message), keep)

    def _send_line(self, line: bytes, keep: bool = False) -> None:
        if self._off:
            return
        if self._log_path is not None:
            self._log_lines.append(line)
        self._link.send(line, keep)

    def _greeting(self) -> List[bytes]:
        """The first lines of a new connection: all cumulative values."""
        self._hello_sent = self._hello()
        lines = [_encode(self._hello_sent)]
        if self._params is not None:
            lines.append(_encode(self._params))
        if self._last_line:
            lines.append(self._last_line)
        lines += self._phase_lines()
        return [line for line in lines if line]

    def _hello(self) -> JSON:
        rank, local_rank, world = launcher_rank()
        torch = _torch()
        try:
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                rank, world = distributed.get_rank(), distributed.get_world_size()
        except Exception as error:
            _hide(error, "rank")
        hello: JSON = {
            "type": "hello",
            "v": PROTOCOL,
            "client": "memwarden.py " + __version__,
            "rank": rank,
            "local_rank": local_rank,
            "world": world,
        }
        if torch is not None:
            hello["framework"] = "torch"
            hello["framework_version"] = str(getattr(torch, "__version__", ""))
        hello.update((key, value) for key, value in self._facts.items() if value is not None)
        hello["world"] = max(hello["world"], hello["rank"] + 1)
        devices = self._device_names()
        if devices:
            hello["devices"] = devices
        if self._model:
            hello["model"] = self._model
        return hello

    @staticmethod
    def _device_names() -> JSON:
        named: JSON = {}
        try:
            module = _accelerator()
            for index in _devices():
                _, uuid, name = _device_properties(module, int(index))
                known = {"uuid": uuid, "name": name}
                named[index] = {key: value for key, value in known.items() if value is not None}
        except Exception as error:
            _hide(error, "devices")
        return named

    def _say_hello_again(self) -> None:
        """Called when the identity changes: the process group was created, a model was built."""
        if self._link.connected and self._hello() != self._hello_sent:
            self._hello_sent = self._hello()
            self._send(self._hello_sent)

    @_guarded()
    def describe(self, model: Any = None, **facts: Any) -> None:
        """Adds values that are known later: the model, or any of the arguments of `Monitor`."""
        unknown = set(facts) - set(self._facts)
        if unknown:
            raise TypeError("no such fact: %s" % ", ".join(sorted(unknown)))
        self._facts.update(facts)
        if model is not None:
            from ._models import describe_model  # Imported here: few programs need it.

            self._model = describe_model(model)
        self._say_hello_again()

    def _phase_lines(self) -> List[bytes]:
        """The totals of the phases."""
        return []

    def _write_log(self) -> None:
        if self._log_path is None or not self._log_lines:
            return
        with self._log_lock:
            lines = []
            while self._log_lines:
                lines.append(self._log_lines.popleft())
            files = max(1, self._log_files)
            if os.path.exists(self._log_path) and os.path.getsize(self._log_path) >= max(4096, self._log_bytes):
                for number in range(files - 1, 0, -1):
                    older = self._log_path if number == 1 else "%s.%d" % (self._log_path, number - 1)
                    if os.path.exists(older):
                        os.replace(older, "%s.%d" % (self._log_path, number))
                if files == 1:
                    os.remove(self._log_path)
            with open(self._log_path, "ab") as file:
                file.write(b"".join(lines))
