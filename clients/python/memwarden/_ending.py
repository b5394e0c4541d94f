"""How this process ends, for its last message: by the exception that the interpreter did not catch, or as intended."""

from __future__ import annotations

import errno
import sys
from typing import Any, List, Optional

from ._base import JSON, LONGEST_NAME, _short

# Parts of the texts of errors that mean a failed allocation: of torch, JAX and the libraries of CUDA. Texts are not sent.
_OF_DEVICE = ("out of memory", "RESOURCE_EXHAUSTED", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_OF_HOST = ("DefaultCPUAllocator",)
# The packages whose errors are read; those of others may compute their texts.
_READ = ("builtins", "torch", "jax", "jaxlib", "tensorflow")
# Exceptions that were the causes of others are looked at up to here.
_MOST_CAUSES = 8


def uncaught() -> Optional[BaseException]:
    """The exception that ends the interpreter; None where none does.

    The interpreter keeps it before it calls `sys.excepthook`, so that nothing has to be hooked and a program can replace the
    hook. It keeps neither SystemExit nor exceptions of threads, and in an interactive session that of an earlier line.
    """
    value = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    is_interactive = hasattr(sys, "ps1") or sys.flags.interactive
    return value if isinstance(value, BaseException) and not is_interactive else None


def described(value: Optional[BaseException]) -> JSON:
    """The keys of `bye` for a process that ends by this exception."""
    if value is None:
        return {"reason": "finished", "end": "finished"}
    if isinstance(value, SystemExit):
        code = value.code
        if code is None or code == 0:
            return described(None)
        return {"reason": str(code) if isinstance(code, int) else "1", "end": "failed"}
    for each in _causes(value):
        resource = _memory(each)
        if resource is not None:
            return {"reason": _name(each), "end": "out_of_memory", "resource": resource}
    return {"reason": _name(value), "end": "interrupted" if isinstance(value, KeyboardInterrupt) else "exception"}


def _causes(value: BaseException) -> List[BaseException]:
    found: List[BaseException] = []
    each: Optional[BaseException] = value
    while each is not None and len(found) < _MOST_CAUSES:
        found.append(each)
        each = each.__cause__
    return found


def _memory(value: BaseException) -> Optional[str]:
    """The resource whose allocation failed; None for another exception."""
    if isinstance(value, MemoryError):
        return "host"
    kind = type(value)
    # A limit of the process (RLIMIT_MEMLOCK, RLIMIT_AS), or strict overcommit.
    if kind is OSError and isinstance(value, OSError) and value.errno == errno.ENOMEM:
        return "host"
    if kind.__module__.partition(".")[0] not in _READ:
        return None
    text: Any = value.args[0] if value.args else ""
    text = text if type(text) is str else ""
    if any(part in text for part in _OF_HOST):
        return "host"
    if kind.__name__ == "OutOfMemoryError" or isinstance(value, RuntimeError) and any(part in text for part in _OF_DEVICE):
        return "device"
    return None


def _name(value: BaseException) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else "%s.%s" % (kind.__module__, kind.__qualname__)
    return _short("".join(each if each.isprintable() else "?" for each in name[-LONGEST_NAME:]), LONGEST_NAME)
