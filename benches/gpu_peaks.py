#!/usr/bin/env python3
"""How many short peaks of GPU memory are seen, and the CPU that it takes.

    cargo build --workspace && benches/gpu_peaks.py

Runs the GPU worker on 8 fake GPUs, with and without reads between the samples. Each GPU has one peak of 100 ms in each
period, at a phase that looks random, and each peak has its own height, so that it is known which ones were seen. The CPU
time is that of all threads of the worker, without that of a real driver. Standard library only.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPUS = 8
LOW, HIGH, STEP = 1_000_000_000, 60_000_000_000, 1_000_000


def cpu_seconds(pid):
    """CPU time of all threads (the first figure of schedstat, in nanoseconds)."""
    folder = pathlib.Path("/proc/%d/task" % pid)
    return sum(int((task / "schedstat").read_text().split()[0]) for task in folder.iterdir()) / 1e9


def scenario(length, period):
    def device(seed):
        peaks = {"low": LOW, "high": HIGH, "step": STEP, "length_s": length, "period_s": period, "seed": seed}
        return {"memory": {"used": {"peaks": peaks}}}

    return {"devices": [device(seed) for seed in range(GPUS)]}


def run(args, flags, period):
    """The share of the peaks that were seen, their number, the share of a core, and the reads per GPU and second."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "scenario.json"
        file.write_text(json.dumps({"epoch": time.time(), **scenario(args.length, period)}))
        command = [args.memwarden, "gpu-worker", "--interval-ms", "1000", "--library", args.library, *flags]
        env = dict(os.environ, FAKE_NVML_SCENARIO=str(file))
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        seen, reads, first, begun = set(), 0, None, None
        try:
            for line in worker.stdout:
                sample = json.loads(line).get("sample")
                now = time.monotonic()
                if begun is None:
                    # The first two seconds are the start.
                    first = now if first is None else first
                    if now - first >= 2:
                        begun, cpu = now, cpu_seconds(worker.pid)
                    continue
                if sample:
                    values = dict(sample["values"])
                    polled = sample.get("polled", {"used": 0, "reads": 0})
                    reads += polled["reads"]
                    seen.update((sample["gpu"], used) for used in (values["memory_used"], polled["used"]) if used >= HIGH)
                if now - begun >= args.seconds:
                    break
            took = time.monotonic() - begun
            cpu = cpu_seconds(worker.pid) - cpu
        finally:
            worker.stdin.close()
            worker.wait()
    peaks = GPUS * took / period
    return len(seen) / peaks, peaks, cpu / took, reads / GPUS / took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memwarden", default=ROOT / "target/debug/memwarden")
    parser.add_argument("--library", default=ROOT / "target/debug/libfake_nvml.so")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--periods", type=float, nargs="*", default=[1, 5], help="seconds between two peaks of a GPU")
    parser.add_argument("--length", type=float, default=0.1, help="length of a peak in seconds")
    args = parser.parse_args()
    print("| peaks | reads between samples | reads per GPU and second | seen | CPU of the worker |")
    print("| --- | --- | ---: | ---: | ---: |")
    for period in args.periods:
        for flags in ([], ["--no-memory-peaks"]):
            share, peaks, cpu, reads = run(args, flags, period)
            name = "one each %g s, %d in all" % (period, round(peaks))
            on = "no" if flags else "yes"
            print("| %s | %s | %.1f | %.0f %% | %.2f %% of a core |" % (name, on, reads, 100 * share, 100 * cpu), flush=True)


if __name__ == "__main__":
    main()
