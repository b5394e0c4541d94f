"""What the messages `hello` and `params` say of a process: its rank, its devices, its run and its model."""

from __future__ import annotations

import sys
from typing import Any, Callable, List, Optional

from . import __version__
from ._base import JSON, PROTOCOL, _encode, _hiding, _short
from ._process import _accelerator, _device_properties, _devices, _torch, launcher_rank
from ._session import _Session


class _Identity:
    """The description of this process. `facts` are the values that the user gives, None where they are unknown."""

    def __init__(self, session: _Session, facts: JSON) -> None:
        self._session, self.facts = session, facts
        self.params: Optional[JSON] = None
        self._model: Optional[JSON] = None
        # Whether this process saves on request.
        self.saving: Callable[[], JSON] = dict
        self.reset()

    def reset(self) -> None:
        self.sent: Optional[JSON] = None

    def greeting(self) -> List[bytes]:
        """The first lines of a connection."""
        self.sent = self.hello()
        return [_encode(message) for message in (self.sent, self.params) if message is not None]

    def hello(self) -> JSON:
        rank, local_rank, world = launcher_rank()
        torch = _torch()
        with _hiding("rank"):
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                rank, world = distributed.get_rank(), distributed.get_world_size()
        hello: JSON = {"type": "hello", "v": PROTOCOL, "client": "memwarden.py " + __version__}
        hello.update(rank=rank, local_rank=local_rank, world=world, verdicts=True)
        if torch is not None:
            hello["framework"] = "torch"
            hello["framework_version"] = str(getattr(torch, "__version__", ""))
        else:
            name = next((each for each in ("jax", "tensorflow") if each in sys.modules), None)
            if name is not None:
                hello.update(framework=name, framework_version=str(getattr(sys.modules[name], "__version__", "")))
        for key, value in self.facts.items():
            if value is not None:
                hello[key] = _short(value) if isinstance(value, str) else value
        hello["world"] = max(hello["world"], hello["rank"] + 1)
        devices = _device_names()
        if devices:
            hello["devices"] = devices
        if self._model:
            hello["model"] = self._model
        hello.update(self.saving())
        return hello

    def update(self) -> None:
        """Sends `hello` again if it has changed: the process group was created, a model was built."""
        if self._session.link.connected and self.hello() != self.sent:
            self.sent = self.hello()
            self._session.send(self.sent)

    def watch(self) -> None:
        """In the thread of the monitor: sends `hello` again once it has changed whether this process saves on request."""
        said = self.sent or {}
        if any(said.get(key) != value for key, value in self.saving().items()):
            self.update()

    def describe(self, model: Any, facts: JSON) -> None:
        unknown = set(facts) - set(self.facts)
        if unknown:
            raise TypeError("no such fact: %s" % ", ".join(sorted(unknown)))
        self.facts.update(facts)
        if model is not None:
            from ._models import describe_model  # Imported here: few programs need it.

            self._model = describe_model(model)
        self.update()

    def shape(self, shape: JSON) -> None:
        """The shape of the model, under the protocol's names."""
        self._model = shape
        self.update()

    def analyze(self, model: Any, optimizer: Any, check_values: bool) -> JSON:
        from ._models import analyze_model, describe_model

        found = analyze_model(model, optimizer, check_values)
        self._model = describe_model(model)
        keys = ("parameters", "trainable", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "by_dtype")
        self.params = {"type": "params", **{key: found[key] for key in (*keys, "by_group", "lora") if found[key] is not None}}
        if check_values:
            self.params.update(nan=len(found["nan"]), inf=len(found["inf"]))
        if self._session.ready:
            self.update()
            self._session.send(self.params)
        return found


def _device_names() -> JSON:
    named: JSON = {}
    module = _accelerator()
    for index in _devices():
        with _hiding("devices"):
            _, uuid, name = _device_properties(module, int(index))
            known = {"uuid": uuid, "name": name}
            named[index] = {key: value for key, value in known.items() if value is not None}
    return named
