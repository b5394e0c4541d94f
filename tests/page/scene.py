#!/usr/bin/env python3
"""Plays a node in trouble for a real memwarden: fake GPUs (tests/fake-nvml), processes, and ranks that report over the job
socket. For the tests of the page, and for the pictures of the documents.

    tests/page/scene.py leak --memwarden target/debug/memwarden --library target/debug/deps/libfake_nvml.so

Prints one line of JSON with the address of the daemon, then plays until its standard input ends. A line `hang 3` there
makes the calls for GPU 3 hang from then on. Standard library only; as root, the jobs run as other users.
"""

import argparse
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

GIB = 1 << 30
PEOPLE = {"alice": 7001, "bob": 7002, "carol": 7003}
HOSTILE = "<img src=x onerror=alert(1)>\u202e'\"&amp;</script>"


def uuid(gpu):
    return "GPU-5ce9e000-0000-4000-8000-%012x" % gpu


class Rank:
    """What one process of a job reports, by the seconds since the scene began."""

    def __init__(self, run, rank, gpu, allocated, growth=0.0, reserved=None, world=1, torn=0.0, retries=0.0):
        self.run, self.rank, self.gpu, self.world = run, rank, gpu, world
        self.allocated, self.growth, self.reserved = allocated, growth, reserved
        self.torn, self.retries = torn, retries

    def memory(self, t):
        allocated = self.allocated + self.growth * t
        reserved = max(self.reserved or 0, allocated * 1.04)
        inactive = self.torn * reserved
        return int(allocated), int(reserved), int(inactive)

    def messages(self, step, t):
        allocated, reserved, inactive = self.memory(t)
        total = 80 * GIB
        yield {"type": "step", "step": step, "seconds": 0.48 + 0.02 * (self.rank % 3), "tokens": step * 16384,
               "loss": 2.1 + 1.0 / (step + 1)}
        yield {"type": "mem", "devices": {"0": {
            "allocated": allocated, "allocated_peak": allocated, "active": allocated, "reserved": reserved,
            "reserved_peak": reserved, "requested": int(allocated * 0.99), "inactive_split": inactive,
            "releasable": int((reserved - allocated - inactive) * 0.2), "largest_free": int(0.02 * reserved),
            "retries": int(self.retries * t), "ooms": 0, "free": max(0, total - reserved - GIB), "total": total}}}

    def hello(self):
        return {"type": "hello", "v": 1, "client": "scene 1", "rank": self.rank, "local_rank": self.rank,
                "world": self.world, "run": self.run, "framework": "torch", "precision": "bf16",
                "devices": {"0": {"uuid": uuid(self.gpu), "name": "NVIDIA H100 80GB HBM3"}}}


def play_rank(rank, path, every, began):
    """The process of one rank: says what it has until it is killed."""
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(path)
                send = lambda message: line.sendall(json.dumps(message).encode() + b"\n")
                send(rank.hello())
                step = 0
                while True:
                    step += 1
                    for message in rank.messages(step, time.time() - began):
                        send(message)
                    time.sleep(every)
        except OSError:
            time.sleep(0.1)


def child(user, work):
    """Forks a process of this user that runs `work`; gives its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(nothing, number)
        # It ends with the scene, however that ends.
        import ctypes
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getuid() == 0 and user:
            os.setgid(PEOPLE[user])
            os.setuid(PEOPLE[user])
        work()
    finally:
        os._exit(0)


class Scene:
    def __init__(self, name, folder, every):
        self.name, self.folder, self.every = name, folder, every
        self.began = time.time()
        self.socket = os.path.join(folder, "job.sock")
        self.devices, self.trees, self.children, self.targets = [], [], [], []
        self.settings = {}
        getattr(self, "make_" + re.sub(r"\W", "_", name))()

    def device(self, **more):
        gpu = len(self.devices)
        self.devices.append({"uuid": uuid(gpu), "memory": {"total": 80 * GIB, "reserved": 600 << 20},
                             "utilization": 0, "temperature": 35, "power_milliwatts": 90000, "processes": [], **more})
        return self.devices[gpu]

    def busy(self, device, pid, memory, percent=97):
        device.update(utilization=percent, temperature=64, power_milliwatts=640000)
        device["processes"].append({"pid": pid, "memory": memory, "sm": percent, "mem": 40})

    def workload(self, name, user, work=lambda: signal.pause()):
        pid = child(user, work)
        self.children.append(pid)
        self.trees.append("%d %s" % (pid, name))
        return pid

    def rank(self, name, user, rank):
        """A rank in a workload of its own process; gives the process."""
        play = lambda: play_rank(rank, self.socket, self.every * 2, self.began)
        pid = self.workload(name, user, play)
        _, reserved, _ = rank.memory(0)
        used = {"ramp": {"from": reserved + GIB, "per_second": int(rank.growth * 1.04), "max": 79 * GIB}}
        self.busy(self.devices[rank.gpu], pid, used)
        return pid

    def make_empty(self):
        pass

    def make_leak(self):
        for _ in range(4):
            self.device()
        self.rank("slurm/4711", "alice", Rank("llama70b", 0, 0, 58 * GIB, growth=0.052 * GIB))
        self.rank("slurm/4720", "bob", Rank("vit-h-finetune", 0, 1, 41 * GIB))
        self.workload("notebook", "carol")
        self.targets.append({"name": "slurm-jobs", "workload": "slurm/*", "allow_users": ["7001", "7002"],
                             "gpu": {"soft": "10%", "hard": "2%"}, "checkpoint": {"signal": "USR1"}})

    def make_hang(self):
        for _ in range(4):
            self.device()
        self.rank("slurm/4711", "alice", Rank("llama70b", 0, 0, 58 * GIB))
        self.rank("slurm/4720", "bob", Rank("vit-h-finetune", 0, 2, 41 * GIB))

    def make_fragmentation(self):
        for _ in range(2):
            self.device()
        self.rank("slurm/4711", "alice",
                  Rank("llama70b", 0, 0, 47 * GIB, reserved=76.5 * GIB, torn=0.33, retries=0.2))
        self.rank("slurm/4720", "bob", Rank("vit-h-finetune", 0, 1, 41 * GIB))

    def make_eight(self):
        """A node with 8 GPUs and 50 workloads, as it is measured."""
        self.many(50, 8)

    def make_training(self):
        """A node of a training run: 8 GPUs with a rank each."""
        self.many(8, 8)

    def make_large(self):
        """8 GPUs, 300 workloads, 64 ranks."""
        self.many(300, 64)

    def many(self, workloads, ranks):
        for _ in range(8):
            self.device()
        for number in range(workloads):
            user = list(PEOPLE)[number % 3]
            if number < ranks:
                of = number % 8
                self.rank("slurm/%d" % (5000 + number), user, Rank("run-%d" % (number // 8), of, of, 0.5 * GIB, world=8))
            else:
                self.workload("slurm/%d" % (5000 + number), user)

    def make_hostile(self):
        self.device(name="NVIDIA " + HOSTILE[:60])
        run = HOSTILE
        self.rank("slurm/17", "alice", Rank(run, 0, 0, 78.4 * GIB))
        self.workload(HOSTILE.replace(" ", "_") + "/../x", "bob")

    def scenario(self):
        return {"epoch": int(self.began), "devices": self.devices}

    def write_scenario(self):
        path = os.path.join(self.folder, "scenario.json")
        with open(path + ".part", "w") as file:
            json.dump(self.scenario(), file)
        os.replace(path + ".part", path)

    def configuration(self, library, state):
        lines = {
            "web": {"listen_addresses": ["127.0.0.1:0"], "allowed_hosts": ["node17"]},
            "sampling": {"interval": "%dms" % (self.every * 1000)},
            "paths": {"passwd": os.path.join(self.folder, "passwd")},
            "sources": {
                "gpu": {"nvml_library": library},
                "training": {"socket": self.socket},
                "workload": {"gpu_trees": False, "job_trees": False, "containers": False, "kubernetes": False,
                             "slurm": False, "trees": self.trees, "max_workloads": 512},
            },
        }
        if self.name == "empty":
            lines["sources"]["gpu"]["nvml_library"] = "/nonexistent/libnvidia-ml.so.1"
        if state:
            lines["state"] = {"file": state}
        if self.targets:
            lines["protection"] = {"targets": self.targets}
        path = os.path.join(self.folder, "memwarden.yaml")
        with open(path, "w") as file:
            json.dump(lines, file)  # JSON is YAML
        with open(os.path.join(self.folder, "passwd"), "w") as file:
            file.write("root:x:0:0::/root:/bin/sh\n")
            file.writelines("%s:x:%d:%d::/:/bin/sh\n" % (user, uid, uid) for user, uid in PEOPLE.items())
        return path


def main():
    names = [name[len("make_"):] for name in dir(Scene) if name.startswith("make_")]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", choices=names)
    parser.add_argument("--memwarden", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between two samples")
    parser.add_argument("--log", help="file for the log of the daemon")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scene") as folder:
        os.chmod(folder, 0o755)
        scene = Scene(args.scene, folder, args.interval)
        scene.write_scenario()
        config = scene.configuration(os.path.abspath(args.library), None)
        log = os.path.join(folder, "log")
        environment = {**os.environ, "FAKE_NVML_SCENARIO": os.path.join(folder, "scenario.json")}
        with open(args.log or log, "w+") as out:
            daemon = subprocess.Popen([os.path.abspath(args.memwarden), "serve", "--config.file", config], stderr=out,
                                      stdin=subprocess.DEVNULL, env=environment)
            try:
                play(scene, daemon, out.name)
            finally:
                daemon.terminate()
                for pid in scene.children:
                    os.kill(pid, signal.SIGKILL)
                daemon.wait()
                for pid in scene.children:
                    os.waitpid(pid, 0)


def play(scene, daemon, log):
    url = None
    limit = time.time() + 30
    while url is None:
        with open(log) as file:
            found = re.search(r"addresses=\"?([0-9.:]+)", file.read())
        url = found and "http://" + found[1]
        if daemon.poll() is not None or time.time() > limit:
            sys.exit("the daemon did not start:\n" + open(log).read())
        time.sleep(0.05)
    print(json.dumps({"url": url, "pid": daemon.pid}), flush=True)
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 1)
        if daemon.poll() is not None:
            sys.exit("the daemon ended:\n" + open(log).read())
        if not ready:
            continue
        words = sys.stdin.readline().split()
        if not words:
            return
        if words[0] == "hang":
            scene.devices[int(words[1])]["hang"] = ["*"]
            scene.write_scenario()
        elif words[0] == "end":
            os.kill(scene.children[int(words[1])], signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main()
