#!/usr/bin/env python3
"""Time and peak memory of reading an allocator snapshot, beside CPython's unpickler.

    cargo build --profile dist && python3 benches/snapshot.py [FILE...] [--memwarden PATH] [--runs N]

memwarden is measured as a whole process: start, read, analyze, print the report.
CPython is measured without its start, and only builds the objects: its unpickler
(the C one) with find_class refused, so that it executes nothing either. Peak
memory is each process's own resident set at its highest, the program included:
memwarden's with the JSON report built too; the interpreter's share is given. Without a FILE, a snapshot of about 3 MB is made up.
"""

import argparse
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time

UNPICKLE = """
import io, json, pickle, sys, time

class Restricted(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} refused")

def peak():
    with open("/proc/self/status") as status:
        return int(next(line.split()[1] for line in status if line.startswith("VmHWM")))

before = peak()
begun = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    value = Restricted(io.BytesIO(file.read())).load()
took = time.perf_counter() - begun
print(json.dumps([took, peak(), before]))
"""


def made_up(path):
    """20,000 events with shared stacks of 36 frames, and 1,000 segments."""
    frames = [{"name": f"function_{n}", "filename": f"/job/file_{n % 40}.py", "line": n} for n in range(600)]
    stacks = [[frames[(n * 7 + depth * 13) % 600] for depth in range(36)] for n in range(6000)]
    base = 0x7F0000000000
    events, segments = [], []
    for n in range(10_000):
        address = base + (n % 997) * (20 << 20)
        for action in ("alloc", "free_completed"):
            events.append({"action": action, "addr": address, "size": (n % 900 + 1) * 20_000, "stream": 0,
                           "time_us": 1_700_000_000_000_000 + n, "frames": stacks[n * 3 % 6000]})
    for n in range(1000):
        address, half = base + n * (20 << 20), 10 << 20
        blocks = [{"address": address, "size": half, "requested_size": half - 99, "state": "active_allocated",
                   "frames": stacks[n]},
                  {"address": address + half, "size": half, "requested_size": 0, "state": "inactive", "frames": []}]
        segments.append({"device": 0, "address": address, "total_size": 2 * half, "allocated_size": half,
                         "active_size": half, "requested_size": half - 99, "stream": 0, "segment_type": "large",
                         "segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks, "frames": []})
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [events]}, protocol=4))


def peak_of_memwarden(binary, file):
    """The highest resident set, in KiB, read while the whole report waits in a pipe that is not read.

    wait4 would return that of this interpreter, which the child is before exec and which is higher.
    """
    process = subprocess.Popen([binary, "snapshot", file, "--format", "json"], stdout=subprocess.PIPE)
    with process.stdout as report:
        report.read(1)
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        report.read()
    process.wait()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def memwarden_time(binary, file):
    begun = time.perf_counter()
    process = subprocess.Popen([binary, "snapshot", file], stdout=subprocess.DEVNULL)
    if process.wait() != 0:
        sys.exit(f"{binary} snapshot {file} failed")
    return time.perf_counter() - begun


def pickle_time(file):
    return json.loads(subprocess.run([sys.executable, "-c", UNPICKLE, file], check=True, capture_output=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--memwarden", default="target/dist/memwarden")
    parser.add_argument("--runs", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not args.files:
            path = pathlib.Path(folder) / "made-up.pickle"
            made_up(path)
            args.files = [str(path)]
        print("| file | MB | memwarden ms (min, median) | CPython ms (min, median) | ratio | "
              "memwarden RSS | x file | CPython RSS (interpreter) |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for file in args.files:
            # In turns, so that other load of the machine affects both.
            runs = [(memwarden_time(args.memwarden, file), pickle_time(file)) for _ in range(args.runs)]
            our = sorted(run[0] * 1e3 for run in runs)
            their = sorted(run[1][0] * 1e3 for run in runs)
            middle = len(runs) // 2
            size = os.path.getsize(file)
            rss = peak_of_memwarden(args.memwarden, file) * 1024
            print(f"| {pathlib.Path(file).name} | {size / 1e6:.2f} | {our[0]:.1f}, {our[middle]:.1f} | "
                  f"{their[0]:.1f}, {their[middle]:.1f} | {their[middle] / our[middle]:.1f} | "
                  f"{rss / 1e6:.1f} MB | {rss / size:.1f} | {max(run[1][1] for run in runs) / 1e3:.1f} MB "
                  f"({max(run[1][2] for run in runs) / 1e3:.1f}) |")


if __name__ == "__main__":
    main()
