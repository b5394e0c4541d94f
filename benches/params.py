#!/usr/bin/env python3
"""Rate at which `memwarden params` scans a file for NaN and Inf, from the page cache, beside torch.

    benches/params.py [MEMWARDEN] [--gib 1] [--dtype BF16] [--threads N]

Makes a safetensors file (standard library only), reads it once so that it is cached, then times both in one
run, best and median of five. torch gets the bytes for free: they are in its memory before its clock starts.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import tempfile
import time

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}


def make(path, dtype, size):
    """Sixteen tensors of numbers below 1: their high bytes are 0x3f or less."""
    each = size // 16
    header = {
        f"model.layers.{n}.mlp.up_proj.weight": {
            "dtype": dtype,
            "shape": [each // WIDTHS[dtype]],
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


def ours(memwarden, path, threads):
    command = [memwarden, "params", "--format", "json", path]
    if threads:
        command += ["--threads", str(threads)]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        out = subprocess.run(command, check=True, capture_output=True).stdout
        times.append(time.perf_counter() - start)
    values = json.loads(out)["checkpoints"][0]["summary"]["values"]
    assert (values["nan_elements"], values["inf_elements"], values["scanned_tensors"]) == (0, 0, 16)
    return times


def torchs(path, dtype, size):
    import torch

    with open(path, "rb") as file:
        file.seek(-size, os.SEEK_END)
        data = bytearray(file.read())
    kind = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}[dtype]
    tensor = torch.frombuffer(data, dtype=kind)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        found = bool((tensor.isnan().any() | tensor.isinf().any()).item())
        times.append(time.perf_counter() - start)
        assert not found
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("memwarden", nargs="?", default="target/dist/memwarden")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--dtype", choices=WIDTHS, default="BF16")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    size = int(options.gib * 1024) << 20
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        make(path, options.dtype, size)
        rows = [("memwarden params, whole command", ours(options.memwarden, path, options.threads))]
        try:
            rows.append(("torch isnan().any() | isinf().any()", torchs(path, options.dtype, size)))
        except ImportError:
            print("skipped: torch is not importable")
    load = os.getloadavg()[0]
    print(f"{options.dtype}, {size / 2**30:.2f} GiB, {os.cpu_count()} cores, load {load:.1f}")
    for name, times in rows:
        best, median = size / min(times) / 1e9, size / statistics.median(times) / 1e9
        print(f"{name:38} best {best:6.2f} GB/s   median {median:6.2f} GB/s")


if __name__ == "__main__":
    main()
