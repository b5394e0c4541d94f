"""The predictions of this process, as messages to the daemon."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional, Tuple, Union

from ._base import JSON, _encode, _now, _short, _size
from ._fit_memory import Place, held_on, resource_of
from ._fit_plan import free_of
from ._process import _host_mapped
from ._session import _Session
from ._steps import _Steps

# A prediction that changes by a smaller share is not sent again.
SAME = 0.01
# A verdict still applies to a prediction that changed by a smaller share of its peak. The resident memory of a process whose steps
# are all alike moves: that of a Trainer between 799 and 945 MiB from second to second, and the peak of its steps by 3 %. Its
# predictions are sent again each second then, and a verdict, which is on those that the last sample read, would always be late.
NEARLY = 0.05
# Of each prediction, how many are kept until a verdict comes.
_MOST_SENT = 64
# The 90th percentile of the error of predictions on the host, as a share of the peak (docs/measurements/fit.md).
_BANDS = {"optimizer": 0.04, "step": 0.05, "evaluation": 0.06, "generation": 0.06, "save": 0.05}
# What a prediction can have beside the keys that each has.
_MORE = ("measured", "due_step", "size")
_FLAGS = ("least", "so_far")
_ORDER = ("optimizer", "step", "evaluation", "generation", "save")
_DIGITS = str.maketrans("", "", "0123456789.")

Key = Tuple[str, str, Place]


class Predictions:
    """The last prediction of each phase and resource."""

    def __init__(self, session: _Session, steps: _Steps) -> None:
        self._session, self._steps = session, steps
        self.messages: Dict[Key, JSON] = {}
        # The number of the last prediction.
        self.sequence = 0
        # The number of the last prediction that a verdict knows.
        self._known_until = 0
        # Whether it is the number of the last prediction.
        self.answered = threading.Event()
        # What was sent of each prediction since that, in order, after what the verdict knows of it.
        self._sent: Dict[Key, List[JSON]] = {}

    def of(self, phase: str, place: Union[Place, str]) -> JSON:
        """The last one; empty where there is none."""
        key: Key = (phase, place, None) if isinstance(place, str) else (phase, *resource_of(place))
        return self.messages.get(key) or {}

    def state(self, phase: str, place: Any, peak: Optional[float], **more: Any) -> None:
        """Sends a prediction of a phase on a place: an ordinal, None for the host, `shm` or `disk`."""
        resource, device = (place, None) if isinstance(place, str) else resource_of(place)
        message: JSON = {"type": "prediction", "t": _now(), "phase": phase, "resource": resource}
        if device is not None:
            message["device"] = str(device)
        message["certainty"] = "unknown" if peak is None else "exact" if more.pop("exact", False) else "estimated"
        if peak is not None:
            message["peak"] = int(peak)
            band = _BANDS[phase] if resource == "host" and more.get("measured") is None else 0.0
            message["peak_p90"] = max(int(peak * (1 + band)), int(more.pop("p90", None) or peak))
            held = more.pop("held", None)
            held = held if held is not None else 0 if isinstance(place, str) else held_on(place)
            if held is not None:
                message["held"] = int(held)
            mapped = _host_mapped() if resource == "host" else None
            if mapped is not None:
                message["mapped"] = min(mapped, int(peak))
        message["step"] = self._steps.last
        message.update((key, value) for key, value in more.items() if value is not None and key in _MORE)
        message.update((key, True) for key in _FLAGS if more.get(key))
        message["basis"] = _short(more.get("basis") or "")
        self.resend(message)

    def resend(self, message: JSON) -> None:
        device = message.get("device")
        key: Key = (message["phase"], message["resource"], None if device is None else int(device))
        before = self.messages.get(key)
        self.messages[key] = message
        if before is None or not _alike(before, message):
            self.answered.clear()
            self.sequence += 1
            message["sequence"] = self.sequence
            sent = self._sent.setdefault(key, [])
            sent.append(message)
            del sent[:-_MOST_SENT]
            self._session.send(message)
        else:
            message["sequence"] = before.get("sequence", 0)

    def know(self, sequence: int) -> None:
        """There is a verdict on the predictions up to this number."""
        self._known_until = sequence
        for sent in list(self._sent.values()):
            # Another thread can append meanwhile.
            known = sum(message["sequence"] <= sequence for message in list(sent))
            del sent[: max(0, known - 1)]
        if sequence >= self.sequence:
            self.answered.set()

    def still_known(self) -> bool:
        """Whether the last verdict is one on what is predicted now, or on predictions that said nearly the same."""
        sent = [list(each) for each in list(self._sent.values())]
        return all(each[0]["sequence"] <= self._known_until and _nearly(each[0], each[-1]) for each in sent)

    def state_free(self, folder: str) -> bool:
        """What is free for saves to files; a file system may hang, and is asked in the monitor's thread only. Says whether it is
        stated for the first time, which gives another verdict."""
        is_new = False
        for key, message in list(self.messages.items()):
            free = free_of(folder) if key[1] in ("shm", "disk") else None
            if free is not None and abs(free - message.get("free", -1)) > SAME * free:
                # Another amount is no new prediction: an answer that came stays valid.
                self.messages[key] = dict(message, free=free)
                if "free" not in message:
                    is_new = True
                    self.sequence += 1
                    self.messages[key]["sequence"] = self.sequence
                self._session.send(self.messages[key])
        return is_new

    def lines(self) -> List[bytes]:
        """For a new connection: a daemon may start later than the job."""
        return [_encode(message) for message in list(self.messages.values())]

    def summary(self) -> str:
        """What this process knows: sizes, not whether they fit."""
        parts = []
        for (phase, resource, device), message in sorted(self.messages.items(), key=lambda pair: _ORDER.index(pair[0][0])):
            where = resource if device is None else "GPU %d" % device
            if message["certainty"] == "unknown":
                parts.append("%s on %s is not known (%s)" % (phase, where, message["basis"]))
                continue
            about = "" if message["certainty"] == "exact" else "about "
            about = "at least " if message.get("least") else about
            parts.append("%s needs %s%s on %s" % (phase, about, _size(message["peak"]), where))
        return "; ".join(parts)


def _alike(one: JSON, two: JSON) -> bool:
    sizes = ("peak", "peak_p90", "measured", "held")
    return _same_kind(one, two) and all(abs(_change(one, two, key)) <= SAME * (one.get(key) or 0) for key in sizes)


def _nearly(one: JSON, two: JSON) -> bool:
    """Whether a phase needs nearly as much as before, or as much beyond what the process holds when it begins."""
    most = NEARLY * (one.get("peak") or 0)
    peaks = [_change(one, two, key) for key in ("peak", "peak_p90")]
    held = _change(one, two, "held")
    return _same_kind(one, two) and any(all(abs(peak - by) <= most for peak in peaks) for by in (0.0, held))


def _same_kind(one: JSON, two: JSON) -> bool:
    if any(one.get(key) != two.get(key) for key in ("certainty", "due_step", *_FLAGS)):
        return False
    # What it was computed from, without the numbers.
    return bool(one["basis"].translate(_DIGITS) == two["basis"].translate(_DIGITS))


def _change(one: JSON, two: JSON, key: str) -> float:
    return float((two.get(key) or 0) - (one.get(key) or 0))
