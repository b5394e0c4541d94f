# A limit above the job's own group rises while the host has memory, and the job is asked for nothing.
group vm-job 134217728
mkdir -p "$GROUPS/vm-job/task"
[ "$LIMIT" != memory.max ] || echo 130000000 >"$GROUPS/vm-job/memory.high"
start_daemon <<YAML
sampling: {interval: 500ms}
protection:
  mode: enforce
  targets:
    - name: job
      cgroup: /vm-job
      allow_users: [alice]
      cgroup_headroom: {soft: 60%, hard: 3%}
      forecast: {max_state: ignore}
      for: 200ms
      raise: {to: 400MiB, by: 256MiB, keep_free: 50MiB}
YAML
cat >/tmp/job.sh <<'JOB'
trap 'echo asked >>/tmp/said' USR1 TERM
(head -c 70m /dev/zero; sleep 1000) | tail -n 1 &
while :; do wait; done
JOB
: >/tmp/said
chmod 666 /tmp/said
into vm-job/task alice sh /tmp/job.sh &
raised() { [ "$(cat "$GROUPS/vm-job/$LIMIT")" = 402653184 ]; }
check "the limit of the group above rises" within 60 raised
case $arrangement in
v2*)
    throttling() { [ "$(cat "$GROUPS/vm-job/memory.high")" = 398434304 ]; }
    check "the limit of throttling rises by as much" throttling
    ;;
esac
over() { grep -q 'from=soft to=warn' /tmp/log; }
check "the shortage is over" within 60 over
check "the job was asked for nothing" [ ! -s /tmp/said ]
