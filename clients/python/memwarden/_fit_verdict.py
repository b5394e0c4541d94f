"""The daemon's verdict on the predictions, and the line that says it."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any, Optional

from ._base import JSON, _guarded
from ._fit_predictions import Predictions
from ._identity import _Identity
from ._session import _Session

# Seconds that a process waits for a verdict, once, before the first step of the optimizer, which may be its end: the daemon
# samples once a second, and says "will not fit" in the second sample. The same with `MEMWARDEN_FIT=abort`.
VERDICT_WAIT, ABORT_WAIT = 3.0, 5.0
# Seconds after which the line is printed without a verdict.
LINE_WAIT = 3.0
# The status with which `MEMWARDEN_FIT=abort` ends a run that will not fit.
ABORTED = 80
# Verdicts that are said when they come, the worst last.
_SEVERITY = {"tight": 1, "will_not_fit": 2}
# A number, with its unit if it is a size.
_NUMBER = re.compile(r"[0-9][0-9.]*(?: [KMGT]?i?B\b)?")


class Verdicts:
    """Waits for verdicts, says them, and ends the process where the user asked for that."""

    def __init__(self, session: _Session, identity: _Identity, predictions: Predictions, aborts: bool) -> None:
        self._session, self._identity, self._predictions, self._may_abort = session, identity, predictions, aborts
        self.last: Optional[JSON] = None
        # The prediction that the line after the first step waits for, when that step ended, and whether it was printed.
        self._line_after = 0
        self._first_step_at: Optional[float] = None
        self.reported = False
        # The verdict of the last line, and the line without its numbers: one that differs only in these is not printed again.
        self._told = ""
        self._said: Optional[str] = None
        # What was said of the earlier runs of this command.
        self._past: Optional[str] = None
        # Whether the verdict was waited for, which happens once.
        self._waited = False
        # Whether this process ends itself because it will not fit.
        self.aborts = False

    @_guarded()
    def received(self, line: bytes) -> None:
        """A line of the daemon."""
        message = json.loads(line)
        if not isinstance(message, dict):
            return
        if message.get("type") == "past" and message.get("text") != self._past:
            self._past = message.get("text")
            if self._identity.hello()["rank"] == 0:
                _print(self._past)
        if message.get("type") != "verdict" or not self._predictions.messages:
            return
        level, told = _SEVERITY.get(str(message.get("verdict")), 0), _SEVERITY.get(self._told, 0)
        # A line that says that all fits is corrected; before it, only what will not fit is said.
        worse = level > told and (level == max(_SEVERITY.values()) or self.reported)
        if not isinstance(message.get("sequence"), int):
            message["sequence"] = self._predictions.sequence
        self.last = message
        self._predictions.know(message["sequence"])
        if worse:
            self.say(message)

    def wait(self) -> None:
        """Waits once for the verdict on what was sent last."""
        if self._waited or not self._predictions.messages:
            return
        self._waited = True
        until = time.monotonic() + (ABORT_WAIT if self._may_abort else VERDICT_WAIT)
        answered = self._predictions.answered
        while not answered.is_set() and self._session.link.connected and time.monotonic() < until:
            self._session.link.receive()
            answered.wait(0.02)

    def abort_if_told(self) -> None:
        # A verdict on earlier predictions ends nothing, unless those of now say nearly the same.
        if not self._may_abort or (self.last or {}).get("verdict") != "will_not_fit":
            return
        if self._predictions.still_known():
            self.aborts = True
            self.say(self.last)
            raise SystemExit(ABORTED)

    def first_step_ended(self) -> None:
        """After the first step, once its predictions are sent."""
        self._first_step_at, self._line_after = time.monotonic(), self._predictions.sequence

    def wait_for_last(self) -> None:
        """The line waits for the verdict on what was sent last."""
        self._line_after = self._predictions.sequence

    def report(self) -> None:
        """Prints the line after the first step, when its verdict is there or has not come in time."""
        if self._first_step_at is None or self.reported:
            return
        # The daemon answers a sample later: a verdict can be one on what was predicted before the first step.
        is_told = self.last is not None and self.last["sequence"] >= self._line_after
        waits = self._session.link.connected and time.monotonic() - self._first_step_at <= LINE_WAIT
        if is_told or not waits:
            self.reported = True
            self.say(self.last if is_told else None)

    @_guarded()
    def say(self, verdict: Optional[JSON]) -> None:
        """Prints the line, on the first rank: the daemon's verdict, or the sizes where there is none."""
        if not self._predictions.messages:
            return
        line = (verdict or {}).get("text") or self._predictions.summary()
        told = str((verdict or {}).get("verdict"))
        words = _NUMBER.sub("", line)
        if (told, words) == (self._told, self._said):
            return
        self._said, self._told = words, told
        if self._identity.hello()["rank"] == 0 or (verdict or {}).get("verdict") == "will_not_fit":
            _print(line)


def _print(text: Any) -> None:
    line = "".join(each if each.isprintable() else "?" for each in str(text))[:1024]
    sys.stderr.write("memwarden: %s\n" % line)
    sys.stderr.flush()
