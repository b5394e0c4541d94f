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

summary() {
    timeout -k 1 5 "$memwarden" job-summary "$SLURM_JOB_ID" --ended ${MEMWARDEN_URL:+--url "$MEMWARDEN_URL"} \
        --node "${SLURMD_NODENAME:-$(hostname -s)}" "$@"
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
    forget
}

main </dev/null >/dev/null 2>&1
exit 0
