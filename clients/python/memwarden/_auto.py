"""Instrumentation without a change to the program; auto/sitecustomize.py calls `start_auto` after the import of torch."""

from __future__ import annotations

import os

from . import _monitor
from ._base import _guarded
from ._fit import wrap_saves
from ._hooks import watch_all
from ._process import _torch


@_guarded()
def start_auto() -> None:
    """Attaches a monitor to the hooks of torch, which has been imported; never raises."""
    mode = os.environ.get("MEMWARDEN_AUTO", "")
    if (
        _monitor._automatic is not None
        or mode in ("", "0")
        or os.environ.get("MEMWARDEN_DISABLE", "") not in ("", "0")
    ):
        return
    monitor = _monitor.Monitor(phase_memory=mode != "steps")
    monitor._session.quiet = True
    # Workers that only import torch are not reported; evaluation and inference have loaders too.
    monitor._phases.starting = ("forward", "optimizer")
    watch = watch_all(monitor, mode != "steps")
    if mode != "steps":
        watch.await_optimizer(__import__("torch.optim.optimizer", fromlist=["Optimizer"]).Optimizer)
        wrap_saves(lambda: watch.fit, _torch(), "save")
    _monitor._automatic = monitor
    monitor._run()
