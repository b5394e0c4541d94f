"""Instruments a program when it imports torch: MEMWARDEN_AUTO=1, and this folder first in PYTHONPATH.

Does nothing to any other program, imports nothing by itself, and hands over to a sitecustomize further on the path.
"""

import sys


def _arm():
    # `environ` of posix: `os` is loaded by now, but its mapping decodes.
    import os

    if os.environ.get("MEMWARDEN_AUTO", "0") in ("", "0") or "torch" in sys.modules:
        return
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Waits for `import torch`, and leaves once it is there."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                # Many only ask whether torch is there: it is the import that counts.
                _wrap(spec.loader, self)
                return spec
        return None


def _wrap(loader, finder):
    try:
        original = loader.exec_module

        def exec_module(module):
            try:
                del loader.exec_module
                sys.meta_path.remove(finder)
            except Exception:
                pass
            original(module)
            _begin()

        # On this one loader only: what it is, and what it can do, stays as it was.
        loader.exec_module = exec_module
    except Exception:
        pass


def _begin():
    """A fault of ours is no fault of the program's."""
    try:
        try:
            import memwarden
        except ImportError:
            import importlib.util
            import os

            path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "memwarden.py")
            spec = importlib.util.spec_from_file_location("memwarden", path)
            memwarden = importlib.util.module_from_spec(spec)
            sys.modules["memwarden"] = memwarden
            spec.loader.exec_module(memwarden)
        memwarden._start_auto()
    except Exception:
        sys.modules.pop("memwarden", None)


def _chain():
    """Runs the sitecustomize that ours stands in front of."""
    here = __file__.rpartition("/")[0]
    path = [entry for entry in sys.path if entry.rstrip("/") != here]
    spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    module = sys.modules["_frozen_importlib"].module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_arm()
_chain()
