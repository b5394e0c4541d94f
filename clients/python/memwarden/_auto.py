"""Instrumentation without a change to the program; auto/sitecustomize.py calls `start_auto` after the import of torch."""

from __future__ import annotations

import os
import sys

from . import _monitor
from ._base import _hide
from ._hooks import _Watch
from ._process import _torch


def start_auto() -> None:
    """Attaches a monitor to the hooks of torch, which has been imported; never raises."""
    try:
        mode = os.environ.get("MEMWARDEN_AUTO", "")
        if (
            _monitor._automatic is not None
            or mode in ("", "0")
            or os.environ.get("MEMWARDEN_DISABLE", "") not in ("", "0")
        ):
            return
        monitor = _monitor.Monitor(phase_memory=mode != "steps")
        # Workers that only import torch are not reported; evaluation and inference have loaders too.
        monitor._phases.starting = ("forward", "optimizer")
        watch = _Watch(monitor)
        # `torch.optim` deletes the name of its own module.
        optimizer = __import__("torch.optim.optimizer", fromlist=["Optimizer"])
        optimizer.register_optimizer_step_post_hook(watch.after_step)
        if mode != "steps":
            optimizer.register_optimizer_step_pre_hook(watch.before_step)
            watch.await_optimizer(optimizer.Optimizer)
            watch.wrap(_torch().autograd, "backward", "backward")
            monitor._fit.wrap_saves(_torch(), "save")
            loader = sys.modules.get("torch.utils.data.dataloader")
            if loader is not None and hasattr(loader, "_BaseDataLoaderIter"):
                watch.wrap(loader._BaseDataLoaderIter, "__next__", "loader")
        _monitor._automatic = monitor
        monitor._run()
    except Exception as error:
        _hide(error, "auto")
