#!/usr/bin/env python3
"""memwarden's protection beside earlyoom: time from exhausted memory to a signal, on this machine, in one run.

Needs root, a memory cgroup (v1 or v2), 4 GiB of available memory, and a build of profile dist; earlyoom (Debian) is
left out, with a message, if it is not installed. Takes twenty minutes.

    sudo benches/protection.py                  # all of it
    sudo benches/protection.py --quick          # a tenth of it

One process takes memory, and both programs watch the host's MemAvailable for the same level, at the same time: so
each crossing is seen by both. memwarden sends USR1, earlyoom TERM, and the process notes when it crossed the level
(it reads /proc/meminfo after every 256 KiB) and when each signal came. The level is half a gibibyte under what is
available; the process limits the memory that it takes, a cgroup bounds it too, and earlyoom runs as a user without other
processes, so that no other process is in danger. memwarden runs at the niceness of its systemd unit, earlyoom at that of its
option -p.
"""

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
# Owns only processes started here.
USER = 54321
COMM = "memwarden-eater"
NAME = f"memwarden-bench-{os.getpid()}"
CHUNK = MIB // 4
# Distance from the memory available at the start to the level, distance at which a run begins, and how far it may
# exceed the level.
DOWN, BEGIN, BEYOND = 512 * MIB, 96 * MIB, 640 * MIB
HELD = []
BARS = "bars: p50 <= 10 ms, p99 <= 25 ms"


def available(meminfo):
    text = os.pread(meminfo, 4096, 0)
    begin = text.index(b"MemAvailable:") + 13
    return int(text[begin : text.index(b"kB", begin)]) * 1024


def free():
    meminfo = os.open("/proc/meminfo", os.O_RDONLY)
    try:
        return available(meminfo)
    finally:
        os.close(meminfo)


def ended(pid, limit):
    """Waits for the exit of a child; its status, or nothing if it still runs."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return None


class Group:
    """A separate memory cgroup."""

    def __init__(self, limit):
        root = Path("/sys/fs/cgroup")
        self.v2 = (root / "cgroup.controllers").exists()
        self.folder = (root if self.v2 else root / "memory") / NAME
        if self.v2 and "memory" not in (root / "cgroup.subtree_control").read_text():
            (root / "cgroup.subtree_control").write_text("+memory")
        self.folder.mkdir()
        self.limit(limit)

    def limit(self, limit):
        (self.folder / ("memory.max" if self.v2 else "memory.limit_in_bytes")).write_text(str(limit))

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        for _ in range(200):
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.02)


def become_nobody():
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)


def note(number, _):
    """Installs a handler for the signal; not called where the signal is waited for."""


def eat(level, speed, wanted, group):
    """Takes memory across the level until the signals in `wanted` have arrived, and reports.

    One thread takes memory and another waits for signals, which a slow page fault does not delay.
    """
    signals = {signal.SIGUSR1, signal.SIGTERM}
    for number in signals:
        signal.signal(number, note)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    Path("/proc/self/comm").write_text(COMM)
    Path("/proc/self/oom_score_adj").write_text("1000")
    group.enter()
    become_nobody()
    eater = Eater(level)
    if not eater.approach():
        return {"disturbed": True}
    came = {}
    thread = threading.Thread(target=eater.cross, args=(speed,), daemon=True)
    thread.start()
    until = None
    while not wanted <= came.keys():
        found = signal.sigtimedwait(signals, 0.05)
        if found:
            came.setdefault(signal.Signals(found.si_signo).name, time.monotonic())
        if until is None and not thread.is_alive():
            until = time.monotonic() + 2
        if until is not None and time.monotonic() > until:
            break
    eater.enough = True
    thread.join()
    took = {}
    for name, at in came.items():
        since = [at - crossing for crossing in eater.crossed if crossing <= at]
        if since:
            took[name] = 1000 * min(since)
    return {"crossed": eater.crossed, "came": came, "took": took}


class Eater:
    """Takes memory; its calls let other threads run meanwhile."""

    def __init__(self, level):
        self.level = level
        self.meminfo = os.open("/proc/meminfo", os.O_RDONLY)
        self.most = min(max(0, available(self.meminfo) - level) + BEYOND, 1792 * MIB)
        memory = mmap.mmap(-1, self.most, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        # Processes that stay after this keep it.
        HELD.append(memory)
        self.taken = 0
        self.crossed = []
        self.enough = False

    def take(self):
        ctypes.memset(self.start + self.taken, 1, CHUNK)
        self.taken += CHUNK

    def within_bounds(self):
        return self.taken + CHUNK <= self.most

    def approach(self):
        """Approaches the level; returns whether no other process has crossed it."""
        while available(self.meminfo) > self.level + BEGIN and self.within_bounds():
            self.take()
        # Both must find it first.
        time.sleep(0.3)
        return available(self.meminfo) > self.level

    def cross(self, speed):
        begun, at_first, below = time.monotonic(), self.taken, False
        while self.within_bounds() and not self.enough:
            self.take()
            before, below = below, available(self.meminfo) <= self.level
            # Other processes release memory too, so that the level can be crossed more than once.
            if below and not before:
                self.crossed.append(time.monotonic())
            if speed:
                ahead = (self.taken - at_first) / speed - (time.monotonic() - begun)
                if ahead > 0:
                    time.sleep(ahead)


def run_eater(*args, stays=0):
    """Runs an eater that stays for some seconds after its report; returns its pid and the pipe of its report."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(out)
            os.write(into, json.dumps(eat(*args)).encode())
            os.close(into)
            until = time.monotonic() + stays
            while time.monotonic() < until:
                time.sleep(0.01)
            code = 0
        finally:
            os._exit(code)
    os.close(into)
    return pid, out


def reported(pid, out):
    """The report; the run is over if there is none."""
    with open(out, "rb") as report:
        text = report.read()
    return json.loads(text) if text else {"disturbed": True}


CONFIG = """
sampling: {{interval: 200ms}}
state: {{file: {folder}/state.json}}
sources: {{gpu: {{enabled: false}}, training: {{socket: {folder}/job.sock}}}}
web: {{listen_addresses: ["127.0.0.1:0"]}}
protection:
  mode: enforce
  max_kills_per_hour: 100
  targets:
    - name: bench
      cgroup: /{name}
      allow_users: ["{user}"]
      max_kills_per_hour: 100
      clear_for: 0s
      cooldown: 0s
      forecast: {{max_state: ignore}}
      {policy}
"""


@contextlib.contextmanager
def memwarden(binary, policy):
    """A daemon with one target; returns its pid."""
    with tempfile.TemporaryDirectory(prefix=NAME) as folder:
        config = Path(folder) / "memwarden.yaml"
        config.write_text(CONFIG.format(folder=folder, name=NAME, user=USER, policy=policy))
        log = open(Path(folder) / "log", "w+")
        argv = ["nice", "-n", "-10", str(binary), "serve", "--config.file", str(config)]
        daemon = subprocess.Popen(argv, stderr=log, stdin=subprocess.DEVNULL)
        try:
            for _ in range(500):
                time.sleep(0.02)
                if "addresses=" in Path(log.name).read_text():
                    break
                if daemon.poll() is not None:
                    sys.exit(f"memwarden did not start:\n{Path(log.name).read_text()}")
            time.sleep(0.5)
            yield daemon.pid
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(10)


@contextlib.contextmanager
def earlyoom(level):
    """earlyoom with the same level; returns whether it runs."""
    program = shutil.which("earlyoom")
    if not program:
        yield False
        return
    drop = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    size = f"{level // 1024},{level // 1024 // 16}"
    argv = ["nice", "-n", "-20", *drop, program, "-M", size, "-s", "100", "-r", "0", "--prefer", f"^{COMM}$"]
    with tempfile.TemporaryFile("w+") as log:
        daemon = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            time.sleep(0.5)
            if daemon.poll() is not None:
                log.seek(0)
                print(f"earlyoom did not start: {log.read()[-300:]}", file=sys.stderr)
            yield daemon.poll() is None
        finally:
            daemon.terminate()
            daemon.wait()


@contextlib.contextmanager
def busy(wanted):
    argv = [sys.executable, "-c", "while True: pass"]
    spinners = [subprocess.Popen(argv) for _ in range(os.cpu_count() if wanted else 0)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def guard_cpu(pid):
    """CPU seconds of the guard's thread."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "guard":
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    sys.exit("there is no guard thread")


def share(pid, seconds):
    before = guard_cpu(pid)
    time.sleep(seconds)
    return 100 * (guard_cpu(pid) - before) / seconds


def spread(values):
    values = sorted(values)
    if not values:
        return "- | - | -"
    p99 = values[min(len(values) - 1, int(len(values) * 0.99))]
    return f"{statistics.median(values):.1f} | {p99:.1f} | {values[-1]:.1f}"


def latency(binary, group, runs):
    print(f"\nFrom the crossing to the signal, ms, {runs} runs each ({BARS})\n")
    print("| speed | cores | memwarden p50 | p99 | max | earlyoom p50 | p99 | max | disturbed |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for speed, how in [(200 * MIB, "200 MiB/s"), (0, "as fast as it goes")]:
        for load in [False, True]:
            memwarden_ms, earlyoom_ms, disturbed = crossings(binary, speed, load, group, runs)
            cores = "all busy" if load else "idle"
            print(f"| {how} | {cores} | {spread(memwarden_ms)} | {spread(earlyoom_ms)} | {disturbed} |", flush=True)


def crossings(binary, speed, load, group, runs):
    """Milliseconds from the crossing to the signal, of memwarden and of earlyoom, and the number of disturbed runs."""
    memwarden_ms, earlyoom_ms, disturbed = [], [], 0
    with busy(load):
        while len(memwarden_ms) < runs and disturbed <= 3 * runs:
            level = free() - DOWN
            policy = f'max_state: checkpoint\n      host: {{soft: {level // 1024}KiB, hard: ""}}\n      cgroup_headroom: {{soft: "", hard: ""}}'
            policy += "\n      hysteresis: 64MiB\n      for: 0s\n      checkpoint: {signal: USR1, request_interval: 0s}"
            with memwarden(binary, policy), earlyoom(level) as beside:
                wanted = {"SIGUSR1", "SIGTERM"} if beside else {"SIGUSR1"}
                # If other processes took or released much memory, both start again with another level.
                while len(memwarden_ms) < runs and abs(free() - level - DOWN) < DOWN / 2:
                    pid, out = run_eater(level, speed, wanted, group)
                    took = reported(pid, out).get("took", {})
                    ended(pid, 10)
                    # The memory of another process moved the host across the level, or the level was never crossed.
                    if not wanted <= took.keys():
                        disturbed += 1
                        break
                    memwarden_ms.append(took["SIGUSR1"])
                    if beside:
                        earlyoom_ms.append(took["SIGTERM"])
                    # earlyoom detects the exit of its victim within this time.
                    time.sleep(0.15)
    return memwarden_ms, earlyoom_ms, disturbed


def deaf(binary, group, runs):
    """A job that ignores TERM; seconds from TERM to its end by protection."""

    def once(level, patience):
        """Whether TERM arrived, and when the process had exited."""
        pid, out = run_eater(level, 200 * MIB, {"SIGTERM"}, group, stays=60)
        came = reported(pid, out).get("came", {}).get("SIGTERM")
        code = ended(pid, patience) if came else None
        took = time.monotonic() - came if code == -signal.SIGKILL else None
        if code is None:
            os.kill(pid, signal.SIGKILL)
            ended(pid, 20)
        return came, took

    took = []
    for _ in range(3 * runs):
        if len(took) == runs:
            break
        level = free() - DOWN
        policy = f'host: {{soft: {level // 1024}KiB, hard: ""}}\n      cgroup_headroom: {{soft: "", hard: ""}}'
        policy += "\n      hysteresis: 64MiB\n      for: 0s\n      term_grace: 1s\n      checkpoint: {grace: 0s, request_interval: 0s}"
        with memwarden(binary, policy):
            came, gone = once(level, 20)
            took += [gone or float("inf")] if came else []
    print(f"\nSIGTERM is ignored, term_grace 1 s: gone after {', '.join(f'{t:.2f}' for t in sorted(took))} s (bar: 2 s)")
    level = free() - DOWN
    with earlyoom(level) as beside:
        came, gone = once(level, 15) if beside else (None, None)
        if came:
            print(f"earlyoom: {f'gone after {gone:.2f} s' if gone else 'still there after 15 s'}", flush=True)


def idle(binary, group, seconds):
    """CPU use of the guard's thread with an idle job, far from every level and near one."""

    def enter():
        group.enter()
        become_nobody()

    job = subprocess.Popen(["sleep", "3600"], preexec_fn=enter)
    try:
        with memwarden(binary, 'cgroup_headroom: {soft: "", hard: ""}') as pid:
            far = share(pid, seconds)
        near = f'max_state: warn\n      host: {{soft: {(free() - 100 * MIB) // 1024}KiB, hard: ""}}\n      cgroup_headroom: {{soft: "", hard: ""}}'
        with memwarden(binary, near) as pid:
            close = share(pid, seconds / 3)
    finally:
        job.kill()
        job.wait()
    print(f"\nCPU of the guard's thread over {seconds} s: {far:.3f} % of a core (bar: 0.1 %); near a level: {close:.3f} %", flush=True)


def checkpoints(binary, group, runs):
    """CPython with a checkpoint handler in a cgroup of 256 MiB: number of complete checkpoints, and of all."""
    good = 0
    with tempfile.TemporaryDirectory(prefix=NAME) as folder:
        os.chmod(folder, 0o755)
        job = Path(folder) / "job"
        job.mkdir()
        os.chown(job, USER, USER)
        shutil.copy(ROOT / "examples/leak.py", folder)
        saved = job / "checkpoint.json"
        policy = 'host: {soft: "", hard: ""}\n      cgroup_headroom: {soft: 40%, hard: 2%}\n      for: 100ms\n      kill_margin: 100ms'
        policy += f"\n      checkpoint: {{signal: USR1, file: {saved}, request_interval: 0s, grace: 10s}}"
        python = next(p for p in [sys.executable, "/usr/bin/python3"] if runs_as_nobody(p))
        argv = [python, str(Path(folder) / "leak.py"), "--checkpoint", str(saved), "--limit-mib", "1024"]
        argv += ["--step-mib", "2", "--seconds", "0.025", "--save-seconds", "0.2"]

        def enter():
            group.enter()
            become_nobody()

        group.limit(256 * MIB)
        with memwarden(binary, policy):
            for _ in range(runs):
                saved.unlink(missing_ok=True)
                done = subprocess.run(argv, preexec_fn=enter, capture_output=True, text=True, timeout=60)
                with contextlib.suppress(OSError, ValueError, KeyError):
                    step = json.loads(saved.read_text())["step"]
                    good += done.returncode == 0 and f"step {step}: saved" in done.stdout
                # The next one is another job.
                time.sleep(0.5)
    return good


def runs_as_nobody(python):
    try:
        return subprocess.run([python, "-c", ""], preexec_fn=become_nobody, capture_output=True).returncode == 0
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five runs of each")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/dist/memwarden")
    args = parser.parse_args()
    if os.getuid() != 0 or free() < 4096 * MIB or not args.binary.exists():
        sys.exit("this takes root, 4 GiB of available memory, and a build of profile dist (cargo build --profile dist)")
    found = shutil.which("earlyoom")
    version = subprocess.run([found, "-v"], capture_output=True, text=True) if found else None
    beside = (version.stdout + version.stderr).strip() if version else "earlyoom is not installed: left out"
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {os.uname().release}; {beside}")
    group = Group(2048 * MIB)
    try:
        latency(args.binary, group, 5 if args.quick else 50)
        deaf(args.binary, group, 1 if args.quick else 5)
        idle(args.binary, group, 6 if args.quick else 30)
        good = checkpoints(args.binary, group, runs := 5 if args.quick else 20)
        print(f"\nCPython with a checkpoint handler: complete and readable in {good} of {runs}")
    finally:
        group.close()


if __name__ == "__main__":
    main()
