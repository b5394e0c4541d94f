"""Findings of the daemon that concern this process."""

from __future__ import annotations

import json
import threading
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ._base import JSON, _getpid, _guarded, _hide
from ._messages import _Messages
from ._process import _cgroup_memory


class _Risks(_Messages):
    """The part of a monitor that calls back on findings."""

    _url: str
    _wake: threading.Event
    _risks: List[Tuple[int, Callable[[JSON], Any], bool, Dict[str, int]]]
    _risk_interval: float
    _risk_thread: Optional[threading.Thread]

    @_guarded()
    def on_risk(
        self,
        level: str,
        callback: Callable[[JSON], Any],
        *,
        everything: bool = False,
        interval: float = 5.0,
    ) -> None:
        """Calls back, on a separate thread, when the daemon reports a finding of this level or a more severe one.

        Levels are `info`, `warning` and `critical`. The callback gets the finding (analyzer, subject, state, severity,
        summary, evidence, advice), once each time that it appears or becomes more severe. Findings that cannot be about this
        process are left out unless `everything` is set. The daemon is queried at `url` or `MEMWARDEN_URL`.
        """
        self._risks.append((_LEVELS[level], callback, everything, {}))
        self._risk_interval = max(0.05, interval)
        if self._off:
            return
        if not self._ready:
            self.start()
        self._run_risk_thread()

    def _run_risk_thread(self) -> None:
        if self._risk_thread is None and self._risks:
            arguments = (self._wake,)
            self._risk_thread = threading.Thread(target=self._watch_risks, args=arguments, name="memwarden-risk")
            self._risk_thread.daemon = True
            self._risk_thread.start()

    def _watch_risks(self, wake: threading.Event) -> None:
        import urllib.request  # Imported here: it takes 20 ms, and few programs need it.

        # The daemon is local: no proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            try:
                with opener.open(self._url + "/api/v1/findings", timeout=2.0) as answer:
                    self._dispatch(json.loads(answer.read(16 << 20)).get("findings", []))
            except OSError:
                pass  # No daemon is reachable now.
            except Exception as error:
                _hide(error, "findings")
            if wake.wait(self._risk_interval):
                return

    def _dispatch(self, findings: List[JSON]) -> None:
        own = _own_subjects()
        for level, callback, everything, known in self._risks:
            now: Dict[str, int] = {}
            for finding in findings:
                severity = _LEVELS.get(finding.get("severity", ""), -1)
                subject = finding.get("subject", {})
                if severity < level or not (everything or _concerns(subject, own)):
                    continue
                key = json.dumps([finding.get("analyzer"), subject], sort_keys=True)
                now[key] = max(severity, now.get(key, -1))
                if severity > known.get(key, -1):
                    try:
                        callback(finding)
                    except Exception as error:
                        _hide(error, "callback of on_risk")
            known.clear()
            known.update(now)


_LEVELS = {"info": 0, "warning": 1, "critical": 2}


def _own_subjects() -> Tuple[str, Set[str], str]:
    uuids = {name.get("uuid", "") for name in _Messages._device_names().values()}
    return str(_getpid()), uuids - {""}, _cgroup_memory()[2]


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
