#!/bin/sh
# Prolog of Slurm (slurm.conf: Prolog=): records which job holds each GPU, for memwarden's source `slurm`.
#
# Runs as root on each node before a job. A prolog that fails drains the node, and one that blocks delays the job, so this
# one ends with success whatever happens, and waits for nothing but nvidia-smi, which has a time limit.

# Whatever happens, also a mistake in the file below.
trap 'exit 0' EXIT
# Slurm sets none. A site with Slurm elsewhere sets it in the file below.
export PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
# Files of the administrator, not of the job: a node may keep them elsewhere.
[ -r /etc/default/memwarden-slurm ] && . /etc/default/memwarden-slurm
folder=${MEMWARDEN_GPU_JOBS:-/run/gpustat}

# Slurm sets these from the credential of the job. SLURM_JOB_GPUS has the indexes of the GPUs, or UUIDs of MIG devices.
gpus=${SLURM_JOB_GPUS:-${GPU_DEVICE_ORDINAL:-${CUDA_VISIBLE_DEVICES:-}}}

record() {
    # The daemon does not read a name that begins with a dot, and never sees a half-written file.
    new="$folder/.$1.$$"
    (umask 022 && printf '%s %s\n' "$SLURM_JOB_ID" "${SLURM_JOB_UID:-}" >"$new") && mv -f "$new" "$folder/$1" || rm -f "$new"
}

main() {
    [ -n "$gpus" ] && [ -n "${SLURM_JOB_ID:-}" ] || return 0
    [ -d "$folder" ] || mkdir -m 755 "$folder" || return 0
    # Not a folder that somebody else made.
    [ -O "$folder" ] && [ ! -L "$folder" ] || return 0
    old=$IFS
    IFS=,
    for gpu in $gpus; do
        IFS=$old
        case $gpu in
        '' | *[!A-Za-z0-9-]*) continue ;;
        MIG-* | GPU-*) record "$gpu" ;;
        *[!0-9]*) continue ;;
        *)
            record "$gpu"
            # The UUID stays right where Slurm counts the GPUs in another order than the driver.
            if [ "${MEMWARDEN_GPU_UUIDS:-no}" = yes ]; then
                uuid=$(timeout -k 1 5 nvidia-smi --query-gpu=uuid --format=noheader,csv -i "$gpu")
                case $uuid in GPU-*[!A-Za-z0-9-]*) ;; GPU-*) record "$uuid" ;; esac
            fi
            ;;
        esac
    done
}

main </dev/null >/dev/null 2>&1
exit 0
