"""Findings of the daemon that concern this process."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any, Callable, Dict, List, Set, Tuple

from ._base import JSON, _getpid, _hiding, _loading, _say
from ._identity import _device_names
from ._process import _cgroup_memory
from ._session import _Session, _Worker

_LEVELS = {"info": 0, "warning": 1, "critical": 2}


class _Risks:
    """Queries the daemon at `url`, and calls back on its findings."""

    def __init__(self, session: _Session, url: str) -> None:
        self._session, self._url = session, url
        self._callbacks: List[Tuple[int, Callable[[JSON], Any], bool, Dict[str, int]]] = []
        self._worker = _Worker(session, "memwarden-risk", self._watch)

    def add(self, level: str, callback: Callable[[JSON], Any], everything: bool, interval: float) -> None:
        """Adds a callback, with the arguments of `Monitor.on_risk`, and starts the thread."""
        if level not in _LEVELS:
            return _say("on_risk: there is no level %r; levels: %s" % (level, ", ".join(_LEVELS)))
        self._callbacks.append((_LEVELS[level], callback, everything, {}))
        self._interval = max(0.05, interval)
        if not self._session.off:
            if not self._session.ready:
                self._session.start()
            self._worker.start()

    def _watch(self, ends: threading.Event) -> None:
        with _loading:
            import urllib.request  # Imported here: it takes 20 ms, and few programs need it.

        # The daemon is local: no proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            # Without a daemon that is reachable now, there is an OSError.
            with _hiding("findings"), contextlib.suppress(OSError):
                with opener.open(self._url + "/api/v1/findings", timeout=2.0) as answer:
                    self.dispatch(json.loads(answer.read(16 << 20)).get("findings", []))
            if ends.wait(self._interval):
                return

    def dispatch(self, findings: List[JSON]) -> None:
        uuids = {device.get("uuid", "") for device in _device_names().values()}
        own = str(_getpid()), uuids - {""}, _cgroup_memory()[2]
        for level, callback, everything, known in self._callbacks:
            now: Dict[str, int] = {}
            for finding in findings:
                severity = _LEVELS.get(finding.get("severity", ""), -1)
                subject = finding.get("subject", {})
                if severity < level or not (everything or _concerns(subject, own)):
                    continue
                key = json.dumps([finding.get("analyzer"), subject], sort_keys=True)
                now[key] = max(severity, now.get(key, -1))
                if severity > known.get(key, -1):
                    with _hiding("callback of on_risk"):
                        callback(finding)
            known.clear()
            known.update(now)


def _concerns(subject: JSON, own: Tuple[str, Set[str], str]) -> bool:
    """Whether a finding may be about this process, including findings that cannot be attributed."""
    pid, uuids, cgroup = own
    if subject.get("pid") and subject["pid"] != pid:
        return False
    if subject.get("uuid") and uuids and subject["uuid"] not in uuids:
        return False
    theirs = subject.get("cgroup")
    # In a container, the own path appears as the root.
    if theirs and cgroup not in ("", "/"):
        return cgroup == theirs or cgroup.startswith(theirs.rstrip("/") + "/")
    return True
