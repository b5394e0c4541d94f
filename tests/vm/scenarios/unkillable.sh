# A victim in state D does not die; the daemon says so, and goes on.
mkdir -p /tmp/disk
mke2fs /dev/nvme1n1 >/dev/null 2>&1 && mount -t ext4 /dev/nvme1n1 /tmp/disk || { skip "no file system can be made" && return; }
chmod 777 /tmp/disk
group vm-job 134217728
start_daemon <<YAML
sampling: {interval: 500ms}
protection:
  mode: enforce
  targets:
    - name: job
      cgroup: /vm-job
      allow_users: [alice]
      cgroup_headroom: {soft: 61%, hard: 60%}
      verify_timeout: 1s
YAML
cat >/tmp/job.sh <<JOB
(echo x >/tmp/disk/x) &
# Until the daemon has seen the group.
sleep 5
exec $GROW
JOB
fsfreeze --freeze /tmp/disk
into vm-job alice sh /tmp/job.sh &
writes() { grep -l "^State:.D" /proc/[0-9]*/status >/dev/null 2>&1; }
check "a process is in state D" within 30 writes
check "the target is overdue" within 90 has 'memwarden_protection_overdue{target="job"' 1
check "frames go on" within 30 frame
fsfreeze --unfreeze /tmp/disk
ended() { [ -z "$(cat "$GROUPS/vm-job/cgroup.procs")" ]; }
check "it ends with the frozen file system" within 60 ended
umount /tmp/disk
