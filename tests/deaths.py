#!/usr/bin/env python3
"""Plants deaths of processes under the real daemon and under `memwarden run`: does it state the right cause of each?

    tests/deaths.py                 # all
    tests/deaths.py leaf bus        # those whose names have one of these parts

Needs root, cgroup version 1, the kernel log, and a build of the workspace (cargo build --workspace). Prints a table and fails
where fewer than 29 of 30 have the right cause, where a wrong one is stated with a probability of 0.9 or more, or where a sentence
takes longer than 10 s. The bar for its time is 2 s on a machine that does nothing else: the times are printed.
"""

import atexit
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(os.environ.get("MEMWARDEN_BIN", ROOT / "target/debug/memwarden"))
LIBRARY = next(p for p in (ROOT / "target/debug/libfake_nvml.so", ROOT / "target/debug/deps/libfake_nvml.so") if p.exists())
CGROUPS = Path("/sys/fs/cgroup/memory/memwarden-deaths-%d" % os.getpid())
# One that every user can run.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
MIB, GIB = 1 << 20, 1 << 30
PERSON = 7003
GROW = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"
CLIENT = "import memwarden\nmonitor = memwarden.Monitor('deaths')\nmonitor.phase('optimizer').__enter__()\n"
RAW = """
import json, socket
line = socket.socket(socket.AF_UNIX); line.connect(os.environ['MEMWARDEN_JOB_SOCKET'])
def say(**more): line.sendall(json.dumps(more).encode() + b'\\n')
say(type='hello', v=1, rank=0, run='deaths', devices={'0': {'uuid': os.environ['GPU']}})
"""


# A loader that the kernel kills, and the program that fails for it.
LOADER = "input()\nif os.fork() == 0:\n    time.sleep(1.5)\n    " + GROW.replace("\n", "\n    ") + "\nos.wait(); %s"
# Half of the pool of huge pages, and then the rest: of a mapping that reserves none.
HUGE = """
import mmap
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000 | 0x4000
held = mmap.mmap(-1, 64 << 20, flags=flags)
for page in range(8): held[page << 21] = 1
time.sleep(2)
input()
for page in range(8, 32): held[page << 21] = 1; time.sleep(0.05)
"""
# A process in a mount namespace with a /dev/shm of 8 MiB, as in a container.
CONTAINER = """
import ctypes, mmap
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == 0 and libc.mount(b'none', b'/', None, 0x44000, None) == 0
assert libc.mount(b'none', b'/dev/shm', b'tmpfs', 0, b'size=8m') == 0
file = open('/dev/shm/full', 'w+b'); file.truncate(64 << 20)
held = mmap.mmap(file.fileno(), 64 << 20)
"""


def uuid(gpu):
    return "GPU-5ce9e000-0000-4000-8000-%012x" % gpu


def out_of_gpu(requested, allocated, reserved, free):
    return RAW + ("input()\nsay(type='oom', device='0', requested=%d, allocated=%d, reserved=%d, free=%d, total=%d)\n"
                  "say(type='bye', end='out_of_memory', resource='device', reason='torch.OutOfMemoryError')\nline.close()\n"
                  "sys.exit(1)") % tuple(int(x * GIB) for x in (requested, allocated, reserved, free, 80))


class Death:
    """One planted death: `body` runs in Python, and dies after its `input()`, which it gets at its beginning by default."""

    def __init__(self, name, causes, body, daemon="main", group=None, limit=None, limits=(), gpu=None, act=None, user=None,
                 says=None, after=None, most=40 * MIB, least=0, mount=None, is_part=False):
        self.name, self.causes, self.daemon, self.act, self.user = name, causes.split("|"), daemon, act, user
        self.body = "import os, sys, time, signal\n" + (body if "input()" in body else "input()\n" + body)
        self.group, self.limit, self.limits, self.gpu, self.says, self.after = group, limit, limits, gpu, says, after
        self.most = most
        # The least probability that is right; the tmpfs that the daemon must have read before; whether others of it go on.
        self.least, self.mount, self.is_part = least, mount, is_part
        self.end = self.seconds = self.sentence = None

    def start(self, trial):
        environment = {**os.environ, "MEMWARDEN_DEATH": self.name, "GROW": GROW, "PYTHONPATH": str(trial.folder / "client"),
                       "MEMWARDEN_JOB_SOCKET": str(trial.folder / self.daemon / "job.sock"), "GPU": uuid(self.gpu or 0)}
        if self.group:
            (CGROUPS / self.group).mkdir(parents=True, exist_ok=True)
            if self.limit:
                (CGROUPS / self.limit / "memory.limit_in_bytes").write_text(str(self.most))

        def prepare():
            if self.group:
                (CGROUPS / self.group / "cgroup.procs").write_text(str(os.getpid()))
            for what, most in self.limits:
                resource.setrlimit(what, (most, most))
            if self.user:
                os.setuid(self.user)
        self.child = subprocess.Popen([PYTHON, "-c", self.body], stdin=subprocess.PIPE, env=environment, text=True,
                                      preexec_fn=prepare, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")
        self.pid = self.child.pid
        if self.gpu is not None:
            trial.use_gpu(self.gpu, self.pid, 4 * GIB)

    def kill(self, trial):
        if self.act:
            self.act(self, trial)
        else:
            self.go()
        try:
            self.status = self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            sys.exit(self.name + " did not die")
        self.died = time.monotonic()
        if self.after:
            self.after(self)

    def go(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()


class Daemon:
    def __init__(self, trial, name, kmsg, passing=()):
        self.folder = trial.folder / name
        self.folder.mkdir()
        matchers = [{"name": d.name, "environment": "MEMWARDEN_DEATH=" + d.name} for d in trial.deaths]
        settings = {
            "web": {"listen_addresses": ["127.0.0.1:0"], "socket": str(self.folder / "api.sock")},
            "paths": {"kmsg": kmsg},
            "state": {"file": str(self.folder / "state.json")},
            "protection": {"targets": [{"name": "guarded", "cgroup": "/%s/guarded" % CGROUPS.name, "allow_users": [str(PERSON)]}],
                           "mode": "enforce" if name == "main" else "off"},
            "sources": {"training": {"socket": str(self.folder / "job.sock")}, "gpu": {"nvml_library": str(LIBRARY.resolve())},
                        "workload": {"matchers": matchers, "max_workloads": 256}},
        }
        (self.folder / "memwarden.yaml").write_text(json.dumps(settings))
        self.log = open(self.folder / "log", "w")
        self.process = subprocess.Popen(
            [*passing, BINARY, "serve", "--config.file", self.folder / "memwarden.yaml"], stderr=self.log,
            stdin=subprocess.DEVNULL, env={**os.environ, "FAKE_NVML_SCENARIO": str(trial.folder / "scenario.json")})

    def get(self, path):
        line = http.client.HTTPConnection("localhost")
        line.sock = socket.socket(socket.AF_UNIX)
        line.sock.settimeout(30)
        line.sock.connect(str(self.folder / "api.sock"))
        line.request("GET", path)
        text = line.getresponse().read()
        line.close()
        return text

    def why(self, *more):
        url = "unix:%s" % (self.folder / "api.sock")
        return subprocess.run([BINARY, "why", "--url", url, *more], capture_output=True, text=True)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def wait_for(what, look, seconds=60):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            found = look()
        except (OSError, http.client.HTTPException):
            found = None
        if found:
            return found
        time.sleep(0.05)
    sys.exit("no " + what)


def by_other(death, trial):
    os.kill(death.pid, signal.SIGKILL)


def by_person(death, trial):
    subprocess.run(["setpriv", "--reuid", str(PERSON), "--clear-groups", "kill", "-9", str(death.pid)], check=True)


def by_timeout(death, trial):
    os.kill(death.pid, signal.SIGTERM)
    time.sleep(0.5)
    os.kill(death.pid, signal.SIGKILL)


def by_host(death, trial):
    """The kernel's record of an OOM kill of the host, in a file in place of its log."""
    now = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
    uid, name = 0, "python3"
    lines = ["oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=%s,pid=%d,uid=%d"
             % (name, death.pid, uid),
             "Out of memory: Killed process %d (%s) total-vm:78204kB, anon-rss:67968kB, file-rss:5836kB, shmem-rss:0kB, UID:%d "
             "pgtables:196kB oom_score_adj:0" % (death.pid, name, uid)]
    with open(trial.folder / "kmsg", "a") as log:
        for number, line in enumerate(lines):
            log.write("4,%d,%d,-;%s\n" % (trial.record + number, now, line))
    trial.record += 2
    os.kill(death.pid, signal.SIGKILL)


def by_xid(number):
    def act(death, trial):
        trial.xid(death.gpu, number)
        seen = re.compile('memwarden_gpu_xid_errors_total{.*uuid="%s",xid="%d".*} [1-9]' % (uuid(death.gpu), number))
        wait_for("XID of " + death.name, lambda: seen.search(trial.daemons[death.daemon].get("/metrics").decode()))
        death.go()
    return act


def remove_group(death):
    for _ in range(50):
        try:
            (CGROUPS / death.group).rmdir()
            return
        except OSError:
            time.sleep(0.01)


def reuse(death):
    """Starts another process of the same pid at once, which ends with success."""
    for _ in range(200):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(death.pid - 1))
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if pid == death.pid:
            return
    death.note = "the pid was not reused"


def own_pool():
    """Makes a pool of 16 huge pages, which is taken back at the end; whether that was possible, and nobody has one."""
    pool = Path("/proc/sys/vm/nr_hugepages")
    try:
        if int(pool.read_text()):
            return False
        pool.write_text("16")
        atexit.register(pool.write_text, "0")
        return int(pool.read_text()) == 16
    except OSError:
        return False


def shm(trial, text):
    return ("import mmap\nfile = open('%s/full', 'w+b'); file.truncate(64 << 20)\n"
            "held = mmap.mmap(file.fileno(), 64 << 20)\n%s") % (trial.folder / "shm", text)


class Trial:
    def __init__(self, folder, wanted):
        self.folder, self.record = folder, 1
        folder.chmod(0o755)
        (folder / "kmsg").touch()
        shutil.copytree(ROOT / "clients/python/memwarden", folder / "client/memwarden")
        (folder / "shm").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder / "shm"], check=True)
        self.devices = [{"uuid": uuid(n), "memory": {"total": 80 * GIB, "reserved": 0}, "processes": [], "xids": []}
                        for n in range(8)]
        fill = "for at in range(0, 64 << 20, 4096): held[at] = 1"
        bomb = ("import resource\nfor _ in range(400):\n    if os.fork() == 0: os._exit(1)\n"
                "while True:\n    try: os.wait()\n    except ChildProcessError: break\n")
        truncated = ("import mmap, tempfile\nfile = tempfile.TemporaryFile(dir='/var/tmp'); file.truncate(8192)\n"
                     "held = mmap.mmap(file.fileno(), 8192)\ninput()\nfile.truncate(0)\nheld[0]")
        raised = lambda text: CLIENT + "input()\n" + text
        self.deaths = [d for d in [
            Death("cgroup-leaf", "cgroup_limit", GROW, group="leaf", limit="leaf", says="leaf"),
            Death("cgroup-ancestor", "cgroup_limit", GROW, group="above/leaf", limit="above", says="above"),
            Death("cgroup-gone", "cgroup_limit", GROW, group="gone", limit="gone", after=remove_group, says="gone"),
            Death("cgroup-no-log", "cgroup_limit", GROW, "blind", group="blind", limit="blind"),
            Death("cgroup-child", "cgroup_limit", "if os.fork() == 0:\n    %s\nos.wait(); os._exit(1)" % GROW.replace("\n", "\n    "),
                  group="child", limit="child"),
            Death("cgroup-child-above", "cgroup_limit", "if os.fork() == 0:\n    %s\nos.wait(); os._exit(1)" % GROW.replace("\n", "\n    "),
                  group="over/child", limit="over"),
            Death("cgroup-during-save", "cgroup_limit", RAW + "input()\nsay(type='checkpoint', state='saving', step=7)\n" + GROW,
                  group="save", limit="save"),
            Death("cgroup-and-xid", "cgroup_limit", GROW, group="both", limit="both", gpu=6, act=by_xid(79), says="XID 79"),
            Death("fork-bomb", "cgroup_limit", bomb + GROW, group="bomb", limit="bomb"),
            Death("host", "host_memory", "", "fake", act=by_host),
            Death("bus-full-tmpfs", "shared_memory", shm(self, "input()\n" + fill), least=0.9, says="/shm (8.0 MiB) was full"),
            # What it wrote is gone with it.
            Death("bus-full-unnamed", "shared_memory|failed", shm(self, "os.unlink(file.name)\ninput()\n" + fill)),
            Death("bus-truncated", "failed", truncated),
            # Another mount namespace, in which a process goes on.
            Death("bus-full-container", "shared_memory", CONTAINER + "if os.fork() == 0:\n    input()\n    " + fill + "\nos.wait(); time.sleep(4); sys.exit(1)",
                  mount="/dev/shm", is_part=True, least=0.9, says="because /dev/shm (8.0 MiB) was full"),
            # It ends with the process.
            Death("bus-full-container-ends", "shared_memory", CONTAINER + "input()\n" + fill, mount="/dev/shm"),
            # The tmpfs of the other mount namespace is full.
            Death("bus-truncated-beside", "failed", "if os.fork() == 0:\n    import time\n    "
                  + CONTAINER.replace("\n", "\n    ")
                  + "\n    file.truncate(0); file.write(b'x' * (8 << 20)); file.flush(); time.sleep(8); os._exit(0)\n" + truncated,
                  mount="/dev/shm", is_part=True),
            Death("rlimit-as", "process_limit", raised(GROW), limits=[(resource.RLIMIT_AS, 600 * MIB)],
                  says="virtual memory (ulimit -v, 600.0 MiB)"),
            Death("rlimit-as-silent", "process_limit", "held = [sum(range(10 ** 7))]\nwhile True: held.append(bytearray(b'x' * (1 << 20))); time.sleep(0.03)",
                  limits=[(resource.RLIMIT_AS, 300 * MIB)], says="virtual memory (ulimit -v, 300.0 MiB)"),
            Death("rlimit-memlock", "process_limit", raised(
                "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\nheld = ctypes.create_string_buffer(16 << 20)\n"
                "if libc.mlock(held, ctypes.c_size_t(16 << 20)): raise OSError(ctypes.get_errno(), 'mlock')"),
                limits=[(resource.RLIMIT_MEMLOCK, 64 << 10)], user=PERSON),
            Death("rlimit-nofile", "process_limit", raised("held = [open('/dev/null') for _ in range(400)]"),
                  limits=[(resource.RLIMIT_NOFILE, 128)], says="open files (ulimit -n, 128)"),
            Death("rlimit-nproc", "process_limit", raised("import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0)); os.fork()"),
                  user=PERSON, says="processes and threads (ulimit -u"),
            Death("killed-by-root", "killed", "time.sleep(9)", act=by_other, says=" of root"),
            Death("killed-by-person", "killed", "time.sleep(9)", act=by_person, user=PERSON),
            Death("killed-no-log", "killed", "time.sleep(9)", "blind", act=by_other, says="(pid %d) of root" % os.getpid()),
            Death("killed-by-itself", "killed", "os.kill(os.getpid(), 9)", says="by itself"),
            Death("killed-after-term", "killed", "signal.signal(15, signal.SIG_IGN)\ninput()\ntime.sleep(9)", act=by_timeout),
            Death("killed-during-save", "killed", RAW + "say(type='checkpoint', state='saving', step=7)\ninput()\ntime.sleep(9)",
                  act=by_other),
            Death("terminated", "killed", "time.sleep(9)", act=lambda d, t: os.kill(d.pid, signal.SIGTERM)),
            Death("cpu-time", "time_limit", "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 5))\nwhile True: pass", says="CPU time"),
            Death("cpu-time-hard", "time_limit", "while True: pass", limits=[(resource.RLIMIT_CPU, 3)], says="CPU time"),
            Death("cpu-time-child", "time_limit", "input()\nos.execvp('sh', ['sh', '-c', 'ulimit -t 3; %s -c \"while True: pass\"; exit $?'])" % PYTHON,
                  says="CPU time"),
            *[Death("huge-pages", "huge_pages", HUGE)] * own_pool(),
            Death("cpu-time-sent", "failed|killed", "os.kill(os.getpid(), 24)"),
            Death("file-size", "process_limit", "signal.signal(25, signal.SIG_DFL)\nopen(%r, 'wb').write(b'x' * (1 << 20))"
                  % str(folder / "large"), limits=[(resource.RLIMIT_FSIZE, 1 << 16)], says="ulimit -f"),
            Death("pipe", "failed", "import subprocess\nsignal.signal(13, signal.SIG_DFL)\nread, write = os.pipe()\nos.close(read)\nos.write(write, b'x')",
                  says="SIGPIPE"),
            Death("disk-full", "disk_full|shared_memory", shm(self, CLIENT + "input()\nopen(file.name + '2', 'wb').write(bytes(64 << 20))"), says="full"),
            Death("timeout", "time_limit", "input()\nos.execvp('timeout', ['timeout', '2.5', 'sleep', '9'])", says="timeout"),
            Death("child-killed", "cgroup_limit", LOADER % "sys.exit(1)", group="loader", limit="loader", says="(pid "),
            Death("child-killed-late", "cgroup_limit", LOADER % "time.sleep(4); sys.exit(1)", group="late", limit="late"),
            Death("child-killed-shell", "cgroup_limit", "input()\nos.execvp('sh', ['sh', '-c', 'exec 3>&1; %s -c \"$GROW\"; exit $?'])" % PYTHON,
                  group="shell", limit="shell"),
            Death("exit-137", "failed", "sys.exit(137)", says="exit code 137"),
            Death("exit-143", "killed", "signal.signal(15, lambda *_: os._exit(143))\ninput()\ntime.sleep(9)", act=lambda d, t: (d.go(), time.sleep(0.5), os.kill(d.pid, 15))),
            Death("thread-left", "cgroup_limit", "import ctypes, threading\ninput()\ndef grow():\n    time.sleep(0.5)\n    held = []\n    while True: held.append(bytearray(b'x' * (1 << 20)))\n"
                  "threading.Thread(target=grow).start()\nctypes.CDLL(None).pthread_exit(None)", group="thread", limit="thread"),
            Death("renamed", "cgroup_limit", "import ctypes\ninput()\nctypes.CDLL(None).prctl(15, b'ray::train', 0, 0, 0)\n" + GROW, group="renamed", limit="renamed"),
            Death("parent-dies", "killed", "import ctypes\nif os.fork() == 0:\n    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n    time.sleep(60)\ninput()\ntime.sleep(9)", act=by_other),
            Death("xid-79", "gpu_fault", "sys.exit(1)", gpu=0, act=by_xid(79), says="XID 79"),
            Death("xid-31", "failed", "sys.exit(1)", gpu=1, act=by_xid(31)),
            Death("gpu-own", "gpu_memory", out_of_gpu(4, 76, 78, 1), gpu=2),
            Death("gpu-neighbor", "gpu_neighbor", out_of_gpu(4, 38, 39, 1), gpu=3),
            Death("gpu-fragmented", "gpu_fragmentation", out_of_gpu(4, 60, 77, 1), gpu=4),
            Death("exception-value", "failed", raised("raise ValueError('CUDA out of memory')"), says="ValueError"),
            Death("exception-key", "failed", raised("{}['a']"), says="KeyError"),
            Death("exception-nested", "failed", raised("try: 1 / 0\nexcept ZeroDivisionError as e: raise RuntimeError('x') from e"),
                  says="RuntimeError"),
            Death("exception-memory", "process_limit", raised("bytearray(1 << 60)")),
            # It says so itself, and no source can confirm it: it must not be stated as certain.
            Death("faked-message", "gpu_memory|failed", RAW + "input()\nsay(type='bye', end='out_of_memory', resource='device', "
                  "reason='torch.OutOfMemoryError')\nline.close()\nsys.exit(1)"),
            Death("exit-3", "failed", "sys.exit(3)", says="exit code 3"),
            Death("exec-failure", "failed", "os.execvp('sh', ['sh', '-c', 'exec /nonexistent/program'])", says="exit code 127"),
            Death("segv", "failed", "import ctypes; ctypes.string_at(0)", says="SIGSEGV"),
            Death("abort", "failed", "os.abort()", says="SIGABRT"),
            Death("pid-reused", "failed", "sys.exit(4)", after=reuse, says="exit code 4"),
            Death("protection", "memwarden", "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20))); time.sleep(0.05)",
                  group="guarded", limit="guarded", most=160 * MIB, user=PERSON),
            Death("finished", "finished", "sys.exit(0)"),
        ] if not wanted or any(part in d.name for part in wanted)]

    def write(self):
        path = self.folder / "scenario.json"
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps({"epoch": int(time.time()) - 60, "devices": self.devices}))
        draft.replace(path)

    def use_gpu(self, gpu, pid, memory):
        self.devices[gpu]["processes"].append({"pid": pid, "memory": memory, "sm": 50})
        self.write()

    def xid(self, gpu, number):
        self.devices[gpu]["xids"].append({"xid": number})
        self.write()

    def play(self):
        self.write()
        neighbor = subprocess.Popen(["sleep", "600"])
        self.use_gpu(3, neighbor.pid, 40 * GIB)
        kmsgs = {"main": "/dev/kmsg", "blind": "/nonexistent/kmsg", "fake": str(self.folder / "kmsg")}
        daemons = {name: Daemon(self, name, kmsgs[name]) for name in {d.daemon for d in self.deaths}}
        self.daemons = daemons
        try:
            for daemon in daemons.values():
                wait_for("daemon", lambda: daemon.get("/metrics"))
                wait_for("job socket", (daemon.folder / "job.sock").exists)
            for death in self.deaths:
                daemon = daemons[death.daemon]
                death.start(self)
                needle = 'memwarden_workload_rss_bytes{workload="%s"' % death.name
                wait_for("sample of " + death.name, lambda: needle in daemon.get("/metrics").decode())
                if death.group:
                    # New cgroups are found within seconds.
                    kills = 'memwarden_cgroup_memory_events_total{cgroup="/%s/%s",event="oom_kill"}' % (CGROUPS.name, death.group)
                    wait_for("cgroup of " + death.name, lambda: kills in daemon.get("/metrics").decode())
                if death.mount:
                    size = 'memwarden_tmpfs_size_bytes{workload="%s",mount="%s"' % (death.name, death.mount)
                    wait_for("tmpfs of " + death.name, lambda: size in daemon.get("/metrics").decode())
                if death.gpu is not None:
                    gpu = 'memwarden_workload_gpu_memory_bytes{workload="%s"' % death.name
                    wait_for("GPU of " + death.name, lambda: gpu in daemon.get("/metrics").decode())
                if "say(" in death.body or "memwarden" in death.body:
                    rank = re.compile('memwarden_rank_info{.*workload="%s"' % death.name)
                    wait_for("rank of " + death.name, lambda: rank.search(daemon.get("/metrics").decode()))
                death.kill(self)
                def look():
                    ends = json.loads(daemon.get("/api/v1/ends"))["ends"]
                    return next((e for e in ends if e["workload"] == death.name and e["is_whole"] != death.is_part), None)
                death.end = wait_for("end of " + death.name, look, 30)
                death.seconds = time.monotonic() - death.died
                death.sentence = daemon.why(death.name).stdout
                row(death)
                death.child.stdin.close()
                (self.folder / "shm/full").unlink(missing_ok=True)
            daemons["late"] = late = Daemon(self, "late", "/dev/kmsg")
            wait_for("late daemon", lambda: late.get("/metrics"))
            asked = late.why(str(self.deaths[0].pid))
            if asked.returncode != 3 or "No such end is known" not in asked.stdout:
                sys.exit("a daemon that was started later says: " + asked.stdout)
        finally:
            neighbor.kill()
            neighbor.wait()
            for death in self.deaths:
                if getattr(death, "child", None) and death.child.poll() is None:
                    death.child.kill()
                    death.child.wait()
            for daemon in daemons.values():
                daemon.stop()


IN_CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc"]
# The deaths that are planted below `memwarden run` too, with what it must say: one of each kind of evidence.
BELOW_RUN = {"cgroup-leaf": None, "cgroup-child": None, "bus-full-tmpfs": None, "rlimit-as": "ulimit -v",
             "rlimit-as-silent": "ulimit -v", "rlimit-nofile": "ulimit -n", "killed-by-itself": "SIGKILL", "cpu-time": "CPU time",
             "cpu-time-hard": "CPU time", "file-size": "ulimit -f", "pipe": "SIGPIPE", "disk-full": "full", "timeout": "timeout",
             "child-killed": None, "child-killed-shell": None, "exit-137": "exit code 137", "thread-left": None, "renamed": None,
             "exception-key": "KeyError", "exec-failure": "exit code 127", "segv": "SIGSEGV"}


class Ran:
    """A death of the command of `memwarden run`, with what it writes into the termination message."""

    def __init__(self, name, causes, body, options=(), passing=(), says=None, python=PYTHON, group=None, least=0):
        self.least = least
        self.name, self.causes, self.body, self.says, self.group = name, causes.split("|"), body, says, group
        self.options, self.passing, self.python = options, passing, python

    @staticmethod
    def of(death, container):
        """The same death below `run`, outside of or in a pid namespace."""
        limits = "".join("resource.setrlimit(%d, (%d, %d))\n" % (what, most, most) for what, most in death.limits)
        name = death.name + ("-container" if container else "-run")
        return Ran(name, "|".join(death.causes), "import resource\n" + limits + "def input(): time.sleep(0.5)\n" + death.body, passing=IN_CONTAINER if container else (),
                   group=death.group and name, says=BELOW_RUN[death.name])

    def play(self, folder):
        errors, told = folder / (self.name + ".json"), folder / (self.name + ".log")
        script = folder / (self.name + ".py")
        script.write_text("import os, sys, time, signal\ntime.sleep(1)\n" + self.body)
        environment = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(errors), "XDG_STATE_HOME": str(folder), "GROW": GROW,
                       "PYTHONPATH": str(folder / "client")}
        def prepare():
            if self.group:
                (CGROUPS / self.group).mkdir(parents=True, exist_ok=True)
                (CGROUPS / self.group / "memory.limit_in_bytes").write_text(str(120 * MIB))
                (CGROUPS / self.group / "cgroup.procs").write_text(str(os.getpid()))
        done = subprocess.run([*self.passing, BINARY, "run", *self.options, "--no-progress", "--termination-log", told, "--",
                               self.python, script], input="\n", timeout=60, capture_output=True, text=True, env=environment,
                              preexec_fn=prepare)
        if not errors.exists():
            sys.exit("%s: no reason was written: %s" % (self.name, done.stderr))
        self.end = json.loads(errors.read_text())["memwarden"]
        self.sentence = told.read_text()
        self.seconds = None


def is_right(each):
    given, probability = each.end["cause"], each.end["probability"]
    right = given in each.causes and (not each.says or each.says in each.sentence)
    # What only the job says is not certain, and neither is what was between two reads.
    right &= probability >= getattr(each, "least", 0) and (each.name != "bus-full-unnamed" or probability < 0.9)
    return right and (each.name != "faked-message" or given == "failed" or probability < 0.9)


def row(each):
    took = "" if each.seconds is None else "%.1f" % each.seconds
    words = (each.name, "|".join(each.causes), each.end["cause"], each.end["probability"], took, "" if is_right(each) else "WRONG")
    print("%-28s %-20s %-18s %-6.2f %-8s%s" % words, flush=True)


def main():
    wanted = sys.argv[1:]
    # The senders of signals are known only where tracefs is mounted.
    if not os.path.isdir("/sys/kernel/tracing/events"):
        subprocess.run(["mount", "-t", "tracefs", "none", "/sys/kernel/tracing"], check=False)
        atexit.register(subprocess.run, ["umount", "/sys/kernel/tracing"], check=False)
    with tempfile.TemporaryDirectory(prefix="deaths") as folder:
        trial = Trial(Path(folder), wanted)
        ran = [r for r in [
            Ran("run-killed", "killed", "os.kill(os.getpid(), 9)", says="SIGKILL"),
            Ran("run-container", "failed", "sys.exit(3)", passing=IN_CONTAINER, says="exit code 3"),
            Ran("run-container-killed", "killed", "os.kill(os.getpid(), 9)", passing=IN_CONTAINER, says="SIGKILL"),
            Ran("run-exception", "failed", "raise LookupError('x')"),
            Ran("run-child-outlives", "cgroup_limit", "if os.fork() == 0:\n    time.sleep(6); os._exit(0)\ntime.sleep(1)\n" + GROW, group="outlives"),
            Ran("run-container-oom", "cgroup_limit|unknown", "time.sleep(1)\n" + GROW, passing=IN_CONTAINER, group="contained"),
        ] if not wanted or any(part in r.name for part in wanted)]
        ran += [Ran.of(death, container) for death in trial.deaths if death.name in BELOW_RUN for container in (False, True)]
        print("%-28s %-20s %-18s %-6s %-8s" % ("planted", "expected", "given", "prob.", "seconds"))
        try:
            trial.play()
            with ThreadPoolExecutor(4) as pool:
                for each in pool.map(lambda each: each.play(trial.folder) or each, ran):
                    row(each)
            wrong = [each for each in trial.deaths + ran if not is_right(each)]
            for each in wrong:
                print("\n%s: %s\n%s" % (each.name, each.sentence, json.dumps(each.end)[:600]))
        finally:
            subprocess.run(["umount", trial.folder / "shm"], check=False)
            for path, _, _ in list(os.walk(CGROUPS, topdown=False)):
                os.rmdir(path)
    total = len(trial.deaths) + len(ran)
    seconds = [d.seconds for d in trial.deaths]
    if seconds:
        print("%d of %d right; median %.1f s, longest %.1f s" % (total - len(wrong), total, statistics.median(seconds), max(seconds)))
    late = seconds and max(seconds) > 10
    if len(wrong) > total / 30 or any(each.end["probability"] >= 0.9 for each in wrong) or late:
        sys.exit(1)


if __name__ == "__main__":
    main()
