#!/bin/sh
# HealthCheckProgram of Slurm (slurm.conf: HealthCheckProgram=): drains a node on which memwarden finds a critical problem.
#
# Runs as root on each node. A node whose health is unknown, for example while the daemon restarts, keeps its state. memwarden
# resumes only a node that it drained itself.

# Whatever happens, also a mistake in the file below.
trap 'exit 0' EXIT
# Slurm sets none. A site with Slurm elsewhere sets it in the file below.
export PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
[ -r /etc/default/memwarden-slurm ] && . /etc/default/memwarden-slurm
memwarden=${MEMWARDEN_PROGRAM:-memwarden}
node=${SLURMD_NODENAME:-$(hostname -s)}

main() {
    line=$(timeout -k 1 10 "$memwarden" check ${MEMWARDEN_URL:+--url "$MEMWARDEN_URL"})
    case $? in
    1) timeout -k 1 5 scontrol update nodename="$node" state=drain reason="memwarden: $line" ;;
    0)
        [ "${MEMWARDEN_RESUME:-no}" = yes ] || return 0
        reason=$(timeout -k 1 5 scontrol show node "$node" | sed -n 's/^ *Reason=//p')
        case $reason in "memwarden: "*) timeout -k 1 5 scontrol update nodename="$node" state=resume ;; esac
        ;;
    esac
}

main </dev/null >/dev/null 2>&1
exit 0
