#!/usr/bin/env python3
"""Lets the real Prometheus scrape memwarden while processes churn and a GPU hangs.

Needs a build of the workspace (cargo build --profile dist --workspace), prometheus and promtool.

    tests/soak.py --minutes 10
    tests/soak.py --minutes 1 --build debug     # what tests/run does

Fails where a scrape failed, promtool complains, a series of something gone is left,
the GPUs beside the hung one went stale, the alert on it did not fire (from two minutes on),
or memory grew: by more than a tenth and 1 MiB from the first third to the last, the first
quarter (of a minute at most) left out.
"""

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GPUS = 8
HUNG = 3


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def rss(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def children(pid):
    return [int(word) for task in Path(f"/proc/{pid}/task").glob("*/children") for word in task.read_text().split()]


def write(scenario, pids, hung):
    devices = []
    for gpu in range(GPUS):
        device = {
            "uuid": f"GPU-00000000-0000-0000-0000-{gpu:012d}", "minor": gpu, "pci": f"0000:{gpu + 16:02x}:00.0",
            "utilization": {"sawtooth": {"low": 20, "high": 90, "period_s": 7}},
            "processes": [{"pid": pid, "memory": 2**30, "type": "compute", "sm": 10} for pid in pids[gpu::GPUS]],
        }
        if hung and gpu == HUNG:
            device["hang"] = ["*"]
        devices.append(device)
    draft = scenario.with_suffix(".draft")
    draft.write_text(json.dumps({"devices": devices}))
    draft.replace(scenario)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--build", choices=("dist", "release", "debug"), default="dist")
    arguments = parser.parse_args()
    seconds = arguments.minutes * 60
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / arguments.build
    for name in ("prometheus", "promtool"):
        if not shutil.which(name):
            sys.exit(f"{name} is not installed")
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        scenario = folder / "scenario.json"
        jobs = [subprocess.Popen(["sleep", "86400"]) for _ in range(40)]
        write(scenario, [job.pid for job in jobs], hung=False)
        port, web = free_port(), free_port()
        daemon = subprocess.Popen(
            [built / "memwarden", "serve", "--web.listen-address", f"127.0.0.1:{port}",
             "--nvml-library", built / "libfake_nvml.so", "--set", f"sources.training.socket={folder}/job.sock"],
            env=dict(os.environ, FAKE_NVML_SCENARIO=str(scenario)))
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            f"rule_files: [{ROOT}/alerts/memwarden.rules.yaml, {ROOT}/alerts/memwarden.recording.rules.yaml]\n"
            f"scrape_configs: [{{job_name: memwarden, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n")
        while True:
            try:
                get(f"http://127.0.0.1:{port}/-/ready")
                break
            except OSError:
                if daemon.poll() is not None:
                    sys.exit(f"memwarden ended with {daemon.returncode} before it was ready")
                time.sleep(0.1)
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{web}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ended, sizes, begun = [], [], time.monotonic()
            hung = False
            while (elapsed := time.monotonic() - begun) < seconds:
                for _ in range(10):
                    old = jobs.pop(random.randrange(len(jobs)))
                    old.kill()
                    old.wait()
                    ended.append(old.pid)
                    jobs.append(subprocess.Popen(["sleep", "86400"]))
                now_hung = seconds * 0.4 < elapsed < seconds * 0.8
                if now_hung != hung:
                    hung = now_hung
                    print(f"{elapsed:6.0f} s: GPU {HUNG} {'hangs' if hung else 'answers again'}", flush=True)
                write(scenario, [job.pid for job in jobs], hung)
                if elapsed > min(60, seconds / 4):
                    workers = children(daemon.pid)
                    sizes.append((rss(daemon.pid), sum(map(rss, workers))))
                if hung and elapsed > seconds * 0.4 + 20:
                    text = get(f"http://127.0.0.1:{port}/metrics")
                    ages = {line.split('gpu="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
                            for line in text.splitlines() if line.startswith("memwarden_gpu_sample_age_seconds{")}
                    stale = [gpu for gpu, age in ages.items() if age > 5 and gpu != str(HUNG)]
                    if stale or ages.get(str(HUNG), 0) < 10:
                        wrong.append(f"at {elapsed:.0f} s the sample ages are {ages}")
                time.sleep(1)

            def query(text):
                url = f"http://127.0.0.1:{web}/api/v1/query?" + urllib.parse.urlencode({"query": text})
                return json.loads(get(url))["data"]["result"]

            time.sleep(3)
            scrapes = query("count_over_time(up[1h])")[0]["value"][1]
            failed = int(float(scrapes)) - int(float(query("sum_over_time(up[1h])")[0]["value"][1]))
            print(f"{scrapes} scrapes, {failed} failed; {len(ended)} processes ended")
            if failed:
                wrong.append(f"{failed} scrapes failed")
            alive = {str(job.pid) for job in jobs}
            left = {pid for pid in map(str, ended) if pid not in alive} & {
                series["metric"].get("pid") for series in query('{pid!=""}')}
            if left:
                wrong.append(f"series of processes that are gone: {sorted(left)[:5]}")
            if seconds * 0.4 > 45 and not query('max_over_time(ALERTS{alertname="GpuHung",alertstate="firing"}[1h])'):
                wrong.append("the alert GpuHung never fired")
            check = subprocess.run(["promtool", "check", "metrics"], input=get(f"http://127.0.0.1:{port}/metrics"),
                                   capture_output=True, text=True)
            if check.returncode or check.stderr.strip():
                wrong.append(f"promtool: {check.stderr or check.stdout}")
            third = max(1, len(sizes) // 3)
            for place, name in enumerate(("daemon", "GPU worker")):
                first = max(size[place] for size in sizes[:third])
                last = max(size[place] for size in sizes[-third:])
                print(f"RSS of the {name}: {first:.1f} MiB in the first third, {last:.1f} MiB in the last")
                if last > first * 1.1 + 1:
                    wrong.append(f"the {name} grew from {first:.1f} to {last:.1f} MiB")
        finally:
            for child in [prometheus, daemon, *jobs]:
                child.terminate()
            for child in [prometheus, daemon, *jobs]:
                child.wait(20)
            if daemon.returncode:
                wrong.append(f"memwarden ended with {daemon.returncode}")
    print("\n".join(wrong) or "passed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
