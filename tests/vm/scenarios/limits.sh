# A group below a group with a smaller limit: what is left is by the smaller one.
group vm-outer 209715200
[ "$arrangement" = v1 ] || [ "$arrangement" = hybrid ] || echo +memory >"$GROUPS/vm-outer/cgroup.subtree_control"
group vm-outer/inner 419430400
into vm-outer/inner alice "$HOLD" 60 &
start_daemon <<YAML
sampling: {interval: 500ms}
YAML
series='memwarden_cgroup_memory_effective_limit_bytes{cgroup="/vm-outer/inner"}'
check "the smaller limit above is the effective one" within 30 has "$series" 209715200
check "its own limit is its own" within 30 has 'memwarden_cgroup_memory_limit_bytes{cgroup="/vm-outer/inner"}' 419430400
check "usage is what the job holds" within 30 above 'memwarden_cgroup_memory_usage_bytes{cgroup="/vm-outer/inner"}' 62914560

below() { left=$(value "$1") && [ -n "$left" ] && [ "${left%.*}" -lt "$2" ]; }
check "headroom is below the limit above" within 30 below 'memwarden_cgroup_memory_headroom_bytes{cgroup="/vm-outer/inner"}' 146800640
