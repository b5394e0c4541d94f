"""A file system in user space with one file, which may never be answered for, and a process that hangs on it.

fuse.py serve FOLDER USER mute|silent|answer
    Mounts it for USER and serves it: a read of the file is answered by bytes of "x", or never. If mute, no name is
    answered for either. Every second opening is one that bypasses the page cache.
fuse.py hold FILE USER [WORD]
    Becomes USER, opens FILE twice, and waits for a line. Then one thread reads the file through the page cache. The
    other, "mapper", maps it past the cache: that waits, with the lock of the process's memory taken for writing, until
    the read is answered. Whoever reads the command line waits for that lock.

Both say "ready" once they are, or "cannot: " and the reason, and end with their standard input.
"""

import ctypes
import os
import struct
import sys
import threading
import time

SIZE = 4096
OPCODES = {"LOOKUP": 1, "FORGET": 2, "GETATTR": 3, "OPEN": 14, "READ": 15, "RELEASE": 18, "FLUSH": 25,
           "INIT": 26, "INTERRUPT": 36, "BATCH_FORGET": 42}
NAMES = {number: name for name, number in OPCODES.items()}
FOLDER, FILE = 1, 2

DIRECT_IO = 1

libc = ctypes.CDLL(None, use_errno=True)
opened = 0


def end_with_input():
    def wait():
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def attributes(node):
    mode = 0o040755 if node == FOLDER else 0o100644
    return struct.pack("=6Q10I", node, SIZE, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode, node, body, how):
    """The answer to one request: its bytes, an error's number, or None for none at all."""
    global opened
    name = NAMES.get(opcode)
    if name == "INIT":
        major, minor, ahead, _ = struct.unpack_from("=4I", body)
        return struct.pack("=4I2H2I2H8I", 7, min(minor, 31), ahead, 0, 8, 4, 4096, 1, 1, 0, *[0] * 8)
    if how == "mute":
        return None
    if name == "LOOKUP":
        return struct.pack("=4Q2I", FILE, 0, 3600, 3600, 0, 0) + attributes(FILE)
    if name == "GETATTR":
        return struct.pack("=Q2I", 3600, 0, 0) + attributes(node)
    if name == "OPEN":
        opened += 1
        return struct.pack("=Q2I", opened, 0 if opened % 2 else DIRECT_IO, 0)
    if name == "READ":
        return None if how == "silent" else b"x" * min(SIZE, struct.unpack_from("=2QI", body)[2])
    if name in ("RELEASE", "FLUSH"):
        return b""
    if name in ("FORGET", "BATCH_FORGET", "INTERRUPT"):
        return None
    return 38  # ENOSYS


def serve(folder, user, how):
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        print("cannot: open /dev/fuse:", error.strerror, flush=True)
        return
    options = f"fd={device},rootmode=40000,user_id={user},group_id={user}"
    nosuid_nodev = 6
    if libc.mount(b"attack", os.fsencode(folder), b"fuse", nosuid_nodev, options.encode()) != 0:
        print("cannot: mount:", os.strerror(ctypes.get_errno()), flush=True)
        return
    end_with_input()
    print("ready", flush=True)
    while True:
        try:
            request = os.read(device, 1 << 20)
        except FileNotFoundError:
            continue  # What asked was interrupted.
        _, opcode, unique, node = struct.unpack_from("=2I2Q", request)
        said = answer(opcode, node, request[40:], how)
        if said is None:
            continue
        error, body = (-said, b"") if isinstance(said, int) else (0, said)
        try:
            os.write(device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)
        except FileNotFoundError:
            pass


def hold(path, user):
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    cached, direct = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def map_it():
        set_name, read, private = 15, 1, 2
        libc.prctl(set_name, b"mapper", 0, 0, 0)
        while True:
            place = libc.mmap(None, SIZE, read, private, direct, 0)
            libc.munmap(place, SIZE)
            time.sleep(0.01)

    print("ready", flush=True)
    if not sys.stdin.buffer.readline():
        return
    threading.Thread(target=lambda: os.read(cached, SIZE), daemon=True).start()
    threading.Thread(target=map_it, daemon=True).start()
    end_with_input()
    threading.Event().wait()


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
else:
    hold(sys.argv[2], int(sys.argv[3]))
