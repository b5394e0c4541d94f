#!/usr/bin/env python3
"""What the live page costs: CPU of the daemon with nobody watching and with ten tabs, and the size of the page.

    cargo build --profile dist --workspace && benches/page.py

A node with 8 fake GPUs and 50 workloads (tests/page/scene.py). A tab does what the page's script does: it asks every 2 s
with the entity tag that it has, over a connection that stays open. Standard library only.
"""

import argparse
import http.client
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_mib(pid, key):
    with open("/proc/%d/status" % pid) as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(key))


def tab(address, end, sizes):
    connection, tag = http.client.HTTPConnection(address, timeout=30), None
    while not end.wait(2):
        connection.request("GET", "/", headers={"Accept-Encoding": "gzip", **({"If-None-Match": tag} if tag else {})})
        answer = connection.getresponse()
        sizes.append(len(answer.read()))
        tag = answer.headers["ETag"] or tag


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="dist", help="profile of the program that is measured")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tabs", type=int, default=10)
    args = parser.parse_args()
    built = ROOT / "target" / args.build
    command = [sys.executable, ROOT / "tests/page/scene.py", "eight", "--interval", "1", "--memwarden", built / "memwarden",
               "--library", built / "deps/libfake_nvml.so"]
    scene = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        told = json.loads(scene.stdout.readline())
        pid, address = told["pid"], told["url"].removeprefix("http://")
        time.sleep(10)
        for tabs in (0, args.tabs):
            end, sizes = threading.Event(), []
            threads = [threading.Thread(target=tab, args=(address, end, sizes)) for _ in range(tabs)]
            for thread in threads:
                thread.start()
            time.sleep(3)
            begun, used = time.monotonic(), cpu_seconds(pid)
            time.sleep(args.seconds)
            share = (cpu_seconds(pid) - used) / (time.monotonic() - begun)
            print("%2d tabs: %.2f %% of a core, RSS %.1f MiB (anonymous %.1f), %d answers, largest %d bytes" % (
                tabs, share * 100, memory_mib(pid, "VmRSS"), memory_mib(pid, "RssAnon"), len(sizes), max(sizes, default=0)))
            end.set()
            for thread in threads:
                thread.join()
    finally:
        scene.stdin.close()
        scene.wait()


if __name__ == "__main__":
    main()
