"""What a program of this folder did, counted by itself: it is printed as one line of JSON at the end."""

import json
import os
import sys

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "."
# A worker of Ray has other arguments.
LAST = int(sys.argv[2]) if sys.argv[2:] and sys.argv[2].isdigit() else 8
# Without an end, until somebody asks it to save.
ENDLESS = LAST >= 10**6

figures = {"steps": 0, "tokens": 0, "samples": 0, "loss": None, "learning_rate": None, "checkpoints": 0}
figures.update(forward=0, backward=0, skipped=0, rank=int(os.environ.get("RANK", 0)), world=int(os.environ.get("WORLD_SIZE", 1)))
losses = {}


def batch(tokens, samples):
    """A forward and a backward pass on these tokens, without padding."""
    figures["tokens"] += int(tokens)
    figures["samples"] += int(samples)
    figures["forward"] += 1
    figures["backward"] += 1


def step(n, loss, learning_rate=None):
    figures.update(steps=int(n), loss=float(loss), learning_rate=learning_rate)
    losses[int(n)] = float(loss)
    if ENDLESS:
        import time

        time.sleep(0.02)


def end():
    # One write, so that the lines of ranks do not mix.
    line = "TRUTH %s\n" % json.dumps(dict(figures, losses=losses))
    sys.stdout.flush()
    os.write(1, line.encode())
