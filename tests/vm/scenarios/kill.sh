# Protection at the hard level: SIGKILL for a group that ignores SIGTERM, and nobody else.
group vm-job 134217728
group vm-other 134217728
into vm-other alice sleep 1000 &
other=$!
start_daemon <<YAML
sampling: {interval: 500ms}
protection:
  mode: enforce
  targets:
    - name: job
      cgroup: /vm-job
      allow_users: [alice]
      cgroup_headroom: {soft: 90%, hard: 60%}
YAML
cat >/tmp/job.sh <<'JOB'
trap '' TERM
(head -c 70m /dev/zero; sleep 1000) | tail -n 1
JOB
into vm-job alice sh /tmp/job.sh &
gone() { [ -z "$(cat "$GROUPS/vm-job/cgroup.procs")" ] && above 'memwarden_protection_incidents_started_total{target="job"}' 0; }
check "it is killed" within 60 gone
check "the process of the other group lives" kill -0 "$other"
if [ "$arrangement" = v2 ] && [ -f "$GROUPS/vm-other/cgroup.kill" ]; then
    check "by cgroup.kill" grep -q 'kill_group' /tmp/state/audit.jsonl
fi
