#!/usr/bin/env python3
"""Time from a request for a checkpoint of a whole run to the signal on all of its nodes.

    cargo build --release && sudo benches/run_request.py --memwarden target/release/memwarden

Every node is a daemon on a loopback port, with its own job, state and /proc (a folder with the job, the daemon and a meminfo);
all have the run `alpha`. The memory of one node is nearly used up: its daemon asks the others with POST
/api/v1/runs/alpha/checkpoint, and each daemon signals its own job. The time begins when the asking daemon begins the step
`ask_run`, by its audit log, and ends when the job has the signal, by its own clock. All daemons share this machine's
processors, which nodes of a cluster do not. Needs root and 30 MiB of memory for each node. Standard library only.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What the host of a node has, in kB.
HOST = 1 << 20
# Requests for one run within 30 s are one request.
APART = 32

JOB = """
import os, signal, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def asked(*_):
    os.write(out, b"%.6f\\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
signal.signal(signal.SIGUSR1, asked)
os.write(out, b"up\\n")
while True:
    time.sleep(60)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait(what, limit, check):
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise SystemExit("waited %g s for %s" % (limit, what))


class Node:
    """A daemon with a job of the run."""

    def __init__(self, folder, number):
        self.folder = folder / ("node%d" % number)
        self.proc = self.folder / "proc"
        self.proc.mkdir(parents=True)
        for name in ["stat", "vmstat", "uptime", "loadavg", "buddyinfo", "self", "sys", "pressure", "net"]:
            (self.proc / name).symlink_to("/proc/" + name)
        self.meminfo = os.open(self.proc / "meminfo", os.O_WRONLY | os.O_CREAT, 0o644)
        self.available(HOST)
        self.said = self.folder / "said"
        self.said.touch()
        self.job = subprocess.Popen(["python3", "-S", "-c", JOB, str(self.said), self.mark()], start_new_session=True)
        (self.proc / str(self.job.pid)).symlink_to("/proc/%d" % self.job.pid)
        self.port = free_port()
        self.daemon = None

    def mark(self):
        return "run-request-" + str(self.folder)

    def available(self, kib):
        text = "MemTotal: %12d kB\nMemFree: %12d kB\nMemAvailable: %12d kB\n" % (HOST, kib, kib)
        os.pwrite(self.meminfo, text.encode(), 0)

    def start(self, memwarden, peers):
        token = self.folder / "token"
        token.write_text("a long shared secret")
        token.chmod(0o600)
        hosts = ", ".join('"127.0.0.1:%d"' % peer for peer in peers)
        config = self.folder / "memwarden.yaml"
        config.write_text(f"""
state: {{file: {self.folder}/state/state.json}}
paths: {{proc: {self.proc}}}
sources: {{workload: {{matchers: [{{name: train, run: alpha, command_line: "{self.mark()}"}}]}}}}
protection:
  mode: enforce
  peers: {{from: static, hosts: [{hosts}], timeout: 5s, token_file: {token}}}
  targets:
    - name: train
      workload: train
      cgroup_headroom: {{soft: ""}}
      host: {{soft: 20%, hard: ""}}
      forecast: {{max_state: ignore}}
      leak: {{max_state: ignore}}
      allow_users: ["{os.getuid()}"]
      max_state: checkpoint
      for: 100ms
      clear_for: 200ms
      cooldown: 200ms
      checkpoint: {{scope: run, grace: 1s, longest_grace: 1s, request_interval: 1s}}
""")
        # The daemon must find itself below its own /proc before it starts.
        enter = ["sh", "-c", 'ln -s /proc/$$ "$0/$$"; exec "$@"', str(self.proc), str(memwarden)]
        log = (self.folder / "log").open("w")
        command = [*enter, "serve", "--config.file", str(config), "--web.listen-address", "127.0.0.1:%d" % self.port]
        command += ["--set", "sources.training.socket=%s/job.sock" % self.folder]
        self.daemon = subprocess.Popen(command, stdout=log, stderr=log)

    def is_ready(self):
        """Whether the guard knows the job."""
        if self.daemon.poll() is not None:
            raise SystemExit("a daemon ended: " + (self.folder / "log").read_text()[-2000:])
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as page:
                page.sendall(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
                text = b"".join(iter(lambda: page.recv(1 << 16), b"")).decode()
        except OSError:
            return False
        lines = [line for line in text.splitlines() if line.startswith("memwarden_protection_members{")]
        return any('target="train"' in line and line.endswith(" 1") for line in lines)

    def signals(self):
        return [float(line) for line in self.said.read_text().split() if line != "up"]

    def asked_at(self):
        """When the steps `ask_run` began, in seconds since the boot."""
        lines = (self.folder / "state/audit.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        steps = [entry for entry in entries if entry["entry"] == "before" and entry["step"]["do"] == "ask_run"]
        return [entry["boot_seconds"] for entry in steps]

    def end(self):
        for process in (self.daemon, self.job):
            if process:
                process.kill()
                process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memwarden", default=ROOT / "target/dist/memwarden", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nodes = []
        try:
            nodes = [Node(pathlib.Path(folder), number) for number in range(args.nodes)]
            asking, others = nodes[0], nodes[1:]
            for node in others:
                node.start(args.memwarden, [1])
            asking.start(args.memwarden, [node.port for node in others])
            wait("all guards", 120, lambda: all(node.is_ready() for node in nodes))
            time.sleep(3)
            lasts, firsts = [], []
            print("| round | nodes | first signal | median | last signal |")
            print("| ---: | ---: | ---: | ---: | ---: |")
            for number in range(1, args.rounds + 1):
                asking.available(HOST // 10)
                wait("the signals", 60, lambda: all(len(node.signals()) >= number for node in nodes))
                begun = wait("the audit log", 10, lambda: asking.asked_at()[number - 1 :])[0]
                delays = sorted(1000 * (node.signals()[number - 1] - begun) for node in nodes)
                firsts.append(delays[0])
                lasts.append(delays[-1])
                row = (number, len(delays), delays[0], statistics.median(delays), delays[-1])
                print("| %d | %d | %.0f ms | %.0f ms | %.0f ms |" % row, flush=True)
                asking.available(HOST)
                if number < args.rounds:
                    time.sleep(APART)
            print("Last signal: %.0f ms in the median of the rounds, %.0f ms at most." % (statistics.median(lasts), max(lasts)))
        finally:
            for node in nodes:
                node.end()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: exit(1))
    main()
