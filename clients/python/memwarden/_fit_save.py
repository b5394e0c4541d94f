"""Saves: what writing a file with tensors takes."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from ._base import _size
from ._fit_memory import Mark, Place, highest_since, mark
from ._fit_plan import Plan
from ._fit_predictions import Predictions


class Saves:
    """A save consists of several files; the one that takes most counts."""

    def __init__(self, predictions: Predictions, plan: Plan) -> None:
        self._predictions, self._plan = predictions, plan
        # What was held when the current file was begun.
        self._held: Optional[Dict[Place, Mark]] = None
        self._path: Any = None
        self._extra: Dict[Place, int] = {}
        self._measured: Dict[Place, int] = {}

    @property
    def runs(self) -> bool:
        """Whether a file is being written."""
        return self._held is not None

    def begins(self, places: List[Place], path: Any) -> None:
        """A file with tensors is about to be written, at a path if that is known."""
        self._path = path
        self._held = {place: held for place in places for held in [mark(place)] if held is not None}

    def ends(self, written: bool) -> None:
        """If it is written, what it took above what the process held is what the next save will take."""
        saving, self._held = self._held, None
        if saving is not None and written and self._path is not None:
            self._plan.saved(self._path)
        for place, begun in (saving or {}).items() if written else ():
            # Where the peak of a device did not rise, only what is still held is known.
            held, peak = begun[0], (highest_since(place, begun) or begun)[0]
            if place is not None and peak <= held:
                continue
            self._extra[place] = max(self._extra.get(place, 0), peak - held)
            self._measured[place] = max(peak, self._measured.get(place, 0))
            self._state(place, held)

    def predict(self, held: Callable[[Place], Optional[int]]) -> None:
        """The next one, with what the process holds now."""
        for place in list(self._extra):
            now = held(place)
            if now is not None and not self.runs:
                self._state(place, now)

    def _state(self, place: Place, held: int) -> None:
        extra, files = self._extra[place], self._plan.in_memory if place is None else 0
        basis = "the file that took most took %s above what was held" % _size(extra)
        if files:
            basis += ", files of %s in memory" % _size(files)
        extra, measured = extra + files, self._measured[place] + files
        self._predictions.state("save", place, held + extra, held=held, measured=measured, basis=basis)
