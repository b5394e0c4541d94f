#!/usr/bin/env python3
"""Time and peak memory of `memwarden replay` of a W&B run file of 10 MB.

    cargo build --release && python3 benches/run_file.py [--memwarden PATH] [--megabytes N] [--runs N] [FILE...]

The whole process is measured: start, read, analyze all series, print the report. The bar is 0.2 s and 50 MB. Without a FILE, one
is made up: at each training step a history record of 30 values and a line of the console, and every ten steps the system metrics
of a node with 8 GPUs, as the client writes them (wandb_internal.proto, in LevelDB's log format).
"""

import argparse
import os
import pathlib
import statistics
import struct
import sys
import tempfile
import time
import zlib

BLOCK = 32 << 10
BEGIN = 1_750_000_000


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(tag: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(tag << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(tag << 3 | 2) + varint(len(data)) + data


def item(key: str, value: object) -> bytes:
    return field(1, key) + field(16, str(value))


def history(step: int) -> bytes:
    values = {f"train/metric_{place}": 1 / (step + place + 1) for place in range(27)}
    values |= {"train/global_step": step, "_step": step, "_timestamp": BEGIN + step + 0.5}
    return field(2, b"".join(field(1, item(key, value)) for key, value in values.items()))


def console(step: int) -> bytes:
    bar = f"\r {step % 100}%|####      | {step}/100000 [00:10<01:00,  1.00it/s]"
    line = f"{{'loss': {1 / (step + 1):.4f}, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}}\n"
    return field(13, field(1, 0) + field(3, bar + line))


def stats(step: int) -> bytes:
    values: dict[str, object] = {"cpu": 10.5, "memory_percent": 20.5, "proc.memory.rssMB": 2000 + step % 7}
    values["proc.memory.availableMB"] = 1_500_000 - step % 11
    values |= {f"cpu.{core}.cpu_percent": 12.5 for core in range(48)}
    for gpu in range(8):
        used = 60_000_000_000 + step % 13 * 1_000_000
        values |= {f"gpu.{gpu}.memoryAllocatedBytes": used, f"gpu.{gpu}.memoryAllocated": used / 855_208_099.84}
        values |= {f"gpu.{gpu}.{name}": 50.5 for name in ("gpu", "temp", "powerWatts", "powerPercent", "smClock")}
    items = b"".join(field(3, item(key, value)) for key, value in values.items())
    return field(7, field(1, 0) + field(2, field(1, BEGIN + step)) + items)


def made_up(size: int) -> bytes:
    out = bytearray(b":W&B\xe1\xbe\x00")

    def append(record: bytes) -> None:
        first = True
        while True:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out.extend(bytes(room))
                continue
            part, record = record[: room - 7], record[room - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            out.extend(struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part)
            first = False
            if not record:
                return

    step = 0
    while len(out) < size:
        append(history(step))
        append(console(step))
        if step % 10 == 0:
            append(stats(step))
        step += 1
    append(field(18, field(1, 0)))
    return bytes(out)


def measured(memwarden: str, file: str) -> tuple[float, int]:
    """Seconds, and the largest resident set in bytes."""
    begun = time.perf_counter()
    pid = os.posix_spawn(memwarden, [memwarden, "replay", file, "--output", os.devnull], os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"memwarden replay {file} failed")
    return time.perf_counter() - begun, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--memwarden", default="target/release/memwarden")
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--runs", type=int, default=11)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = options.files
        if not files:
            files = [os.path.join(folder, "run-made.wandb")]
            # In a process of its own: memwarden's peak includes what this interpreter has before it executes memwarden.
            if (child := os.fork()) == 0:
                pathlib.Path(files[0]).write_bytes(made_up(options.megabytes * 1_000_000))
                os._exit(0)
            os.waitpid(child, 0)
        print("| file | MB | seconds, median | seconds, range | peak MB |\n| --- | ---: | ---: | ---: | ---: |")
        for file in files:
            runs = [measured(options.memwarden, file) for _ in range(options.runs)]
            seconds = sorted(run[0] for run in runs)
            peak = max(run[1] for run in runs) / 1e6
            size = os.path.getsize(file) / 1e6
            print(
                f"| {os.path.basename(file)} | {size:.1f} | {statistics.median(seconds):.3f} "
                f"| {seconds[0]:.3f} to {seconds[-1]:.3f} | {peak:.0f} |"
            )


if __name__ == "__main__":
    main()
