"""Shared by all modules: limits, error handling, JSON values, text tables."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, TypeVar, Union

PROTOCOL = 1
DEFAULT_SOCKET = "/run/memwarden/job.sock"
DEFAULT_URL = "http://127.0.0.1:10636"
LONGEST_LINE = 65536
# Bytes of the name of a phase, and of any other text but a path.
LONGEST_NAME, LONGEST_TEXT = 64, 256
# Bytes of the JSON of an event's detail.
LONGEST_DETAIL = 16384
# Lines that wait for a connection: acknowledgements and failures, not measured values.
MOST_KEPT = 64
MOST_PHASES = 64
MOST_ENTRIES = 10000
FIRST_RETRY, LAST_RETRY = 0.5, 30.0
SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

# Raises errors instead of hiding them; for tests.
DEBUG = os.environ.get("MEMWARDEN_DEBUG", "") not in ("", "0")

_log = logging.getLogger("memwarden")
_log.addHandler(logging.NullHandler())

JSON = Dict[str, Any]
Path = Union[str, "os.PathLike[str]"]
Function = TypeVar("Function", bound=Callable[..., Any])
_getpid, _now, _clock = os.getpid, time.time, time.perf_counter

# Held while a thread imports, and while the process forks: a child has the locks of an import, and not the thread that would release them.
_loading = threading.RLock()
os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def _hide(error: BaseException, where: str) -> None:
    """Handles an error of this package: raises it under DEBUG, otherwise logs it."""
    if DEBUG:
        raise error
    try:
        _log.debug("memwarden: %s: %r", where, error)
    except Exception:  # A user's own log handler may do anything.
        pass


@contextlib.contextmanager
def _hiding(where: str) -> Iterator[None]:
    """`with _hiding("devices"):` handles an error of this package, and goes on after it. Not for each step: it takes a microsecond."""
    try:
        yield
    except Exception as error:
        _hide(error, where)


_said: Set[str] = set()


def _say(text: str) -> None:
    """A line on standard error, once: for what the user has asked for and does not get."""
    if text in _said or len(_said) >= 16:
        return
    _said.add(text)
    try:
        print("memwarden: " + text, file=sys.stderr)
    except Exception:  # Standard error may be closed.
        pass


def _guarded(default: Any = None) -> Callable[[Function], Function]:
    """The method never raises; it returns `default` (or a new one, where it is a type) instead."""

    def decorate(method: Function) -> Function:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                _hide(error, method.__name__)
                return default() if isinstance(default, type) else default

        return call  # type: ignore[return-value]

    return decorate


# ---------------------------------------------------------------------------------------------------------------------


def _plain(value: Any, depth: int = 8, most: Optional[int] = 1000) -> Any:
    """`value` as JSON; never reads a tensor of a device, never raises. `depth` and `most` limit what containers hold."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else str(value)
    if depth < 0:
        return "..."
    try:
        if isinstance(value, Mapping):
            return {str(key): _plain(each, depth - 1, most) for key, each in list(value.items())[:most]}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(each, depth - 1, most) for each in list(value)[:most]]
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            number = _number(value) if _elements(value) == 1 else None
            shown = "%s%s" % (_dtype(value.dtype), list(value.shape))
            return shown if number is None else _plain(number)
        return str(value)[:1000]
    except Exception:
        return type(value).__name__


def _text(value: Any) -> str:
    return value if type(value) is str else str(_plain(value))


def _short(value: Any, most: int = LONGEST_TEXT) -> str:
    """A text of at most `most` bytes of UTF-8: the daemon rejects a line with a longer one."""
    return _text(value).encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _encode(message: JSON) -> bytes:
    text = json.dumps(_plain(message), separators=(",", ":"), ensure_ascii=False)
    line = text.encode("utf-8", "replace") + b"\n"
    if len(line) <= (LONGEST_DETAIL if "detail" in message else LONGEST_LINE):
        return line
    # Values of users can be long.
    short = {key: each for key, each in message.items() if key not in ("detail", "by_group", "model", "devices")}
    if "detail" in message:
        short["detail"] = {"truncated": True}
    line = json.dumps(_plain(short), separators=(",", ":")).encode() + b"\n"
    return line if len(line) <= LONGEST_LINE else b""


def _number(value: Any) -> Optional[float]:
    """A number; None for a value on a device, because reading it would wait for the device."""
    if value is None or type(value) is float or type(value) is int:
        return value
    device = getattr(value, "device", None)
    if device is not None and getattr(device, "type", str(device)) != "cpu":
        return None
    return float(value.detach() if hasattr(value, "detach") else value)


def _real(value: float) -> str:
    """A real in the protocol's form: JSON has neither NaN nor infinity."""
    if value - value == 0.0:
        return repr(value)
    return '"nan"' if value != value else ('"inf"' if value > 0 else '"-inf"')


def _write_json(path: Any, content: JSON) -> None:
    """Writes a file completely or not at all. All values are in it, whatever their number."""
    path = os.fspath(path)
    sibling = "%s.%d.part" % (path, _getpid())
    try:
        with open(sibling, "w", encoding="utf-8") as file:
            json.dump(_plain(content, depth=100, most=None), file, indent=1)
            file.write("\n")
        os.replace(sibling, path)
    except BaseException:
        if os.path.exists(sibling):
            os.remove(sibling)
        raise


def _size(value: Optional[float]) -> str:
    if value is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return "%d B" % value if unit == "B" else "%.1f %s" % (value, unit)
        value /= 1024
    return "%.1f TiB" % value


def _table(rows: List[List[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def _dtype(dtype: Any) -> str:
    name = str(dtype).rsplit(".", 1)[-1]
    return _DTYPES.get(name, name)


def _elements(tensor: Any) -> int:
    return int(tensor.numel()) if hasattr(tensor, "numel") else int(getattr(tensor, "size", 0))
