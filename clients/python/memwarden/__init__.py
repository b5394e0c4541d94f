"""Reports the steps, phases, memory and checkpoints of a training process to the memwarden daemon.

    import memwarden

    monitor = memwarden.Monitor(run="llama-sft")
    for n, batch in enumerate(loader, 1):
        with monitor.phase("forward"):
            loss = model(**batch).loss
        ...
        monitor.step(n, tokens=batch["input_ids"].numel())
    monitor.stop()

Standard library only, Python 3.8 and later, Linux. Nothing here raises into training, waits for the daemon or
synchronizes with a GPU unless its documentation says so. What is not known is None, never 0. Bytes are integers, times
are seconds. The protocol is clients/PROTOCOL.md. `import memwarden` imports nothing else: each name is imported from
its module when it is first used (PEP 562), a callback together with its framework.
"""

# Type checkers take this name for typing.TYPE_CHECKING. The import of typing takes longer than that of this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._huggingface import HuggingFaceCallback
    from ._jax import JaxCallback
    from ._keras import KerasCallback
    from ._lightning import LightningCallback
    from ._models import (
        analyze_model,
        compare_configurations,
        compare_text,
        describe_model,
        estimate_training_memory,
    )
    from ._monitor import Monitor
    from ._process import launcher_rank

__version__ = "0.1.0"
__all__ = [
    "HuggingFaceCallback",
    "JaxCallback",
    "KerasCallback",
    "LightningCallback",
    "Monitor",
    "analyze_model",
    "compare_configurations",
    "compare_text",
    "describe_model",
    "estimate_training_memory",
    "launcher_rank",
]

_MODULES = {
    "HuggingFaceCallback": "_huggingface",
    "JaxCallback": "_jax",
    "KerasCallback": "_keras",
    "LightningCallback": "_lightning",
    "Monitor": "_monitor",
    "analyze_model": "_models",
    "compare_configurations": "_models",
    "compare_text": "_models",
    "describe_model": "_models",
    "estimate_training_memory": "_models",
    "launcher_rank": "_process",
}

# A type checker sees only the names above, so that it reports a misspelt one.
if not TYPE_CHECKING:

    def __getattr__(name):
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError("module %r has no attribute %r" % (__name__, name))
        from importlib import import_module

        value = globals()[name] = getattr(import_module("." + module, __name__), name)
        return value

    def __dir__():
        return sorted(set(globals()) | set(__all__))
