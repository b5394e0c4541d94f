#!/usr/bin/env python3
"""A PostgreSQL server with sessions. Standard library only; run as root, the server runs as the user postgres.

usage: postgres.py PREPARED_PER_MINUTE SORT_EVERY_S TRANSACTIONS_PER_SECOND

One session prepares statements and keeps them, as a connection pool without a limit does. Another sorts a table in memory
every SORT_EVERY_S seconds. pgbench runs TRANSACTIONS_PER_SECOND transactions, which fill the shared buffers at first.
"""
import atexit
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time

prepared, sort_every, rate = (int(word) for word in sys.argv[1:4])
programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
folder = tempfile.mkdtemp(prefix="benchmark-postgres-")
shutil.chown(folder, "postgres")
atexit.register(shutil.rmtree, folder, True)
as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
data = os.path.join(folder, "data")


def start(*words, **others):
    return subprocess.Popen(as_postgres + list(words), cwd=folder, **others)


start(f"{programs}/initdb", "--pgdata", data, "--auth", "trust", stdout=subprocess.DEVNULL).wait()
start(f"{programs}/postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "shared_buffers=256MB")
while start(f"{programs}/pg_isready", "-q", "-h", folder).wait() != 0:
    time.sleep(0.2)
start(f"{programs}/pgbench", "-q", "-i", "-s", "30", "-h", folder, "postgres", stderr=subprocess.DEVNULL).wait()
if rate:
    start(f"{programs}/pgbench", "-n", "-c", "4", "-R", str(rate), "-T", "1000000", "-h", folder, "postgres")


def session():
    return start("psql", "-q", "-h", folder, "postgres", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def send(target, text):
    target.stdin.write(text + "\n")
    target.stdin.flush()


keeper, sorter = session(), session()
send(sorter, "SET work_mem = '200MB'; SET max_parallel_workers_per_gather = 0;")
begun = time.monotonic()
number, next_sort = 0, sort_every
while True:
    time.sleep(1)
    spent = time.monotonic() - begun
    while number < spent * prepared / 60:
        number += 1
        columns = ", ".join(f"sum(abalance + {column}) FILTER (WHERE bid = {column})" for column in range(30))
        send(keeper, f"PREPARE kept{number} AS SELECT {columns} FROM pgbench_accounts WHERE aid = $1;")
        send(keeper, f"EXECUTE kept{number}(1);")
    if sort_every and spent >= next_sort:
        next_sort += sort_every
        send(sorter, "SELECT count(*) FROM (SELECT aid FROM pgbench_accounts WHERE aid < 700000 ORDER BY abalance, bid) s;")
