"""What the Python programs share: the daemon's metrics, and the result."""

import json
import os
import sys
import time
import urllib.request

MIB = 1 << 20
URL = os.environ.get("MEMWARDEN_URL", "")
FOLDER = os.environ.get("GPU_RUN_FOLDER", ".")
PACE = float(os.environ.get("GPU_RUN_PACE", "1"))


def get(path):
    with urllib.request.urlopen(URL + path, timeout=10) as answer:
        return answer.read().decode()


def labels_of(text):
    """The labels of `name="value",name="value"`; values have no escaped quotes in what is read here."""
    labels = {}
    for pair in text.split('",'):
        name, _, value = pair.partition('="')
        labels[name] = value.rstrip('"')
    return labels


def metrics():
    """The newest frame: a list of name, labels and value."""
    found = []
    for line in get("/metrics").splitlines():
        if line.startswith("#") or not line:
            continue
        series, _, value = line.rpartition(" ")
        name, _, labels = series.partition("{")
        found.append((name, labels_of(labels.rstrip("}")) if labels else {}, float(value)))
    return found


def value(name, page=None, **wanted):
    """The first value of a metric with these labels, or None."""
    for found, labels, number in page if page is not None else metrics():
        if found == name and all(labels.get(label) == text for label, text in wanted.items()):
            return number
    return None


def wait(check, seconds):
    """What `check` gives once it gives something, or None when the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.2)
    return None


class Result:
    """Collects what was judged, and prints it as the program's last line."""

    def __init__(self):
        self.checks = []
        self.figures = {}

    def check(self, what, good, detail):
        self.checks.append([what, bool(good), detail])

    def not_judged(self, what, why):
        self.checks.append([what, None, why])

    def near(self, what, said, other, tolerance):
        """Two figures that must not differ by more than the tolerance."""
        if said is None or other is None:
            return self.check(what, False, "memwarden %s; the other %s" % (said, other))
        self.check(what, abs(said - other) <= tolerance, "%s; %s; within %s" % (said, other, tolerance))

    def between(self, what, before, figure, after, tolerance):
        """A figure between the daemon's ones before and after it, widened by the tolerance."""
        if before is None or after is None:
            return self.check(what, False, "memwarden exposes no value; the other %s" % figure)
        low, high = min(before, after) - tolerance, max(before, after) + tolerance
        self.check(what, low <= figure <= high, "%s and %s; %s; within %s" % (before, after, figure, tolerance))

    def end(self, note):
        print(json.dumps({"event": "result", "note": note, "checks": self.checks, "figures": self.figures}), flush=True)


def run(scenarios):
    """Runs the scenario that the command line names; an exception is a failed check and not a missing result."""
    result = Result()
    try:
        note = scenarios[sys.argv[1]](result, sys.argv[2])
    except Exception as error:
        result.check("the program", False, "%s: %s" % (type(error).__name__, error))
        note = "the program failed"
    result.end(note or "")
