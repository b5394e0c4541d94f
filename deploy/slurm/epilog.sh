#!/bin/sh
# Epilog of Slurm (slurm.conf: Epilog=): writes what the job used on this node, and forgets its GPUs.
#
# Runs as root on each node after a job. An epilog that fails drains the node, and one that blocks keeps the node from the
# next job, so this one ends with success whatever happens, and each program has a time limit.

# Whatever happens, also a mistake in the file below.
trap 'exit 0' EXIT
# Slurm sets none. A site with Slurm elsewhere sets it in the file below.
export PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
# Files of the administrator, not of the job.
[ -r /etc/default/memwarden-slurm ] && . /etc/default/memwarden-slurm
folder=${MEMWARDEN_GPU_JOBS:-/run/gpustat}
summaries=${MEMWARDEN_SUMMARIES:-/var/log/memwarden/jobs}
memwarden=${MEMWARDEN_PROGRAM:-memwarden}
# `jobstats` stores the summary of a job of one node in AdminComment, where jobstats reads it.
comment=${MEMWARDEN_ADMIN_COMMENT:-no}

# The number of CPUs of this node: SLURM_CPUS_ON_NODE, or a number such as 8 or 8(x2).
cpus() {
    count=${SLURM_CPUS_ON_NODE:-${SLURM_JOB_CPUS_PER_NODE:-}}
    count=${count%%(*}
    case $count in '' | *[!0-9]*) ;; *) printf '%s' "--cpus=$count" ;; esac
}

summary() {
    timeout -k 1 5 "$memwarden" job-summary "$SLURM_JOB_ID" --ended ${MEMWARDEN_URL:+--url "$MEMWARDEN_URL"} \
        --node "${SLURMD_NODENAME:-$(hostname -s)}" $(cpus) "$@"
}

write() {
    [ -d "$summaries" ] || mkdir -m 711 -p "$summaries" || return 0
    [ -O "$summaries" ] && [ ! -L "$summaries" ] || return 0
    new="$summaries/.$SLURM_JOB_ID.$$"
    # Readable by root, and by the user of the job.
    if (umask 077 && summary --leftovers /dev/shm >"$new") && [ -s "$new" ]; then
        chown "${SLURM_JOB_UID:-0}" "$new"
        mv -f "$new" "$summaries/$SLURM_JOB_ID"
    else
        rm -f "$new"
    fi
}

# The job as sacctmgr names it: of a job array, one task has the ID of the array, which would name all tasks.
#
# Slurm sets SLURM_ARRAY_* in no epilog of a node. The fields are numbers: `scontrol show job` also prints text that users
# choose, such as the name of the job, and that text can imitate fields. Nothing where the job is unknown.
accounted() {
    timeout -k 1 5 squeue --local --noheader --states=all --jobs="$SLURM_JOB_ID" --format='%A %F %K' |
        while read -r job array task _; do
            [ "$job" = "$SLURM_JOB_ID" ] || continue
            case $task in N/A) echo "$job" ;; '' | *[!0-9]*) ;; *) echo "${array}_$task" ;; esac
        done
}

store() {
    [ "$comment" = jobstats ] && [ "${SLURM_JOB_NUM_NODES:-0}" = 1 ] || return 0
    line=$(summary --format jobstats) || return 0
    job=$(accounted)
    [ -n "$job" ] || return 0
    # scontrol refuses to update a job that has ended; the accounting database accepts it.
    case $line in
    JS1:*) timeout -k 1 10 sacctmgr -i modify job where jobid="$job" set AdminComment="$line" ;;
    esac
}

# Removes the files of this job, and not those of a job that has the GPU by now.
forget() {
    [ -O "$folder" ] && [ ! -L "$folder" ] || return 0
    for file in "$folder"/*; do
        [ -f "$file" ] && [ ! -L "$file" ] || continue
        read -r job _ <"$file" || continue
        [ "$job" = "$SLURM_JOB_ID" ] && rm -f "$file"
    done
}

main() {
    case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) return 0 ;; esac
    write
    store
    forget
}

main </dev/null >/dev/null 2>&1
exit 0
