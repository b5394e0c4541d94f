"""The monitor of one training process."""

from __future__ import annotations

import atexit
import collections
import functools
import gc
import json
import os
import re
import signal
import sys
import threading
import weakref
from typing import Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

from . import __version__
from ._base import (
    DEFAULT_SOCKET,
    DEFAULT_URL,
    JSON,
    MOST_ENTRIES,
    MOST_PHASES,
    PROTOCOL,
    Function,
    _clock,
    _encode,
    _getpid,
    _guarded,
    _hide,
    _now,
    _number,
    _plain,
    _plain_whole,
    _real,
    _size,
    _table,
    _text,
)
from ._link import _link
from ._process import (
    _accelerator,
    _allocated,
    _cgroup_memory,
    _device_properties,
    _devices,
    _host_memory,
    _pinned,
    _read,
    _torch,
    launcher_rank,
)


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
    """The state of a phase."""

    __slots__ = ("seconds", "count", "peak", "open_since", "changed", "reported_open")

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0
        self.peak: Optional[int] = None
        self.open_since: Optional[float] = None
        self.changed = self.reported_open = False


_monitors: "weakref.WeakSet[Monitor]" = weakref.WeakSet()
# The monitor of a program that is instrumented without a change.
_automatic: Optional["Monitor"] = None


class Monitor:
    """Reports one training process to the daemon.

    `monitor_steps` such as `[1, [5, 10]]` limits reports and records to those steps; totals continue.
    `interval` is the seconds between two readings of the allocator (0: none), `min_interval` those between two step
    messages, `log_file` a file that receives every sent line (`log_bytes` each, `log_files` of them),
    `oom_snapshot` a folder for a snapshot of the allocator when it fails. The description of the run (`rank`,
    `world`, `data_parallel`, `sequence_length`, `global_batch`, `precision`, `recompute`) is detected where possible.
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
            "job": job if job is not None else env.get("MEMWARDEN_RUN") or None,
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
        """The totals at the start of the process."""
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
        """Connects and begins to read the allocator; called by the first `step` if not called before."""
        global _automatic
        if self._ready or self._off:
            return self
        if _automatic is not None and _automatic is not self:
            # The program reports itself.
            retired, _automatic = _automatic, None
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
        """Sends the last message; the series of this rank end."""
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
        """Another monitor of this process replaces this one."""
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
        """Whether a daemon is connected."""
        return bool(self._link.connected)

    # -- messages

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

        A tensor on a device is not read, because that would wait for the device: pass numbers.
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
                total.changed = total.reported_open = False
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
        """The allocator's values, for the first phases and then for every tenth."""
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
                    # The job's own peaks are not reset: a peak that rose meanwhile was reached in this phase.
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
        """A long phase is reported while it is open."""
        now = _clock()
        for name, total in list(self._phases.items()):
            since = total.open_since
            if since is not None and now - since > 0.5 and not total.reported_open:
                total.reported_open = True
                self._send({"type": "phase", "t": _now() - (now - since), "name": name[:16], "state": "begin"})

    # -- out of memory

    def _observe_ooms(self) -> None:
        if self._observed:
            return
        torch = _torch()
        attach = getattr(getattr(torch, "_C", None), "_cuda_attach_out_of_memory_observer", None)
        cuda = getattr(torch, "cuda", None)
        # Before initialization no device has an allocator to attach to.
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
        """Whether a checkpoint is requested, until one is saved or has failed."""
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
        """Sets `checkpoint_requested` like a signal; for callbacks of `on_risk`."""
        self._checkpoint_requested = True

    @_guarded()
    def checkpoint_saving(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Reports that a checkpoint is being written: protection then waits for it."""
        self._checkpoint("saving", path, step)

    @_guarded()
    def checkpoint_saved(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Reports that the checkpoint is complete and on its disk: protection may continue."""
        self._checkpoint_requested = False
        self._checkpoint("saved", path, step)

    @_guarded()
    def checkpoint_failed(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Reports that the checkpoint could not be written."""
        self._checkpoint_requested = False
        self._checkpoint("failed", path, step)

    def checkpoint(self, path: Optional[str] = None, step: Optional[int] = None) -> "_Checkpoint":
        """`with monitor.checkpoint(path): torch.save(...)`: saving, then saved, or failed if it raises."""
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
        """Adds a point with the current memory to the timeline; returns the point."""
        if self._off or not self._wants(self._step):
            return {}
        return self._add(self._entry(event, extra))

    @_guarded(dict)
    def record_detailed(self, event: str, tensors: Any = None, model: Any = None, extra: Any = None) -> JSON:
        """Like `record`, with the size, type and device of tensors and the content of a model."""
        if self._off or not self._wants(self._step):
            return {}
        entry = self._entry(event, extra)
        from ._models import _describe_tensor, analyze_model

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
        """The points, the oldest first; at most the last 10,000."""
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
        """The point with the most memory, the growth from the first point to the last, and the mean of each event."""
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
        """For a console: current memory, the phases, the timeline, its peak and the growth."""
        now = self._entry("now", None)
        lines = ["Rank %d, step %d" % (self._hello()["rank"], self._step)]
        sizes = ("allocated", "allocated_peak", "reserved", "reserved_peak", "host_rss", "host_rss_peak")
        lines += ["  %-15s %s" % (name.replace("_", " "), _size(now[name + "_bytes"])) for name in sizes]
        rows = [["phase", "count", "seconds", "mean", "allocated peak"]]
        for name, phase in self.phases().items():
            mean = phase["seconds"] / phase["count"] if phase["count"] else 0.0
            figures = ["%.3f" % phase["seconds"], "%.6f" % mean, _size(phase["allocated_peak_bytes"])]
            rows.append([name, str(phase["count"]), *figures])
        if len(rows) > 1:
            lines += ["", _table(rows)]
        summary = self.timeline_summary()
        if summary:
            lines += ["", self.timeline_text(), ""]
            peak, grown = summary["peak"], summary["growth"].get(summary["of"])
            if peak is not None:
                lines.append("Most at `%s`, step %d: %s" % (peak["event"], peak["step"], _size(peak[summary["of"]])))
            if grown is not None:
                lines.append("From the first point to the last: %s%s" % ("+" if grown >= 0 else "", _size(grown)))
        return "\n".join(lines)

    @_guarded()
    def print_timeline(self, file: Any = None) -> None:
        """Prints the timeline."""
        print(self.timeline_text(), file=file or sys.stdout)

    @_guarded(False)
    def export_json(self, path: str) -> bool:
        """Writes everything recorded to a file, completely or not at all. The names contain the units."""
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

    # -- snapshots of memory values

    @_guarded(dict)
    def memory_snapshot(self, name: str) -> JSON:
        """Stores the current memory under a name; returns it."""
        if self._off:
            return {}
        name = _text(name)
        if len(self._snapshots) >= MOST_ENTRIES and name not in self._snapshots:
            self._snapshots.pop(next(iter(self._snapshots)))
        self._snapshots[name] = entry = self._entry(name, None)
        return entry

    @_guarded(dict)
    def compare(self, before: Union[str, JSON], after: Union[str, JSON]) -> JSON:
        """The growth between two snapshots (names, or points of the timeline): bytes and seconds, after minus before."""
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
                # A device that was not in use before held no memory of this process.
                if key != "total_bytes"
            }
            for index in sorted(both)
        }
        return growth

    def monitor_function(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function within a stage of its name; returns its result and raises its exceptions."""
        with self.profile_stage(getattr(function, "__name__", "function")):
            return function(*args, **kwargs)

    @_guarded(dict)
    def stage_growth(self, name: str) -> JSON:
        """The growth in the last run of a stage, or of a monitored function."""
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
        parts = {
            name: {"used_bytes": used, "total_bytes": total, "used_ratio": used / total}
            for name, (used, total) in parts.items()
            if total
        }
        over = [name for name, part in parts.items() if part["used_ratio"] > threshold]
        return {"ok": not over, "threshold": threshold, "over": over, "parts": parts}

    @_guarded(dict)
    def cleanup(self) -> JSON:
        """Collects garbage and releases cached memory of the devices; returns the freed memory. Waits for the devices."""
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
        """Calls `memwarden.analyze_model` and sends the result to the daemon; `hello` then has the shape of the model."""
        from ._models import analyze_model, describe_model

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
        from ._hooks import _Watch

        watch = _Watch(self)
        if model is not None:
            self.describe(model)
            watch.follow(model)
        if optimizer is not None:
            optimizer.register_step_pre_hook(watch.before_step)
            optimizer.register_step_post_hook(watch.after_step)

    # -- findings of the daemon

    @_guarded()
    def on_risk(
        self,
        level: str,
        callback: Callable[[JSON], Any],
        *,
        everything: bool = False,
        interval: float = 5.0,
    ) -> None:
        """Calls back, on a separate thread, when the daemon reports a finding of this level or a more severe one.

        Levels are `info`, `warning` and `critical`. The callback gets the finding (analyzer, subject, state, severity,
        summary, evidence, advice), once each time that it appears or becomes more severe. Findings that cannot be about this
        process are left out unless `everything` is set. The daemon is queried at `url` or `MEMWARDEN_URL`.
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
        import urllib.request  # Imported here: it takes 20 ms, and few programs need it.

        # The daemon is local: no proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            try:
                with opener.open(self._url + "/api/v1/findings", timeout=2.0) as answer:
                    self._dispatch(json.loads(answer.read(16 << 20)).get("findings", []))
            except OSError:
                pass  # No daemon is reachable now.
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
    """`[1, [5, 10]]`: 1, and 5 to 10 inclusive."""
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
    """Whether a finding may be about this process, including findings that cannot be attributed."""
    pid, uuids, cgroup = own
    if subject.get("pid") and subject["pid"] != pid:
        return False
    if subject.get("uuid") and uuids and subject["uuid"] not in uuids:
        return False
    theirs = subject.get("cgroup")
    # In a container, the own path appears as the root.
    if theirs and cgroup not in ("", "/"):
        return cgroup == theirs or cgroup.startswith(theirs.rstrip("/") + "/")
    return True


def _after_fork() -> None:
    for monitor in list(_monitors):
        try:
            monitor._forked()
        except Exception as error:
            _hide(error, "fork")


def _at_exit() -> None:
    # Set for an uncaught exception; SystemExit is not one.
    kind = getattr(sys, "last_type", None)
    for monitor in list(_monitors):
        monitor.stop("finished" if kind is None else getattr(kind, "__name__", "error"))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
