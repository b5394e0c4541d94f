# memory.high: a job that is throttled is seen before it reaches a limit.
case $arrangement in v2*) ;; *) skip "v1 has no memory.high" && return ;; esac
group vm-high ""
echo 33554432 >"$GROUPS/vm-high/memory.high"
start_daemon <<YAML
sampling: {interval: 500ms}
YAML
into vm-high alice "$HOLD" 60 &
check "the threshold is told" within 30 has 'memwarden_cgroup_memory_high_bytes{cgroup="/vm-high"}' 33554432
check "throttling is counted" within 30 above \
    'memwarden_cgroup_memory_events_total{cgroup="/vm-high",event="high"}' 0
if [ "$arrangement" = v2 ]; then
    check "the time it waits is counted" within 30 above \
        'memwarden_cgroup_memory_stalled_seconds_total{cgroup="/vm-high",kind="some"}' 0
fi
