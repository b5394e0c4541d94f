"""The monitor of one training process."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Union

from ._allocator import _Allocator
from ._base import (
    DEFAULT_SOCKET,
    DEFAULT_URL,
    JSON,
    LONGEST_NAME,
    Path,
    _clock,
    _getpid,
    _guarded,
    _hide,
    _hiding,
    _say,
    _short,
    _text,
    _write_json,
)
from ._checkpoints import Saver, _Checkpoint, _Checkpoints
from ._ending import described, sentence, uncaught
from ._evidence import _Evidence
from ._identity import _Identity
from ._phases import _Phase, _Phases
from ._process import _devices
from ._recording import Recording
from ._session import _Log, _Session, _Worker
from ._steps import _Steps

_monitors: "weakref.WeakSet[Monitor]" = weakref.WeakSet()
# The monitor of a program that is instrumented without a change.
_automatic: Optional["Monitor"] = None
# Whether the program has started a monitor of its own: from then on it reports itself.
_is_reported = False


class _Nothing:
    """In the place of predictions that are switched off: each part of them, and what each call returns."""

    measuring = pending = False

    def __getattr__(self, _: str) -> "_Nothing":
        return self

    def __call__(self, *_: Any, **__: Any) -> "_Nothing":
        return self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Monitor(Recording):
    """Reports one training process to the daemon.

    `monitor_steps` such as `[1, [5, 10]]` limits reports and records to those steps; totals continue.
    `interval` is the seconds between two readings of the allocator (0: none), `min_interval` those between two step
    messages, `log_file` a file that receives every sent line (`log_bytes` each, `log_files` of them),
    `oom_snapshot` a folder for a snapshot of the allocator when it fails. With `agree_every`, the same on all ranks, a
    process group that has no store agrees on a checkpoint by an all-reduce every so many steps. The description of the
    run (`rank`, `world`, `data_parallel`, `sequence_length`, `global_batch`, `precision`, `recompute`) is detected where
    possible.
    """

    def __init__(
        self,
        run: Optional[str] = None,
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
        socket_path: Optional[Path] = None,
        url: Optional[str] = None,
        log_file: Optional[Path] = None,
        log_bytes: int = 10 << 20,
        log_files: int = 10,
        oom_snapshot: Optional[Path] = None,
        agree_every: int = 0,
    ) -> None:
        env = os.environ
        facts: JSON = {"run": run if run is not None else env.get("MEMWARDEN_RUN") or None}
        facts.update(rank=rank, local_rank=local_rank, world=world, data_parallel=data_parallel, precision=precision)
        facts.update(sequence_length=sequence_length, global_batch=global_batch, recompute=recompute)
        paths = _text(socket_path or env.get("MEMWARDEN_JOB_SOCKET") or DEFAULT_SOCKET)
        url = _text(url or env.get("MEMWARDEN_URL") or DEFAULT_URL).rstrip("/")
        folder = oom_snapshot or env.get("MEMWARDEN_OOM_SNAPSHOT") or None
        session = _Session(self.start, paths, self._greeting, _Log(log_file, log_bytes, log_files))
        self._identity = _Identity(session, facts)
        super().__init__(session, _Steps(session, self._identity, monitor_steps, min_interval))
        self._phases = _Phases(session, phase_memory)
        self._allocator = _Allocator(session, self._identity, self._keep, folder)
        self._checkpoints = _Checkpoints(session, self._steps, agree_every)
        self._evidence = _Evidence(session)
        self._identity.saving = self._checkpoints.saving
        self._url = url
        self._fit: Any = _Nothing()
        if not session.off and env.get("MEMWARDEN_FIT", "").lower() != "off":
            from ._fit import _Fit

            self._fit = _Fit(session, self._steps, self._identity)
        self._interval = interval
        self._worker = _Worker(session, "memwarden", self._loop)
        _monitors.add(self)

    @functools.cached_property
    def _risks(self) -> Any:
        from ._risks import _Risks  # Few programs need it.

        return _Risks(self._session, self._url)

    # -- begin and end

    @_guarded()
    def start(self) -> "Monitor":
        """Connects and begins to read the allocator; called by the first `step` if not called before."""
        global _automatic, _is_reported
        if self._session.ready or self._session.off:
            return self
        if _automatic is not self:
            _is_reported = True
            retired, _automatic = _automatic, None
            if retired is not None:
                retired._session.retire()
        self._session.open()
        self._run()
        self._checkpoints.run()
        return self

    @_guarded()
    def stop(self, reason: str = "finished") -> None:
        """Sends the last message; the series of this rank end."""
        self._stop({"reason": _short(reason), "end": "finished"})

    @_guarded()
    def _ends(self, value: Optional[BaseException]) -> None:
        """The process ends, by this exception or as intended."""
        ending = described(value)
        if self._fit.aborts and ending["end"] in ("finished", "failed"):
            ending = {"reason": "will not fit", "end": "aborted"}
        phase = None if ending["end"] == "finished" else self._phases.ended_in(value)
        ending = ending if phase is None else dict(ending, phase=_short(phase, LONGEST_NAME))
        if self._stop(ending):
            line = sentence(ending, self._allocator.failure)
            if line is not None:
                # The daemon knows the rest: who held the memory, what was lost, and whether a retry can help.
                _say("%s; `memwarden why %d` says more" % (line, _getpid()))

    def _stop(self, ending: JSON) -> bool:
        """Sends the last message; whether this process is connected."""
        session = self._session
        if not session.ready or session.pid != _getpid():
            return False
        is_connected = bool(session.link.connected)
        session.ends.set()
        self._checkpoints.end()
        if self._interval > 0:
            self._last_memory()
        self._flush()
        session.close(ending)
        return is_connected

    def __enter__(self) -> "Monitor":
        self.start()
        return self

    def __exit__(self, _: Any, value: Any, *__: Any) -> None:
        self._ends(value)

    @_guarded()
    def _last_memory(self) -> None:
        """The memory of the last second."""
        self._allocator.send()

    def _forked(self) -> None:
        """In a child process, whose totals begin at zero."""
        self._session.forked()
        self._began = _clock()
        parts = (self._identity, self._steps, self._phases, self._checkpoints, self._fit, self._evidence)
        for part in parts:
            part.reset()

    def _greeting(self) -> List[bytes]:
        """The first lines of a connection: all cumulative values."""
        self._allocator.sent_peak = 0
        lines = [*self._identity.greeting(), self._steps.line, *self._phases.lines(), *self._fit.lines()]
        return [line for line in lines if line]

    def _flush(self) -> None:
        self._steps.flush()
        self._phases.flush()

    def _run(self) -> None:
        if self._interval > 0:
            self._worker.start()

    def _loop(self, ends: threading.Event) -> None:
        """The thread of the monitor."""
        session = self._session
        tasks: Sequence[Callable[[], None]] = (
            session.link.keep_up,
            self._allocator.observe,
            self._allocator.send,
            self._flush,
            self._phases.send_open,
            self._checkpoints.watch,
            self._fit.refresh,
            self._identity.watch,
            self._evidence.watch,
            session.log.write,
        )
        while not self._rests(ends):
            if session.off:
                return
            for task in tasks if session.ready else (self._start_with_devices,):
                with _hiding(getattr(task, "__name__", "thread")):
                    task()

    def _rests(self, ends: threading.Event) -> bool:
        """Waits for the interval; verdicts on the first step are read ten times a second. Returns whether it ends."""
        until = time.monotonic() + self._interval
        while self._fit.awaits and time.monotonic() + 0.1 < until:
            if ends.wait(0.1):
                return True
            self._session.link.receive()
        return ends.wait(max(0.0, until - time.monotonic()))

    def _start_with_devices(self) -> None:
        """An automatic monitor starts when there is something to report, which its thread waits for."""
        if _devices():
            self.start()

    @property
    def dropped(self) -> int:
        """Lines that could not be sent."""
        return int(self._session.link.dropped)

    @property
    def connected(self) -> bool:
        """Whether a daemon is connected."""
        return bool(self._session.link.connected)

    # -- steps and phases

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
        session = self._session
        if session.off:
            return
        try:
            if not session.ready:
                if session.stopped:
                    return
                self.start()
            n = self._steps.add(n, tokens, samples, loss, learning_rate, grad_norm, seconds, skipped)
            self._fit.step_ended()
            checkpoints = self._checkpoints
            if checkpoints.agreement is not None and checkpoints.step_is_boundary:
                checkpoints.boundary(n)
        except Exception as error:
            _hide(error, "step")

    def phase(self, name: str) -> _Phase:
        """A context manager, and a decorator, for a part of the step: `forward`, `backward`, `optimizer`, `loader`.

        The time is the host's: work that a GPU does later counts where the host waits for it.
        """
        return _Phase(self._phases, name)

    def profile_stage(self, name: str, function: Optional[Callable[..., Any]] = None, *args: Any, **kwargs: Any) -> Any:
        """A phase with snapshots `NAME:begin` and `NAME:end` around it, to be compared.

        With a function, calls it as such a stage and gives what it gives.
        """
        stage = _Phase(self._phases, name, self.memory_snapshot)
        if function is None:
            return stage
        with stage:
            return function(*args, **kwargs)

    def monitor_function(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function within a stage of its name; returns its result and raises its exceptions."""
        with self.profile_stage(getattr(function, "__name__", "function")):
            return function(*args, **kwargs)

    def phases(self) -> Dict[str, JSON]:
        """Seconds, count and highest allocation of every phase so far."""
        return {
            name: {"seconds": total.seconds, "count": total.count, "allocated_peak_bytes": total.peak}
            for name, total in list(self._phases.totals.items())
        }

    # -- the model

    @_guarded()
    def describe(self, model: Any = None, **facts: Any) -> None:
        """Adds values that are known later: the model, or any of the arguments of `Monitor`."""
        self._identity.describe(model, facts)

    @_guarded(dict)
    def analyze_model(self, model: Any, optimizer: Any = None, check_values: bool = True) -> JSON:
        """Calls `memwarden.analyze_model` and sends the result to the daemon; `hello` then has the shape of the model."""
        found = self._identity.analyze(model, optimizer, check_values)
        self.start()
        return found

    @_guarded()
    def attach(self, model: Any = None, optimizer: Any = None) -> None:
        """Plain PyTorch: steps from the optimizer's hook, tokens and the forward phase from the model's."""
        from ._hooks import _untraced, _Watch

        watch = _Watch(self)
        if model is not None:
            self.describe(model)
            watch.follow(model)
        if optimizer is not None:
            watch.fit.made(optimizer)
            optimizer.register_step_pre_hook(_untraced(watch.before_step))
            optimizer.register_step_post_hook(_untraced(watch.after_step))

    # -- reports; the snapshots and the timeline are those of `Recording`

    @_guarded("")
    def report(self) -> str:
        """For a console: current memory, the phases, the timeline, its peak and the growth."""
        return self._report(self._identity.hello()["rank"], self.phases())

    @_guarded(False)
    def export_json(self, path: Path) -> bool:
        """Writes everything recorded to a file, completely or not at all. The names contain the units."""
        steps, identity = self._steps, self._identity
        everything = {
            "schema_version": 1,
            "hello": identity.sent or identity.hello(),
            "steps": {"last": steps.last, "tokens": steps.tokens, "samples": steps.samples},
            "phases": self.phases(),
            "timeline": self.timeline(),
            "snapshots": self._snapshots,
            "parameters": identity.params,
        }
        _write_json(path, everything)
        return True

    # -- findings and checkpoints

    @_guarded()
    def on_risk(
        self, level: str, callback: Callable[[JSON], Any], *, everything: bool = False, interval: float = 5.0
    ) -> None:
        """Calls back, on a separate thread, when the daemon reports a finding of this level or a more severe one.

        Levels are `info`, `warning` and `critical`. The callback gets the finding (analyzer, subject, state, severity,
        summary, evidence, advice), once each time that it appears or becomes more severe. Findings that cannot be about
        this process are left out unless `everything` is set. The daemon is queried at `url` or `MEMWARDEN_URL`.
        """
        self._risks.add(level, callback, everything, interval)

    @property
    def checkpoint_requested(self) -> bool:
        """Whether to save a checkpoint now, until one is saved or has failed.

        With a process group of several ranks: from the agreed step on. Otherwise as soon as one is requested.
        """
        return self._checkpoints.requested

    @_guarded(False)
    def on_checkpoint_signal(self, *signals: int) -> bool:
        """Handles signals (without any, SIGUSR1) by requesting a checkpoint, and nothing else.

        A handler that was there, or that the program sets later, is called afterwards. False where it could not be done:
        only the main thread can, and not where the handler is not Python's, such as that of `faulthandler.register`.
        """
        handled = self._checkpoints.handle(signals or (signal.SIGUSR1,))
        if not handled:
            _say("no checkpoint can be requested: %s" % self._checkpoints.handlers.problem())
        return handled

    @_guarded(False)
    def on_checkpoint(self, save: Saver, *signals: int) -> bool:
        """Calls `save(step)` within `step`, when a checkpoint is requested, at a step that all ranks agree on.

        `save` may return the path of what it saved. Its exceptions are reported as a failed checkpoint, and training
        goes on. Handles signals as `on_checkpoint_signal` does.
        """
        if not callable(save):
            raise TypeError("not a function: %s" % _text(save))
        self._checkpoints.savers.append(save)
        return self.on_checkpoint_signal(*signals)

    @_guarded()
    def request_checkpoint(self) -> None:
        """Requests a checkpoint like a signal; for callbacks of `on_risk`."""
        self._checkpoints.take_part().ask()

    @_guarded()
    def checkpoint_saving(self, path: Optional[Path] = None, step: Optional[int] = None) -> None:
        """Reports that a checkpoint is being written: protection then waits for it."""
        self._fit.save_begins(path)
        self._checkpoints.report("saving", path, step)

    @_guarded()
    def checkpoint_saved(self, path: Optional[Path] = None, step: Optional[int] = None) -> None:
        """Reports that the checkpoint is complete and on its disk: protection may continue."""
        self._fit.save_ends()
        self._checkpoints.report("saved", path, step)

    @_guarded()
    def checkpoint_failed(self, path: Optional[Path] = None, step: Optional[int] = None, reason: Optional[str] = None) -> None:
        """Reports that the checkpoint could not be written, and why."""
        self._fit.save_ends(written=False)
        self._checkpoints.report("failed", path, step, reason)

    def checkpoint(self, path: Optional[Path] = None, step: Optional[int] = None) -> _Checkpoint:
        """`with monitor.checkpoint(path): torch.save(...)`: saving, then saved, or failed if it raises."""
        return _Checkpoint(self, path, step)


def _after_fork() -> None:
    for monitor in list(_monitors):
        with _hiding("fork"):
            monitor._forked()


def _at_exit() -> None:
    value = uncaught()
    for monitor in list(_monitors):
        monitor._ends(value)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
