# Swap on a real device: its size, its use, and what a process has there.
# The larger disk: kernels number them in any order.
disk=/dev/$(grep -H . /sys/block/nvme*/size | sort -t: -k2 -n | tail -n 1 | cut -d/ -f4)
mkswap "$disk" >/dev/null && swapon "$disk" || { skip "there is no swap device" && return; }
start_daemon <<YAML
sampling: {interval: 500ms}
YAML
check "its size is told" within 30 above memwarden_host_swap_total_bytes 260000000
group vm-swap 33554432
for file in memory.swap.max memory.memsw.limit_in_bytes; do
    [ ! -f "$GROUPS/vm-swap/$file" ] || echo 268435456 >"$GROUPS/vm-swap/$file"
done
into vm-swap alice "$HOLD" 60 &
check "its use is told" within 60 above memwarden_host_swap_used_bytes 10000000
case $arrangement in
v2*) check "the group's part is told" within 30 above 'memwarden_cgroup_swap_usage_bytes{cgroup="/vm-swap"}' 10000000 ;;
esac
kill -9 $(cat "$GROUPS/vm-swap/cgroup.procs")
# The pages of the killed process are freed after the signal; until then they may not fit into memory.
within 30 swapoff "$disk"
check "without swap it is 0" within 30 has memwarden_host_swap_total_bytes 0
