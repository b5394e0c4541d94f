#!/usr/bin/env python3
"""Runs loads that use much memory and are healthy beside memwarden in mode enforce, which must not signal any of them.

Needs root and a memory cgroup (v1 or v2). Holds about 1.5 GiB of memory, and 400 MiB of disk.

    tests/healthy_loads.py --seconds 3600
    tests/healthy_loads.py --seconds 120 --binary target/debug/memwarden --swap-seconds 60

Three daemons run with the default levels: one sees this machine; the others see a small host by a folder in the place of /proc, one
with a cache of ZFS (ARC) that grows and shrinks, the other with three quarters of its memory in a pool of huge pages, and both hosts
would be short of memory if these were not counted. The loads run as root and as other users, in memory groups with a limit, or
without one below `memory_limit` of their target (LOADS has them). A file of 1 GiB is used as swap for --swap-seconds, for a job
that swaps at its limit; meanwhile other groups of the machine can swap too. No swap is added where the kernel refuses it.

Counted are the signals and steps in the audit logs, the signals that the loads received, loads that ended, and what `memwarden
check` reported every 10 s, with the time for which it did. At the end, the small hosts do become short of memory, and their jobs
must be asked for a checkpoint: otherwise the run has shown nothing. Exits 1 where a healthy load was signalled or ended, or where a
small host that is short was not acted on. Standard library only.
"""

import argparse
import collections
import contextlib
import ctypes
import json
import mmap
import os
import pathlib
import pwd
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
NAME = f"memwarden-healthy-{os.getpid()}"
SWAP = 1024 * MIB
# How long a report of `check` counts as lasting.
LASTING = 60

# The loads: who runs it, and the limit of its group in MiB; without one, it has no group of its own.
LOADS = {
    "cache": ("root", 96),
    "build": ("root", 256),
    "swap": ("nobody", 64),
    "tmpfs": ("nobody", 256),
    "loader": ("nobody", None),
    "forker": ("daemon", None),
    "sawtooth": ("nobody", 256),
    "slow-sawtooth": ("daemon", 256),
    "huge": ("root", 512),
    "zfs-host": ("nobody", None),
    "pool-host": ("nobody", None),
}


# The loads, each in a process of its own.


def fill(size, huge=False):
    """Memory that is resident."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(start, 1, size)
    return memory


def cache(folder):
    """Writes and reads a file that is three times as large as the limit."""
    block, path = bytes(MIB), folder / "file"
    while True:
        with open(path, "wb", buffering=0) as file:
            for _ in range(300):
                file.write(block)
            os.fsync(file.fileno())
        for _ in range(2):
            with open(path, "rb", buffering=0) as file:
                while file.read(MIB):
                    pass
        time.sleep(6)


def build(folder):
    """Short processes that compile."""
    source = folder / "part.c"
    source.write_text("#include <stdio.h>\n" + "".join(f"int f{n}(int x) {{ return x * {n} + printf(\"%d\", x); }}\n" for n in range(200)))
    compiler = shutil.which("cc")
    program = "import ast; [compile(ast.parse('x = [n * n for n in range(9)]\\n' * 300), 'x', 'exec') for _ in range(3)]"
    while True:
        if compiler:
            subprocess.run([compiler, "-O1", "-c", "-o", str(folder / "part.o"), str(source)], check=False)
        subprocess.run([sys.executable, "-S", "-c", program], check=False)
        time.sleep(0.4)


def swap(_):
    """Uses 110 MiB, of which its group has 64 MiB."""
    memory, place = mmap.mmap(-1, 110 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0
    while True:
        for _ in range(128):
            memory[place] = 1
            place = (place + mmap.PAGESIZE) % len(memory)
        time.sleep(0.05)


def tmpfs(_):
    """A file in /dev/shm comes and goes."""
    path = f"/dev/shm/{NAME}-{os.getpid()}"
    while True:
        try:
            with open(path, "wb", buffering=0) as file:
                for _ in range(120):
                    file.write(bytes(MIB))
                    time.sleep(0.005)
            time.sleep(3)
        finally:
            os.unlink(path)
        time.sleep(3)


def loader(_):
    """A data set that forked workers share, of which each writes a part; new workers for each pass."""
    data = fill(150 * MIB)
    while True:
        workers = []
        for number in range(6):
            pid = os.fork()
            if pid == 0:
                random.seed(number)
                for _ in range(40):
                    begin = random.randrange(0, 149) * MIB
                    data[begin : begin + MIB // 4] = bytes(MIB // 4)
                    time.sleep(0.5)
                os._exit(0)
            workers.append(pid)
        for pid in workers:
            os.waitpid(pid, 0)


def forker(_):
    """A process of 100 MiB that forks and executes a program 50 times a second."""
    held = fill(100 * MIB)
    program = shutil.which("true")
    while held:
        pid = os.fork()
        if pid == 0:
            os.execv(program, ["true"])
        os.waitpid(pid, 0)
        time.sleep(0.017)


def sawtooth(_, seconds=4.0):
    """Takes 60 % of its limit, and frees it."""
    while True:
        held = []
        for _ in range(150):
            held.append(fill(MIB))
            time.sleep(seconds / 150)
        time.sleep(3)
        held.clear()
        time.sleep(5)


def slow_sawtooth(folder):
    """The same, slower."""
    sawtooth(folder, 60.0)


def huge(_):
    """Half of its limit in huge pages."""
    while True:
        held = fill(256 * MIB, huge=True)
        time.sleep(5)
        del held
        time.sleep(5)


def hold(_):
    """A job of a small host, whose end would help it."""
    held = fill(200 * MIB)
    while held:
        time.sleep(60)


RUNS = {"cache": cache, "build": build, "swap": swap, "tmpfs": tmpfs, "loader": loader, "forker": forker, "sawtooth": sawtooth,
        "slow-sawtooth": slow_sawtooth, "huge": huge, "zfs-host": hold, "pool-host": hold}


def run_load(name, folder, received):
    """A load that notes each signal of protection in a file, which its children have open too."""

    def note(number, _):
        os.write(received, f"{name} {signal.Signals(number).name} {time.time():.1f}\n".encode())

    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, note)
    RUNS[name](pathlib.Path(folder))


# The driver.


class Load:
    """A load that runs."""

    def __init__(self, name, top):
        user, limit = LOADS[name]
        self.name, self.group = name, Group(name, limit) if limit else None
        account = pwd.getpwnam(user)
        folder = top / f"load-{name}"
        folder.mkdir(exist_ok=True)
        os.chown(folder, account.pw_uid, account.pw_gid)
        self.received = os.open(top / "received", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        # Only programs that every user can read can be run as one.
        python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
        words = ["nice", "-n", "5", python, "-S", str(top / "loads.py"), "--load", name, str(folder), str(self.received)]

        def enter():
            if self.group:
                self.group.enter()
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)

        environment = {"PATH": os.environ["PATH"], "HEALTHY": name}
        self.process = subprocess.Popen(words, preexec_fn=enter, env=environment, pass_fds=[self.received], cwd="/",
                                        stdin=subprocess.DEVNULL, start_new_session=True)

    def ended(self):
        return self.process.poll() is not None

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.received)
        for path in pathlib.Path("/dev/shm").glob(f"*-{self.process.pid}"):
            if path.name.startswith("memwarden-healthy-"):
                path.unlink()
        if self.group:
            self.group.close()


class Group:
    """A memory group below the one of this run."""

    root = pathlib.Path("/sys/fs/cgroup")
    v2 = (root / "cgroup.controllers").exists()
    top = (root if v2 else root / "memory") / NAME

    def __init__(self, name, limit):
        self.top.mkdir(exist_ok=True)
        if self.v2:
            for folder in (self.root, self.top):
                (folder / "cgroup.subtree_control").write_text("+memory")
        self.folder = self.top / name
        self.folder.mkdir()
        (self.folder / ("memory.max" if self.v2 else "memory.limit_in_bytes")).write_text(str(limit * MIB))

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def kernel_kills(self):
        text = (self.folder / ("memory.events" if self.v2 else "memory.oom_control")).read_text()
        return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))

    def close(self):
        for folder in (self.folder, self.top):
            for _ in range(50):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                if folder == self.top:
                    break
                time.sleep(0.1)


class Daemon:
    """memwarden, with what it reported."""

    def __init__(self, binary, top, name, targets, proc=None):
        self.name, self.binary, self.folder = name, binary, top / f"daemon-{name}"
        (self.folder / "state").mkdir(parents=True)
        self.socket = self.folder / "api.sock"
        matchers = [{"name": f"healthy-{load}", "environment": f"HEALTHY={load}"} for load in LOADS]
        config = {"state": {"file": f"{self.folder}/state/state.json"},
                  "web": {"listen_addresses": ["127.0.0.1:0"], "socket": str(self.socket)},
                  "sources": {"training": {"socket": f"{self.folder}/job.sock"}, "gpu": {"enabled": False},
                              "workload": {"matchers": matchers}},
                  "protection": {"mode": "enforce", "targets": targets}}
        words = [str(binary), "serve", "--config.file", str(self.folder / "memwarden.yaml")]
        if proc:
            config["paths"] = {"proc": str(proc)}
            # The groups are those of this machine, and can swap.
            config["sources"]["cgroup"] = {"exclude": [f"/{NAME}/**"]}
            words = ["sh", "-c", 'ln -s /proc/$$ "$0/$$"; exec "$@"', str(proc), *words]
        (self.folder / "memwarden.yaml").write_text(json.dumps(config))
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen(words, stderr=log, stdin=subprocess.DEVNULL)
        self.reported = collections.defaultdict(list)
        self.checks = collections.Counter()

    def started(self):
        for _ in range(200):
            if "addresses=" in (self.folder / "log").read_text():
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"memwarden did not start:\n{(self.folder / 'log').read_text()}")

    def check(self):
        words = [str(self.binary), "check", "--url", f"unix:{self.socket}", "--scope", "all", "--severity", "warning", "--format", "json"]
        done = subprocess.run(words, capture_output=True, text=True)
        self.checks[done.returncode] += 1
        now = time.monotonic()
        if done.returncode:
            for subject in subjects(done.stdout):
                self.reported[subject].append(now)
            with open(self.folder / "checks", "a") as file:
                file.write(f"{time.strftime('%T')} {done.returncode} {done.stdout.strip()}\n")

    def spans(self):
        """For each subject that was reported: how often, and the longest time without a check that did not."""
        found = {}
        for subject, times in self.reported.items():
            longest, begin, last = 0.0, times[0], times[0]
            for at in times:
                if at - last > 15:
                    begin = at
                longest, last = max(longest, at - begin), at
            found[subject] = (len(times), longest)
        return found

    def audit(self):
        """The lines of the audit log."""
        path = self.folder / "state" / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def cpu(self):
        """CPU seconds of all threads that live."""
        total = 0
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def resident(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS"))

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def subjects(text):
    """The problems in an answer of `check`, without their numbers."""
    try:
        problems = json.loads(text)["problems"]
    except (ValueError, KeyError):
        problems = [text.strip() or "no answer"]
    return {re.sub(r"\d[\d.,]*", "N", problem) for problem in problems}


class Stage:
    """A folder in the place of /proc, with a small host of 1 GiB."""

    def __init__(self, top, name):
        self.proc = top / f"proc-{name}"
        self.proc.mkdir()
        for part in ("stat", "vmstat", "uptime", "loadavg", "buddyinfo", "self", "sys", "pressure", "net", "1"):
            (self.proc / part).symlink_to(f"/proc/{part}")
        (self.proc / "spl/kstat/zfs").mkdir(parents=True)
        self.wide = {}

    def shows(self, pid):
        (self.proc / str(pid)).symlink_to(f"/proc/{pid}")

    def write(self, path, text):
        """Replaces a file in one write, as the kernel shows it."""
        width = self.wide.setdefault(path, 2 * len(text) + 64)
        file = os.open(self.proc / path, os.O_WRONLY | os.O_CREAT, 0o644)
        # The daemon keeps the file open, so that it stays the same one.
        os.pwrite(file, (text + " " * (width - len(text))).encode(), 0)
        os.close(file)

    def meminfo(self, available, pools=0):
        free = available * MIB // 1024
        pages = pools // 2
        self.write("meminfo", f"MemTotal: {1 << 20} kB\nMemFree: {free} kB\nMemAvailable: {free} kB\nHugePages_Total: {pages}\nHugePages_Free: "
                              f"{pages // 4}\nHugepagesize: 2048 kB\nHugetlb: {pools * 1024} kB\n")

    def arc(self, size):
        self.write("spl/kstat/zfs/arcstats", f"13 1 0x01 96 26112 1 2\nname type data\nc_min 4 {64 * MIB}\nc_max 4 {600 * MIB}\nsize 4 {size * MIB}\n")


def targets(names):
    """The targets of the daemon that sees this machine."""
    users = ["root", "nobody", "daemon"]
    return [{"name": "groups", "cgroup": f"/{NAME}/*", "allow_users": users},
            {"name": "loader", "workload": "healthy-loader", "memory_limit": "400MiB", "allow_users": users},
            {"name": "forker", "workload": "healthy-forker", "memory_limit": "160MiB", "allow_users": users}]


@contextlib.contextmanager
def swap_file(top, seconds):
    """A swap file; yields whether there is one."""
    path = top / "swap"
    done = None
    if seconds and shutil.which("mkswap"):
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, SWAP)
        path.chmod(0o600)
        subprocess.run(["mkswap", str(path)], capture_output=True, check=False)
        done = subprocess.run(["swapon", str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"no swap: {done.stderr.strip()}", file=sys.stderr)
    on = done is not None and done.returncode == 0
    try:
        yield on
    finally:
        if on and str(path) in pathlib.Path("/proc/swaps").read_text():
            subprocess.run(["swapoff", str(path)], check=False)


def fluctuate(zfs, pool):
    """Both hosts seem to be short: by what is available without the ARC, and as a share of all memory with the pool."""
    available = random.randrange(5, 45)
    zfs.meminfo(available)
    zfs.arc(random.randrange(300, 520))
    pool.meminfo(random.randrange(32, 48), pools=768)


def table(rows):
    widths = [max(len(str(row[place])) for row in rows) for place in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(str(cell).ljust(width) for cell, width in zip(row, widths)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print(flush=True)


def acts(records):
    """The steps that began, by kind, with the number of their signal, and the processes that they reached."""
    steps = collections.Counter()
    for record in records:
        if record.get("entry") == "before":
            step = record["step"]
            steps[f"{step['do']} {step.get('signal', '')}".strip()] += 1
        elif record.get("entry") == "reached":
            steps["reached"] += len(record["processes"])
    return steps


def drive(options, top):
    end = time.monotonic() + options.seconds
    zfs, pool = Stage(top, "zfs"), Stage(top, "pool")
    fluctuate(zfs, pool)
    loads, daemons = {}, []
    (top / "loads.py").write_bytes(pathlib.Path(__file__).read_bytes())
    ended = {}
    with contextlib.ExitStack() as stack:
        swapped = stack.enter_context(contextlib.ExitStack())
        swaps = swapped.enter_context(swap_file(top, options.swap_seconds))
        for name in LOADS:
            if name != "swap" or swaps:
                loads[name] = Load(name, top)
                (swapped if name == "swap" else stack).callback(loads[name].close)
        time.sleep(1)
        host = {"host": {"soft": "5%", "hard": "2%"}, "allow_users": ["nobody"]}
        plan = [("machine", targets(loads), None), ("zfs", [{"name": "zfs", "workload": "healthy-zfs-host", **host}], zfs),
                ("pool", [{"name": "pool", "workload": "healthy-pool-host", **host}], pool)]
        for name, named, stage in plan:
            if stage:
                stage.shows(loads[f"{name}-host"].process.pid)
            daemons.append(Daemon(options.binary, top, name, named, stage and stage.proc))
            stack.callback(daemons[-1].close)
        for daemon in daemons:
            daemon.started()
        begin, next_check, swap_end = time.monotonic(), time.monotonic() + 10, time.monotonic() + options.swap_seconds
        warm, span = min(60, options.seconds / 4), min(300, options.seconds / 4)
        marks = {"begin": warm, "begin+": warm + span, "end": options.seconds - span - 5, "end+": options.seconds - 5}
        seen, kills = {}, {}
        while time.monotonic() < end:
            time.sleep(1)
            fluctuate(zfs, pool)
            now = time.monotonic()
            for mark, at in marks.items():
                if mark not in seen and now - begin >= at:
                    seen[mark] = (now, [(daemon.cpu(), daemon.resident()) for daemon in daemons])
            if now >= next_check:
                next_check += 10
                for daemon in daemons:
                    daemon.check()
                for name, load in loads.items():
                    if name not in ended and load.ended():
                        ended[name] = f"exit status {load.process.returncode} after {now - begin:.0f} s"
                    if load.group and load.group.folder.exists():
                        kills[name] = load.group.kernel_kills()
            if "swap" in loads and now >= swap_end:
                swapped.close()
                loads.pop("swap")
        counts = {daemon.name: daemon.audit() for daemon in daemons}
        received = (top / "received").read_text().splitlines()
        bad = report(daemons, counts, received, ended, kills, seen, marks)
        if not options.no_control:
            bad += control(zfs, pool, daemons, top)
    return bad


def report(daemons, counts, received, ended, kills, seen, marks):
    bad = 0
    rows = [["daemon", "processes signalled", "steps", "transitions", "checks", "checks with a report", "CPU begin", "CPU end", "RSS begin", "RSS end"]]
    for place, daemon in enumerate(daemons):
        steps = acts(counts[daemon.name])
        signals = steps.pop("reached", 0)
        bad += signals
        cpu = []
        for mark in ("begin", "end"):
            if mark in seen and mark + "+" in seen:
                (at, first), (to, last) = seen[mark], seen[mark + "+"]
                cpu.append(f"{100 * (last[place][0] - first[place][0]) / (to - at):.2f} %")
            else:
                cpu.append("-")
        rss = [f"{seen[mark][1][place][1]:.1f} MiB" if mark in seen else "-" for mark in ("begin", "end+")]
        entered = collections.Counter(record["to"] for record in counts[daemon.name] if record.get("entry") == "transition")
        transitions = ", ".join(f"{n} {to}" for to, n in entered.items()) or 0
        total = sum(daemon.checks.values())
        rows.append([daemon.name, signals, ", ".join(f"{n} {what}" for what, n in steps.items()) or 0, transitions, total, total - daemon.checks[0], *cpu, *rss])
    table(rows)
    rows = [["load", "user", "group limit", "signals received", "kernel kills", "ended"]]
    for name, (user, limit) in LOADS.items():
        got = [line for line in received if line.split()[0] == name]
        bad += len(got) + (name in ended)
        rows.append([name, user, f"{limit} MiB" if limit else "-", len(got), kills.get(name, "-"), ended.get(name, "no")])
    table(rows)
    rows = [["daemon", "reported by check", "checks", "longest"]]
    for daemon in daemons:
        for subject, (count, longest) in sorted(daemon.spans().items()):
            rows.append([daemon.name, subject[:150], count, f"{longest:.0f} s" + (" (lasting)" if longest >= LASTING else "")])
    table(rows)
    for daemon in daemons:
        for record in counts[daemon.name][:20]:
            print(daemon.name, json.dumps(record)[:600])
    return bad


def control(zfs, pool, daemons, top):
    """The small hosts are short of memory; returns on how many of them nothing was done."""
    for _ in range(25):
        zfs.meminfo(40)
        zfs.arc(64)
        pool.meminfo(8, pools=768)
        time.sleep(1)
    received = (top / "received").read_text()
    missing = [name for name in ("zfs-host", "pool-host") if f"{name} SIGUSR1" not in received]
    print(f"control: short hosts whose job was not asked for a checkpoint: {', '.join(missing) or 'none'}")
    return len(missing)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--swap-seconds", type=int, default=0, help="time for which a swap file is used, from the start")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/memwarden")
    parser.add_argument("--keep", type=pathlib.Path, help="new folder for the logs and records, which stay")
    parser.add_argument("--no-control", action="store_true", help="do not make the small hosts short at the end")
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        name, folder, received = options.load
        return run_load(name, folder, int(received))
    if os.getuid() != 0 or not options.binary.exists():
        sys.exit("this takes root and a build of memwarden")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        if options.keep:
            options.keep.mkdir(parents=True)
            top = options.keep
        else:
            top = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=NAME, dir="/var/tmp")))
        top.chmod(0o755)
        bad = drive(options, top.resolve())
    print(f"{bad} wrong" if bad else "no healthy load was signalled")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
