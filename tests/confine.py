#!/usr/bin/env python3
"""Runs a program with the system calls and capabilities of a systemd unit, without systemd as the init process.

    tests/confine.py [--kill] UNIT[,DROP-IN...] PROGRAM [ARGUMENT...]

Applied are SystemCallFilter=, SystemCallErrorNumber=, CapabilityBoundingSet=, NoNewPrivileges= and LimitMEMLOCK=infinity; the
groups of system calls are those of the installed systemd (`systemd-analyze syscall-filter`), and libseccomp loads the
filter. With --kill a call that is not allowed ends its process with SIGSYS in place of failing, so that a test sees each
one. The exit code is 125 where the filter cannot be made here.
"""

import ctypes
import ctypes.util
import errno
import os
import re
import subprocess
import sys

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
    "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN "
    "SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE "
    "MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
).split()


def unable(why):
    print(f"confine: {why}", file=sys.stderr)
    sys.exit(125)


def settings(files):
    """The settings of a unit and its drop-ins that may be given several times, each with all its words."""
    found = {}
    for path in files:
        for line in open(path, encoding="utf-8"):
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith(("#", ";")):
                found.setdefault(key, []).extend(value.split())
    return found


def groups():
    """The groups of system calls that systemd knows: a name, and what is in it."""
    try:
        command = ["systemd-analyze", "syscall-filter"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        unable(error)
    found, group = {}, None
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("@"):
            group = found.setdefault(word, [])
        elif group is not None and word and line.startswith(" "):
            group.append(word)
        elif line and not line.startswith(" "):
            group = None
    return found


def expanded(words):
    known, calls, left = groups(), set(), list(words)
    while left:
        word = left.pop()
        if word.startswith("~"):
            unable(f"a list of denied system calls is not supported: {word}")
        if not word.startswith("@"):
            calls.add(word)
        elif word in known:
            left.extend(known[word])
        else:
            unable(f"systemd has no group {word}")
    # What systemd itself always allows.
    return calls | {"execve", "exit", "exit_group", "rt_sigreturn", "sigreturn"}


def main():
    arguments = sys.argv[1:]
    kill = arguments[0] == "--kill"
    files, program = arguments[kill].split(","), arguments[kill + 1 :]
    unit = settings(files)
    name = ctypes.util.find_library("seccomp") or "libseccomp.so.2"
    try:
        seccomp = ctypes.CDLL(name)
    except OSError as error:
        unable(error)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    libc = ctypes.CDLL(None, use_errno=True)

    number = getattr(errno, unit["SystemCallErrorNumber"][0])
    filter_ = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(KILL_PROCESS if kill else ERRNO | number)))
    for call in expanded(unit["SystemCallFilter"]):
        resolved = seccomp.seccomp_syscall_resolve_name(call.encode())
        # Calls of other processors, and those that are newer than the library, are left out, as systemd does.
        if resolved >= 0 and seccomp.seccomp_rule_add_exact(filter_, ctypes.c_uint32(ALLOW), resolved, 0) != 0:
            unable(f"libseccomp refuses {call}")

    kept = {word.removeprefix("CAP_") for word in unit["CapabilityBoundingSet"]}
    unknown = kept - set(CAPABILITIES)
    if unknown:
        unable(f"unknown capabilities: {unknown}")
    for place, capability in enumerate(CAPABILITIES):
        if os.geteuid() == 0 and capability not in kept and libc.prctl(PR_CAPBSET_DROP, place, 0, 0, 0) != 0:
            if ctypes.get_errno() != errno.EINVAL:
                unable(f"CAP_{capability} cannot be dropped")
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or seccomp.seccomp_load(filter_) != 0:
        unable("the filter cannot be loaded")
    os.execvp(program[0], program)


if __name__ == "__main__":
    main()
