"""The handlers of the signals that request a checkpoint, beside those of the program and of other libraries."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

# Without the enumeration that `signal.getsignal` makes of the handler.
getsignal: Callable[[int], Any] = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)
# A program that sets its handler again and again is left alone after so many times.
MOST_TIMES = 16


class _Handlers:
    """Handlers that call `ask`, and then the handler that was there before.

    A handler that the program sets later is kept as well: `keep` puts ours around it. What Python cannot call (a handler
    in C, such as faulthandler's) is left as it is: `problem` says why no checkpoint can be requested then.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._own: Dict[int, Any] = {}
        # The reasons why signals have no handler of ours.
        self._without: Dict[int, str] = {}
        # The address of the function of Python that calls handlers.
        self._address: Optional[int] = None
        self._times = 0

    @property
    def wanted(self) -> bool:
        """Whether signals were to be handled."""
        return bool(self._own or self._without)

    def install(self, numbers: Sequence[int]) -> Optional[str]:
        """Handles signals; returns the reason if one of them cannot be handled."""
        for number in numbers:
            self._without.pop(number, None)
            before = getsignal(number)
            if number in self._own and before is self._own[number]:
                continue
            if threading.current_thread() is not threading.main_thread():
                self._without[number] = "only the main thread can handle %s, and training runs in another" % _name(number)
            elif _foreign(number, before):
                self._without[number] = "%s has a handler that is not Python's (faulthandler, sigaction)" % _name(number)
            else:
                self._put(number, before)
        return next(iter(self._without.values()), None)

    def refuse(self, number: int, reason: str) -> None:
        """A signal is not handled, for this reason."""
        self._without[number] = reason

    def _put(self, number: int, before: Any) -> None:
        def handler(number: int, frame: Any) -> None:
            self._ask()
            if callable(before) and before is not signal.default_int_handler:
                before(number, frame)

        signal.signal(number, handler)
        self._own[number] = handler
        self._address = _address_of(number)

    def keep(self) -> None:
        """In the training thread, after each step: ours is called again where the program has set another handler."""
        for number, own in self._own.items():
            now = getsignal(number)
            if now is not own and callable(now) and self._times < MOST_TIMES:
                if threading.current_thread() is threading.main_thread():
                    self._times += 1
                    self._put(number, now)

    def problem(self) -> Optional[str]:
        """Why a signal does not request a checkpoint; None if all do."""
        for reason in self._without.values():
            return reason
        for number, own in list(self._own.items()):
            now = getsignal(number)
            if now is not own and (not callable(now) or self._times >= MOST_TIMES):
                return "the program has replaced the handler of %s" % _name(number)
            address = _address_of(number)
            if now is own and address is not None and address != self._address:
                text = "a handler that is not Python's (faulthandler, sigaction) has replaced that of %s"
                return (text + "; no checkpoint is saved unless it calls the one before it") % _name(number)
        return None


def _foreign(number: int, handler: Any) -> bool:
    """Whether the kernel calls something else than Python, which knows `handler`."""
    address = _address_of(number)
    if address is None or address in (0, 1):
        return False
    if not callable(handler):
        return True
    # Python's own function is known from another signal, unless that is ignored.
    known = _address_of(signal.SIGINT) if callable(getsignal(signal.SIGINT)) else None
    return known is not None and number != signal.SIGINT and address != known


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


_libc: List[Any] = []


def _address_of(number: int) -> Optional[int]:
    """The address of the handler that the kernel calls: 0 for the default action, 1 where the signal is ignored.

    None where it cannot be read.
    """
    try:
        import ctypes

        if not _libc:
            _libc.append(ctypes.CDLL(None, use_errno=True))
        # `struct sigaction` begins with the handler and has less than 256 bytes.
        found = ctypes.create_string_buffer(256)
        if _libc[0].sigaction(number, None, found) != 0:
            return None
        return ctypes.c_void_p.from_buffer(found).value or 0
    except Exception:
        return None
