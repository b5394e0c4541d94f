#!/usr/bin/env python3
"""Prints the line of labels.csv for a recorded trace. Standard library only.

usage: label.py FILE leak|flat|bounded ONSET_S PLATEAU_S WHAT

The limit of a leak is the maximum of the first 70 % of the trace, so that it is reached for certain; that of a healthy
trace is 1.25 times its maximum. ONSET_S and PLATEAU_S are when growth begins and, for bounded growth, ends.
"""
import csv
import os
import statistics
import sys


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    path, label, onset, plateau, what = sys.argv[1:]
    with open(path) as file:
        rows = [(float(row["t_s"]), float(row["bytes"])) for row in csv.DictReader(file)]
    interval = statistics.median(later[0] - earlier[0] for earlier, later in zip(rows, rows[1:]))
    if label == "leak":
        limit = max(value for _, value in rows[: len(rows) * 7 // 10])
        reached = next(at for at, value in rows if value >= limit)
    else:
        limit, reached = 1.25 * max(value for _, value in rows), "inf"
    line = [os.path.basename(path), label, "recorded", f"{interval:.3f}", f"{rows[-1][0]:.1f}", f"{limit:.0f}"]
    csv.writer(sys.stdout, lineterminator="\n").writerow(line + [reached, onset, plateau, what])


if __name__ == "__main__":
    main()
