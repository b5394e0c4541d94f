# Protection from the checkpoint request to SIGTERM, in a group of the job's own.
group vm-job 134217728
start_daemon <<YAML
sampling: {interval: 500ms}
protection:
  mode: enforce
  targets:
    - name: job
      cgroup: /vm-job
      allow_users: [alice]
      cgroup_headroom: {soft: 90%, hard: 5%}
      for: 200ms
      checkpoint: {grace: 1s}
      term_grace: 2s
YAML
cat >/tmp/job.sh <<'JOB'
trap 'echo asked >>/tmp/said' USR1
trap 'echo ended >>/tmp/said; kill $child; exit 0' TERM
(head -c 70m /dev/zero; sleep 1000) | tail -n 1 &
child=$!
while :; do wait; done
JOB
: >/tmp/said
chmod 666 /tmp/said
into vm-job alice sh /tmp/job.sh &
said() { grep -q "$1" /tmp/said; }
check "the job is asked for a checkpoint" within 60 said asked
check "then it is asked to end" within 60 said ended
gone() { [ -z "$(cat "$GROUPS/vm-job/cgroup.procs")" ]; }
check "the whole group is gone" within 60 gone
check "the daemon still serves" within 30 frame
listed() { memwarden incidents --folder /tmp/state/incidents --format json | grep -q '"complete": *true'; }
check "the incident is recorded" within 60 listed
