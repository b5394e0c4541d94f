#!/usr/bin/env python3
"""A redis-server whose keys grow or are overwritten, and that saves in the background. Standard library only.

usage: keys.py PORT KEYS_PER_SECOND SAVE_EVERY_SECONDS MOST_KEYS

A background save forks: pages that are written meanwhile exist twice.
"""
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time

port, rate, save, most = (int(word) for word in sys.argv[1:5])
folder = tempfile.mkdtemp()
server = subprocess.Popen(
    ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, "--rdb-key-save-delay", "400"],
    stdout=subprocess.DEVNULL,
)
for _ in range(100):
    try:
        client = socket.create_connection(("127.0.0.1", port))
        break
    except OSError:
        time.sleep(0.1)


def send(*words):
    text = f"*{len(words)}\r\n".encode()
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        text += b"$%d\r\n%s\r\n" % (len(word), word)
    client.sendall(text)
    client.recv(4096)


random.seed(port)
try:
    number, begun, saved = 0, time.monotonic(), time.monotonic()
    while True:
        number += 1
        send("SET", f"key:{number % most}", os.urandom(2000))
        if save and time.monotonic() - saved > save:
            saved = time.monotonic()
            send("BGSAVE")
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
finally:
    server.terminate()
    server.wait()
    shutil.rmtree(folder)
