"""`python -m memwarden` prints a line for a shell that instruments the programs started from it; `params` reads checkpoints."""

import os
import sys


def main() -> int:
    if sys.argv[1:2] == ["params"]:
        from .tools.params import main as params

        return params(sys.argv[2:])
    if sys.argv[1:]:
        print("memwarden: unknown command %s; there is params" % sys.argv[1], file=sys.stderr)
        return 2
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "auto")
    if not os.path.exists(os.path.join(folder, "sitecustomize.py")):
        print("memwarden: sitecustomize.py is not installed", file=sys.stderr)
        return 1
    if ":" in folder:
        print("memwarden: %s has a colon in its name, so PYTHONPATH cannot name it" % folder, file=sys.stderr)
        return 1
    quoted = "'%s'" % folder.replace("'", "'\\''")
    print('export MEMWARDEN_AUTO=1 PYTHONPATH=%s"${PYTHONPATH:+:$PYTHONPATH}"' % quoted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
