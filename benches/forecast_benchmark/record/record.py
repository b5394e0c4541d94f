#!/usr/bin/env python3
"""Records the memory of a program and its children as a trace of the benchmark. Standard library only.

usage: record.py FILE SECONDS [INTERVAL] -- COMMAND ...

Samples every INTERVAL seconds, 0.5 by default: t_s since the start; bytes, the proportional set size (PSS) of all processes of the tree;
anon, its anonymous part. The command is ended after SECONDS.
"""
import os
import signal
import subprocess
import sys
import time

DEFAULT_INTERVAL = 0.5


def tree(root):
    """The process and its descendants."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    todo += [int(child) for child in file.read().split()]
        except OSError:
            continue
    return found


def memory(pids):
    """PSS and its anonymous part in bytes."""
    sums = {"Pss:": 0, "Pss_Anon:": 0}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                for line in file:
                    words = line.split()
                    if words[0] in sums:
                        sums[words[0]] += int(words[1]) * 1024
        except OSError:
            continue
    return sums["Pss:"], sums["Pss_Anon:"]


def main():
    args = sys.argv[1:]
    end = args.index("--") if "--" in args else 0
    if end not in (2, 3) or len(args) == end + 1:
        sys.exit(__doc__)
    seconds = float(args[1])
    interval = float(args[2]) if end == 3 else DEFAULT_INTERVAL
    program = subprocess.Popen(args[end + 1 :], stdout=subprocess.DEVNULL, start_new_session=True)
    begun = time.monotonic()
    try:
        with open(args[0], "w") as out:
            out.write("t_s,bytes,anon\n")
            for number in range(int(seconds / interval)):
                time.sleep(max(0.0, begun + number * interval - time.monotonic()))
                if program.poll() is not None:
                    break
                now = time.monotonic() - begun
                pss, anon = memory(tree(program.pid))
                if pss > 0:
                    out.write(f"{now:.3f},{pss},{anon}\n")
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGTERM)
            try:
                program.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
