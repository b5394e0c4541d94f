#!/bin/sh
# TaskProlog of Slurm (slurm.conf: TaskProlog=): instruments Python jobs without a change to them.
#
# Runs as the user of the job, before each task; `export NAME=value` on standard output sets a variable of the task. A task
# prolog that fails ends the task, so this one ends with success whatever happens.

# Whatever happens, also a mistake in the file below.
trap 'exit 0' EXIT

# A user who sets MEMWARDEN_AUTO, to 0 or to steps, keeps that value.
[ -n "${MEMWARDEN_AUTO:-}" ] || echo "export MEMWARDEN_AUTO=1"

# The folder with sitecustomize.py of the Python client; not needed where the client is installed in each environment.
[ -r /etc/default/memwarden-slurm ] && . /etc/default/memwarden-slurm
auto=${MEMWARDEN_PYTHON_AUTO:-/opt/memwarden/python/memwarden/auto}
if [ -f "$auto/sitecustomize.py" ]; then
    echo "export PYTHONPATH=$auto${PYTHONPATH:+:$PYTHONPATH}"
fi
exit 0
