#!/usr/bin/env python3
"""A program with the memory of a training job: steps, evaluations and checkpoints, and a leak if asked for.

usage: trainer.py LEAK_KB_PER_STEP EVALUATION_EVERY EVALUATION_MB CHECKPOINT_EVERY CHECKPOINT_MB

A step takes about 0.1 s. An evaluation allocates for 4 s, a checkpoint copies the kept memory for 2 s.
"""
import random
import sys
import time

leak, eval_every, eval_mb, save_every, save_mb = (int(word) for word in sys.argv[1:6])
random.seed(leak + eval_every)
weights = bytearray(b"w") * (200 << 20)
kept = []


def fill(megabytes):
    block = bytearray(megabytes << 20)
    for place in range(0, len(block), 4096):
        block[place] = 1
    return block


step = 0
while True:
    step += 1
    batch = fill(random.randint(4, 12))
    if leak:
        kept.append(bytearray(b"k") * (leak << 10))
    if eval_every and step % eval_every == 0:
        work = fill(eval_mb + random.randint(0, max(1, eval_mb // 30)))
        time.sleep(4)
        del work
    if save_every and step % save_every == 0:
        copy = [bytes(block) for block in kept] + [fill(save_mb)]
        time.sleep(2)
        del copy
    del batch
    time.sleep(0.1)
