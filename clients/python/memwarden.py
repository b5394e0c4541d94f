"""What a training process tells the memwarden daemon: steps, phases, memory, checkpoints.

    import memwarden

    monitor = memwarden.Monitor(job="llama-sft")
    for n, batch in enumerate(loader, 1):
        with monitor.phase("forward"):
            loss = model(**batch).loss
        ...
        monitor.step(n, tokens=batch["input_ids"].numel())
    monitor.stop()

One file, standard library only, Python 3.8 and later, Linux. Nothing here raises into training, waits for the
daemon or synchronizes with a GPU unless its documentation says so. What is not known is None, never 0.
Bytes are integers, times are seconds. The protocol is clients/PROTOCOL.md.
"""

from __future__ import annotations

import atexit
import collections
import functools
import gc
import json
import logging
import os
import re
import select
import signal
import socket
import sys
import threading
import time
import weakref
from typing import Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar, Union

__version__ = "0.1.0"
__all__ = [
    "Monitor",
    "analyze_model",
    "compare_configurations",
    "describe_model",
    "estimate_training_memory",
    "huggingface_callback",
    "launcher_rank",
    "lightning_callback",
]

PROTOCOL = 1
DEFAULT_SOCKET = "/run/memwarden/job.sock"
DEFAULT_URL = "http://127.0.0.1:10636"
LONGEST_LINE = 65536
# Lines that wait for a connection: acknowledgements and failures, not figures.
MOST_KEPT = 64
MOST_PHASES = 64
MOST_ENTRIES = 10000
FIRST_RETRY, LAST_RETRY = 0.5, 30.0
SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

# Raises instead of hiding what goes wrong; for tests.
DEBUG = os.environ.get("MEMWARDEN_DEBUG", "") not in ("", "0")

_log = logging.getLogger("memwarden")
_log.addHandler(logging.NullHandler())

JSON = Dict[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])
_getpid, _now, _clock = os.getpid, time.time, time.perf_counter


def _hide(error: BaseException, where: str) -> None:
    """What went wrong in our own code: raised under DEBUG, else told to whoever listens to the log."""
    if DEBUG:
        raise error
    try:
        _log.debug("memwarden: %s: %r", where, error)
    except Exception:  # A user's own log handler may do anything.
        pass


def _guarded(default: Any = None) -> Callable[[Function], Function]:
    """The method never raises; it gives `default` (or what it makes, where it is a type) instead."""

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
# JSON


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON can hold it; never reads a tensor of a device, never raises."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else str(value)
    if depth > 8:
        return "..."
    try:
        if isinstance(value, Mapping):
            return {str(key): _plain(each, depth + 1) for key, each in list(value.items())[:1000]}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(each, depth + 1) for each in list(value)[:1000]]
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            number = _number(value) if _elements(value) == 1 else None
            shown = "%s%s" % (_dtype(value.dtype), list(value.shape))
            return shown if number is None else _plain(number, depth + 1)
        return str(value)[:1000]
    except Exception:
        return type(value).__name__


def _text(value: Any) -> str:
    return value if type(value) is str else str(_plain(value))


def _encode(message: JSON) -> bytes:
    text = json.dumps(_plain(message), separators=(",", ":"), ensure_ascii=False)
    line = text.encode("utf-8", "replace") + b"\n"
    if len(line) <= LONGEST_LINE:
        return line
    # What people add is what can be long.
    short = {key: each for key, each in message.items() if key not in ("detail", "by_group", "model", "devices")}
    if "detail" in message:
        short["detail"] = {"truncated": True}
    line = json.dumps(_plain(short), separators=(",", ":")).encode() + b"\n"
    return line if len(line) <= LONGEST_LINE else b""


def _number(value: Any) -> Optional[float]:
    """A number; None for what would have to be fetched from a device, which would wait for it."""
    if value is None or type(value) is float or type(value) is int:
        return value
    device = getattr(value, "device", None)
    if device is not None and getattr(device, "type", str(device)) != "cpu":
        return None
    return float(value.detach() if hasattr(value, "detach") else value)


def _real(value: float) -> str:
    """As the protocol writes reals: JSON has neither NaN nor infinity."""
    if value - value == 0.0:
        return repr(value)
    return '"nan"' if value != value else ('"inf"' if value > 0 else '"-inf"')


# ---------------------------------------------------------------------------------------------------------------------
# The socket


class _Link:
    """Whole lines to the daemon, in order, without ever waiting.

    Whoever has the lock sends; others leave their line in the queue, and the one with the lock takes it along.
    A line that does not fit is dropped and counted; of a line that went out in part, the rest goes first.
    """

    def __init__(self, path: str, greeting: Callable[[], List[bytes]]) -> None:
        self.path = path
        self.dropped = 0
        self.connections = 0
        self._greeting = greeting
        self._pid = _getpid()
        self._socket: Optional[socket.socket] = None
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queue: Deque[Tuple[bytes, bool]] = collections.deque()
        self._rest = b""
        self._retry_after = FIRST_RETRY
        self._retry_at = 0.0

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def send(self, line: bytes, keep: bool = False) -> None:
        """Sends a line, or drops it; one to `keep` waits for the next connection."""
        if self._pid != _getpid():
            self.forked()
        current = self._socket
        if not line or (current is None and not keep):
            self.dropped += 1
            return
        # The short way, which is nearly always open.
        if current is not None and not self._queue and self._lock.acquire(False):
            try:
                if not self._rest and not self._queue and self._socket is current:
                    sent = self._write(line)
                    if sent == len(line):
                        line = b""
                    elif sent:
                        self._rest, line = line[sent:], b""
                    elif keep:
                        return self._queue.append((line, keep))
                    else:
                        self.dropped += 1
                        return
            finally:
                self._lock.release()
        if line:
            self._queue.append((line, keep))
        if self._queue:
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
        """Whether everything went out; with the lock held."""
        queue = self._queue
        if self._rest:
            sent = self._write(self._rest)
            # Empty by now where the connection was lost.
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
        """Drops what nobody keeps; always False."""
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
        lost, self._socket = self._socket, None
        # The rest of a torn line means nothing to the next connection.
        self.dropped += 1 if self._rest else 0
        self._rest = b""
        if lost is not None:
            lost.close()

    def connect(self) -> bool:
        """Connects where it is not and the last failure is long enough ago. Off the hot path."""
        if self._pid != _getpid():
            self.forked()
        if self._socket is not None:
            return True
        if time.monotonic() < self._retry_at:
            return False
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            fresh.setblocking(False)
            fresh.connect(self.path)
        except OSError:
            fresh.close()
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

    def keep_up(self) -> None:
        """Once in a while: notices the daemon's end, connects again, finishes what was sent in part."""
        current = self._socket
        if current is not None:
            poll = select.poll()
            poll.register(current.fileno(), 0)
            if poll.poll(0):
                with self._lock:
                    self._lose()
        self.connect()
        self.drain()

    def forked(self) -> None:
        """In a child: the parent's connection is the parent's, and its lines as well."""
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
    """Several sockets, each of which gets everything: under `memwarden run` its own and the daemon's."""

    def __init__(self, paths: Sequence[str], greeting: Callable[[], List[bytes]]) -> None:
        self.links = [_Link(path, greeting) for path in paths]

    @property
    def dropped(self) -> int:
        # Of one that nobody ever listened to nobody misses anything.
        return max((link.dropped for link in self.links if link.connections), default=self.links[0].dropped)

    @property
    def connected(self) -> bool:
        return any(link.connected for link in self.links)

    def send(self, line: bytes, keep: bool = False) -> None:
        for link in self.links:
            link.send(line, keep)

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


# ---------------------------------------------------------------------------------------------------------------------
# What the launcher says


def launcher_rank(environment: Optional[Mapping[str, str]] = None) -> Tuple[int, int, int]:
    """Rank, local rank and world size, from torchrun, Slurm, Open MPI, MPICH and what else speaks PMI.

    Where nobody launched it, 0, 0 and 1.
    """
    env = os.environ if environment is None else environment
    names: List[Tuple[Sequence[str], Sequence[str], Sequence[str]]] = [
        (["RANK"], ["LOCAL_RANK"], ["WORLD_SIZE"]),
        (["OMPI_COMM_WORLD_RANK"], ["OMPI_COMM_WORLD_LOCAL_RANK"], ["OMPI_COMM_WORLD_SIZE"]),
        (["PMI_RANK", "PMIX_RANK"], ["MPI_LOCALRANKID", "PMI_LOCAL_RANK"], ["PMI_SIZE", "MPI_LOCALNRANKS"]),
    ]
    # In the batch script itself SLURM_NTASKS is set too, but only a step has that many processes.
    if "SLURM_STEP_ID" in env or "SLURM_STEPID" in env:
        names.append((["SLURM_PROCID"], ["SLURM_LOCALID"], ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]))

    def first(keys: Sequence[str]) -> Optional[int]:
        found = (env[key] for key in keys if key in env)
        return next((int(value) for value in found if value.isdigit() and len(value) < 10), None)

    for rank_names, local_names, world_names in names:
        rank = first(rank_names)
        if rank is not None:
            world = first(world_names)
            local = first(local_names)
            world = max(world if world is not None else 1, rank + 1)
            return rank, local if local is not None else 0, world
    return 0, 0, 1


# ---------------------------------------------------------------------------------------------------------------------
# torch, where the program has imported it; never imported from here

_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_MEMORY_KEYS = (
    ("allocated", "allocated_bytes.all.current"),
    ("allocated_peak", "allocated_bytes.all.peak"),
    ("active", "active_bytes.all.current"),
    ("reserved", "reserved_bytes.all.current"),
    ("reserved_peak", "reserved_bytes.all.peak"),
    ("requested", "requested_bytes.all.current"),
    ("inactive_split", "inactive_split_bytes.all.current"),
    ("retries", "num_alloc_retries"),
    ("ooms", "num_ooms"),
)


def _torch() -> Any:
    return sys.modules.get("torch")


def _dtype(dtype: Any) -> str:
    name = str(dtype).rsplit(".", 1)[-1]
    return _DTYPES.get(name, name)


def _elements(tensor: Any) -> int:
    return int(tensor.numel()) if hasattr(tensor, "numel") else int(getattr(tensor, "size", 0))


def _bytes(tensor: Any) -> int:
    """Of the part that this process holds."""
    local = _local(tensor)
    return int(local.numel()) * int(local.element_size())


def _local(tensor: Any) -> Any:
    """This rank's shard of a distributed tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _accelerator() -> Any:
    """The module of the accelerator in use (`torch.cuda`, `xpu`, `npu`, `musa`); None before it is initialized."""
    torch = _torch()
    for name in ("cuda", "npu", "xpu", "musa"):
        module = getattr(torch, name, None) if torch is not None else None
        try:
            if module is not None and module.is_initialized() and hasattr(module, "memory_stats"):
                return module
        except Exception:
            continue
    return None


def _devices() -> Dict[str, JSON]:
    """The allocator's figures by device, under the protocol's names. Reads counters only: nothing waits."""
    module = _accelerator()
    found: Dict[str, JSON] = {}
    for index in range(module.device_count() if module is not None else 0):
        stats = module.memory_stats(index)
        figures = {name: int(stats[key]) for name, key in _MEMORY_KEYS if key in stats}
        # A process sees every device of the node and uses one or a few.
        if not figures.get("reserved_peak") and not figures.get("ooms"):
            continue
        total = _device_total(module, index)
        if total is not None:
            figures["total"] = total
        found[str(index)] = figures
    return found


@functools.lru_cache(maxsize=64)
def _device_properties(module: Any, index: int) -> Tuple[Optional[int], Optional[str], Optional[str]]:
    properties = module.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    text = None if uuid is None else str(uuid)
    if text is not None and not text.startswith(("GPU-", "MIG-")):
        text = "GPU-" + text
    return getattr(properties, "total_memory", None), text, getattr(properties, "name", None)


def _device_total(module: Any, index: int) -> Optional[int]:
    try:
        return _device_properties(module, index)[0]
    except Exception:
        return None


def _allocated() -> Optional[Tuple[int, int]]:
    """Bytes allocated now and at most since the process began, over all devices; about 20 us a device."""
    module = _accelerator()
    if module is None:
        return None
    current = getattr(module, "current_device", lambda: 0)()
    torch = _torch()
    fast = getattr(getattr(torch, "_C", None), "_cuda_memoryStats", None)
    if fast is not None and module is torch.cuda:
        figures = fast(current)["allocated_bytes"]["all"]
        return int(figures["current"]), int(figures["peak"])
    stats = module.memory_stats(current)
    return int(stats.get("allocated_bytes.all.current", 0)), int(stats.get("allocated_bytes.all.peak", 0))


def _pinned() -> Optional[int]:
    module = _accelerator()
    read = getattr(module, "host_memory_stats", None)
    if read is None:
        return None
    stats = read()
    value = stats.get("reserved_bytes.current", stats.get("allocated_bytes.current"))
    return None if value is None else int(value)


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return None


def _host_memory() -> Tuple[Optional[int], Optional[int]]:
    """This process's resident memory now and at most."""
    found: Dict[str, int] = {}
    for line in (_read("/proc/self/status") or "").splitlines():
        key, _, rest = line.partition(":")
        if key in ("VmRSS", "VmHWM"):
            found[key] = int(rest.split()[0]) * 1024
    return found.get("VmRSS"), found.get("VmHWM")


def _cgroup_memory() -> Tuple[Optional[int], Optional[int], str]:
    """What the tightest cgroup of version 2 on our path uses, its limit, and our path."""
    own = next((line[3:] for line in (_read("/proc/self/cgroup") or "").splitlines() if line.startswith("0::")), "")
    path, best = own, (None, None)  # type: Tuple[str, Tuple[Optional[int], Optional[int]]]
    while own:
        folder = "/sys/fs/cgroup" + path.rstrip("/")
        limit, used = (_read(folder + "/memory.max") or "").strip(), (_read(folder + "/memory.current") or "").strip()
        if limit.isdigit() and used.isdigit() and (best[1] is None or int(limit) - int(used) < best[1] - (best[0] or 0)):
            best = int(used), int(limit)
        if path in ("/", ""):
            break
        path = path.rsplit("/", 1)[0]
    return best[0], best[1], own


# ---------------------------------------------------------------------------------------------------------------------
# The monitor


class _Phase:
    """`with monitor.phase("forward"):`, or `@monitor.phase("forward")`."""

    def __init__(self, monitor: "Monitor", name: str, snapshots: bool = False) -> None:
        self._monitor, self._name, self._snapshots = monitor, _text(name), snapshots
        self._begun: List[Any] = []

    def __enter__(self) -> "_Phase":
        if self._snapshots:
            self._monitor.memory_snapshot(self._name + ":begin")
        self._begun.append(self._monitor._phase_begins(self._name))
        return self

    def __exit__(self, *_: Any) -> None:
        self._monitor._phase_ends(self._name, self._begun.pop() if self._begun else None)
        if self._snapshots:
            self._monitor.memory_snapshot(self._name + ":end")

    def __call__(self, function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _Phase(self._monitor, self._name, self._snapshots):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]


class _Total:
    """What is known of a phase so far."""

    __slots__ = ("seconds", "count", "peak", "open_since", "changed", "said_open")

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0
        self.peak: Optional[int] = None
        self.open_since: Optional[float] = None
        self.changed = self.said_open = False


_monitors: "weakref.WeakSet[Monitor]" = weakref.WeakSet()
_auto: Optional["Monitor"] = None


class Monitor:
    """One training process, as the daemon is told of it.

    `monitor_steps` such as `[1, [5, 10]]` limits what is told and recorded to those steps; totals go on counting.
    `interval` is the seconds between two readings of the allocator (0: none), `min_interval` those between two step
    messages, `log_file` a file that gets every line that is sent (`log_bytes` each, `log_files` of them),
    `oom_snapshot` a folder for a snapshot of the allocator when it gives up. What describes the run (`rank`,
    `world`, `data_parallel`, `sequence_length`, `global_batch`, `precision`, `recompute`) is found where it can be.
    """

    def __init__(
        self,
        job: Optional[str] = None,
        *,
        rank: Optional[int] = None,
        local_rank: Optional[int] = None,
        world: Optional[int] = None,
        data_parallel: Optional[int] = None,
        sequence_length: Optional[int] = None,
        global_batch: Optional[int] = None,
        precision: Optional[str] = None,
        recompute: Optional[str] = None,
        monitor_steps: Optional[Iterable[Union[int, Sequence[int]]]] = None,
        interval: float = 1.0,
        min_interval: float = 0.01,
        phase_memory: bool = True,
        socket_path: Optional[str] = None,
        url: Optional[str] = None,
        log_file: Optional[str] = None,
        log_bytes: int = 10 << 20,
        log_files: int = 10,
        oom_snapshot: Optional[str] = None,
    ) -> None:
        env = os.environ
        self._off = env.get("MEMWARDEN_DISABLE", "") not in ("", "0")
        self._facts: JSON = {
            "job": job if job is not None else env.get("MEMWARDEN_JOB") or None,
            "rank": rank,
            "local_rank": local_rank,
            "world": world,
            "data_parallel": data_parallel,
            "sequence_length": sequence_length,
            "global_batch": global_batch,
            "precision": precision,
            "recompute": recompute,
        }
        self._model: Optional[JSON] = None
        self._params: Optional[JSON] = None
        self._hello_sent: Optional[JSON] = None
        self._hellos_checked = 0
        self._wanted: Optional[Tuple[Set[int], List[Tuple[int, int]]]] = None
        self._interval, self._min_interval = interval, min_interval
        self._phase_memory = phase_memory
        self._url = _text(url or env.get("MEMWARDEN_URL") or DEFAULT_URL).rstrip("/")
        self._oom_snapshot = oom_snapshot or env.get("MEMWARDEN_OOM_SNAPSHOT") or None
        self._log_path, self._log_bytes, self._log_files = log_file, log_bytes, log_files
        self._log_lines: Deque[bytes] = collections.deque(maxlen=MOST_ENTRIES)
        self._log_lock = threading.Lock()
        self._link = _link(_text(socket_path or env.get("MEMWARDEN_JOB_SOCKET") or DEFAULT_SOCKET), self._greeting)
        self._checkpoint_requested = False
        self._risks: List[Tuple[int, Callable[[JSON], Any], bool, Dict[str, int]]] = []
        self._observed = False
        self._entries: Deque[JSON] = collections.deque(maxlen=MOST_ENTRIES)
        self._snapshots: Dict[str, JSON] = {}
        self._ready = False
        self._stopped = False
        self._clear()
        try:
            self._wanted = _wanted_steps(monitor_steps)
        except Exception as error:
            _hide(error, "monitor_steps")
        _monitors.add(self)

    def _clear(self) -> None:
        """The totals of a process that has done nothing yet."""
        self._pid = _getpid()
        self._began = _clock()
        self._step = 0
        self._tokens: Optional[int] = None
        self._samples: Optional[int] = None
        self._skipped = self._nan = 0
        self._last_line = b""
        self._last_end: Optional[float] = None
        self._last_sent = float("-inf")
        self._held = False
        self._phases: Dict[str, _Total] = {}
        self._probes = 0
        self._thread: Optional[threading.Thread] = None
        self._risk_thread: Optional[threading.Thread] = None
        self._wake = threading.Event()

    # -- begin and end

    @_guarded()
    def start(self) -> "Monitor":
        """Connects and begins to read the allocator; called by the first `step` where nobody does."""
        global _auto
        if self._ready or self._off:
            return self
        if _auto is not None and _auto is not self:
            # The program speaks for itself.
            retired, _auto = _auto, None
            retired._retire()
        self._ready, self._stopped = True, False
        self._link.connect()
        self._run_thread()
        return self

    def _run_thread(self) -> None:
        if self._thread is None and self._interval > 0:
            self._thread = threading.Thread(target=self._loop, args=(self._wake,), name="memwarden", daemon=True)
            self._thread.start()

    @_guarded()
    def stop(self, reason: str = "finished") -> None:
        """Says goodbye; the series of this rank end."""
        if not self._ready or self._pid != _getpid():
            return
        self._wake.set()
        self._flush_held()
        self._send({"type": "bye", "t": _now(), "reason": reason, "dropped": self._link.dropped})
        self._link.close()
        self._write_log()
        self._ready, self._stopped, self._thread, self._risk_thread = False, True, None, None
        self._wake = threading.Event()

    def __enter__(self) -> "Monitor":
        self.start()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.stop("finished" if kind is None else getattr(kind, "__name__", "error"))

    def _retire(self) -> None:
        """Another monitor of this process takes over."""
        self._off, self._ready = True, False
        self._wake.set()
        self._link.close()

    def _forked(self) -> None:
        self._link.forked()
        self._log_lines.clear()
        self._log_lock = threading.Lock()
        self._hello_sent, self._hellos_checked = None, 0
        self._ready = False
        self._clear()

    @property
    def dropped(self) -> int:
        """Lines that could not be sent."""
        return int(self._link.dropped)

    @property
    def connected(self) -> bool:
        """Whether a daemon listens."""
        return bool(self._link.connected)

    # -- what is sent

    def _send(self, message: JSON, keep: bool = False) -> None:
        self._send_line(_encode(message), keep)

    def _send_line(self, line: bytes, keep: bool = False) -> None:
        if self._off:
            return
        if self._log_path is not None:
            self._log_lines.append(line)
        self._link.send(line, keep)

    def _greeting(self) -> List[bytes]:
        """What a new connection begins with: all that is cumulative."""
        self._hello_sent = self._hello()
        lines = [_encode(self._hello_sent)]
        if self._params is not None:
            lines.append(_encode(self._params))
        if self._last_line:
            lines.append(self._last_line)
        lines += [self._phase_line(name, total) for name, total in list(self._phases.items()) if total.count]
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
        """Where what describes us has changed: the process group was made, a model was built."""
        if self._link.connected and self._hello() != self._hello_sent:
            self._hello_sent = self._hello()
            self._send(self._hello_sent)

    @_guarded()
    def describe(self, model: Any = None, **facts: Any) -> None:
        """Adds what is known later: the model, or any of the facts that `Monitor` takes."""
        unknown = set(facts) - set(self._facts)
        if unknown:
            raise TypeError("no such fact: %s" % ", ".join(sorted(unknown)))
        self._facts.update(facts)
        if model is not None:
            self._model = describe_model(model)
        self._say_hello_again()

    # -- steps

    def step(
        self,
        n: Optional[int] = None,
        *,
        tokens: Any = None,
        samples: Any = None,
        loss: Any = None,
        learning_rate: Any = None,
        grad_norm: Any = None,
        seconds: Optional[float] = None,
        skipped: bool = False,
    ) -> None:
        """After each optimizer step: its number, and the tokens and samples that this rank trained on in it.

        A tensor that lives on a device is not read, which would wait for the device: hand over numbers.
        """
        if self._off:
            return
        try:
            now = _clock()
            if not self._ready:
                if self._stopped:
                    return
                self.start()
            self._step = n = self._step + 1 if n is None else int(n)
            if tokens is not None:
                if type(tokens) is not int:
                    tokens = _number(tokens)
                if tokens is not None:
                    self._tokens = (self._tokens or 0) + int(tokens)
            if samples is not None:
                if type(samples) is not int:
                    samples = _number(samples)
                if samples is not None:
                    self._samples = (self._samples or 0) + int(samples)
            if seconds is None and self._last_end is not None:
                seconds = now - self._last_end
            self._last_end = now
            line = '{"type":"step","t":%.6f,"step":%d' % (_now(), n)
            if seconds is not None:
                line += ',"seconds":%.9g' % seconds
            if self._tokens is not None:
                line += ',"tokens":%d' % self._tokens
            if self._samples is not None:
                line += ',"samples":%d' % self._samples
            finite = True
            if loss is not None:
                if type(loss) is not float:
                    loss = _number(loss)
                if loss is not None:
                    finite = loss - loss == 0.0
                    line += ',"loss":' + _real(loss)
            if learning_rate is not None:
                if type(learning_rate) is not float:
                    learning_rate = _number(learning_rate)
                if learning_rate is not None:
                    line += ',"learning_rate":' + _real(learning_rate)
            if grad_norm is not None:
                if type(grad_norm) is not float:
                    grad_norm = _number(grad_norm)
                if grad_norm is not None:
                    finite = finite and grad_norm - grad_norm == 0.0
                    line += ',"grad_norm":' + _real(grad_norm)
            if skipped:
                self._skipped += 1
            if not finite:
                self._nan += 1
            line += ',"skipped":%d,"nan":%d,"dropped":%d}\n' % (self._skipped, self._nan, self._link.dropped)
            if self._wanted is not None and not self._wants(n):
                return
            self._last_line = encoded = line.encode()
            if now - self._last_sent < self._min_interval:
                self._held = True
                return
            self._held = False
            self._last_sent = now
            self._send_line(encoded)
            if self._hellos_checked < 2:
                self._hellos_checked += 1
                self._say_hello_again()
        except Exception as error:
            _hide(error, "step")

    def _wants(self, n: int) -> bool:
        if self._wanted is None:
            return True
        single, ranges = self._wanted
        return n in single or any(first <= n <= last for first, last in ranges)

    def _flush_held(self) -> None:
        if self._held:
            self._held = False
            self._send_line(self._last_line)
        for name, total in list(self._phases.items()):
            if total.changed:
                total.changed = total.said_open = False
                self._send_line(self._phase_line(name, total))

    # -- phases

    def phase(self, name: str) -> _Phase:
        """A context manager, and a decorator, for a part of the step: `forward`, `backward`, `optimizer`, `loader`.

        The time is the host's: work that a GPU does later counts where the host waits for it.
        """
        return _Phase(self, name)

    def profile_stage(self, name: str, function: Optional[Callable[..., Any]] = None, *args: Any, **kwargs: Any) -> Any:
        """A phase with snapshots `NAME:begin` and `NAME:end` around it, to be compared.

        With a function, calls it as such a stage and gives what it gives.
        """
        stage = _Phase(self, name, snapshots=True)
        if function is None:
            return stage
        with stage:
            return function(*args, **kwargs)

    def _total(self, name: str) -> Optional[_Total]:
        found = self._phases.get(name)
        if found is None and len(self._phases) < MOST_PHASES:
            found = self._phases.setdefault(name, _Total())
        return found

    def _probe(self) -> Optional[Tuple[int, int]]:
        """The allocator's figures, for the first phases and then for every tenth."""
        if not self._phase_memory:
            return None
        self._probes += 1
        return _allocated() if self._probes < 256 or self._probes % 10 == 0 else None

    def _phase_begins(self, name: str) -> Any:
        if self._off:
            return None
        try:
            if not self._ready and not self._stopped:
                self.start()
            total = self._total(name)
            if total is None:
                return None
            before = self._probe()
            total.open_since = now = _clock()
            return now, before
        except Exception as error:
            _hide(error, "phase")

    def _phase_ends(self, name: str, begun: Any) -> None:
        if begun is None or self._off:
            return
        try:
            total = self._phases.get(name)
            if total is None:
                return
            now = _clock()
            total.seconds += now - begun[0]
            total.count += 1
            total.changed, total.open_since = True, None
            if begun[1] is not None:
                after = _allocated()
                if after is not None:
                    # Without resetting the job's own peaks: one that rose meanwhile was reached in this phase.
                    highest = after[1] if after[1] > begun[1][1] else max(after[0], begun[1][0])
                    total.peak = max(total.peak or 0, highest)
        except Exception as error:
            _hide(error, "phase")

    def _phase_line(self, name: str, total: _Total) -> bytes:
        message: JSON = {
            "type": "phase",
            "t": _now(),
            "name": name.encode("utf-8", "replace")[:64].decode("utf-8", "ignore"),
            "state": "end",
            "seconds": total.seconds,
            "count": total.count,
        }
        if total.peak is not None:
            message["allocated_peak"] = total.peak
        return _encode(message)

    def phases(self) -> Dict[str, JSON]:
        """Seconds, count and highest allocation of every phase so far."""
        return {
            name: {"seconds": total.seconds, "count": total.count, "allocated_peak_bytes": total.peak}
            for name, total in list(self._phases.items())
        }

    # -- the thread

    def _loop(self, wake: threading.Event) -> None:
        while not wake.wait(self._interval):
            if self._off:
                return
            for task in (
                self._link.keep_up,
                self._observe_ooms,
                self._send_memory,
                self._flush_held,
                self._say_open_phases,
                self._write_log,
            ):
                try:
                    task()
                except Exception as error:
                    _hide(error, getattr(task, "__name__", "thread"))

    def _send_memory(self) -> None:
        devices = _devices()
        if not devices:
            return
        if self._hello_sent is not None and "devices" not in self._hello_sent:
            self._say_hello_again()
        message: JSON = {"type": "mem", "t": _now(), "devices": devices}
        pinned = _pinned()
        if pinned is not None:
            message["pinned"] = pinned
        self._send(message)

    def _say_open_phases(self) -> None:
        """A phase that takes long is told while it lasts."""
        now = _clock()
        for name, total in list(self._phases.items()):
            since = total.open_since
            if since is not None and now - since > 0.5 and not total.said_open:
                total.said_open = True
                self._send({"type": "phase", "t": _now() - (now - since), "name": name[:16], "state": "begin"})

    # -- out of memory

    def _observe_ooms(self) -> None:
        if self._observed:
            return
        torch = _torch()
        attach = getattr(getattr(torch, "_C", None), "_cuda_attach_out_of_memory_observer", None)
        cuda = getattr(torch, "cuda", None)
        # Before initialization there is no allocator of any device to attach to.
        if attach is None or cuda is None or not cuda.is_initialized():
            return
        self._observed = True
        weak = weakref.ref(self)

        def observer(device: int, requested: int, total: int, free: int) -> None:
            monitor = weak()
            if monitor is not None:
                monitor._out_of_memory(device, requested, total, free)

        attach(observer)

    @_guarded()
    def _out_of_memory(self, device: int, requested: int, total: int, free: int) -> None:
        message: JSON = {"type": "oom", "t": _now(), "device": str(device), "requested": requested}
        message.update(total=total, free=free)
        figures = _devices().get(str(device), {})
        message.update((key, figures[key]) for key in ("allocated", "reserved") if key in figures)
        if self._oom_snapshot:
            path = os.path.join(self._oom_snapshot, "oom-rank%d-%d.pickle" % (self._hello()["rank"], _getpid()))
            try:
                os.makedirs(self._oom_snapshot, exist_ok=True)
                _torch().cuda.memory._dump_snapshot(path)
                message["snapshot"] = os.path.abspath(path)
            except Exception as error:
                _hide(error, "snapshot")
        self._send(message, keep=True)
        self._entries.append(dict(self._entry("out of memory", None), detail=_plain(message)))

    # -- checkpoints

    @property
    def checkpoint_requested(self) -> bool:
        """Whether somebody asks for a checkpoint, until one is saved or has failed."""
        return self._checkpoint_requested

    @_guarded(False)
    def on_checkpoint_signal(self, *signals: int) -> bool:
        """Handles signals (without any, SIGUSR1) by setting `checkpoint_requested`, and nothing else.

        A handler that was there is called afterwards. Only the main thread may; False where it could not be done.
        """
        for number in signals or (signal.SIGUSR1,):
            before = signal.getsignal(number)

            def handler(number: int, frame: Any, before: Any = before) -> None:
                self._checkpoint_requested = True
                if callable(before) and before is not signal.default_int_handler:
                    before(number, frame)

            signal.signal(number, handler)
        return True

    @_guarded()
    def request_checkpoint(self) -> None:
        """Sets `checkpoint_requested`, as a signal would; for callbacks of `on_risk`."""
        self._checkpoint_requested = True

    @_guarded()
    def checkpoint_saving(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Says that a checkpoint is being written: protection then waits for it."""
        self._checkpoint("saving", path, step)

    @_guarded()
    def checkpoint_saved(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Says that the checkpoint is complete and on its disk: protection may go on."""
        self._checkpoint_requested = False
        self._checkpoint("saved", path, step)

    @_guarded()
    def checkpoint_failed(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Says that it could not be written."""
        self._checkpoint_requested = False
        self._checkpoint("failed", path, step)

    def checkpoint(self, path: Optional[str] = None, step: Optional[int] = None) -> "_Checkpoint":
        """`with monitor.checkpoint(path): torch.save(...)`: saving, then saved, or failed where it raises."""
        return _Checkpoint(self, path, step)

    def _checkpoint(self, state: str, path: Optional[str], step: Optional[int]) -> None:
        if not self._ready and not self._stopped:
            self.start()
        message: JSON = {"type": "checkpoint", "t": _now(), "state": state}
        message["step"] = self._step if step is None else int(step)
        if path is not None:
            message["path"] = os.path.abspath(os.fspath(path))
        self._send(message, keep=True)

    # -- timelines

    def _entry(self, event: str, extra: Any) -> JSON:
        rss, rss_peak = _host_memory()
        devices: JSON = {}
        try:
            devices = _devices()
        except Exception as error:
            _hide(error, "devices")
        entry: JSON = {
            "event": _text(event),
            "unix_seconds": _now(),
            "elapsed_seconds": _clock() - self._began,
            "step": self._step,
        }
        for key in ("allocated", "allocated_peak", "reserved", "reserved_peak"):
            known = [figures[key] for figures in devices.values() if key in figures]
            entry[key + "_bytes"] = sum(known) if known else None
        entry["host_rss_bytes"], entry["host_rss_peak_bytes"] = rss, rss_peak
        entry["devices"] = {
            index: {key if key in ("retries", "ooms") else key + "_bytes": value for key, value in figures.items()}
            for index, figures in devices.items()
        }
        if extra is not None:
            entry["extra"] = _plain(extra)
        return entry

    @_guarded(dict)
    def record(self, event: str, extra: Any = None) -> JSON:
        """Puts a point on the timeline, with the memory as it is now; gives the point."""
        if self._off or not self._wants(self._step):
            return {}
        return self._add(self._entry(event, extra))

    @_guarded(dict)
    def record_detailed(self, event: str, tensors: Any = None, model: Any = None, extra: Any = None) -> JSON:
        """As `record`, with the size, type and place of tensors and what a model holds."""
        if self._off or not self._wants(self._step):
            return {}
        entry = self._entry(event, extra)
        if tensors is not None:
            if isinstance(tensors, Mapping):
                named = list(tensors.items())
            else:
                named = list(enumerate(tensors if isinstance(tensors, (list, tuple)) else [tensors]))
            entry["tensors"] = [_describe_tensor(str(name), tensor) for name, tensor in named[:1000]]
        if model is not None:
            entry["model"] = analyze_model(model, check_values=False)
        return self._add(entry)

    def _add(self, entry: JSON) -> JSON:
        if not self._ready and not self._stopped:
            self.start()
        self._entries.append(entry)
        detail = {key[: -len("_bytes")]: value for key, value in entry.items() if key.endswith("_bytes") and value}
        if "extra" in entry:
            detail["extra"] = entry["extra"]
        message = {"type": "event", "t": entry["unix_seconds"], "name": entry["event"], "step": entry["step"]}
        self._send(dict(message, detail=detail))
        return entry

    @_guarded(list)
    def timeline(self) -> List[JSON]:
        """The points so far, the oldest first; at most the last 10,000."""
        return list(self._entries)

    @_guarded("")
    def timeline_text(self) -> str:
        """The timeline as a table for a console."""
        rows = [["elapsed", "step", "event", "allocated", "peak", "reserved", "host"]]
        for entry in list(self._entries):
            memory = [entry.get(key) for key in ("allocated_bytes", "allocated_peak_bytes", "reserved_bytes")]
            memory.append(entry.get("host_rss_bytes"))
            rows.append(["%.3f s" % entry["elapsed_seconds"], str(entry["step"]), entry["event"][:40]])
            rows[-1] += [_size(value) for value in memory]
        return _table(rows)

    @_guarded(dict)
    def timeline_summary(self) -> JSON:
        """The point with the most memory, what grew from the first point to the last, and the mean of each event."""
        entries = [entry for entry in list(self._entries) if "event" in entry]
        if not entries:
            return {}
        key = "host_rss_bytes" if entries[-1]["allocated_bytes"] is None else "allocated_bytes"
        known = [entry for entry in entries if entry.get(key) is not None]
        by_event: Dict[str, List[int]] = collections.defaultdict(list)
        for entry in known:
            by_event[entry["event"]].append(entry[key])
        return {
            "of": key,
            "peak": max(known, key=lambda entry: entry[key]) if known else None,
            "growth": self.compare(entries[0], entries[-1]),
            "events": {name: {"count": len(all), "mean_bytes": sum(all) / len(all)} for name, all in by_event.items()},
        }

    @_guarded("")
    def report(self) -> str:
        """For a console: memory now, the phases, the timeline, its peak and what grew."""
        now = self._entry("now", None)
        told = ["Rank %d, step %d" % (self._hello()["rank"], self._step)]
        sizes = ("allocated", "allocated_peak", "reserved", "reserved_peak", "host_rss", "host_rss_peak")
        told += ["  %-15s %s" % (name.replace("_", " "), _size(now[name + "_bytes"])) for name in sizes]
        rows = [["phase", "count", "seconds", "mean", "allocated peak"]]
        for name, phase in self.phases().items():
            mean = phase["seconds"] / phase["count"] if phase["count"] else 0.0
            figures = ["%.3f" % phase["seconds"], "%.6f" % mean, _size(phase["allocated_peak_bytes"])]
            rows.append([name, str(phase["count"]), *figures])
        if len(rows) > 1:
            told += ["", _table(rows)]
        summary = self.timeline_summary()
        if summary:
            told += ["", self.timeline_text(), ""]
            peak, grown = summary["peak"], summary["growth"].get(summary["of"])
            if peak is not None:
                told.append("Most at `%s`, step %d: %s" % (peak["event"], peak["step"], _size(peak[summary["of"]])))
            if grown is not None:
                told.append("From the first point to the last: %s%s" % ("+" if grown >= 0 else "", _size(grown)))
        return "\n".join(told)

    @_guarded()
    def print_timeline(self, file: Any = None) -> None:
        """Prints the timeline."""
        print(self.timeline_text(), file=file or sys.stdout)

    @_guarded(False)
    def export_json(self, path: str) -> bool:
        """Writes everything recorded to a file, as a whole or not at all. The names carry the units."""
        everything = {
            "schema_version": 1,
            "hello": self._hello_sent or self._hello(),
            "steps": {"last": self._step, "tokens": self._tokens, "samples": self._samples},
            "phases": self.phases(),
            "timeline": list(self._entries),
            "snapshots": self._snapshots,
            "parameters": self._params,
        }
        path = os.fspath(path)
        sibling = "%s.%d.part" % (path, _getpid())
        try:
            with open(sibling, "w", encoding="utf-8") as file:
                json.dump(_plain_whole(everything), file, indent=1)
                file.write("\n")
            os.replace(sibling, path)
        except BaseException:
            if os.path.exists(sibling):
                os.remove(sibling)
            raise
        return True

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

    # -- snapshots of the figures

    @_guarded(dict)
    def memory_snapshot(self, name: str) -> JSON:
        """Remembers the memory as it is now under a name; gives it."""
        if self._off:
            return {}
        name = _text(name)
        if len(self._snapshots) >= MOST_ENTRIES and name not in self._snapshots:
            self._snapshots.pop(next(iter(self._snapshots)))
        self._snapshots[name] = entry = self._entry(name, None)
        return entry

    @_guarded(dict)
    def compare(self, before: Union[str, JSON], after: Union[str, JSON]) -> JSON:
        """What grew between two snapshots (names, or points of the timeline): bytes and seconds, after less before."""
        first = self._snapshots[before] if isinstance(before, str) else before
        second = self._snapshots[after] if isinstance(after, str) else after
        growth: JSON = {"from": first["event"], "to": second["event"]}
        for key in first:
            if key.endswith(("_bytes", "_seconds")) and key != "unix_seconds":
                known = first.get(key) is not None and second.get(key) is not None
                growth[key] = second[key] - first[key] if known else None
        both = set(first["devices"]) | set(second["devices"])
        growth["devices"] = {
            index: {
                key: value - first["devices"].get(index, {}).get(key, 0)
                for key, value in second["devices"].get(index, {}).items()
                # A device that was not in use before held nothing of ours.
                if key != "total_bytes"
            }
            for index in sorted(both)
        }
        return growth

    def monitor_function(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls it within a stage of its name and gives what it gives; raises what it raises."""
        with self.profile_stage(getattr(function, "__name__", "function")):
            return function(*args, **kwargs)

    @_guarded(dict)
    def stage_growth(self, name: str) -> JSON:
        """What grew in the last run of a stage, or of a function that was monitored."""
        return self.compare(name + ":begin", name + ":end")

    @_guarded(dict)
    def check_memory_status(self, threshold: float = 0.9) -> JSON:
        """How full the devices, the host and our cgroup are; `ok` where none is above the threshold (0 to 1).

        Asks the driver for free memory, which may take a millisecond.
        """
        parts: JSON = {}
        module = _accelerator()
        for index in _devices():
            try:
                free, total = module.mem_get_info(int(index))
                parts["device " + index] = (total - free, total)
            except Exception as error:
                _hide(error, "mem_get_info")
        info = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo") or "", re.M))
        if "MemTotal" in info and "MemAvailable" in info:
            total = int(info["MemTotal"]) * 1024
            parts["host"] = (total - int(info["MemAvailable"]) * 1024, total)
        used, limit, _ = _cgroup_memory()
        if used is not None and limit is not None:
            parts["cgroup"] = (used, limit)
        told = {
            name: {"used_bytes": used, "total_bytes": total, "used_ratio": used / total}
            for name, (used, total) in parts.items()
            if total
        }
        over = [name for name, part in told.items() if part["used_ratio"] > threshold]
        return {"ok": not over, "threshold": threshold, "over": over, "parts": told}

    @_guarded(dict)
    def cleanup(self) -> JSON:
        """Collects garbage and gives cached memory of the devices back; what that freed. Waits for the devices."""
        before = self._entry("before cleanup", None)
        gc.collect()
        module = _accelerator()
        if module is not None and hasattr(module, "empty_cache"):
            module.empty_cache()
        growth = self.compare(before, self._entry("after cleanup", None))
        pairs = (("allocated", growth["allocated_bytes"]), ("reserved", growth["reserved_bytes"]))
        freed = {"%s_freed_bytes" % name: None if value is None else -value for name, value in pairs}
        freed["host_freed_bytes"] = None if growth["host_rss_bytes"] is None else -growth["host_rss_bytes"]
        return freed

    # -- models

    @_guarded(dict)
    def analyze_model(self, model: Any, optimizer: Any = None, check_values: bool = True) -> JSON:
        """`analyze_model` of this module, sent to the daemon as well; the model's shape is told in `hello`."""
        found = analyze_model(model, optimizer, check_values)
        self._model = describe_model(model)
        keys = ("parameters", "trainable", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "by_dtype")
        self._params = {"type": "params", **{key: found[key] for key in keys}}
        self._params.update(by_group=found["by_group"], lora=found["lora"])
        if check_values:
            self._params.update(nan=len(found["nan"]), inf=len(found["inf"]))
        if self._ready:
            self._say_hello_again()
            self._send(self._params)
        else:
            self.start()
        return found

    @_guarded()
    def attach(self, model: Any = None, optimizer: Any = None) -> None:
        """Plain PyTorch: steps from the optimizer's hook, tokens and the forward phase from the model's."""
        watch = _Watch(self)
        if model is not None:
            self.describe(model)
            watch.follow(model)
        if optimizer is not None:
            optimizer.register_step_pre_hook(watch.before_step)
            optimizer.register_step_post_hook(watch.after_step)

    # -- what the daemon foresees

    @_guarded()
    def on_risk(
        self,
        level: str,
        callback: Callable[[JSON], Any],
        *,
        everything: bool = False,
        interval: float = 5.0,
    ) -> None:
        """Calls back, on a thread of its own, when the daemon states something of this level or a worse one.

        Levels are `info`, `warning` and `critical`. The callback gets the finding (analyzer, subject, state, severity,
        summary, evidence, advice), once each time that it appears or gets worse. Findings that cannot be about this
        process are left out, but with `everything`. The daemon is asked at `url` or `MEMWARDEN_URL`.
        """
        self._risks.append((_LEVELS[level], callback, everything, {}))
        self._risk_interval = max(0.05, interval)
        if self._off:
            return
        if not self._ready:
            self.start()
        self._run_risk_thread()

    def _run_risk_thread(self) -> None:
        if self._risk_thread is None and self._risks:
            arguments = (self._wake,)
            self._risk_thread = threading.Thread(target=self._watch_risks, args=arguments, name="memwarden-risk")
            self._risk_thread.daemon = True
            self._risk_thread.start()

    def _watch_risks(self, wake: threading.Event) -> None:
        import urllib.request  # Late: it takes 20 ms, and few need it.

        # The daemon is near: no proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            try:
                with opener.open(self._url + "/api/v1/findings", timeout=2.0) as answer:
                    self._dispatch(json.loads(answer.read(16 << 20)).get("findings", []))
            except OSError:
                pass  # No daemon, or not now.
            except Exception as error:
                _hide(error, "findings")
            if wake.wait(self._risk_interval):
                return

    def _dispatch(self, findings: List[JSON]) -> None:
        own = _own_subjects()
        for level, callback, everything, known in self._risks:
            now: Dict[str, int] = {}
            for finding in findings:
                severity = _LEVELS.get(finding.get("severity", ""), -1)
                subject = finding.get("subject", {})
                if severity < level or not (everything or _concerns(subject, own)):
                    continue
                key = json.dumps([finding.get("analyzer"), subject], sort_keys=True)
                now[key] = max(severity, now.get(key, -1))
                if severity > known.get(key, -1):
                    try:
                        callback(finding)
                    except Exception as error:
                        _hide(error, "callback of on_risk")
            known.clear()
            known.update(now)


class _Checkpoint:
    def __init__(self, monitor: Monitor, path: Optional[str], step: Optional[int]) -> None:
        self._monitor, self._about = monitor, (path, step)

    def __enter__(self) -> None:
        self._monitor.checkpoint_saving(*self._about)

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self._monitor.checkpoint_saved(*self._about)
        else:
            self._monitor.checkpoint_failed(*self._about)


_LEVELS = {"info": 0, "warning": 1, "critical": 2}


def _wanted_steps(steps: Any) -> Optional[Tuple[Set[int], List[Tuple[int, int]]]]:
    """`[1, [5, 10]]`: 1, and 5 to 10 with both ends."""
    if steps is None:
        return None
    single: Set[int] = set()
    ranges: List[Tuple[int, int]] = []
    for each in steps:
        if isinstance(each, int):
            single.add(each)
        else:
            first, last = each
            ranges.append((int(first), int(last)))
    return single, ranges


def _own_subjects() -> Tuple[str, Set[str], str]:
    uuids = {name.get("uuid", "") for name in Monitor._device_names().values()}
    return str(_getpid()), uuids - {""}, _cgroup_memory()[2]


def _concerns(subject: JSON, own: Tuple[str, Set[str], str]) -> bool:
    """Whether a finding can be about this process; what cannot be told apart counts as ours."""
    pid, uuids, cgroup = own
    if subject.get("pid") and subject["pid"] != pid:
        return False
    if subject.get("uuid") and uuids and subject["uuid"] not in uuids:
        return False
    theirs = subject.get("cgroup")
    # In a container our own path looks like the root.
    if theirs and cgroup not in ("", "/"):
        return cgroup == theirs or cgroup.startswith(theirs.rstrip("/") + "/")
    return True


def _plain_whole(value: Any) -> Any:
    """As `_plain`, without its limits: the export is complete."""
    if isinstance(value, Mapping):
        return {str(key): _plain_whole(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_whole(each) for each in value]
    return _plain(value)


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


# ---------------------------------------------------------------------------------------------------------------------
# Models

_GROUPS = [
    ("lora", r"lora_|\blora\b"),
    ("embedding", r"embed|\bwte\b|\bwpe\b"),
    ("head", r"lm_head|classifier|\bscore\b|\bhead\b"),
    ("norm", r"norm|\bln_|\bln\b|\bln\d"),
    ("attention", r"attn|attention|[qkvo]_proj|\bqkv\b"),
    ("mlp", r"mlp|ffn|feed_forward|(gate|up|down)_proj|expert|\bfc\d?\b|\bc_fc\b|moe"),
]
_GROUPS_COMPILED = [(name, re.compile(pattern)) for name, pattern in _GROUPS]


def _group(name: str) -> str:
    lower = name.lower()
    return next((group for group, pattern in _GROUPS_COMPILED if pattern.search(lower)), "other")


def _describe_tensor(name: str, tensor: Any) -> JSON:
    shape = [int(size) for size in getattr(tensor, "shape", ())]
    told: JSON = {"name": name, "shape": shape, "dtype": _dtype(getattr(tensor, "dtype", "?"))}
    told["device"] = str(getattr(tensor, "device", "?"))
    told["bytes"] = _bytes(tensor) if hasattr(tensor, "element_size") else None
    return told


def _unwrap(model: Any) -> Any:
    """The user's own module under what compiles, distributes and adapts it."""
    for _ in range(8):
        inner = None
        for name in ("_orig_mod", "_fsdp_wrapped_module", "module"):
            inner = inner or getattr(model, "_modules", {}).get(name)
        if inner is None:
            base = getattr(model, "_modules", {}).get("base_model")
            inner = getattr(base, "_modules", {}).get("model") if hasattr(model, "peft_config") else None
        if inner is None:
            return model
        model = inner
    return model


def analyze_model(model: Any, optimizer: Any = None, check_values: bool = True) -> JSON:
    """What a model is made of and what it takes in memory; parameters shared between modules count once.

    With `check_values`, the names of parameters and gradients (`NAME.grad`) that hold NaN or infinity: one reduction
    a tensor and one synchronization in all; only where a NaN is found does it look again for infinity beside it.
    """
    parameters = list(model.named_parameters())
    by_dtype: Dict[str, int] = collections.defaultdict(int)
    by_device: Dict[str, int] = collections.defaultdict(int)
    by_group: Dict[str, int] = collections.defaultdict(int)
    count = trainable = lora = weight_bytes = gradient_bytes = optimizer_bytes = 0
    state = getattr(optimizer, "state", None) or {}
    for name, parameter in parameters:
        elements, size = _elements(parameter), _bytes(parameter)
        count += elements
        weight_bytes += size
        trainable += elements if parameter.requires_grad else 0
        by_dtype[_dtype(parameter.dtype)] += size
        by_device[str(parameter.device)] += size
        by_group[_group(name)] += size
        lora += elements if _group(name) == "lora" else 0
        if parameter.grad is not None:
            gradient_bytes += _bytes(parameter.grad)
        # Absent keys stay absent: an optimizer's state is a defaultdict.
        for value in (state[parameter] if parameter in state else {}).values():
            optimizer_bytes += _bytes(value) if hasattr(value, "element_size") else 0
    largest = sorted(parameters, key=lambda pair: _bytes(pair[1]), reverse=True)[:10]
    found: JSON = {
        "parameters": count,
        "trainable": trainable,
        "frozen": count - trainable,
        "trainable_ratio": trainable / count if count else None,
        "parameter_bytes": weight_bytes,
        "gradient_bytes": gradient_bytes,
        "optimizer_bytes": optimizer_bytes,
        "buffer_bytes": sum(_bytes(buffer) for _, buffer in model.named_buffers()),
        "by_dtype": dict(by_dtype),
        "by_device": dict(by_device),
        "by_group": dict(by_group),
        "lora": lora,
        "lora_ratio": lora / count if count else None,
        "largest": [_describe_tensor(name, parameter) for name, parameter in largest],
    }
    if check_values:
        tensors = parameters + [(name + ".grad", each.grad) for name, each in parameters if each.grad is not None]
        found["nan"], found["inf"], found["unchecked"] = _not_finite(tensors)
    found["estimate"] = estimate_training_memory(model, optimizer)
    found["measured_bytes"] = weight_bytes + gradient_bytes + optimizer_bytes + found["buffer_bytes"]
    return found


def _not_finite(tensors: List[Tuple[str, Any]]) -> Tuple[List[str], List[str], List[str]]:
    """Names of those with NaN, with infinity, and that could not be looked at."""
    torch = _torch()
    names: List[str] = []
    highest: List[Any] = []
    unchecked: List[str] = []
    by_name = {}
    with torch.no_grad():
        for name, tensor in tensors:
            tensor = _local(tensor).detach()
            if tensor.is_sparse:
                tensor = tensor.coalesce().values()
            if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
                continue
            try:
                # The largest magnitude: NaN where there is one, infinite where there is no NaN but an infinity.
                highest.append(torch.linalg.vector_norm(tensor, ord=float("inf")).float())
            except Exception:  # 8-bit floats and meta tensors.
                unchecked.append(name)
                continue
            names.append(name)
            by_name[name] = tensor
        if not highest:
            return [], [], unchecked
        where = highest[0].device
        values = torch.stack([each.to(where, non_blocking=True) for each in highest]).tolist()
        nan = [name for name, value in zip(names, values) if value != value]
        inf = [name for name, value in zip(names, values) if value in (float("inf"), float("-inf"))]
        if nan:
            also = torch.stack([torch.isinf(by_name[name]).any().to(where, non_blocking=True) for name in nan]).tolist()
            inf += [name for name, both in zip(nan, also) if both]
    return nan, inf, unchecked


# Tensors of a parameter's size that an optimizer keeps for each parameter, by the name of its class.
_STATES = {"adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "lion": 1, "rmsprop": 1, "adagrad": 1, "sgd": 0}


def estimate_training_memory(
    model: Any,
    optimizer: Any = None,
    *,
    batch: Optional[int] = None,
    sequence: Optional[int] = None,
    recompute: str = "none",
    flash_attention: bool = True,
) -> JSON:
    """What training the model will take on this rank, in bytes: parameters, gradients, optimizer, activations.

    Without an optimizer, Adam's. Activations only where `batch` (of this rank) and `sequence` are given and the model
    is a transformer of known shape: s b h (34 + 5 a s / h) bytes a layer at 16 bits, without the second term under
    flash attention or `selective`, 2 s b h under `full` (Korthikanti et al., arXiv 2205.05198, section 4).
    """
    parameters = list(model.parameters())
    weights = sum(_bytes(each) for each in parameters)
    trained = sum(_bytes(each) for each in parameters if each.requires_grad)
    kind = type(optimizer).__name__.lower() if optimizer is not None else "adam"
    states: Optional[int] = next((many for name, many in _STATES.items() if kind == name or kind.endswith(name)), None)
    if kind == "sgd":
        states = 1 if any(group.get("momentum") for group in optimizer.param_groups) else 0
    told: JSON = {"parameter_bytes": weights, "gradient_bytes": trained}
    told["optimizer_bytes"] = None if states is None else states * trained
    shape = describe_model(model)
    activations = None
    if batch and sequence and shape.get("layers") and shape.get("hidden") and shape.get("heads"):
        token_bytes = sequence * batch * shape["hidden"]
        scores = 0.0 if flash_attention or recompute != "none" else 5.0 * shape["heads"] * sequence / shape["hidden"]
        factor = 2.0 if recompute == "full" else 34.0 + scores
        width = max((each.element_size() for each in parameters), default=2) / 2
        activations = int(token_bytes * factor * shape["layers"] * width)
    told["activation_bytes"] = activations
    known = [told[key] for key in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")]
    told["total_bytes"] = None if None in known else sum(known) + (activations or 0)
    return told


def describe_model(model: Any) -> JSON:
    """The model's shape under the protocol's names, from its configuration and weights; what is unknown is left out."""
    inner = _unwrap(model)
    parameters = [(name, each) for name, each in model.named_parameters()]
    shape: JSON = {}
    config = getattr(inner, "config", None)
    config = getattr(config, "text_config", None) or config

    def look(*names: str) -> Optional[int]:
        for name in names:
            value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    if config is not None:
        kind = config.get("model_type") if isinstance(config, Mapping) else getattr(config, "model_type", None)
        shape["kind"] = str(kind or type(inner).__name__).lower()[:64]
        wanted = {
            "layers": look("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
            "hidden": look("hidden_size", "n_embd", "d_model", "dim"),
            "ffn": look("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "d_ff"),
            "heads": look("num_attention_heads", "n_head", "n_heads", "num_heads"),
            "kv_heads": look("num_key_value_heads", "n_kv_heads", "num_kv_heads", "num_query_groups"),
            "head_dim": look("head_dim", "kv_channels"),
            "vocab": look("padded_vocab_size", "vocab_size"),
            "experts": look("num_local_experts", "num_experts", "n_routed_experts"),
            "experts_per_token": look("num_experts_per_tok", "moe_router_topk", "moe_topk"),
            "expert_ffn": look("moe_intermediate_size", "moe_ffn_hidden_size"),
            "shared_expert_ffn": look("shared_expert_intermediate_size"),
        }
        shape.update((key, value) for key, value in wanted.items() if value is not None)
        _complete_shape(shape, parameters, look)
    else:
        shape["kind"] = type(inner).__name__.lower()[:64]
    shape["parameters"] = sum(_elements(each) for _, each in parameters)
    shape["trainable"] = sum(_elements(each) for _, each in parameters if each.requires_grad)
    return shape


def _complete_shape(shape: JSON, parameters: List[Tuple[str, Any]], look: Callable[..., Optional[int]]) -> None:
    """What a configuration leaves unsaid: by the families' conventions, and from the weights themselves."""
    hidden, heads = shape.get("hidden"), shape.get("heads")
    if hidden and heads:
        shape.setdefault("kv_heads", heads)
        if hidden % heads == 0:
            shape.setdefault("head_dim", hidden // heads)
    experts = shape.get("experts", 0)
    if experts:
        shape.setdefault("expert_ffn", shape.get("ffn", 0))
        shared = look("n_shared_experts")
        if shared:
            shape.setdefault("shared_expert_ffn", shared * shape["expert_ffn"])
        dense = look("first_k_dense_replace") or 0
        shape.setdefault("moe_layers", max(0, shape.get("layers", 0) - dense))
    names = [name for name, _ in parameters]
    if names:
        shape["gated"] = any(re.search(r"gate_proj|gate_up_proj|\.w3\b|linear_fc1_gate", name) for name in names)
    if "ffn" not in shape and hidden:
        for name, each in parameters:
            sizes = [int(size) for size in each.shape]
            if _group(name) == "mlp" and len(sizes) == 2 and hidden in sizes:
                shape["ffn"] = sizes[0] if sizes[1] == hidden else sizes[1]
                break


def compare_configurations(variants: Mapping[str, Callable[[], Any]]) -> List[JSON]:
    """Runs each variant and tells time and memory of each, the least memory first; one that fails is told as such.

    Empties the devices' caches and resets their peaks before each. `compare_text` makes a table of it.
    """
    results: List[JSON] = []
    for name, run in variants.items():
        gc.collect()
        module = _accelerator()
        if module is not None:
            module.empty_cache()
            for index in _devices():
                module.reset_peak_memory_stats(int(index))
        rss_before = _host_memory()[0]
        begun, error = _clock(), None
        try:
            run()
            if _accelerator() is not None:
                _accelerator().synchronize()
        except Exception as problem:  # Running out of memory is one of the answers.
            error = "%s: %s" % (type(problem).__name__, str(problem).split("\n")[0][:200])
        seconds = _clock() - begun
        devices, rss = _devices(), _host_memory()[0]
        told: JSON = {"name": name, "seconds": seconds, "error": error}
        for key in ("allocated_peak", "reserved_peak"):
            told[key + "_bytes"] = sum(each[key] for each in devices.values()) if devices else None
        told["host_growth_bytes"] = rss - rss_before if rss is not None and rss_before is not None else None
        results.append(told)
    return sorted(results, key=lambda each: (each["error"] is not None, each["allocated_peak_bytes"] or 0, each["seconds"]))


def compare_text(results: List[JSON]) -> str:
    """What `compare_configurations` gives, as a table."""
    rows = [["variant", "seconds", "allocated peak", "reserved peak", "host growth", "error"]]
    for each in results:
        sizes = [_size(each[key]) for key in ("allocated_peak_bytes", "reserved_peak_bytes", "host_growth_bytes")]
        rows.append([each["name"], "%.3f" % each["seconds"], *sizes, each["error"] or ""])
    return _table(rows)


# ---------------------------------------------------------------------------------------------------------------------
# PyTorch's hooks


class _Watch:
    """Steps, tokens and phases from hooks. Every hook is guarded, and silent while a compiler traces it."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.counts: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self.before: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self.highest = 0
        self.tokens = self.samples = self.calls = self.depth = 0
        self.followed: List[Any] = []
        self.searches = 0
        self._forward: Any = None
        self._optimizer: Any = None

    # Hooks of the optimizer: one process may have several, and the one that steps most counts.

    @_guarded()
    def before_step(self, *_: Any) -> None:
        self._optimizer = self.monitor._phase_begins("optimizer")

    @_guarded()
    def after_step(self, optimizer: Any, *_: Any) -> None:
        self.monitor._phase_ends("optimizer", self._optimizer)
        self._optimizer = None
        # A call that raised has left it where it was.
        self.depth = 0
        count = self.counts.get(optimizer, 0) + 1
        if count == 1:
            self.before[optimizer] = _steps_before(optimizer)
        self.counts[optimizer] = count
        if count <= self.highest:
            return
        self.highest = count
        tokens, samples = self.tokens, self.samples
        self.tokens = self.samples = 0
        self.monitor.step(self.before.get(optimizer, 0) + count, tokens=tokens or None, samples=samples or None)
        if self.searches == 1:
            self._after_first(optimizer)

    # The model: the modules that hold most of what the optimizer trains. Of those that are called within each other
    # the outermost counts. Hooks of theirs, not global ones: those would make torch.compile warn, and cost each call.

    def await_optimizer(self, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def wrapped(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if self.searches == 0:
                self.search(optimizer)

        kind.__init__ = wrapped

    @_guarded()
    def search(self, optimizer: Any) -> None:
        """Once when the first optimizer is made; and once more where nothing that was found was ever called."""
        for module in _owners(optimizer):
            self.searches = 1
            if not any(known() is module for known in self.followed):
                self.follow(module)

    def _after_first(self, optimizer: Any) -> None:
        if not self.calls:
            self.search(optimizer)
        self.searches = 2
        modules = [module for module in (known() for known in self.followed) if module is not None]
        if not modules:
            return
        facts = self.monitor._facts
        wrappers = ("DistributedDataParallel", "FullyShardedDataParallel")
        if facts["data_parallel"] is None and any(type(module).__name__ in wrappers for module in modules):
            facts["data_parallel"] = self.monitor._hello()["world"]
        if facts["precision"] is None:
            weights = (each for each in modules[0].parameters() if each.is_floating_point())
            found = collections.Counter(_dtype(each.dtype) for each in weights)
            if found:
                facts["precision"] = found.most_common(1)[0][0]
        configured = (module for module in modules if hasattr(_unwrap(module), "config"))
        self.monitor.describe(next(configured, modules[0]))

    def follow(self, module: Any) -> None:
        module.register_forward_pre_hook(self.before_forward, with_kwargs=True)
        module.register_forward_hook(self.after_forward)
        self.followed.append(weakref.ref(module))

    def before_forward(self, module: Any, inputs: Any, kwargs: Any) -> None:
        if _tracing():
            return
        try:
            self.depth += 1
            if self.depth == 1 and module.training and _torch().is_grad_enabled():
                self.calls += 1
                self._count(inputs, kwargs)
                self._forward = self.monitor._phase_begins("forward")
        except Exception as error:
            _hide(error, "forward")

    def after_forward(self, *_: Any) -> None:
        if _tracing():
            return
        self.depth = max(0, self.depth - 1)
        if self.depth == 0 and self._forward is not None:
            begun, self._forward = self._forward, None
            self.monitor._phase_ends("forward", begun)

    def _count(self, inputs: Any, kwargs: Any) -> None:
        """Whole numbers in two dimensions are tokens, sequence by sequence; anything else only has samples."""
        given = kwargs.get("input_ids")
        if given is None:
            given = kwargs.get("inputs_embeds")
        if given is None and len(inputs) == 1 and isinstance(inputs[0], Mapping):
            given = inputs[0].get("input_ids")
        if given is None:
            given = next((each for each in (*inputs, *kwargs.values()) if hasattr(each, "is_floating_point")), None)
        if given is None or not len(given.shape):
            return
        self.samples += int(given.shape[0])
        embedded = given is kwargs.get("inputs_embeds")
        if len(given.shape) == 2 and not given.is_floating_point() or embedded and len(given.shape) == 3:
            self.tokens += int(given.shape[0]) * int(given.shape[1])
            facts = self.monitor._facts
            if facts["sequence_length"] is None:
                facts["sequence_length"] = int(given.shape[1])

    # Backward and the loader have no hook of their own.

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        original = getattr(owner, name)
        monitor = self.monitor

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if _tracing():
                return original(*args, **kwargs)
            begun = monitor._phase_begins(phase)
            try:
                return original(*args, **kwargs)
            finally:
                monitor._phase_ends(phase, begun)

        setattr(owner, name, wrapped)


def _owners(optimizer: Any) -> List[Any]:
    """The modules that hold at least half of an optimizer's parameters, the outermost first. Takes about 0.1 s."""
    kind = _torch().nn.Module
    trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
    found = []
    for each in gc.get_objects():
        # `isinstance` would ask objects that pretend to be of another class.
        if issubclass(type(each), kind):
            held = {id(parameter) for parameter in each.parameters()}
            if trained and len(held & trained) * 2 >= len(trained):
                found.append((sum(1 for _ in each.modules()), each))
    return [module for _, module in sorted(found, key=lambda pair: -pair[0])[:16]]


@_guarded(0)
def _steps_before(optimizer: Any) -> int:
    """After the first step: those that the checkpoint had which the optimizer was loaded from, where its state counts."""
    first = next(iter((getattr(optimizer, "state", None) or {}).values()), {})
    # Fused and capturable optimizers count on the device: that is not read.
    steps = _number(first.get("step"))
    return 0 if steps is None else max(0, int(steps) - 1)


def _tracing() -> bool:
    compiler = getattr(_torch(), "compiler", None)
    return bool(compiler is not None and hasattr(compiler, "is_compiling") and compiler.is_compiling())


# ---------------------------------------------------------------------------------------------------------------------
# Frameworks


def huggingface_callback(monitor: Optional[Monitor] = None, analyze: bool = True) -> Any:
    """A `TrainerCallback`: `Trainer(callbacks=[memwarden.huggingface_callback()])`.

    Saves a checkpoint when one is requested (see `Monitor.on_checkpoint_signal`), and acknowledges what was saved.
    """
    base: Any = object
    try:
        base = __import__("transformers").TrainerCallback
    except Exception as error:  # Any object with the events' methods will do.
        _log.debug("memwarden: transformers: %r", error)
    watched = monitor or Monitor()

    class MemwardenCallback(base):  # type: ignore[misc]
        monitor = watched

        def __init__(self) -> None:
            self.waiting: Optional[JSON] = None
            self.seen, self.ended = 0, _clock()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("on_"):
                return lambda *args, **kwargs: None
            raise AttributeError(name)

        @_guarded()
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            model = kwargs.get("model")
            if getattr(args, "bf16", False) or getattr(args, "fp16", False):
                watched.describe(precision="bf16" if args.bf16 else "fp16")
            if getattr(args, "gradient_checkpointing", False):
                watched.describe(recompute="full")
            watched.start()
            if model is not None and analyze:
                watched.analyze_model(model, kwargs.get("optimizer"), check_values=False)
            self.seen, self.ended = self._tokens(state) or 0, _clock()

        def tell(self, **logged: Any) -> None:
            """The loss of a step is told after its end: the step waits for it, until the next one begins."""
            step, self.waiting = self.waiting, None
            if step is not None:
                watched.step(step.pop("n"), **step, **logged)

        @staticmethod
        def _tokens(state: Any) -> Optional[int]:
            """This rank's; the Trainer counts those of all ranks, where it is told to."""
            total = getattr(state, "num_input_tokens_seen", None)
            return int(total) // max(1, launcher_rank()[2]) if total else None

        @_guarded()
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            total = self._tokens(state)
            tokens, self.seen = (total - self.seen, total) if total is not None else (None, self.seen)
            samples = getattr(args, "per_device_train_batch_size", 0) * getattr(args, "gradient_accumulation_steps", 1)
            self.tell()
            begun, self.ended = self.ended, _clock()
            self.waiting = {"n": state.global_step, "tokens": tokens, "samples": samples or None}
            self.waiting["seconds"] = self.ended - begun
            if watched.checkpoint_requested and control is not None:
                control.should_save = True

        @_guarded()
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            names = ("loss", "learning_rate", "grad_norm")
            self.tell(**{name: logs[name] for name in names if name in (logs or {})})

        @_guarded()
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.tell()

        @_guarded()
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.tell()
            path = os.path.join(args.output_dir, "checkpoint-%d" % state.global_step)
            watched.checkpoint_saved(path, state.global_step)

        @_guarded()
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watched.record("evaluated")

        @_guarded()
        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.tell()
            watched.stop()

    return MemwardenCallback()


def lightning_callback(monitor: Optional[Monitor] = None, analyze: bool = True) -> Any:
    """A `Callback` for Lightning: `Trainer(callbacks=[memwarden.lightning_callback()])`."""
    base: Any = object
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            base = __import__(name, fromlist=["Callback"]).Callback
            break
        except Exception as error:
            _log.debug("memwarden: %s: %r", name, error)
    watched = monitor or Monitor()

    class MemwardenCallback(base):  # type: ignore[misc]
        monitor = watched

        @_guarded()
        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.last = int(getattr(trainer, "global_step", 0))
            self.samples = self.tokens = 0
            watched.describe(data_parallel=getattr(trainer, "world_size", None))
            watched.start()
            if analyze:
                watched.analyze_model(module, check_values=False)

        @_guarded()
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            ids: Any = batch.get("input_ids") if isinstance(batch, Mapping) else batch
            if isinstance(ids, (list, tuple)) and ids:
                ids = ids[0]
            if hasattr(ids, "shape") and len(ids.shape):
                self.samples += int(ids.shape[0])
                if len(ids.shape) == 2 and not ids.is_floating_point():
                    self.tokens += int(ids.shape[0]) * int(ids.shape[1])
            # Accumulation: several batches make a step.
            if trainer.global_step == self.last:
                return
            self.last = int(trainer.global_step)
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            watched.step(self.last, tokens=self.tokens or None, samples=self.samples or None, loss=loss)
            self.samples = self.tokens = 0

        @_guarded()
        def on_validation_end(self, trainer: Any, module: Any) -> None:
            watched.record("validated")

        @_guarded()
        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            watched.stop(type(exception).__name__)

        @_guarded()
        def on_train_end(self, trainer: Any, module: Any) -> None:
            watched.stop()

    return MemwardenCallback()


# ---------------------------------------------------------------------------------------------------------------------
# Zero code: called by auto/sitecustomize.py once the program has imported torch


def _start_auto() -> None:
    global _auto
    try:
        mode = os.environ.get("MEMWARDEN_AUTO", "")
        if _auto is not None or mode in ("", "0") or os.environ.get("MEMWARDEN_DISABLE", "") not in ("", "0"):
            return
        monitor = _Auto(phase_memory=mode != "steps")
        watch = _Watch(monitor)
        # `torch.optim` deletes the name of this module of its own.
        optimizer = __import__("torch.optim.optimizer", fromlist=["Optimizer"])
        optimizer.register_optimizer_step_post_hook(watch.after_step)
        if mode != "steps":
            optimizer.register_optimizer_step_pre_hook(watch.before_step)
            watch.await_optimizer(optimizer.Optimizer)
            watch.wrap(_torch().autograd, "backward", "backward")
            loader = sys.modules.get("torch.utils.data.dataloader")
            if loader is not None and hasattr(loader, "_BaseDataLoaderIter"):
                watch.wrap(loader._BaseDataLoaderIter, "__next__", "loader")
        _auto = monitor
        monitor._run_thread()
    except Exception as error:
        _hide(error, "auto")


class _Auto(Monitor):
    """Speaks only once there is something to say: workers that merely import torch stay unseen."""

    def _phase_begins(self, name: str) -> Any:
        # Evaluation and inference have loaders too.
        return super()._phase_begins(name) if self._ready or name in ("forward", "optimizer") else None

    def _send_memory(self) -> None:
        if not self._ready and _devices():
            self.start()
        super()._send_memory()

    def _loop(self, wake: threading.Event) -> None:
        while not self._ready and not self._off and not wake.wait(self._interval):
            try:
                if _devices():
                    self.start()
            except Exception as error:
                _hide(error, "auto")
        super()._loop(wake)


def _after_fork() -> None:
    for monitor in list(_monitors):
        try:
            monitor._forked()
        except Exception as error:
            _hide(error, "fork")


def _at_exit() -> None:
    # What an uncaught exception leaves; SystemExit is none.
    kind = getattr(sys, "last_type", None)
    for monitor in list(_monitors):
        monitor.stop("finished" if kind is None else getattr(kind, "__name__", "error"))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def _main() -> int:
    """`python -m memwarden`: where `auto/sitecustomize.py` is, as a line for a shell."""
    here = os.path.dirname(os.path.abspath(__file__))
    # Of a checkout, and of every kind of installation.
    places = [here, os.path.join(here, "auto"), os.path.join(here, "memwarden_auto")]
    for place in places:
        if os.path.exists(os.path.join(place, "sitecustomize.py")):
            print('export MEMWARDEN_AUTO=1 PYTHONPATH="%s${PYTHONPATH:+:$PYTHONPATH}"' % place)
            return 0
    print("memwarden: sitecustomize.py is not installed", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(_main())
