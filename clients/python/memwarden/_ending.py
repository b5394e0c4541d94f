"""How this process ends, for its last message: by the exception that the interpreter did not catch, or as intended."""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
from typing import Any, List, Optional, Tuple

from ._base import JSON, LONGEST_NAME, _now, _short, _size
from ._fit_plan import free_of

# Parts of the texts of errors that mean a failed allocation: of torch, JAX and the libraries of CUDA. Texts are not sent.
_OF_DEVICE = ("out of memory", "RESOURCE_EXHAUSTED", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_OF_HOST = ("DefaultCPUAllocator",)
# What torch says where a file in memory, or one of a checkpoint, finds no space.
_OF_SHM = ("unable to allocate shared memory(shm)", "unable to write to file </torch_")
_OF_SPACE = ("No space left on device", "file write failed")
# What torch.save says of any file that it could not write: the reason where nothing is free there.
_OF_WRITER = ("iostream error", "unexpected pos ")
_LEAST_FREE = 1 << 20
# The packages whose errors are read; those of others may compute their texts.
_READ = ("builtins", "torch", "jax", "jaxlib", "tensorflow")
# Functions of the interpreter that start processes and threads: EAGAIN of these is a limit, and otherwise one of input and output.
_STARTING = {"fork", "forkpty", "fork_exec", "_fork_exec", "start_new_thread", "_start_new_thread", "_start_joinable_thread"}
# A part of the text, and functions, of ENOSPC that is no full disk: the limits of watches and of semaphores.
_OF_NUMBER = "inotify"
_NUMBERED = {"inotify_add_watch", "inotify_init", "SemLock", "sem_open"}
# The limits of memory, with what /proc/self/status has of each: one of which less than half was used did not refuse anything that a
# program allocates in small parts.
_OF_MEMORY = {
    "address_space": (resource.RLIMIT_AS, b"VmPeak"),
    "data": (resource.RLIMIT_DATA, b"VmData"),
    "locked_memory": (resource.RLIMIT_MEMLOCK, b"VmLck"),
}
_WORDS = {
    "address_space": "virtual memory (ulimit -v%s)",
    "data": "private memory (ulimit -d%s)",
    "locked_memory": "locked memory (ulimit -l%s)",
    "open_files": "open files (ulimit -n%s)",
    "file_size": "the size of a file (ulimit -f%s)",
    "processes": "processes and threads (ulimit -u, or pids.max of its cgroup)%s",
}
# Seconds for which an allocation that failed on a device is the reason of the end.
_LATELY = 60.0
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
            return dict({"reason": _name(each), "end": "exception"}, **count)
    # The writer of torch.save raises another error while it handles the one that says that there is no space.
    for each in _causes(value, contexts=True):
        space = _space(each)
        if space is not None:
            return {"reason": _name(each), "end": "out_of_space", "resource": space}
    return {"reason": _name(value), "end": "interrupted" if isinstance(value, KeyboardInterrupt) else "exception"}


def sentence(ending: JSON, failure: Optional[JSON]) -> Optional[str]:
    """What ended the process, as a last line of standard error, by its last message and the last allocation that failed on a device;
    None where it was neither memory nor a limit."""
    limit, value = ending.get("limit"), ending.get("limit_value")
    if limit is not None:
        shown = "" if value is None else ", %s" % (_size(value) if limit in _OF_MEMORY else value)
        text = "the limit of %s was reached" % (_WORDS[limit] % shown)
    elif ending["end"] == "out_of_space":
        text = "no space was left %s" % ("in /dev/shm" if ending["resource"] == "shm" else "on the disk, or for this user")
    elif ending["end"] != "out_of_memory":
        return None
    elif ending["resource"] == "device" and failure is not None and _now() - failure["t"] <= _LATELY:
        asked = "an allocation of %s on GPU %s failed" % (_size(failure["requested"]), failure["device"])
        held = ["%s %s by this process" % (_size(failure[key]), key) for key in ("allocated", "reserved") if key in failure]
        text = "%s: %s" % (asked, ", ".join([*held, "%s of %s free" % (_size(failure["free"]), _size(failure["total"]))]))
    else:
        text = "%s refused an allocation" % ("the GPU" if ending["resource"] == "device" else "the host")
    phase = ending.get("phase")
    return text + ("" if phase is None else ", in the phase %s" % phase)


def _causes(value: BaseException, contexts: bool = False) -> List[BaseException]:
    found: List[BaseException] = []
    each: Optional[BaseException] = value
    while each is not None and len(found) < _MOST_CAUSES:
        found.append(each)
        each = each.__cause__ or (
            each.__context__ if contexts and isinstance(each, RuntimeError) and not each.__suppress_context__ else None
        )
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


def _space(value: BaseException) -> Optional[str]:
    """Where a file found no space: "shm" for a file in `/dev/shm`, otherwise "disk"; None for another exception."""
    if isinstance(value, OSError):
        if value.errno not in (errno.ENOSPC, errno.EDQUOT) or _is_number(value):
            return None
        name = value.filename
        is_shm = isinstance(name, str) and name.startswith("/dev/shm/")
        return "shm" if is_shm else "disk"
    if type(value) is not RuntimeError:
        return None
    text: Any = value.args[0] if value.args else ""
    if type(text) is str and any(part in text for part in _OF_WRITER):
        path = _written(value)
        free = None if path is None else free_of(os.path.dirname(path))
        if path is None or free is None or free >= _LEAST_FREE:
            return None
        return "shm" if path.startswith("/dev/shm/") else "disk"
    if type(text) is not str or not any(part in text for part in _OF_SPACE):
        return None
    return "shm" if any(part in text for part in _OF_SHM) else "disk"


def _written(value: BaseException) -> Optional[str]:
    """The path of the file that torch.save was writing when this was raised; None where it had none."""
    trace = value.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "save" and frame.f_globals.get("__name__") == "torch.serialization":
            file = frame.f_locals.get("f")
            return os.path.abspath(file) if isinstance(file, (str, os.PathLike)) else None
        trace = trace.tb_next
    return None


def _is_number(value: BaseException) -> bool:
    """Whether "no space" is a number that was reached: the watches of inotify, or the semaphores of the system."""
    texts = [each for each in value.args if type(each) is str]
    return any(_OF_NUMBER in each for each in texts) or bool(_NUMBERED.intersection(_innermost(value)))


def _innermost(value: BaseException) -> Tuple[str, ...]:
    """The names that the function uses in which this was raised."""
    trace = value.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_names if trace is not None else ()


def _count(value: BaseException) -> Optional[JSON]:
    """The keys of the limit of a number that this exception says was reached; None for another exception."""
    if type(value) is OSError and value.errno == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return {"limit": "open_files"} if most == resource.RLIM_INFINITY else {"limit": "open_files", "limit_value": most}
    if type(value) is OSError and value.errno == errno.EFBIG:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return {"limit": "file_size"} if most == resource.RLIM_INFINITY else {"limit": "file_size", "limit_value": most}
    if not isinstance(value, BlockingIOError) and not (type(value) is RuntimeError and value.args == ("can't start new thread",)):
        return None
    # Which of two limits it was is not known: that of the user, or that of the cgroup.
    return {"limit": "processes"} if _STARTING.intersection(_innermost(value)) else None


def _limit_of_memory(memory: str) -> JSON:
    """The keys of the limit of the process that refused memory of the host: of those of which at least half was used, the one that
    was used most; empty where there is none."""
    if memory != "host":
        return {}
    try:
        with open("/proc/self/status", "rb") as status:
            text = status.read()
    except OSError:
        return {}
    shares = []
    for name, (number, line) in _OF_MEMORY.items():
        most = resource.getrlimit(number)[0]
        found = re.search(rb"^%s:\s*(\d+) kB$" % line, text, re.MULTILINE)
        used = int(found.group(1)) * 1024 if found else 0
        if most != resource.RLIM_INFINITY and used > 0 and 2 * used >= most:
            shares.append((used / max(most, 1), name, most))
    return {"limit": max(shares)[1], "limit_value": max(shares)[2]} if shares else {}


def _name(value: BaseException) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else "%s.%s" % (kind.__module__, kind.__qualname__)
    return _short("".join(each if each.isprintable() else "?" for each in name[-LONGEST_NAME:]), LONGEST_NAME)
