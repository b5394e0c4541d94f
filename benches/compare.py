#!/usr/bin/env python3
"""memwarden beside commonly used exporters, on this machine, in one run.

Needs a build of profile dist (cargo build --profile dist --workspace) and, for the parts that
are installed: prometheus-node-exporter, prometheus-process-exporter (Debian),
nvitop-exporter (PyPI). Missing programs are left out and reported.

    benches/compare.py                      # the whole table, about 20 minutes
    benches/compare.py --seconds 10 --processes 500

Each program is scraped once a second. CPU is what the operating system charged
the program and its children over the run, divided by the number of scrapes.
"""

import argparse
import http.client
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tree(pid):
    """The pid and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                pass
    return found


def usage(pid):
    """CPU seconds of the tree (ended children included), and resident bytes of each of its processes."""
    cpu, resident = 0.0, []
    for member in tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(") ", 1)[1].split()
        except OSError:
            continue
        cpu += sum(map(int, fields[11:15])) / TICK
        resident.append(int(fields[21]) * PAGE)
    return cpu, resident


def scrape(port, path):
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}")
    return time.perf_counter() - begun, len(body)


def measure(name, argv, port, seconds, env=None):
    """Runs one program for `seconds` and returns its row, or nothing if it does not start."""
    log = tempfile.TemporaryFile()
    child = subprocess.Popen(argv, stdout=log, stderr=log, env=env)
    try:
        for attempt in range(100):
            time.sleep(0.1)
            try:
                scrape(port, "/metrics")
                break
            except (OSError, RuntimeError, http.client.HTTPException):
                if child.poll() is not None or attempt == 99:
                    log.seek(0)
                    print(f"{name} did not start: {log.read().decode()[-300:]}", file=sys.stderr)
                    return None
        time.sleep(2)
        took, size, resident = [], 0, [0]
        before, _ = usage(child.pid)
        begun = time.monotonic()
        for second in range(seconds):
            elapsed, size = scrape(port, "/metrics")
            took.append(elapsed * 1000)
            resident = max(resident, usage(child.pid)[1], key=sum)
            time.sleep(max(0.0, begun + second + 1 - time.monotonic()))
        after, _ = usage(child.pid)
        took.sort()
        return {
            "name": name,
            "cpu_ms": (after - before) * 1000 / seconds,
            "p50": statistics.median(took),
            "p99": took[min(len(took) - 1, int(len(took) * 0.99))],
            "rss": [f"{part / 2**20:.1f}" for part in resident],
            "bytes": size,
        }
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()


def table(title, rows):
    print(f"\n{title}\n")
    print("| program | CPU ms per sample | scrape p50 ms | scrape p99 ms | RSS MiB | bytes gzipped |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for row in filter(None, rows):
        print(
            f"| {row['name']} | {row['cpu_ms']:.1f} | {row['p50']:.1f} | {row['p99']:.1f} | "
            f"{' + '.join(row['rss'])} | {row['bytes']} |"
        )
    sys.stdout.flush()


def memwarden(port, *more):
    # A separate socket: the default one may be in use by a daemon.
    socket_path = os.path.join(tempfile.gettempdir(), f"memwarden-compare-{os.getpid()}.sock")
    return [str(ROOT / "target/dist/memwarden"), "serve", "--web.listen-address", f"127.0.0.1:{port}",
            "--set", f"sources.training.socket={socket_path}", *more]


def installed(*names):
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    print(f"{names[0]} is not installed: left out", file=sys.stderr)
    return None


def with_processes(count, seconds):
    sleepers = [subprocess.Popen(["sleep", "86400"]) for _ in range(count)]
    try:
        total = sum(1 for entry in os.listdir("/proc") if entry.isdigit())
        rows = []
        port = free_port()
        rows.append(measure("memwarden", memwarden(port, "--set", "sources.gpu.enabled=false"), port, seconds))
        node = installed("prometheus-node-exporter", "node_exporter")
        if node:
            port = free_port()
            rows.append(measure("node_exporter", [node, f"--web.listen-address=127.0.0.1:{port}"], port, seconds))
            port = free_port()
            argv = [node, f"--web.listen-address=127.0.0.1:{port}", "--collector.processes"]
            rows.append(measure("node_exporter with processes", argv, port, seconds))
        process = installed("prometheus-process-exporter", "process-exporter")
        if process:
            port = free_port()
            with tempfile.NamedTemporaryFile("w", suffix=".yml") as names:
                # The default of Debian's package: every process, by name.
                names.write("process_names:\n  - name: '{{.Comm}}'\n    cmdline: ['.+']\n")
                names.flush()
                argv = [process, f"--web.listen-address=127.0.0.1:{port}", f"--config.path={names.name}"]
                rows.append(measure("process-exporter", argv, port, seconds))
        table(f"{total} processes ({count} of them idle), {seconds} scrapes at 1 Hz", rows)
    finally:
        for sleeper in sleepers:
            sleeper.kill()
        for sleeper in sleepers:
            sleeper.wait()


def with_gpus(seconds):
    library = ROOT / "target/dist/libfake_nvml.so"
    if not library.exists():
        print("the fake NVML is not built: the GPU part is left out", file=sys.stderr)
        return
    # As many processes as on a training node.
    others = sum(1 for entry in os.listdir("/proc") if entry.isdigit())
    sleepers = [subprocess.Popen(["sleep", "86400"]) for _ in range(max(0, 200 - others))]
    try:
        beside_gpus(library, seconds)
    finally:
        for sleeper in sleepers:
            sleeper.kill()
        for sleeper in sleepers:
            sleeper.wait()


def beside_gpus(library, seconds):
    total = sum(1 for entry in os.listdir("/proc") if entry.isdigit())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "libnvidia-ml.so.1").symlink_to(library)
        scenario = ROOT / "tests/fake-nvml/scenarios/healthy-8.json"
        env = dict(os.environ, FAKE_NVML_SCENARIO=str(scenario), LD_LIBRARY_PATH=folder)
        rows = []
        port = free_port()
        rows.append(measure("memwarden (daemon + GPU worker)", memwarden(port, "--nvml-library", str(library)), port, seconds, env))
        nvitop = installed("nvitop-exporter")
        if nvitop:
            port = free_port()
            argv = [nvitop, "--hostname", "127.0.0.1", "--port", str(port), "--interval", "1.0"]
            rows.append(measure("nvitop-exporter", argv, port, seconds, env))
        table(f"8 fake GPUs and {total} processes, {seconds} scrapes at 1 Hz", rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="scrapes of each program (default 60)")
    parser.add_argument("--processes", type=int, nargs="*", default=[100, 500, 2000], help="idle processes beside them")
    parser.add_argument("--no-gpus", action="store_true", help="leave out the fake GPUs")
    args = parser.parse_args()
    for count in args.processes:
        with_processes(count, args.seconds)
    if not args.no_gpus:
        with_gpus(args.seconds)


if __name__ == "__main__":
    main()
