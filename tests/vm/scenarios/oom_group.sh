# memory.oom.group: the kernel kills the whole group, and each victim counts.
case $arrangement in v2*) ;; *) skip "v1 has no memory.oom.group" && return ;; esac
group vm-whole 67108864
echo 1 >"$GROUPS/vm-whole/memory.oom.group"
start_daemon <<YAML
sampling: {interval: 500ms}
YAML
into vm-whole alice sleep 1000 &
into vm-whole alice "$GROW"
check "both processes are counted" within 30 above \
    'memwarden_cgroup_memory_events_total{cgroup="/vm-whole",event="oom_kill"}' 1
check "the kernel log's count is the same" within 30 above 'memwarden_kernel_oom_kills_total{scope="cgroup"}' 1
