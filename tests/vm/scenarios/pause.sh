# The job is frozen while the hook alone tries, and runs again afterwards.
group vm-job 134217728
mkdir -p /tmp/hooks
cat >/tmp/hooks/hook <<'HOOK'
#!/bin/sh
cat /sys/fs/cgroup/vm-job/cgroup.events /sys/fs/cgroup/freezer/vm-job/freezer.state >/tmp/hooks/seen 2>/dev/null
HOOK
chmod 755 /tmp/hooks /tmp/hooks/hook
start_daemon <<YAML
sampling: {interval: 500ms}
protection:
  mode: enforce
  targets:
    - name: job
      cgroup: /vm-job
      allow_users: [alice]
      max_state: soft
      cgroup_headroom: {soft: 60%, hard: ""}
      for: 200ms
      freeze: true
      hook: {program: /tmp/hooks/hook, wait: 2s}
YAML
into vm-job alice "$HOLD" 70 &
case $arrangement in
v2*)
    seen() { grep -q 'frozen 1' /tmp/hooks/seen; }
    thawed() { grep -q 'frozen 0' "$GROUPS/vm-job/cgroup.events"; }
    check "the group is frozen while the hook runs" within 60 seen
    check "it runs again" within 60 thawed
    ;;
*)
    ran() { [ -f /tmp/hooks/seen ]; }
    check "the hook runs" within 60 ran
    ;;
esac
