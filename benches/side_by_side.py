#!/usr/bin/env python3
"""CPU of several builds of the daemon, side by side in one run: ms per sample, with one gzip scrape a second.

    cargo build --release && cargo build --profile dist
    benches/side_by_side.py dist=target/dist/memwarden release=target/release/memwarden

All daemons sample this machine at the same time, without a GPU, so that other load changes all of them alike. Give a
build twice, under two names, to see by how much equal programs differ. Standard library only.
"""

import argparse
import contextlib
import gzip
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import urllib.request


def cpu_ms(pid):
    """CPU time of all threads, in ms (the first figure of schedstat is in nanoseconds)."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def scrape(port):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read()


def samples(port):
    """Samples so far; absent while the daemon does not answer."""
    try:
        found = re.search(rb"^memwarden_frames_total (\S+)$", gzip.decompress(scrape(port)), re.MULTILINE)
    except OSError:
        return None
    return found and float(found.group(1))


@contextlib.contextmanager
def started(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="NAME=PATH", help="a daemon, and its name in the output")
    parser.add_argument("--seconds", type=int, default=150, help="scrapes of each daemon (default 150)")
    parser.add_argument("--processes", type=int, default=200, help="idle processes beside them (default 200)")
    parser.add_argument("--warm-up", type=int, default=20, help="samples that are not counted (default 20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for _ in range(options.processes):
            stack.enter_context(started(["sleep", "86400"]))
        daemons = {}
        for build in options.builds:
            name, path = build.split("=", 1)
            port = free_port()
            command = [path, "serve", "--web.listen-address", f"127.0.0.1:{port}", "--set", "sources.gpu.enabled=false",
                       "--set", f"sources.training.socket={folder}/{name}.sock"]
            daemons[name] = (stack.enter_context(started(command)), port)
        while min(samples(port) or 0 for _, port in daemons.values()) < options.warm_up:
            time.sleep(1)
        before = {name: (cpu_ms(process.pid), samples(port)) for name, (process, port) in daemons.items()}
        for _ in range(options.seconds):
            begin = time.monotonic()
            for _, port in daemons.values():
                scrape(port)
            time.sleep(max(0, 1 - (time.monotonic() - begin)))
        for name, (process, port) in daemons.items():
            cpu, count = cpu_ms(process.pid) - before[name][0], samples(port) - before[name][1]
            print(f"{name}: {cpu / count:.2f} ms per sample, {count:.0f} samples")


main()
