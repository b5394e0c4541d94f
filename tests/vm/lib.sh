# What the scenarios share. A scenario prints one line for each thing it found: ok, FAIL or skip.

PORT=10636
case $arrangement in
v2*) GROUPS=/sys/fs/cgroup LIMIT=memory.max ;;
*) GROUPS=/sys/fs/cgroup/memory LIMIT=memory.limit_in_bytes ;;
esac

ok() { echo "RESULT ok $scenario: $*"; }
bad() {
    echo "RESULT FAIL $scenario: $*"
    failed=1
}
skip() { echo "RESULT skip $scenario: $*"; }
# check WHAT COMMAND...: whether the command succeeds.
check() {
    what=$1
    shift
    if "$@"; then ok "$what"; else bad "$what"; fi
}

# start_daemon ARGUMENT...: with the configuration that standard input gives.
start_daemon() {
    cat >/tmp/memwarden.yaml
    mkdir -p /tmp/state
    memwarden serve --config.file /tmp/memwarden.yaml --set state.file=/tmp/state/state.json \
        --set sources.training.socket=/run/jobs.sock "$@" >/tmp/log 2>&1 &
    daemon=$!
    within 60 frame || bad "the daemon serves"
}
frame() { metrics >/tmp/page && [ -s /tmp/page ]; }
# busybox's wget, linked statically, cannot look up any host.
metrics() {
    printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' |
        nc -w 5 127.0.0.1 "$PORT" 2>/dev/null | sed '1,/^\r$/d'
}
# value SERIES: the value of the series that this text begins.
value() { metrics | grep -F "$1" | grep -v '^#' | head -n 1 | sed 's/.* //'; }
# has SERIES VALUE
has() { [ "$(value "$1")" = "$2" ]; }
# above SERIES VALUE: whether it is there and larger.
above() {
    now=$(value "$1")
    [ -n "$now" ] && awk "BEGIN { exit !($now > $2) }"
}
# absent SERIES: whether a page was read, and has no such series.
absent() { frame && ! grep -F "$1" /tmp/page | grep -qv '^#'; }
# within SECONDS COMMAND...: whether the command succeeds in that time.
within() {
    end=$(($(cut -d. -f1 /proc/uptime) + $1))
    shift
    until "$@"; do
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$end" ] || return 1
        sleep 0.3
    done
}

# group NAME LIMIT: a memory group; an empty limit is none.
group() {
    mkdir -p "$GROUPS/$1"
    [ -z "$2" ] || echo "$2" >"$GROUPS/$1/$LIMIT"
    [ ! -f "$GROUPS/$1/memory.swap.max" ] || echo 0 >"$GROUPS/$1/memory.swap.max"
}
# into NAME USER COMMAND...: runs a command in the group, as the user.
into() {
    to=$1 user=$2
    shift 2
    sh -c 'echo 0 >"$0" && exec su -s /bin/sh "$1" -c "$2"' "$GROUPS/$to/cgroup.procs" "$user" "exec $*"
}
# Holds that many MiB in one process of the group, until it is ended.
HOLD='sh -c "(head -c \$0m /dev/zero; sleep 1000) | tail -n 1"'
# Takes memory until it is ended: about 100 MiB a second here.
GROW='tail -n 1 /dev/zero'

finish() {
    [ -z "$failed" ] || tail -n 40 /tmp/log
    for pid in $(cat "$GROUPS"/vm-*/cgroup.procs "$GROUPS"/vm-*/*/cgroup.procs 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
    [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; }
    sleep 0.5
    rmdir "$GROUPS"/vm-*/* "$GROUPS"/vm-* 2>/dev/null
    rm -rf /tmp/state /tmp/log /tmp/page
}
