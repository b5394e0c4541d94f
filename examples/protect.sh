#!/usr/bin/env bash
# A job that leaks in a memory cgroup, under memwarden's protection; then the same job goes on from its checkpoint.
#
#     sudo examples/protect.sh                    asked to save, asked to end, and begun again
#     sudo examples/protect.sh --off              the same without protection: the kernel kills it
#     sudo examples/protect.sh --observe          what protection would have done
#     sudo examples/protect.sh -- --ignore-term   arguments of the job, examples/leak.py
#
# Nothing but the job is ever in danger: it may not have more than its group, and it runs as the user nobody. What is
# left behind is the folder with the daemon's log and the incident, /run/memwarden-example.
set -euo pipefail

mode=enforce limit_mib=2048 seconds=30 name=memwarden-example
usage() { sed -n '2,/^set/{s/^# \{0,1\}//;/^set/d;p}' "$0"; }
while [ $# -gt 0 ]; do
    case $1 in
    --off) mode=off ;;
    --observe) mode=observe ;;
    --limit-mib) limit_mib=$2 && shift ;;
    # How long the job takes to fill its group.
    --seconds) seconds=$2 && shift ;;
    # Of the group and of the folder, for more than one run at a time.
    --name) name=$2 && shift ;;
    --) shift && break ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done

here=$(cd "$(dirname "$0")" && pwd)
say() { printf '\n== %s\n' "$*"; }
# 77 is what test runners take for "cannot be done here".
cannot() { printf 'protect.sh: %s\n' "$*" >&2 && exit 77; }

[ "$(id -u)" = 0 ] || cannot "making a memory cgroup takes root: sudo $0"
memwarden=${MEMWARDEN:-}
for place in "$here"/../target/{release,quick,debug}/memwarden "$(command -v memwarden || true)"; do
    if [ -z "$memwarden" ] && [ -x "$place" ]; then memwarden=$place; fi
done
[ -n "$memwarden" ] || cannot "memwarden is not built: cargo build --release"

as_nobody() { setpriv --reuid nobody --regid "$(id -g nobody)" --clear-groups "$@"; }
# One in somebody's home cannot be run by others.
python=
for place in $(type -aP python3) /usr/bin/python3; do
    if [ -z "$python" ] && as_nobody "$place" -c '' 2>/dev/null; then python=$place; fi
done
[ -n "$python" ] || cannot "the user nobody can run no python3"

folder=/run/$name
rm -rf "$folder"
mkdir -m 755 "$folder" "$folder/job"
chown nobody "$folder/job"
cp "$here/leak.py" "$folder/"
sed "s/memwarden-example/$name/g" "$here/protect.yaml" >"$folder/protect.yaml"

limit=$((limit_mib << 20))
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    group=/sys/fs/cgroup/$name
    # The root of a container's own view may have processes, and gives no controllers then.
    grep -qw memory /sys/fs/cgroup/cgroup.subtree_control ||
        echo +memory 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control ||
        cannot "the memory controller cannot be had for a group below /sys/fs/cgroup"
    mkdir "$group" 2>/dev/null || cannot "$group cannot be made"
    trap 'rmdir "$group"' EXIT
    echo "$limit" >"$group/memory.max"
    [ ! -f "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
    kernel_kills() { sed -n 's/^oom_kill //p' "$group/memory.events"; }
else
    group=/sys/fs/cgroup/memory/$name
    mkdir "$group" 2>/dev/null || cannot "$group cannot be made"
    trap 'rmdir "$group"' EXIT
    echo "$limit" >"$group/memory.limit_in_bytes"
    [ ! -f "$group/memory.memsw.limit_in_bytes" ] || echo "$limit" >"$group/memory.memsw.limit_in_bytes"
    kernel_kills() { sed -n 's/^oom_kill //p' "$group/memory.oom_control"; }
fi

# Runs the job in the group and says how it ended; arguments are the job's.
job() {
    local begun=$SECONDS code=0
    # It enters the group before it becomes the job, so that every page counts. What the shell itself says of a killed
    # job is said below.
    {
        (
            exec 2>&3
            echo "$BASHPID" >"$group/cgroup.procs"
            exec setpriv --reuid nobody --regid "$(id -g nobody)" --clear-groups \
                "$python" "$folder/leak.py" --checkpoint "$folder/job/checkpoint.json" --seconds 0.25 "$@"
        ) || code=$?
    } 3>&2 2>/dev/null
    case $code in
    0) echo "The job ended by itself after $((SECONDS - begun)) s." ;;
    137) echo "The job was killed after $((SECONDS - begun)) s." ;;
    *) echo "The job ended with code $code after $((SECONDS - begun)) s." ;;
    esac
}

"$memwarden" serve --config.file "$folder/protect.yaml" --set "protection.mode=$mode" 2>"$folder/memwarden.log" &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" || true; rmdir "$group"' EXIT
for _ in $(seq 100); do
    if grep -q addresses= "$folder/memwarden.log"; then break; fi
    kill -0 "$daemon" 2>/dev/null || { cat "$folder/memwarden.log" >&2 && exit 1; }
    sleep 0.1
done

say "a job that fills $limit_mib MiB in $seconds s; protection: $mode"
job --step-mib "$(awk "BEGIN { print $limit_mib / $seconds / 4 }")" --limit-mib $((2 * limit_mib)) "$@"
echo "Kills by the kernel in its group: $(kernel_kills)"

say "what memwarden wrote down"
incidents() { "$memwarden" incidents --folder "$folder/incidents" "$@"; }
# The kernel may kill processes of others meanwhile.
for _ in $(seq 200); do
    id=$(incidents --format json | sed -n "s/.*\"id\": *\"\([^\"]*-\(example\|$name\)\)\".*/\1/p" | head -n 1)
    # Its record is there from its beginning on.
    if [ -n "$id" ] && incidents "$id" --format json | grep -q '"ended_unix_seconds": *[0-9]'; then break; fi
    sleep 0.1
done
if [ -n "$id" ]; then incidents "$id"; else echo "No incident."; fi

say "the same job, begun again"
if [ -s "$folder/job/checkpoint.json" ]; then
    saved=$(sed -n 's/.*"step": \([0-9]*\).*/\1/p' "$folder/job/checkpoint.json")
    job --step-mib 1 --steps $((saved + 10))
else
    echo "There is no checkpoint: it would begin with its first step."
fi
