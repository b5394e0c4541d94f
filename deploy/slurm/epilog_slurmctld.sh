#!/bin/sh
# EpilogSlurmctld of Slurm (slurm.conf: EpilogSlurmctld=): stores what a job used, on all of its nodes, in AdminComment, where
# Princeton's jobstats reads it.
#
# Runs as SlurmUser on the host of slurmctld. It asks the daemons of the nodes, so these must listen on an address that this
# host reaches. Each program has a time limit, and a failure is no failure of the job.

# Whatever happens, also a mistake in the file below.
trap 'exit 0' EXIT
# Slurm sets none. A site with Slurm elsewhere sets it in the file below.
export PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
[ -r /etc/default/memwarden-slurm ] && . /etc/default/memwarden-slurm
memwarden=${MEMWARDEN_PROGRAM:-memwarden}
scheme=${MEMWARDEN_SCHEME:-http}
port=${MEMWARDEN_PORT:-10636}

main() {
    case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) return 0 ;; esac
    count=${SLURM_JOB_CPUS_PER_NODE:-}
    # Nodes with different numbers of CPUs (8,4) have none that is right for all.
    case $count in *,*) count= ;; *) count=${count%%(*} ;; esac
    case $count in *[!0-9]*) count= ;; esac
    set --
    for node in $(timeout -k 1 5 scontrol show hostnames "${SLURM_JOB_NODELIST:-}"); do
        set -- "$@" --url "$scheme://$node:$port"
    done
    [ $# -gt 0 ] || return 0
    line=$(timeout -k 1 30 "$memwarden" job-summary "$SLURM_JOB_ID" --ended "$@" ${count:+--cpus "$count"} --format jobstats) ||
        return 0
    # Of a job array, one task has the ID of the array, which would name all tasks.
    job=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
    # scontrol refuses to update a job that has ended; the accounting database accepts it.
    case $line in
    JS1:*) timeout -k 1 10 sacctmgr -i modify job where jobid="${job:-$SLURM_JOB_ID}" set AdminComment="$line" ;;
    esac
}

main </dev/null >/dev/null 2>&1
exit 0
