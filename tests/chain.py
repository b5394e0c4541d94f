#!/usr/bin/env python3
"""How long it takes from an event on a node to the notification, with a real Prometheus and Alertmanager.

    tests/chain.py --memwarden target/debug/memwarden --library target/debug/libfake_nvml.so

Prometheus has the configuration of docs/serving.md and the rules of alerts/, Alertmanager that of
alerts/alertmanager.example.yaml, with a receiver of this script. Bars: a GPU that hangs is notified within 45 s, and memory
that runs full in ten minutes at a constant rate 240 s before it is full; each with owner and runbook, and none twice. Takes
eight minutes at most, needs prometheus and prometheus-alertmanager; standard library only. Exit codes: 0 the bars hold, 1 one
does not, 77 something that it needs is not installed.
"""

import argparse
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
HANG_BAR, EXHAUSTION_BAR = 45, 240
# When the GPU is full, in seconds after the beginning: memory in use, its rate and the limit of the scene `chain`.
GIB = 1 << 30
FULL = (80 * GIB - (600 << 20) - (58 * 1.04 + 1) * GIB) / (0.028 * 1.04 * GIB)


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def read(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return file.read()


class Received:
    """The notifications: when each alert began to fire for the receiver."""

    def __init__(self):
        self.all = []
        received = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                received.all += [(time.time(), alert) for alert in body["alerts"]]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, name, **labels):
        wanted = {"alertname": name, **labels}.items()
        return [(at, alert) for at, alert in self.all if alert["status"] == "firing" and wanted <= alert["labels"].items()]

    def wait(self, limit, name, **labels):
        while time.time() < limit:
            if found := self.of(name, **labels):
                return found[0]
            time.sleep(0.1)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memwarden", required=True)
    parser.add_argument("--library", required=True)
    args = parser.parse_args()
    programs = [shutil.which(name) for name in ("prometheus", "prometheus-alertmanager")]
    if None in programs:
        print("skipped: tests/chain.py needs prometheus and prometheus-alertmanager")
        sys.exit(77)
    received, started = Received(), []
    with tempfile.TemporaryDirectory(prefix="chain") as folder:
        def start(log, *command, **more):
            with open(os.path.join(folder, log), "w") as out:
                started.append(subprocess.Popen(command, stderr=out, cwd=folder, **more))
            return started[-1]
        try:
            began = time.time()
            scene = start("scene", sys.executable, os.path.join(ROOT, "tests/page/scene.py"), "chain", "--interval", "1",
                          "--memwarden", os.path.abspath(args.memwarden), "--library", os.path.abspath(args.library),
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            target = json.loads(scene.stdout.readline())["url"].removeprefix("http://")
            alertmanager = "127.0.0.1:%d" % free_port()
            with open(os.path.join(folder, "alertmanager.yaml"), "w") as file:
                receiver = "webhook_configs: [{url: 'http://127.0.0.1:%d/'}]" % received.server.server_address[1]
                file.write(read("alerts/alertmanager.example.yaml").replace("- name: operators", "- name: operators\n    " + receiver))
            start("alertmanager", programs[1], "--config.file=alertmanager.yaml", "--storage.path=am", "--cluster.listen-address=",
                  "--web.listen-address=" + alertmanager)
            shown = re.search(r"```yaml prometheus\n(.*?)```", read("docs/serving.md"), re.S)[1]
            shown = shown.replace("localhost:10636", target)
            shown = re.sub(r"rule_files: .*", "rule_files: ['%s']" % os.path.join(ROOT, "alerts/*.rules.yaml"), shown)
            with open(os.path.join(folder, "prometheus.yaml"), "w") as file:
                file.write(shown + "alerting: {alertmanagers: [{static_configs: [{targets: ['%s']}]}]}\n" % alertmanager)
            start("prometheus", programs[0], "--config.file=prometheus.yaml", "--storage.tsdb.path=tsdb",
                  "--web.listen-address=127.0.0.1:%d" % free_port())
            failures = measure(received, scene, began)
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait()
    for failure in failures:
        print("FAIL " + failure)
    sys.exit(bool(failures))


def measure(received, scene, began):
    failures = []
    # Two scrapes and evaluations come first; the hang is at no fixed place between two others.
    time.sleep(60 + time.time() % 10)
    hangs = time.time()
    scene.stdin.write("hang 1\n")
    scene.stdin.flush()
    found = received.wait(hangs + 300, "GpuHung", gpu="1")
    took = found and found[0] - hangs
    print("hang to notification: %s s, bar %d s" % (took and "%.1f" % took, HANG_BAR))
    if not found or took > HANG_BAR:
        failures.append("the hang")
    full = began + FULL
    early = received.wait(full, "MemoryExhaustionImminent", gpu="0")
    left = early and full - early[0]
    print("notification to exhaustion: %s s, bar %d s" % (left and "%.0f" % left, EXHAUSTION_BAR))
    if not early or left < EXHAUSTION_BAR:
        failures.append("the exhaustion")
    for alert, user in ((found, "bob"), (early, "alice")):
        if alert and (alert[1]["labels"].get("user") != user or "#" not in alert[1]["annotations"].get("runbook_url", "")):
            failures.append("owner or runbook of %s" % alert[1]["labels"])
    keys = [(alert["fingerprint"], alert["startsAt"]) for _, alert in received.all if alert["status"] == "firing"]
    for at, alert in received.all:
        print("%6.1f s %-8s %s %s" % (at - began, alert["status"], alert["labels"]["alertname"], alert["labels"].get("gpu", "")))
    if len(set(keys)) < len({key[0] for key in keys}):
        failures.append("a notification twice")
    return failures


if __name__ == "__main__":
    main()
