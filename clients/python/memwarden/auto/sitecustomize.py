"""Instruments a program when it imports torch, where MEMWARDEN_AUTO=1 is set.

Python imports this file at its start as `sitecustomize` where this folder is first in PYTHONPATH, and as a module of
memwarden where memwarden.pth is in a site-packages folder. It changes nothing in a program that does not import torch,
and runs the next sitecustomize of the path.
"""

import sys

# Type checkers take this name for typing.TYPE_CHECKING. Annotations are text: nothing is imported for them.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _arm() -> None:
    # `environ` of posix: `os` is already loaded, but its mapping decodes the values.
    import os

    if os.environ.get("MEMWARDEN_AUTO", "0") in ("", "0") or "torch" in sys.modules:
        return
    # Both memwarden.pth and PYTHONPATH may load this file.
    if not any(hasattr(finder, "awaits_torch_for_memwarden") for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


# Frameworks that are not instrumented without a line in the program.
_OTHERS = ("jax", "tensorflow", "mxnet", "paddle", "mindspore")


def _note(name: str) -> None:
    """At the end of a program that imported another framework and has no monitor, says once that nothing was reported."""
    import atexit

    def end() -> None:
        if name in sys.modules and "memwarden._base" not in sys.modules and not hasattr(sys, "memwarden_noted"):
            sys.__dict__["memwarden_noted"] = True
            text = "memwarden: no training figures: %s is not instrumented without a line in the program" % name
            print(text, file=sys.stderr)

    atexit.register(end)


class _Finder:
    """Waits for `import torch`, and is removed afterwards."""

    awaits_torch_for_memwarden = True

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name in _OTHERS:
            _note(name)
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                # Many programs only check whether torch exists: only the import counts.
                _wrap(spec.loader, self)
                return spec
        return None


def _wrap(loader: "Any", finder: "Any") -> None:
    try:
        original = loader.exec_module

        def exec_module(module: "Any") -> None:
            try:
                del loader.exec_module
                sys.meta_path.remove(finder)
            except Exception:
                pass
            original(module)
            _begin()

        # On this loader only: its type and its methods stay unchanged.
        loader.exec_module = exec_module
    except Exception:
        pass


def _begin() -> None:
    """Starts the monitor; an error here must not affect the program."""
    try:
        _package()
        from memwarden._auto import start_auto

        start_auto()
    except Exception:
        pass


def _package() -> None:
    """Imports memwarden: the package that the program would import, otherwise the one that contains this file."""
    try:
        import memwarden

        # A folder with this name and without a package, such as a checkout in the working directory, has no loader.
        if getattr(memwarden, "__file__", None) is not None:
            return
    except ImportError:
        pass
    import os
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    holder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    spec: "Any" = PathFinder.find_spec("memwarden", [holder])
    package = module_from_spec(spec)
    sys.modules["memwarden"] = package
    spec.loader.exec_module(package)


def _chain() -> None:
    """Runs the next sitecustomize that this file hides; each folder once, also where others chain or copies of this do."""
    passed = sys.__dict__.setdefault("memwarden_passed", set())
    passed.add(__file__.rpartition("/")[0])
    path = [entry for entry in sys.path if entry.rstrip("/") not in passed]
    spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    passed.add(spec.origin.rpartition("/")[0])
    module = sys.modules["_frozen_importlib"].module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_arm()
if __name__ == "sitecustomize":
    _chain()
