#!/usr/bin/env python3
"""Rate at which `python -m memwarden params` counts NaN, Inf and zeros of a file in the page cache, beside torch.

    PYTHON benches/params.py [--gib 1] [--dtype BF16] [--threads N]

PYTHON has torch and safetensors. Makes a safetensors file, reads it once so that it is cached, then times both, best and median of
five: the scan as the command reports it, the whole command, and isnan, isinf and count_nonzero of torch over the same bytes.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import torch

KINDS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../clients/python")


def make(path, dtype, size):
    """Sixteen tensors of numbers below 1: their high bytes are 0x3f or less."""
    each, width = size // 16, KINDS[dtype].itemsize
    header = {
        "model.layers.%d.mlp.up_proj.weight" % n: {
            "dtype": dtype,
            "shape": [each // width],
            "data_offsets": [n * each, (n + 1) * each],
        }
        for n in range(16)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = bytes(byte & 0x3F for byte in os.urandom(1 << 20))
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(size >> 20):
            file.write(block)


def timed(work):
    start = time.perf_counter()
    done = work()
    return time.perf_counter() - start, done


def ours(path, threads):
    command = [sys.executable, "-m", "memwarden", "params", "--format", "json", path]
    command += ["--threads", str(threads)] if threads else []
    scans, whole = [], []
    for _ in range(5):
        took, out = timed(lambda: subprocess.run(command, check=True, capture_output=True, cwd=CLIENT).stdout)
        report = json.loads(out)["checkpoints"][0]
        values = report["summary"]["values"]
        assert (values["nan_elements"], values["inf_elements"], values["scanned_tensors"]) == (0, 0, 16)
        whole.append(took)
        scans.append(report["scan"]["seconds"])
    return scans, whole


def torchs(path, dtype, size):
    with open(path, "rb") as file:
        file.seek(-size, os.SEEK_END)
        tensor = torch.frombuffer(bytearray(file.read()), dtype=KINDS[dtype])
    counts = (torch.isnan, torch.isinf, torch.count_nonzero)
    return [timed(lambda: [int(count(tensor).sum()) for count in counts])[0] for _ in range(5)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--dtype", choices=KINDS, default="BF16")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    size = int(options.gib * 1024) << 20
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        make(path, options.dtype, size)
        scans, whole = ours(path, options.threads)
        rows = [("memwarden params, scan", scans), ("memwarden params, whole command", whole)]
        rows.append(("torch isnan, isinf, count_nonzero", torchs(path, options.dtype, size)))
    print("%s, %.2f GiB, %d cores, load %.1f" % (options.dtype, size / 2**30, os.cpu_count(), os.getloadavg()[0]))
    for name, times in rows:
        best, median = size / min(times) / 1e9, size / statistics.median(times) / 1e9
        print("%-38s best %6.2f GB/s   median %6.2f GB/s" % (name, best, median))


if __name__ == "__main__":
    main()
