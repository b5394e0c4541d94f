//! Metrics of the `tmpfs` source.

use crate::model::units::Bytes;

crate::metrics! {
    /// Size limit of a tmpfs, such as /dev/shm, at this mount point; workload is empty for a tmpfs of the host. A tmpfs that several workloads see is that of the workload with the most memory; of several at one mount point, it is the fullest. Absent for a tmpfs without a size limit, one that is mounted read-only, and those beyond the first eight of a mount namespace.
    pub SIZE: Gauge<Bytes> = "memwarden_tmpfs_size_bytes" {workload, mount}.budget(1_000);
    /// Memory of the files in the tmpfs, those included that are deleted and still open or mapped. It is part of the memory of the cgroups that wrote the files, and of the host's shared memory: it must not be added to them. Read every sources.tmpfs.interval.
    pub USED: Gauge<Bytes> = "memwarden_tmpfs_used_bytes" {workload, mount}.budget(1_000);
    /// Memory of the files directly in the tmpfs, by user, of the four users with the most; absent where at most 80 % of it is used. The user_id is empty for the rest, whose users are not known: files in its folders, deleted files, and all but the first 256.
    pub FILES: Gauge<Bytes> = "memwarden_tmpfs_files_bytes" {workload, mount, user_id}.budget(2_000);
}
