"""The monitor of one training process."""

from __future__ import annotations

import atexit
import collections
import os
import sys
import threading
import weakref
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Sequence, Set, Tuple, Union

from ._agreement import _Agreement
from ._base import (
    DEFAULT_SOCKET,
    DEFAULT_URL,
    JSON,
    MOST_ENTRIES,
    _clock,
    _getpid,
    _guarded,
    _hide,
    _now,
    _number,
    _plain,
    _real,
    _text,
)
from ._checkpoints import _Checkpoints
from ._link import _link
from ._phases import _Total
from ._process import _devices, _pinned, _torch
from ._risks import _Risks
from ._timeline import _Timeline

_monitors: "weakref.WeakSet[Monitor]" = weakref.WeakSet()
# The monitor of a program that is instrumented without a change.
_automatic: Optional["Monitor"] = None


class Monitor(_Timeline, _Risks, _Checkpoints):
    """Reports one training process to the daemon.

    `monitor_steps` such as `[1, [5, 10]]` limits reports and records to those steps; totals continue.
    `interval` is the seconds between two readings of the allocator (0: none), `min_interval` those between two step
    messages, `log_file` a file that receives every sent line (`log_bytes` each, `log_files` of them),
    `oom_snapshot` a folder for a snapshot of the allocator when it fails. With `agree_every`, the same on all ranks, a
    process group that has no store agrees on a checkpoint by an all-reduce every so many steps. The description of the run (`rank`,
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
        agree_every: int = 0,
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
        self._agreement: Optional[_Agreement] = None
        self._savers: List[Callable[[int], Any]] = []
        self._agree_every, self._step_is_boundary = agree_every, True
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
        self._clear_checkpoints()

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
        self._run_agreement()
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
        self._end_agreement()
        self._flush_held()
        self._send({"type": "bye", "t": _now(), "reason": reason, "dropped": self._link.dropped})
        self._link.close()
        self._write_log()
        self._ready, self._stopped, self._thread, self._risk_thread = False, True, None, None
        self._agreement_thread = None
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
            if self._wanted is None or self._wants(n):
                self._last_line = encoded = line.encode()
                if now - self._last_sent < self._min_interval:
                    self._held = True
                else:
                    self._held = False
                    self._last_sent = now
                    self._send_line(encoded)
                    if self._hellos_checked < 2:
                        self._hellos_checked += 1
                        self._say_hello_again()
            if self._agreement is not None and self._step_is_boundary:
                self._boundary(n)
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
                self._watch_request,
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
