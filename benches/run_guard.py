#!/usr/bin/env python3
"""`memwarden run --guard` by a user without rights: how many jobs save before their limit is reached, and how soon they are asked.

Needs root, to make a memory cgroup (v1) for each run and to become the user `nobody`; the command and the guard run as that user,
who can change no cgroup. A Python job fills 600 MiB, in a cgroup with this limit or with `--limit`. At SIGUSR1 it writes a
checkpoint of 64 MiB, and then continues. The job notes when it crossed the soft level (15 % left) and when it was asked; the guard
waits for a tenth of the time to exhaustion before it asks, at most 100 ms. Takes three minutes for 20 runs at 100 MiB/s.

    sudo benches/run_guard.py --binary target/debug/memwarden --rate 100
    sudo benches/run_guard.py --limit --rate 400
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 600 << 20
NOBODY = 65534

JOB = r"""
import os, signal, sys, time
usage, folder, rate, limit = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
log = open(folder + '/log', 'a', buffering=1)
note = lambda what: log.write('%s %.6f\n' % (what, time.monotonic()))
file = os.open('/proc/self/statm' if usage == '-' else usage + '/memory.usage_in_bytes', os.O_RDONLY)
def used():
    words = os.pread(file, 200, 0).split()
    return int(words[0]) if usage != '-' else (int(words[1]) - int(words[2])) * os.sysconf('SC_PAGE_SIZE')
def save(*_):
    note('asked')
    with open(folder + '/checkpoint.tmp', 'wb') as out:
        for _ in range(64): out.write(b'x' * (1 << 20))
        out.flush()
        os.fsync(out.fileno())
    os.rename(folder + '/checkpoint.tmp', folder + '/checkpoint')
def end(*_):
    note('term')
    os._exit(0)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, end)
time.sleep(3)
held, begun, crossed = [], time.monotonic(), False
while True:
    held.append(bytearray(b'x') * (1 << 18))
    if not crossed and limit - used() <= 0.15 * limit:
        note('soft')
        crossed = True
    while time.monotonic() < begun + len(held) * (1 << 18) / rate: time.sleep(0.0005)
"""


def run(binary, rate, by_option, folder):
    """One job: whether it saved, received SIGTERM, was killed by the kernel, and the time until it was asked in ms."""
    os.chown(folder, NOBODY, NOBODY)
    group = None if by_option else pathlib.Path(f"/sys/fs/cgroup/memory/memwarden-bench-{os.getpid()}")
    if group:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))

    def enter():
        if group:
            (group / "cgroup.procs").write_text("0")
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    limit = ["--limit", f"{LIMIT >> 20}MiB"] if by_option else []
    job = ["/usr/bin/python3", "-S", "-c", JOB, str(group or "-"), folder, str(rate * (1 << 20)), str(LIMIT)]
    command = [binary, "run", "--guard", *limit, "--no-instrument", "--", *job]
    env = {"PATH": os.environ["PATH"], "HOME": folder}
    subprocess.run(command, preexec_fn=enter, env=env, cwd="/", capture_output=True, timeout=180, check=False)
    lines = pathlib.Path(folder, "log").read_text().split("\n")
    times = {name: float(at) for name, at in (line.split() for line in reversed(lines) if line)}
    kills = 0
    if group:
        fields = dict(line.split() for line in (group / "memory.oom_control").read_text().splitlines())
        kills = int(fields.get("oom_kill", 0))
        group.rmdir()
    asked = (times["asked"] - times["soft"]) * 1e3 if {"asked", "soft"} <= times.keys() else None
    return pathlib.Path(folder, "checkpoint").exists(), "term" in times, kills, asked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "dist" / "memwarden")
    parser.add_argument("--rate", type=float, default=100, help="MiB/s that the job allocates")
    parser.add_argument("--limit", action="store_true", help="the limit is that of --limit, and not of a cgroup")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        binary = shutil.copy(arguments.binary, top)
        for number in range(arguments.runs):
            folder = os.path.join(top, str(number))
            os.mkdir(folder)
            results.append(run(binary, arguments.rate, arguments.limit, folder))
            shutil.rmtree(folder)
    saved, term, kills = (sum(result[place] for result in results) for place in range(3))
    print(f"{len(results)} runs: {saved} saved, {term} received SIGTERM, {kills} kills by the kernel")
    late = sorted(result[3] for result in results if result[3] is not None)
    if late:
        print(f"asked after the level was crossed: p50 {statistics.median(late):.1f} ms, longest {late[-1]:.1f} ms")
    return 0 if saved == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
