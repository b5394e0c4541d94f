#!/usr/bin/env python3
"""Compares the memory of random process trees, as memwarden's guard decides on it, with the counter of a memory group of their own.

Needs root, a memory cgroup (v1 or v2) and a C compiler (cc). Holds up to 4 GiB of memory. 1,000 trees take ten minutes.

    tests/process_trees.py --trees 1000
    tests/process_trees.py --trees 20 --decisions 10 --binary target/debug/memwarden

A tree is made from its seed: processes that fork, write to a part of what they share since then, share an address space (clone with
CLONE_VM; a child of vfork that has not executed a program), execute a program, map shared anonymous memory, memfds and files in
/dev/shm together, lock memory, ask for transparent huge pages or pages of the pool of huge pages (--huge-pages), or continue in a
thread after the first one has ended. Some are 200 processes of 1 MiB. Each tree is alone in a memory group without a limit.

The truth is `memory.stat` of this group: `total_rss` + `total_shmem` on v1 and `anon` + `shmem` on v2: the anonymous and shared
memory that the kernel charges, each page once, without page cache, huge pages of a pool and memory of the kernel. The kernel adds its
counters up at least every 2 s; both amounts are read until they are equal, or for 12 s. Files in tmpfs are mapped by a process of the tree as long as it
lives, so that all of their pages count for both.

A daemon watches the trees as targets with `memory_limit`, and soft levels that all of them cross, so that the guard needs exact readings;
what it decides on is the limit less `memwarden_protection_headroom_bytes`. --decisions runs some trees again below
`memwarden run --guard --limit`: at a quarter above the truth it may send nothing, at a tenth above no SIGTERM or SIGKILL, and at a
tenth below it must end the tree. A tree for which a wrong amount or decision is found is printed with its seed; --seed and
--trees 1 repeat it. Exits 1 for a wrong decision, or an amount that is wrong by more than 1 % and 2 MiB. Standard library only.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
NAME = f"memwarden-trees-{os.getpid()}"
LIMIT = 8192 * MIB
# Longest wait for the kernel's counters, for a sample and for a reading of the guard, in seconds.
LONGEST = 12

# Interprets a program of one letter for each act, with a number or a block in braces.
SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

struct region { char *start; size_t size; };
struct state { struct region regions[256]; int count; int ready; const char *self; const char *begin; const char *end; };

static void fail(const char *what) { perror(what); exit(9); }
static void touch(char *start, size_t size) { for (size_t at = 0; at < size; at += 4096) start[at] = 1; }
static void *map(int flags, int fd, size_t size) {
    void *start = mmap(0, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (start == MAP_FAILED) fail("mmap");
    return start;
}
/* The tree is complete below this process, which then stays. */
static void stay(struct state *s) {
    if (write(s->ready, "r", 1) != 1) exit(8);
    close(s->ready);
    if (getenv("HOLD")) { sleep(atoi(getenv("HOLD"))); _exit(0); }
    for (;;) pause();
}
static const char *closing(const char *at) {
    int depth = 0;
    for (;; at++) {
        if (*at == '{') depth++;
        if (*at == '}' && --depth == 0) return at;
    }
}
static void act(struct state *s);
static int shared_child(void *given) { struct state *s = given; act(s); stay(s); return 0; }
static void *thread(void *given) { shared_child(given); return 0; }
static void wait_for(int fd) { char byte; if (read(fd, &byte, 1) != 1) fail("child"); close(fd); }

static void act(struct state *s) {
    const char *at = s->begin;
    while (at < s->end) {
        char what = *at++;
        if (*at == '{') {
            const char *end = closing(at), *body = at + 1;
            at = end + 1;
            int ends[2];
            if (pipe(ends)) fail("pipe");
            if (what == 'X') {
                char program[65536], ready[16];
                snprintf(program, sizeof program, "%.*s", (int)(end - body), body);
                snprintf(ready, sizeof ready, "%d", s->ready);
                close(ends[0]); close(ends[1]);
                execl(s->self, "tree", program, ready, (char *)0);
                fail("exec");
            }
            if (what == 'F') {
                pid_t pid = fork();
                if (pid < 0) fail("fork");
                if (pid == 0) {
                    close(ends[0]); close(s->ready);
                    s->ready = ends[1]; s->begin = body; s->end = end;
                    act(s); stay(s);
                }
                close(ends[1]); wait_for(ends[0]);
                continue;
            }
            struct state *other = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, sizeof *other);
            *other = *s;
            other->begin = body; other->end = end;
            if (what == 'L') {
                pthread_t id;
                close(ends[0]); close(ends[1]);
                if (pthread_create(&id, 0, thread, other)) fail("thread");
                pthread_exit(0);
            }
            char *stack = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1 << 18);
            if (what == 'V') {
                other->ready = ends[1];
                if (clone(shared_child, stack + (1 << 18), CLONE_VM | SIGCHLD, other) < 0) fail("clone");
                close(ends[1]); wait_for(ends[0]);
            } else { /* K: the child reports for its parent, which the kernel suspends. */
                close(ends[0]); close(ends[1]);
                if (clone(shared_child, stack + (1 << 18), CLONE_VM | CLONE_VFORK | SIGCHLD, other) < 0) fail("vfork");
                _exit(0);
            }
            continue;
        }
        long number = strtol(at, (char **)&at, 10);
        size_t size = (size_t)number << 10;
        char *start = 0;
        if (strchr("ahm", what)) {
            start = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, size);
            if (what == 'h') madvise(start, size, MADV_HUGEPAGE);
            touch(start, size);
            if (what == 'm' && mlock(start, size)) fail("mlock");
            s->regions[s->count++ % 256] = (struct region){start, size};
        } else if (what == 's') {
            touch(map(MAP_SHARED | MAP_ANONYMOUS, -1, size), size);
        } else if (what == 'f' || what == 't') {
            char path[64];
            snprintf(path, sizeof path, "/dev/shm/memwarden-tree-%d-%ld", getpid(), (long)(at - s->begin));
            int fd = what == 'f' ? memfd_create("tree", MFD_CLOEXEC) : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
            if (fd < 0 || ftruncate(fd, size)) fail("file");
            touch(map(MAP_SHARED, fd, size), size);
            if (what == 't') unlink(path);
            close(fd);
        } else if (what == 'g') {
            size = (size + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1);
            start = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
            if (start != MAP_FAILED) touch(start, size);
        } else if (what == 'w' || what == 'd') { /* Writes a share of all private memory, or frees it. */
            for (int n = 0; n < s->count && n < 256; n++) {
                size_t part = s->regions[n].size / 100 * number & ~(size_t)4095;
                if (what == 'w') touch(s->regions[n].start, part);
                else madvise(s->regions[n].start, part, MADV_DONTNEED);
            }
        } else if (what == 'p') { /* That many processes of 1 MiB. */
            for (long n = 0; n < number; n++) {
                int ends[2];
                if (pipe(ends)) fail("pipe");
                pid_t pid = fork();
                if (pid < 0) fail("fork");
                if (pid == 0) {
                    close(ends[0]); close(s->ready);
                    s->ready = ends[1];
                    touch(map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1 << 20), 1 << 20);
                    stay(s);
                }
                close(ends[1]); wait_for(ends[0]);
            }
        } else fail("letter");
    }
}

int main(int count, char **given) {
    static struct state s;
    s.self = "/proc/self/exe";
    s.begin = given[1]; s.end = given[1] + strlen(given[1]);
    s.ready = count > 2 ? atoi(given[2]) : 1;
    act(&s);
    stay(&s);
}
"""


def plan(seed, pool):
    """The program of a tree, by its seed, and what it has."""
    dice = random.Random(seed)
    if dice.random() < 0.05:
        return f"a{dice.randrange(1, 20) << 10}p{dice.choice([50, 100, 200])}"
    total = dice.randrange(30, 400) if dice.random() < 0.95 else dice.randrange(400, 800)
    left = [total << 10]

    def memory(most):
        size = min(left[0], max(256, int(most * dice.uniform(0.1, 1.0))))
        if size < 4:
            return ""
        left[0] -= size
        if pool and dice.random() < 0.1:
            return f"g{2048 * dice.randrange(1, 5)}a{size}"
        return dice.choices("ahsftm", [5, 2, 2, 1, 1, 1])[0] + str(size)

    def body(depth, held):
        own = memory(left[0] if depth == 0 else left[0] / 2)
        held += int(own[1:]) if own[:1] in ("a", "h", "m") else 0
        parts = [own]
        if dice.random() < 0.2:
            parts.append(f"d{dice.randrange(1, 60)}")
        for _ in range(dice.choice([0, 1, 2, 3, 6]) if depth < 3 else 0):
            kind = dice.choices("FVE", [6, 1, 2])[0]
            if kind == "E":
                parts.append("F{X{" + body(depth + 1, 0) + "}}")
            elif kind == "V":
                parts.append("V{" + memory(left[0] / 3) + "w" + str(dice.randrange(0, 100)) + "}")
            else:
                share = dice.choice([0, 0, 10, 30, 100])
                # What is written is copied.
                share = share if held * share // 100 <= left[0] else 0
                left[0] -= held * share // 100
                parts.append("F{" + f"w{share}" + body(depth + 1, held) + "}")
        if dice.random() < 0.3:
            parts.append(memory(left[0] / 2))
        if dice.random() < 0.1:
            parts.append("K{" + memory(left[0] / 4) + "}")
        elif dice.random() < 0.12:
            parts.append("L{" + memory(left[0] / 2) + "}")
        return "".join(parts)

    text = body(0, 0)
    if left[0] > (total << 9):
        # Most of the total in the first process.
        text = f"a{left[0] // 2}" + text
    return text


KINDS = {"many processes of 1 MiB": "p", "fork": "F{w", "CLONE_VM": "V{", "vfork": "K{", "exec": "X{", "first thread ended": "L{",
         "shared anonymous": "s", "memfd": "f", "/dev/shm": "t", "mlock": "m", "transparent huge pages": "h", "pool": "g"}


class Group:
    """A memory group without a limit."""

    root = pathlib.Path("/sys/fs/cgroup")
    v2 = (root / "cgroup.controllers").exists()
    top = (root if v2 else root / "memory") / NAME

    def __init__(self, name):
        self.top.mkdir(exist_ok=True)
        if self.v2:
            for folder in (self.root, self.top):
                (folder / "cgroup.subtree_control").write_text("+memory")
        self.folder = self.top / name
        self.folder.mkdir()

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def used(self):
        """The anonymous and shared memory that is charged."""
        text = (self.folder / "memory.stat").read_text()
        values = dict(line.split() for line in text.splitlines())
        keys = ("anon", "shmem") if self.v2 else ("total_rss", "total_shmem")
        return sum(int(values[key]) for key in keys)

    def processes(self):
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def close(self):
        for _ in range(500):
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.02)


def start(program, text, group, environment, before=(), **more):
    """Starts a tree in a group."""
    return subprocess.Popen([*before, program, text], stdin=subprocess.DEVNULL, preexec_fn=group.enter,
                            env={"PATH": os.environ["PATH"], **environment}, **more)


class Daemon:
    """memwarden with a target for each slot."""

    def __init__(self, binary, folder, slots):
        self.folder = folder
        matchers = [{"name": f"tree-{slot}", "environment": f"TREE={slot}"} for slot in range(slots)]
        # All of them are near the soft level, and nothing is done there.
        each = {"allow_users": ["root"], "clear_for": "0s", "memory_limit": f"{LIMIT // MIB}MiB", "max_state": "warn",
                "cgroup_headroom": {"soft": f"{LIMIT // MIB - 1}MiB", "hard": ""}, "host": {"soft": "", "hard": ""}}
        config = {"sampling": {"interval": "200ms"}, "state": {"file": f"{folder}/state.json"},
                  "web": {"listen_addresses": ["127.0.0.1:0"], "socket": f"{folder}/api.sock"},
                  "sources": {"training": {"socket": f"{folder}/job.sock"}, "gpu": {"enabled": False},
                              "workload": {"matchers": matchers, "max_workloads": 128}},
                  "protection": {"mode": "enforce", "targets": [{"name": f"tree-{slot}", "workload": f"tree-{slot}", **each} for slot in range(slots)]}}
        (folder / "memwarden.yaml").write_text(json.dumps(config))
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen(["nice", "-n", "-10", str(binary), "serve", "--config.file", str(folder / "memwarden.yaml")], stderr=log, stdin=subprocess.DEVNULL)
        for _ in range(200):
            found = re.search(r"addresses=(\S+)", (folder / "log").read_text())
            if found:
                self.url = f"http://{found[1]}/metrics"
                return
            time.sleep(0.05)
        sys.exit(f"memwarden did not start:\n{(folder / 'log').read_text()}")

    def used(self, slot):
        """What the guard decides on; absent where it is not known."""
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            text = answer.read().decode()
        series = rf'memwarden_protection_headroom_bytes{{[^}}]*resource="cgroup"[^}}]*target="tree-{slot}"[^}}]*}}|memwarden_protection_headroom_bytes{{[^}}]*target="tree-{slot}"[^}}]*resource="cgroup"[^}}]*}}'
        found = re.search(rf"^(?:{series}) (\S+)$", text, re.MULTILINE)
        members = re.search(rf'^memwarden_protection_members{{[^}}]*target="tree-{slot}"[^}}]*}} (\S+)$', text, re.MULTILINE)
        return (LIMIT - float(found[1]) if found else None), int(float(members[1])) if members else 0

    def forget(self, slot):
        """Waits until it has seen the end of a tree, so that the next one is another job."""
        for _ in range(50):
            if self.used(slot) in ((None, 0), (0, 0)):
                break
            time.sleep(0.2)

    def close(self):
        self.process.terminate()
        self.process.wait()


def measure(daemon, program, slot, seed, pool):
    """The truth of a tree, and what the guard decides on."""
    text, group = plan(seed, pool), Group(f"s{slot}-{seed}")
    try:
        tree = start(program, text, group, {"TREE": str(slot)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if tree.stdout.read(1) != b"r":
            tree.kill()
            return {"seed": seed, "plan": text, "failed": tree.stderr.read().decode()[-200:]}
        ready = time.monotonic()
        # The guard needs a sample and a reading, which take longer on a busy machine.
        while True:
            time.sleep(0.5)
            truth, processes = group.used(), len(group.processes())
            used, members = daemon.used(slot)
            is_right = used is not None and abs(used - truth) <= max(0.002 * truth, MIB // 4)
            if is_right and members == processes or time.monotonic() > ready + LONGEST:
                break
        took = time.monotonic() - ready
        again = group.used()
        return {"seed": seed, "plan": text, "truth": truth, "again": again, "used": used, "processes": processes, "members": members, "took": took}
    finally:
        group.close()
        with contextlib.suppress(UnboundLocalError):
            tree.wait()
            tree.stdout.close()
            tree.stderr.close()


def decide(binary, program, folder, found, share, hold=5):
    """Runs a tree below a limit that is a share of its truth; what was sent to it, and when."""
    group = Group(f"d{found['seed']}-{int(100 * share)}")
    limit = int(found["truth"] * share)
    home = folder / f"home-{found['seed']}-{int(100 * share)}"
    home.mkdir()
    words = [str(binary), "run", "--guard", "--limit", f"{limit // 1024}KiB", "--no-instrument", "--no-progress", "--format", "json", "--output", str(home / "report.json"), "--"]
    try:
        begun = time.monotonic()
        job = start(program, found["plan"], group, {"HOLD": str(hold), "XDG_STATE_HOME": str(home)}, before=words, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE)
        ready = []
        reader = threading.Thread(target=lambda: ready.append(time.monotonic()) if job.stdout.read(1) == b"r" else None, daemon=True)
        reader.start()
        try:
            code = job.wait(90)
        except subprocess.TimeoutExpired:
            code = None
        took = time.monotonic() - begun
        said = job.stderr.read().decode(errors="replace") if code is not None else ""
        audits = [json.loads(line) for path in home.rglob("audit.jsonl") for line in path.read_text().splitlines()]
        sent = [line["step"].get("signal", line["step"]["do"]) for line in audits if line.get("entry") == "before" and line["step"]["do"] not in ("record", "notify", "hook")]
        report = json.loads((home / "report.json").read_text()) if (home / "report.json").exists() else {}
        return {"seed": found["seed"], "plan": found["plan"], "share": share, "limit": limit, "truth": found["truth"], "code": code, "sent": sent,
                "took": took, "after_ready": time.monotonic() - ready[0] if ready else None, "said": said[-800:], "report": report,
                "entered": [line["to"] for line in audits if line.get("entry") == "transition"]}
    finally:
        group.close()
        shutil.rmtree(home, ignore_errors=True)


def is_wrong(done):
    """Why a decision is wrong."""
    signals = [sent for sent in done["sent"] if sent not in (10, "10", "signal 10")]
    if done["share"] > 1:
        allowed = signals if done["share"] < 1.2 else done["sent"]
        if allowed or done["code"] != 0:
            return f"acted below the limit: {allowed}, exit code {done['code']}"
    elif done["code"] == 0 or done["code"] is None:
        return f"did not end the tree: exit code {done['code']}"
    return None


def errors(rows, name):
    """A line of the table: errors of the amounts in percent of the truth."""
    shares = [100 * (row["used"] - row["truth"]) / row["truth"] for row in rows]
    if not shares:
        return [name, 0, "-", "-", "-", "-"]
    absolute = sorted(abs(share) for share in shares)
    p99 = absolute[min(len(absolute) - 1, int(0.99 * len(absolute)))]
    worst = max((row["used"] - row["truth"] for row in rows), key=abs) / MIB
    return [name, len(rows), f"{statistics.median(absolute):.3f} %", f"{p99:.2f} %", f"{min(shares):+.2f} % / {max(shares):+.2f} %", f"{worst:+.2f} MiB"]


def table(rows):
    widths = [max(len(str(row[place])) for row in rows) for place in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(str(cell).ljust(width) for cell, width in zip(row, widths)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=1000)
    parser.add_argument("--decisions", type=int, default=100, help="trees that are run again with three limits")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first tree")
    parser.add_argument("--slots", type=int, default=4, help="trees at a time")
    parser.add_argument("--huge-pages", type=int, default=0, help="pages of 2 MiB in the pool meanwhile")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/memwarden")
    parser.add_argument("--rows", type=pathlib.Path, help="file for all rows, as JSON lines")
    options = parser.parse_args()
    compiler = shutil.which("cc")
    if os.getuid() != 0 or not options.binary.exists() or not compiler:
        sys.exit("this takes root, a C compiler, and a build of memwarden")
    stopped = []

    def stop(*_):
        stopped.append(True)
        sys.exit(143)

    signal.signal(signal.SIGTERM, stop)
    bad = 0
    log = open(options.rows, "w") if options.rows else None
    with tempfile.TemporaryDirectory(prefix=NAME) as top:
        folder = pathlib.Path(top)
        (folder / "tree.c").write_text(SOURCE)
        program = str(folder / "tree")
        subprocess.run([compiler, "-O1", "-w", "-pthread", "-o", program, str(folder / "tree.c")], check=True)
        pool = pathlib.Path("/proc/sys/vm/nr_hugepages")
        before = pool.read_text()
        if options.huge_pages:
            pool.write_text(str(options.huge_pages))
        daemon = Daemon(options.binary, folder, options.slots)
        rows, failed, decisions = [], [], []
        try:
            slots = collections.deque(range(options.slots))

            def one(seed):
                if stopped:
                    return {"seed": seed, "failed": "stopped", "plan": ""}
                slot = slots.popleft()
                try:
                    return measure(daemon, program, slot, seed, options.huge_pages)
                finally:
                    daemon.forget(slot)
                    slots.append(slot)

            with concurrent.futures.ThreadPoolExecutor(options.slots) as pool_of:
                for row in pool_of.map(one, range(options.seed, options.seed + options.trees)):
                    (failed if "failed" in row else rows).append(row)
                    if log:
                        print(json.dumps(row), file=log, flush=True)
        finally:
            daemon.close()
            if options.huge_pages:
                pool.write_text(before)
        unknown = [row for row in rows if row["used"] is None]
        known = [row for row in rows if row["used"] is not None]
        print(f"{len(rows)} trees, {statistics.median(row['processes'] for row in rows):.0f} processes (median, most {max(row['processes'] for row in rows)}), "
              f"{statistics.median(row['truth'] for row in rows) / MIB:.0f} MiB (median, most {max(row['truth'] for row in rows) / MIB:.0f} MiB); "
              f"{len(failed)} could not be made, {len(unknown)} unknown to the guard\n")
        took = sorted(row["took"] for row in known)
        if took:
            print(f"right after the tree was complete: median {statistics.median(took):.1f} s, p99 {took[int(0.99 * (len(took) - 1))]:.1f} s, longest {took[-1]:.1f} s\n")
        lines = [["trees with", "trees", "median error", "p99", "lowest / highest", "worst"], errors(known, "all")]
        for name, sign in KINDS.items():
            lines.append(errors([row for row in known if sign in row["plan"]], name))
        table(lines)
        for row in failed[:5]:
            print("could not be made:", json.dumps(row)[:500])
        for row in unknown + known:
            if row["used"] is None or abs(row["used"] - row["truth"]) > max(0.01 * row["truth"], 2 * MIB):
                bad += 1
                print("WRONG AMOUNT", json.dumps(row)[:700], flush=True)
        chosen = rows[:: max(1, len(rows) // options.decisions)][: options.decisions] if options.decisions else []
        wrong = collections.Counter()
        with concurrent.futures.ThreadPoolExecutor(max(1, options.slots // 2)) as pool_of:
            jobs = [(row, share) for row in chosen for share in (1.25, 1.1, 0.9)]
            for done in pool_of.map(lambda job: decide(options.binary, program, folder, *job), jobs):
                why = is_wrong(done)
                if log:
                    print(json.dumps({**done, "report": None, "why": why}), file=log, flush=True)
                decisions.append(done)
                if why:
                    wrong[done["share"]] += 1
                    bad += 1
                    print("WRONG DECISION", why, json.dumps({**done, "report": None})[:900], flush=True)
        lines = [["limit / truth", "trees", "wrong", "asked (SIGUSR1)", "SIGTERM", "SIGKILL", "exit codes"]]
        for share in (1.25, 1.1, 0.9):
            some = [done for done in decisions if done["share"] == share]
            sent = [str(done["sent"]) for done in some]
            codes = collections.Counter(done["code"] for done in some)
            lines.append([share, len(some), wrong[share], sum("10" in text for text in sent), sum("15" in text or "term" in text for text in sent),
                          sum("9" in text.replace("19", "") or "kill" in text for text in sent), ", ".join(f"{n} x {code}" for code, n in sorted(codes.items(), key=str))])
        if decisions:
            table(lines)
    with contextlib.suppress(OSError):
        Group.top.rmdir()
    print(f"{bad} wrong" if bad else "all right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
