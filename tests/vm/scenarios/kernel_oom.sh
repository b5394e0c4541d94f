# The kernel kills in a group: the victim, its group and the count are told.
group vm-oom 67108864
start_daemon <<YAML
sampling: {interval: 500ms}
YAML
into vm-oom alice "$GROW"
check "the kernel killed it" within 30 above 'memwarden_kernel_oom_kills_total{scope="cgroup"}' 0
check "the victim is named with its group" within 30 has \
    'memwarden_kernel_oom_last_victim_info{scope="cgroup",comm="tail"' 1
of_group() { metrics | grep -q 'last_victim_info{.*cgroup="/vm-oom"'; }
check "the group is right" within 30 of_group
check "the group's own count rose" within 30 above \
    'memwarden_cgroup_memory_events_total{cgroup="/vm-oom",event="oom_kill"}' 0
listed() { memwarden incidents --folder /tmp/state/incidents | grep -q kernel_oom; }
check "there is an incident" within 60 listed
