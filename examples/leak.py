"""A job that leaks: every step keeps a little more memory. Standard library only.

    python examples/leak.py --step-mib 8 --seconds 0.1 --limit-mib 512 --checkpoint /tmp/leak.json

USR1 asks for a checkpoint, TERM for one and the end; begun again with the same file it goes on with its next step,
and without what had leaked. `--ignore-term` makes it deaf to TERM, `--save-seconds` slow at saving.
"""

import argparse
import json
import os
import signal
import sys
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--step-mib", type=float, default=8.0, help="what a step leaks")
    parser.add_argument("--seconds", type=float, default=0.1, help="how long a step takes")
    parser.add_argument("--limit-mib", type=float, default=1024.0, help="ends there with exit code 3")
    parser.add_argument("--checkpoint", help="file to save to, and to go on from")
    parser.add_argument("--save-seconds", type=float, default=0.0, help="how long saving takes")
    parser.add_argument("--ignore-term", action="store_true")
    return parser.parse_args()


def save(path, step, seconds):
    """As a whole or not at all."""
    if not path:
        return
    time.sleep(seconds)
    part = path + ".part"
    with open(part, "w") as file:
        json.dump({"step": step, "saved_unix_seconds": time.time(), "pid": os.getpid()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    print("step %d: saved %s" % (step, path), flush=True)


def load(path):
    if not path or not os.path.exists(path):
        return 0
    with open(path) as file:
        step = json.load(file)["step"]
    print("step %d: goes on from %s" % (step, path), flush=True)
    return step


def main():
    args = arguments()
    asked = {"save": False, "stop": False}
    signal.signal(signal.SIGUSR1, lambda *_: asked.update(save=True))
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: asked.update(save=True, stop=True))
    step = load(args.checkpoint)
    print("step %d: pid %d" % (step, os.getpid()), flush=True)
    leaked, held = [], 0.0
    while step < args.steps and not asked["stop"]:
        # Bytes that are written, so that they are resident.
        leaked.append(bytearray(os.urandom(4096)) * int(args.step_mib * 256))
        held += args.step_mib
        step += 1
        time.sleep(args.seconds)
        if asked["save"]:
            asked["save"] = False
            save(args.checkpoint, step, args.save_seconds)
        if held >= args.limit_mib:
            print("step %d: %.0f MiB leaked" % (step, held), flush=True)
            return 3
    if asked["save"]:
        save(args.checkpoint, step, args.save_seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
