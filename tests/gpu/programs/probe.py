"""Says whether a part can run: prints {"event": "probe"}, with "skip" and the reason where it cannot.

    python3 probe.py PART cuda|cpu
"""

import json
import sys


def reason(part, device):
    if sys.version_info < (3, 8):
        return "Python %d.%d is older than 3.8" % sys.version_info[:2]
    if part == "pynvml":
        try:
            import pynvml  # noqa: F401
        except Exception as error:
            return "pynvml is not installed (%s)" % error
        return None
    try:
        import torch
    except Exception as error:
        return "PyTorch is not installed (%s)" % error
    if device == "cpu":
        return None if part in ("leak", "protection") else "this part needs a GPU"
    if not torch.cuda.is_available():
        return "PyTorch %s has no CUDA device" % torch.__version__
    return None


print(json.dumps({"event": "probe", "skip": reason(sys.argv[1], sys.argv[2])}), flush=True)
