"""`python -m memwarden` prints a line for a shell that instruments the programs started from it."""

import os
import sys


def main() -> int:
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
