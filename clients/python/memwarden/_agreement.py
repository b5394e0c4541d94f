"""The agreement of the ranks of a run on the step at which all of them save a checkpoint.

The ranks agree through the store of the default process group of torch.distributed, in rounds. A rank that is asked
proposes a step ahead of its own; every rank that is not past it confirms; when all members have confirmed, the decision
is to save. A rank that is past the step decides against it, and the next round has a later step. Each value is a
number that is read by adding 0 to it, which no version of the store blocks on, and is written once by compare_set.
A thread does all calls of the store, over a connection of its own where the store can give one.
"""

from __future__ import annotations

import collections
import datetime
import math
import os
import random
import sys
import threading
from typing import Any, Callable, Deque, Optional, Tuple

from ._base import JSON, _clock, _hide

# Seconds between two looks of the thread at the store while nothing and while something is decided.
POLL = 0.1
POLL_OPEN = 0.02
# Seconds until the thread calls a store again that has failed.
RETRY = 1.0
# A store serves one call at a time: no more than this many polls a second from all ranks together.
MOST_POLLS = 2000
# Polls until the proposed step: every rank polls twice, and confirms. Each round takes twice as long as the one before,
# since a rank may be slow.
LEAD_POLLS = 5
# Seconds for which a request waits until the time of a step is known.
RATE_WAIT = 2.0
# Seconds that a call of the store may take.
STORE_TIMEOUT = 10.0
# Seconds after which a proposal does not wait for members that have not come yet.
SETTLE = 10.0
# Seconds that a rank waits at the agreed step for a decision that it does not know; in practice it is known before.
DECISION_WAIT = 5.0
# Rounds for one request, and seconds until a request without an agreement has failed.
MOST_ROUNDS = 4
GIVE_UP = 60.0

SAVE = 1
# A decision against saving is this plus the step that the late rank had reached.
VOID = 2


class _Plan:
    """A proposed step, as this rank knows it."""

    __slots__ = ("at", "confirmed", "decided", "save", "missed")

    def __init__(self, at: int) -> None:
        self.at = at
        self.confirmed = self.save = self.missed = False
        self.decided = threading.Event()


class _Agreement:
    """One rank's part. `tell` gets (`agreed`, `local` or `failed`), and details."""

    def __init__(self, tell: Callable[[str, JSON], None]) -> None:
        self._tell = tell
        self.reached = 0
        self.at: Optional[int] = None
        self._plan: Optional[_Plan] = None
        self._asked_at: Optional[float] = None
        self._rounds = 0
        self._floor = 0
        self._rates: Deque[float] = collections.deque(maxlen=32)
        self._last: Optional[Tuple[float, int]] = None
        self._next = 0.0
        self._store: Any = None
        self._source: Any = None
        self._member = False
        self._attached = 0.0
        self._round = 1
        self._world = 1
        self._error = ""
        # Held while nobody asks; a lock, since a handler of a signal may interrupt itself.
        self._quiet = threading.Lock()
        self._quiet.acquire()

    # -- the training thread

    def boundary(self, n: int) -> bool:
        """After step `n`: whether all ranks save now."""
        self.reached = n
        at = self.at
        return at is not None and n >= at and self._arrive()

    def _arrive(self) -> bool:
        plan = self._plan
        if plan is not None and not plan.decided.wait(DECISION_WAIT):
            plan.missed = True
        save = plan is not None and plan.save and not plan.missed
        if save:
            # What is asked while it saves is another request.
            self.done()
        self.at = None
        return save

    def ask(self) -> None:
        """A checkpoint is requested of this rank. Takes no lock: signal handlers call it."""
        if self._asked_at is None:
            self._asked_at = _clock()
            try:
                self._quiet.release()
            except RuntimeError:
                # The thread has not seen the request before it.
                pass

    @property
    def asked(self) -> bool:
        """Whether a request waits for an agreement."""
        return self._asked_at is not None

    def done(self) -> None:
        """A checkpoint was saved, or failed: all requests until now are answered."""
        self._asked_at, self._rounds = None, 0

    # -- the thread of the agreement

    def run(self, wake: threading.Event) -> None:
        """Until `wake` is set."""
        while not wake.is_set():
            self._quiet.acquire(timeout=max(POLL_OPEN, 4 * self._world / MOST_POLLS) if self._open() else POLL)
            if wake.is_set():
                break
            try:
                self.tick()
            except Exception as error:
                self._error = "the store failed: %s" % (str(error).split("\n")[0][:200] or type(error).__name__)
                self._store = None
                self._next = _clock() + RETRY
        self.leave()

    def _open(self) -> bool:
        return self._plan is not None and not self._plan.decided.is_set()

    def watch(self) -> None:
        """Called by another thread, since a call of the store may hang: a request without an agreement has failed."""
        asked = self._asked_at
        if asked is not None and self.at is None and _clock() - asked > GIVE_UP:
            self._fail(self._error or "no agreement after %d s" % GIVE_UP)

    def _fail(self, reason: str) -> None:
        self.done()
        self._tell("failed", {"reason": reason})

    def _measure(self, now: float) -> None:
        """Steps a second; the highest rate of the last half minute counts, since evaluations are slow."""
        if self._last is None:
            self._last = now, self.reached
            return
        seconds, steps = now - self._last[0], self.reached - self._last[1]
        if seconds >= 1.0 or steps >= 100:
            self._last = now, self.reached
            if steps > 0:
                self._rates.append(steps / seconds)

    def _rate(self, now: float) -> float:
        """The highest rate of the last half minute, or that of the time that is not complete yet; 0 where there is none."""
        if self._rates or self._last is None:
            return max(self._rates, default=0.0)
        seconds, steps = now - self._last[0], self.reached - self._last[1]
        return steps / seconds if seconds >= POLL else 0.0

    def tick(self) -> None:
        """What the thread does each time."""
        now = _clock()
        self._measure(now)
        if now < self._next and not (self._store is not None and (self._open() or self.asked)):
            return
        interval = max(POLL, self._world / MOST_POLLS)
        self._next = now + interval * random.uniform(0.8, 1.2)
        if not self._attach(now):
            return
        plan = self._plan
        if plan is not None and self._open():
            self._follow(plan)
        elif self.at is None:
            self._look(now, interval)

    def _attach(self, now: float) -> bool:
        """Whether there is a store that this rank shares with others."""
        source, world = default_store()
        if source is not self._source:
            # Another process group: its predecessor may have had the same server.
            self.leave()
            self._source, self._member, self._round, self._store = source, False, 1, None
            self._plan, self.at = None, None
        self._world = world
        if world <= 1:
            return False
        if source is None:
            if self.asked and self.at is None:
                self._alone("the process group has no store")
            return False
        if self._store is None:
            self._store = connect(source)
        if not self._member:
            self._attached = now
            # After a call that has failed, a rank that is counted twice keeps the others from saving; one that is not
            # counted would not be waited for.
            self._add("members", 1, shared=True)
            self._member = True
        return True

    def leave(self) -> None:
        """The others do not wait for this rank any more."""
        if self._member and self._store is not None:
            self._member = False
            try:
                self._add("members", -1, shared=True)
            except Exception:
                # The server may have ended first: nobody is left to tell.
                self._store = None

    def end(self) -> None:
        """Training ends: an agreed step that was not reached is a request that failed."""
        plan, at = self._plan, self.at
        self.at = None
        if self.asked or (plan is not None and plan.save and at is not None):
            where = "" if at is None else ", before the agreed step %d" % at
            self._fail("training ended at step %d%s" % (self.reached, where))

    def _key(self, name: str, shared: bool) -> str:
        # A launcher that restarts the ranks keeps its store.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return "memwarden/%s/%s" % (attempt, name if shared else "%d/%s" % (self._round, name))

    def _add(self, name: str, value: int, shared: bool = False) -> int:
        return int(self._store.add(self._key(name, shared), value))

    def _first(self, name: str, value: int) -> int:
        """Writes a value unless there is one; returns that which is there."""
        known = self._add(name, 0)
        if known:
            return known
        key = self._key(name, False)
        try:
            return int(self._store.compare_set(key, "0", str(value)))
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            if "mplement" not in str(error) and not isinstance(error, AttributeError):
                raise
        if self._add(name + "/writer", 1) == 1:
            return self._add(name, value)
        # Another rank writes it now.
        return self._add(name, 0)

    def _alone(self, reason: str) -> None:
        """Nobody to agree with: this rank saves at its next boundary."""
        plan = _Plan(self.reached + 1)
        plan.save = True
        plan.decided.set()
        self._plan = plan
        self.at = plan.at
        self._tell("local", {"reason": reason})

    def _look(self, now: float, interval: float) -> None:
        """Nothing is decided: is there a proposal, and if not, is one to be made?"""
        while True:
            at = self._add("at", 0)
            if not at:
                break
            if not self._add("decision", 0):
                return self._join(at)
            # Decided before this rank came.
            self._round += 1
        asked = self._asked_at
        if asked is None:
            return
        members = self._add("members", 0, shared=True)
        if members < self._world and now - self._attached < SETTLE:
            return
        if members <= 1:
            return self._alone("no other rank of %d runs the client" % self._world)
        rate = self._rate(now)
        if rate == 0.0 and now - asked < RATE_WAIT:
            return
        ahead = max(2, math.ceil(LEAD_POLLS * interval * 2**self._rounds * rate))
        at = self._first("at", max(self.reached, self._floor) + ahead)
        if at:
            self._join(at)

    def _join(self, at: int) -> None:
        plan = _Plan(at)
        self._plan = plan
        self.at = at
        # The training thread writes `reached` and reads `at`; here it is the other way round, so that one sees the other.
        if self.reached >= at:
            plan.missed = True
        self._follow(plan)

    def _follow(self, plan: _Plan) -> None:
        decision = self._add("decision", 0)
        if not decision and plan.missed:
            decision = self._first("decision", VOID + self.reached)
        elif not decision:
            if not plan.confirmed:
                plan.confirmed = True
                self._add("confirmed", 1)
            if self._add("confirmed", 0) >= self._add("members", 0, shared=True):
                decision = self._first("decision", SAVE)
        if decision:
            self._settle(plan, decision)

    def _settle(self, plan: _Plan, decision: int) -> None:
        members = self._add("members", 0, shared=True)
        self._round += 1
        self._error = ""
        plan.save = decision == SAVE
        if not plan.save:
            self._floor = max(self._floor, decision - VOID)
            self.at = None
        plan.decided.set()
        if plan.save and plan.missed:
            return self._fail("step %d was agreed, and this rank was past it" % plan.at)
        if plan.save:
            return self._tell("agreed", {"at": plan.at, "ranks": members, "world": self._world})
        self._rounds += 1
        if self.asked and self._rounds >= MOST_ROUNDS:
            self._fail("a rank was past the agreed step in each of %d rounds" % self._rounds)


def default_store() -> Tuple[Any, int]:
    """The store of the default process group, None where it has none, and the number of its ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None, 1
    world = int(distributed.get_world_size())
    try:
        return sys.modules["torch.distributed.distributed_c10d"]._get_default_store(), world
    except Exception as error:
        _hide(error, "store")
        return None, world


def connect(source: Any) -> Any:
    """A connection of our own to the store, which no collective waits on; the store itself where it gives none.

    All ranks run one version of torch, and therefore all take the same way.
    """
    timeout = datetime.timedelta(seconds=STORE_TIMEOUT)
    if hasattr(source, "clone"):
        own = source.clone()
        own.set_timeout(timeout)
        return own
    base = source
    while hasattr(base, "underlying_store"):
        base = base.underlying_store
    if hasattr(base, "host") and hasattr(base, "port"):
        return type(base)(base.host, base.port, is_master=False, timeout=timeout, wait_for_workers=False)
    return source
