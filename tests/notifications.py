#!/usr/bin/env python3
"""An hour under a real Prometheus and Alertmanager: does each planted event give exactly one notification?

A node of eight fake GPUs (tests/fake-nvml) runs five jobs of three users. One job leaks, one GPU hangs, one is lost, one has
an XID that needs an operator, one an XID of its job, processes of a cgroup are killed in a storm, a run stalls, one loses
a rank, and at last the daemon stops. Prometheus and Alertmanager have the configuration that docs/serving.md and
alerts/alertmanager.example.yaml show.

    tests/notifications.py                  # an hour
    tests/notifications.py --minutes 20     # the same events, closer to each other

Needs a build of the workspace (cargo build --workspace), prometheus and prometheus-alertmanager, and root for the users of
the jobs. Prints each notification with its delay after its event; fails where an expected one is absent, comes twice,
lacks its owner or its runbook, where one comes that nobody planted, where a GPU that hangs is notified after more than 45 s,
or, in a trial of at least half an hour, where memory is full less than 240 s after MemoryExhaustionImminent.
"""

import argparse
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/page"))
from scene import GIB, PEOPLE, Rank, Scene  # noqa: E402

CGROUP = "/slurm.slice/job_90"
# What each event leads to, and which labels name its owner; the first minute of the trial is without events.
EXPECTED = {
    "leak": {"MemoryExhaustionImminent", "MemoryLeak"},
    "hang": {"GpuHung"},
    "loss": {"GpuLost"},
    "xid": {"GpuXidCritical"},
    "job xid": set(),
    "storm": {"CgroupOomKill"},
    "stall": {"RunStalled"},
    "rank": {"RunRanksMissing"},
    "stop": {"MemwardenDown"},
}
# What may come before: of a resource that fills slowly, that it will be full within the hour.
BEFORE = {"leak": {"MemoryExhaustionLikely"}}
HANG_BAR, EXHAUSTION_BAR = 45, 240
OWNED = {"leak", "hang", "loss", "stall", "rank"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Steady(Rank):
    """A rank that steps until the file `stop` is there, and whose memory grows after the file `grow` is there."""

    def __init__(self, folder, *arguments, **more):
        super().__init__(*arguments, **more)
        self.folder, self.since = folder, None

    def memory(self, t):
        if self.since is None and os.path.exists(os.path.join(self.folder, "grow-" + self.run)):
            self.since = t
        return super().memory(t - self.since if self.since is not None else 0.0)

    def messages(self, step, t):
        while os.path.exists(os.path.join(self.folder, "stop-" + self.run)):
            time.sleep(0.5)
        yield from super().messages(step, t)


class Trial(Scene):
    def __init__(self, folder, seconds):
        # The GPU of the leak is full a little before the daemon stops.
        self.seconds_to_full = 0.7 * seconds
        self.growth = 47 * GIB / self.seconds_to_full
        super().__init__("trial", folder, 1.0)

    def make_trial(self):
        for _ in range(8):
            self.device()
        self.pids = {}
        for gpu, (workload, user, run, rank, world) in enumerate([
                ("slurm/100", "alice", "leaks", 0, 1), ("slurm/101", "bob", "hangs", 0, 1),
                ("slurm/102", "carol", "lost", 0, 1), ("slurm/103", "alice", "ecc", 0, 1),
                ("slurm/104", "bob", "stalls", 0, 2), ("slurm/105", "bob", "stalls", 1, 2),
                ("slurm/106", "carol", "loses", 0, 2), ("slurm/107", "carol", "loses", 1, 2)]):
            one = Steady(self.folder, run, rank, gpu, 30 * GIB, world=world, growth=self.growth if gpu == 0 else 0.0)
            self.pids[workload] = self.rank(workload, user, one)
            self.devices[gpu]["processes"][0]["memory"] = int(31.2 * GIB)

    def grow(self):
        begun = time.time() - self.began
        Path(self.folder, "grow-leaks").touch()
        per_second = int(1.04 * self.growth)
        self.devices[0]["processes"][0]["memory"] = {"ramp": {
            "from": int(31.2 * GIB - begun * per_second), "per_second": per_second, "max": int(79.2 * GIB)}}
        self.write_scenario()

    def configuration(self, library, state):
        path = super().configuration(library, state)
        lines = json.loads(Path(path).read_text())
        lines["paths"].update(cgroup=os.path.join(self.folder, "cgroup"), kmsg=os.path.join(self.folder, "kmsg"))
        lines["sampling"]["interval"] = "1s"
        Path(path).write_text(json.dumps(lines))
        Path(self.folder, "kmsg").write_text("")
        self.kills = 0
        self.cgroup()
        return path

    def cgroup(self):
        path = Path(self.folder, "cgroup")
        path.mkdir(exist_ok=True)
        Path(path, "cgroup.controllers").write_text("cpu memory pids\n")
        for part in CGROUP.strip("/").split("/"):
            path = path / part
            path.mkdir(exist_ok=True)
            limit = 1 << 30 if part.startswith("job") else "max"
            for name, text in {"memory.current": 500 << 20, "memory.max": limit, "cgroup.procs": "",
                               "memory.stat": "anon 300000000\nfile 150000000\nshmem 200\ninactive_file 1000",
                               "memory.events": f"low 0\nhigh 0\nmax {self.kills}\noom {self.kills}\noom_kill {self.kills}"}.items():
                draft = path / (name + ".part")
                draft.write_text(f"{text}\n")
                draft.replace(path / name)

    def kill(self):
        """One OOM kill in the cgroup, as the kernel records it."""
        self.kills += 1
        now = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        pid = 400_000 + self.kills
        with open(os.path.join(self.folder, "kmsg"), "a") as log:
            log.write(f"6,{2 * self.kills},{now},-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
                      f"oom_memcg={CGROUP},task_memcg={CGROUP},task=worker-{self.kills},pid={pid},uid=7002\n")
            log.write(f"3,{2 * self.kills + 1},{now},-;Memory cgroup out of memory: Killed process {pid} (worker-{self.kills}) "
                      "total-vm:2097152kB, anon-rss:1048576kB, file-rss:0kB, shmem-rss:0kB, UID:7002 pgtables:2100kB oom_score_adj:0\n")
        self.cgroup()


class Receiver(http.server.BaseHTTPRequestHandler):
    """What Alertmanager sends."""

    came = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for alert in body["alerts"]:
            self.came.append((time.time(), body, alert))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def shown(path, language, after):
    """The first code block of a language after a text of a document."""
    text = (ROOT / path).read_text()
    return re.search(r"```%s\n(.*?)```" % language, text[text.index(after):], re.DOTALL)[1]


def engines(folder, port, receiver):
    """A Prometheus and an Alertmanager with the documented configurations."""
    web, alerts = free_port(), free_port()
    example = (ROOT / "alerts/alertmanager.example.yaml").read_text()
    example = example.replace("[memwarden.tmpl]", f"[{ROOT / 'alerts/memwarden.tmpl'}]")
    webhook = f"    webhook_configs:\n      - {{url: 'http://127.0.0.1:{receiver}/', send_resolved: true, max_alerts: 0}}\n"
    example = re.sub(r"    email_configs:\n(?:      .*\n)+", webhook, example)
    Path(folder, "alertmanager.yml").write_text(example)
    text = shown("docs/serving.md", "yaml prometheus", "## Prometheus")
    text = re.sub(r"targets: \[.*?\]", f"targets: ['127.0.0.1:{port}']", text)
    text = re.sub(r"rule_files: .*", f"rule_files: [{ROOT}/alerts/memwarden.rules.yaml, "
                  f"{ROOT}/alerts/memwarden.recording.rules.yaml]", text)
    text += f"\nalerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alerts}']}}]}}]}}\n"
    Path(folder, "prometheus.yml").write_text(text)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": open(os.path.join(folder, "engines.log"), "w")}
    yield subprocess.Popen(["prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", "--cluster.listen-address=",
                            f"--storage.path={folder}/alerts", f"--web.listen-address=127.0.0.1:{alerts}"], **quiet)
    yield subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                            f"--web.listen-address=127.0.0.1:{web}"], **quiet)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--build", default="debug", help="the folder of the build below target/")
    arguments = parser.parse_args()
    if os.getuid():
        sys.exit("run it as root: the jobs run as other users")
    for name in ("prometheus", "prometheus-alertmanager"):
        if not shutil.which(name):
            sys.exit(f"{name} is not installed")
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / arguments.build
    library = built / "libfake_nvml.so"
    if not library.exists():
        sys.exit(f"{library} does not exist: cargo build --workspace")
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="notifications") as folder:
        os.chmod(folder, 0o755)
        trial = Trial(folder, arguments.minutes * 60)
        trial.write_scenario()
        config = trial.configuration(str(library), os.path.join(folder, "state"))
        port = free_port()
        children = []
        try:
            with open(os.path.join(folder, "log"), "w") as log:
                daemon = subprocess.Popen(
                    [built / "memwarden", "serve", "--config.file", config, "--web.listen-address", f"127.0.0.1:{port}"],
                    stderr=log, env={**os.environ, "FAKE_NVML_SCENARIO": os.path.join(folder, "scenario.json")})
            children = [daemon, *engines(folder, port, receiver.server_port)]
            wrong = play(trial, daemon, arguments.minutes * 60)
        finally:
            for child in children:
                child.send_signal(signal.SIGCONT)
                child.terminate()
            for child in children:
                child.wait(30)
            for pid in trial.children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            shutil.copy(os.path.join(folder, "log"), "/tmp/notifications.log") if os.environ.get("KEEP_LOG") else None
    print("\n".join(wrong) or "passed")
    sys.exit(bool(wrong))


def events(trial, daemon):
    """Each event, its place in the time of the trial from 0 to 1, and what makes it."""
    def device(gpu, **what):
        trial.devices[gpu].update(what)
        trial.write_scenario()

    def end(workload):
        os.kill(trial.pids[workload], signal.SIGKILL)
        os.waitpid(trial.pids[workload], 0)
        trial.children.remove(trial.pids[workload])
        device(7, processes=[], utilization=0)

    return [
        ("leak", 0.15, trial.grow),
        ("hang", 0.20, lambda: device(1, hang=["*"])),
        ("loss", 0.30, lambda: device(2, state="lost")),
        ("xid", 0.40, lambda: device(3, xids=[{"xid": 48, "at_s": 0}])),
        ("job xid", 0.45, lambda: device(4, xids=[{"xid": 31, "at_s": 0}])),
        ("storm", 0.50, None),
        ("stall", 0.60, lambda: Path(trial.folder, "stop-stalls").touch()),
        ("rank", 0.70, lambda: end("slurm/107")),
        ("stop", 0.90, lambda: daemon.send_signal(signal.SIGSTOP)),
    ]


def play(trial, daemon, seconds):
    begun, at, wrong, told = time.time(), {}, [], 0
    plan = events(trial, daemon)
    while (elapsed := time.time() - begun) < seconds:
        for name, place, make in plan:
            if name not in at and elapsed >= place * seconds:
                at[name] = time.time()
                print(f"{elapsed:6.0f} s  planted: {name}", flush=True)
                if make:
                    make()
        if "storm" in at and time.time() - at["storm"] < seconds / 10:
            trial.kill()
        for came, body, alert in Receiver.came[told:]:
            told += 1
            labels = {key: value for key, value in alert["labels"].items() if key not in ("alertname", "job", "instance")}
            print(f"{came - begun:6.0f} s  {alert['status']:8} {alert['labels']['alertname']} {labels}", flush=True)
        if daemon.poll() is not None:
            return [f"the daemon ended with {daemon.returncode}"]
        time.sleep(1)
    return judge(at, trial.seconds_to_full)


def judge(at, seconds_to_full):
    """What is missing, too much or incomplete."""
    wrong, first = [], {}
    for came, body, alert in Receiver.came:
        if alert["status"] != "firing":
            continue
        name, labels = alert["labels"]["alertname"], alert["labels"]
        is_of_host = labels.get("resource") == "host" or name.startswith("HostMemory")
        if is_of_host or (name == "HostOomKill" and not labels.get("workload")):
            continue  # the memory of this machine, which the trial does not control
        key = (name, tuple(sorted(labels.items())))
        if key not in first:
            first[key] = came
        if not alert["annotations"].get("runbook_url"):
            wrong.append(f"{name} has no runbook_url")
    names = {}
    for (name, labels), came in first.items():
        names.setdefault(name, []).append((came, dict(labels)))
    planted = set().union(*EXPECTED.values(), *BEFORE.values())
    for name in sorted(names.keys() - planted):
        wrong.append(f"nobody planted {name}: {[labels for _, labels in names[name]]}")
    for event, alerts in EXPECTED.items():
        for name in sorted(alerts):
            found = names.get(name, [])
            if len(found) != 1:
                wrong.append(f"{event}: {name} came {len(found)} times: {[labels for _, labels in found]}")
            for came, labels in found[:1]:
                delay = came - at[event]
                print(f"{event}: {name} {delay:.0f} s after the event")
                if name == "GpuHung" and delay > HANG_BAR:
                    wrong.append(f"{name} came {delay:.0f} s after the event; the bar is {HANG_BAR} s")
                left = seconds_to_full - delay
                if name == "MemoryExhaustionImminent" and left < EXHAUSTION_BAR and seconds_to_full > 1200:
                    wrong.append(f"{name} came {left:.0f} s before memory is full; the bar is {EXHAUSTION_BAR} s")
                missing = [label for label in ("user", "run") if event in OWNED and not labels.get(label)]
                if missing:
                    wrong.append(f"{name} lacks {missing}: {labels}")
    return sorted(set(wrong))


if __name__ == "__main__":
    main()
