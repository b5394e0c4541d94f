"""How this process ends, for its last message: by the exception that the interpreter did not catch, or as intended."""

from __future__ import annotations

import errno
import re
import resource
import sys
from typing import Any, List, Optional

from ._base import JSON, LONGEST_NAME, _short, _size

# Parts of the texts of errors that mean a failed allocation: of torch, JAX and the libraries of CUDA. Texts are not sent.
_OF_DEVICE = ("out of memory", "RESOURCE_EXHAUSTED", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_OF_HOST = ("DefaultCPUAllocator",)
# The packages whose errors are read; those of others may compute their texts.
_READ = ("builtins", "torch", "jax", "jaxlib", "tensorflow")
# Functions of the interpreter that start processes and threads: EAGAIN of these is a limit, and otherwise one of input and output.
_STARTING = {"fork", "forkpty", "fork_exec", "_fork_exec", "start_new_thread", "_start_new_thread", "_start_joinable_thread"}
# The limits of memory that few processes have, in the order in which they are named, and those of numbers.
_OF_MEMORY = {"address_space": resource.RLIMIT_AS, "data": resource.RLIMIT_DATA}
_COUNTS = {"open_files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC}
_ULIMIT = {"address_space": "-v", "data": "-d", "locked_memory": "-l", "open_files": "-n", "processes": "-u"}
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
        memory = _memory(each)
        if memory is not None:
            return dict({"reason": _name(each), "end": "out_of_memory", "resource": memory}, **_limit_of_memory(memory))
        count = _count(each)
        if count is not None:
            return dict({"reason": _name(each), "end": "exception"}, **_limit(count, _COUNTS[count]))
    return {"reason": _name(value), "end": "interrupted" if isinstance(value, KeyboardInterrupt) else "exception"}


def sentence(ending: JSON, failure: Optional[JSON]) -> Optional[str]:
    """What ended the process, as a last line of standard error, by its last message and the last allocation that failed on a device;
    None where it was neither memory nor a limit."""
    limit, value = ending.get("limit"), ending.get("limit_value")
    if limit is not None:
        of = "" if value is None else " of %s" % (value if limit in _COUNTS else _size(value))
        text = "the limit%s of %s (ulimit %s) was reached" % (of, limit.replace("_", " "), _ULIMIT[limit])
    elif ending["end"] != "out_of_memory":
        return None
    elif ending["resource"] == "device" and failure is not None:
        asked = "an allocation of %s on GPU %s failed" % (_size(failure["requested"]), failure["device"])
        held = ["%s %s by this process" % (_size(failure[key]), key) for key in ("allocated", "reserved") if key in failure]
        text = "%s: %s" % (asked, ", ".join([*held, "%s of %s free" % (_size(failure["free"]), _size(failure["total"]))]))
    else:
        text = "%s refused an allocation" % ("the GPU" if ending["resource"] == "device" else "the host")
    phase = ending.get("phase")
    return text + ("" if phase is None else ", in the phase %s" % phase)


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


def _count(value: BaseException) -> Optional[str]:
    """The limit of a number that this exception says was reached; None for another exception."""
    if type(value) is OSError and value.errno == errno.EMFILE:
        return "open_files"
    if not isinstance(value, BlockingIOError) and not (type(value) is RuntimeError and value.args == ("can't start new thread",)):
        return None
    trace = value.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "processes" if trace is not None and _STARTING.intersection(trace.tb_frame.f_code.co_names) else None


def _limit_of_memory(memory: str) -> JSON:
    """The limit of the process that refused the memory; empty where it has none that explains it."""
    if memory != "host":
        return {}
    for name, number in _OF_MEMORY.items():
        found = _limit(name, number)
        if "limit_value" in found:
            return found
    # Almost every process has this one.
    found = _limit("locked_memory", resource.RLIMIT_MEMLOCK)
    return found if 2 * _locked() >= found.get("limit_value", sys.maxsize) else {}


def _limit(name: str, number: int) -> JSON:
    """The limit, with its value in bytes or as a number where it is finite."""
    value = resource.getrlimit(number)[0]
    return {"limit": name} if value == resource.RLIM_INFINITY else {"limit": name, "limit_value": value}


def _locked() -> int:
    """Bytes of locked memory; 0 where they cannot be read."""
    try:
        with open("/proc/self/status", "rb") as status:
            found = re.search(rb"^VmLck:\s*(\d+) kB$", status.read(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def _name(value: BaseException) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else "%s.%s" % (kind.__module__, kind.__qualname__)
    return _short("".join(each if each.isprintable() else "?" for each in name[-LONGEST_NAME:]), LONGEST_NAME)
