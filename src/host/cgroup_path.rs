//! Recognizes a Slurm job, a Kubernetes pod or a container in a cgroup path.
//!
//! The names are conventions of the managers (slurmstepd, kubelet, containerd,
//! CRI-O, Docker, Podman, systemd), with either cgroup driver, and relative
//! in a cgroup namespace (`/../../…`). A job or a pod is recognized
//! only below its scheduler's own root: at the top, or below folders of other
//! managers. Whether the managers created the folders is decided by their owners
//! ([`super::cgroup_owner`]).

/// The owner of a cgroup according to its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place<'p> {
    /// A step of a Slurm job.
    Slurm {
        /// The job, as written in the path.
        job: SlurmJob<'p>,
        /// The step without `step_`, such as `0`, `batch` and `extern`, if the path contains it.
        step: Option<&'p str>,
        /// The path of the job's own cgroup.
        path: &'p str,
    },
    /// A Kubernetes pod.
    Pod {
        /// The pod's UID, with `-` where the path may have `_`.
        uid: String,
        /// The container's id, if the path contains it.
        container: Option<&'p str>,
        /// The path of the pod's own cgroup.
        path: &'p str,
    },
    /// A container of Docker, Podman or containerd that belongs to no pod.
    Container {
        /// The container's id.
        id: &'p str,
        /// The path of the container's own cgroup.
        path: &'p str,
    },
    /// The path contains no known name.
    Elsewhere,
}

/// A Slurm job as its cgroup names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlurmJob<'p> {
    /// The job's id: `job_N`, before Slurm 26.05 and with `CgroupJobIdPaths=yes`.
    Id(&'p str),
    /// The job's SLUID, since Slurm 26.05; it does not contain the job's id.
    Sluid(&'p str),
}

/// Recognizes the owner of the cgroup at `path`. A job comes before a pod, a pod before a container.
///
/// Of nested containers the innermost counts, except within a pod, where the pod's own container counts.
pub fn place(path: &str) -> Place<'_> {
    let mut below_slurm = false;
    let mut below_kubepods = false;
    // Whether all folders so far belong to managers, so that a scheduler's root may follow.
    let mut managed = true;
    let mut before = "";
    let mut pod: Option<(String, &str)> = None;
    let mut container: Option<(&str, &str)> = None;
    for (segment, so_far) in segments(path) {
        if below_slurm && let Some(job) = slurm_job(segment) {
            let below = segments(&path[so_far.len()..]).next();
            let step = below.and_then(|(segment, _)| segment.strip_prefix("step_"));
            return Place::Slurm { job, step: step.filter(|step| is_job(step)), path: so_far };
        }
        below_slurm |= managed && is_slurm(segment);
        let mut known = is_manager(segment, before) || is_slurm(segment);
        // containerd's cgroupfs layout has three parts in one name: `SLICE:cri-containerd:ID`.
        for part in segment.split(':') {
            if let Some(uid) = pod_uid(part, below_kubepods) {
                known = true;
                if managed {
                    pod = Some((uid, so_far));
                    container = None;
                }
            } else if let Some(id) = container_id(part) {
                known = true;
                if pod.is_none() || container.is_none() {
                    container = Some((id, so_far));
                }
            }
        }
        let kubepods = segment.trim_end_matches(".slice").ends_with("kubepods");
        below_kubepods |= managed && kubepods;
        managed &= known || kubepods || (below_kubepods && is_class(segment));
        before = segment;
    }
    match (pod, container) {
        (Some((uid, path)), container) => Place::Pod { uid, container: container.map(|(id, _)| id), path },
        (None, Some((id, path))) => Place::Container { id, path },
        (None, None) => Place::Elsewhere,
    }
}

/// The path down to its first container, or all of it: the container itself chooses the names below.
pub fn outermost(path: &str) -> &str {
    let container = |segment: &str| segment.split(':').any(|part| container_id(part).is_some());
    segments(path).find(|(segment, _)| container(segment)).map_or(path, |(_, so_far)| so_far)
}

/// The systemd units on a path, outermost first.
pub fn units(path: &str) -> impl Iterator<Item = (&str, &str)> {
    segments(path).filter(|(segment, _)| segment.ends_with(".service") || segment.ends_with(".scope"))
}

/// The names on a path, each with the path up to and including it.
fn segments(path: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut end = 0;
    path.split('/').filter_map(move |segment| {
        end += segment.len();
        let so_far = &path[..end];
        end += 1;
        (!segment.is_empty() && segment != "..").then_some((segment, so_far))
    })
}

/// Whether a folder is one that managers create for others, at the top or below each other.
fn is_manager(segment: &str, before: &str) -> bool {
    const MANAGERS: [&str; 5] = ["system.slice", "machine.slice", "docker", "kubelet", "kubelet.slice"];
    MANAGERS.contains(&segment) || (before == "system.slice" && segment.ends_with(".service"))
}

/// Whether a folder is a QoS class of Kubernetes pods, with either driver.
fn is_class(segment: &str) -> bool {
    let name = segment.trim_end_matches(".slice");
    ["burstable", "besteffort", "guaranteed"].iter().any(|class| name.ends_with(class))
}

/// Whether a folder is Slurm's: `slurm` and `slurm_NODE` (v1), `slurmstepd.scope` and `NODE_slurmstepd.scope` (v2).
fn is_slurm(segment: &str) -> bool {
    segment == "slurm"
        || segment.starts_with("slurm_")
        || segment.strip_suffix("slurmstepd.scope").is_some_and(|node| node.is_empty() || node.ends_with('_'))
}

/// The job that a folder below Slurm's own is named for.
fn slurm_job(segment: &str) -> Option<SlurmJob<'_>> {
    let id = segment.strip_prefix("job_").filter(|job| is_job(job)).map(SlurmJob::Id);
    id.or_else(|| is_sluid(segment).then_some(SlurmJob::Sluid(segment)))
}

/// Whether a name is a SLUID as Slurm prints it (`print_sluid` in src/common/sluid.c): `s` and 13 digits of
/// Crockford's base 32, which has no I, L, O and U.
fn is_sluid(name: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (byte.is_ascii_uppercase() && !b"ILOU".contains(&byte));
    name.strip_prefix('s').is_some_and(|digits| digits.len() == 13 && digits.bytes().all(digit))
}

fn is_job(job: &str) -> bool {
    !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+.-".contains(&byte))
}

/// The UID in `podUID` (cgroupfs) or `kubepods-burstable-podUID.slice` (systemd); that of a static pod may be
/// 32 digits.
fn pod_uid(part: &str, below_kubepods: bool) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let (head, uid) = name.rsplit_once("pod")?;
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    let marks = uid.bytes().filter(|byte| matches!(byte, b'-' | b'_')).count();
    if digits != 32 || digits + marks != uid.len() || !matches!(marks, 0 | 4) {
        return None;
    }
    let named = match head.strip_suffix('-') {
        Some(slice) => slice.contains("kubepods"),
        // In a cgroup namespace the parents may be hidden; then only a complete UUID is accepted.
        None => head.is_empty() && (below_kubepods || marks == 4 || part.ends_with(".slice")),
    };
    // A QoS folder between `kubepods` and the pod keeps `below_kubepods` set.
    named.then(|| uid.replace('_', "-"))
}

/// The id in `ENGINE-ID.scope`, or a name that is an id of 64 digits.
fn container_id(part: &str) -> Option<&str> {
    /// Prefixes of engines before the id; conmon's own scopes have another word in between.
    const ENGINES: [&str; 6] = ["docker", "cri-containerd", "crio", "libpod", "nerdctl", "containerd"];
    let name = part.strip_suffix(".scope").unwrap_or(part);
    if let Some((engine, id)) = name.rsplit_once('-') {
        return (ENGINES.contains(&engine) && id.len() >= 12 && is_id(id)).then_some(id);
    }
    (name.len() == 64 && is_id(name)).then_some(name)
}

fn is_id(id: &str) -> bool {
    id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short stand-ins for ids make the table below easier to read.
    fn expand(path: &str) -> String {
        path.replace("CID", &"0123456789abcdef".repeat(4))
            .replace("OUTER", &"fedcba9876543210".repeat(4))
            .replace("U_ID", "1a2b3c4d_0000_1111_2222_0123456789ab")
            .replace("UID", "1a2b3c4d-0000-1111-2222-0123456789ab")
            .replace("STATIC", &"0123456789abcdef".repeat(2))
    }

    fn shorten(text: &str) -> String {
        text.replace(&"0123456789abcdef".repeat(4), "CID")
            .replace(&"fedcba9876543210".repeat(4), "OUTER")
            .replace("1a2b3c4d-0000-1111-2222-0123456789ab", "UID")
            .replace("1a2b3c4d_0000_1111_2222_0123456789ab", "U_ID")
            .replace(&"0123456789abcdef".repeat(2), "STATIC")
    }

    fn show(path: &str) -> String {
        let path = expand(path);
        shorten(&match place(&path) {
            Place::Slurm { job, step, path } => {
                let job = match job {
                    SlurmJob::Id(id) => id.to_owned(),
                    SlurmJob::Sluid(sluid) => format!("with SLUID {sluid}"),
                };
                format!("slurm {job} step {} at {path}", step.unwrap_or("-"))
            }
            Place::Pod { uid, container, path } => {
                format!("pod {uid} container {} at {path}", container.unwrap_or("-"))
            }
            Place::Container { id, path } => format!("container {id} at {path}"),
            Place::Elsewhere => "-".to_owned(),
        })
    }

    fn table(paths: &[&str]) -> String {
        paths.iter().map(|path| format!("{path}\n    {}\n", show(path))).collect()
    }

    #[test]
    fn slurm_jobs() {
        let paths = [
            "/slurm/uid_1000/job_123/step_0/task_1",
            "/slurm_node17/uid_1000/job_123/step_batch",
            "/slurm/uid_0/job_9",
            "/system.slice/slurmstepd.scope/job_5/step_0/user/task_0",
            "/system.slice/node1_slurmstepd.scope/job_5/step_extern/user/task_special",
            "/slurm/uid_1000/job_123_7/step_0",
            "/slurm/uid_1000/job_123+1/step_0",
            "/../../job_5/step_0",
            "/kubepods/podUID/CID/slurm/uid_1/job_2/step_0",
            "/slurm/uid_1000/job_8/step_0/libpod-CID",
            "/system.slice/slurmstepd.scope/system",
            "/slurm/uid_1000/job_",
            "/notslurm/job_7",
            "/user/1002/slurm/job_77",
            "/user.slice/user-1002.slice/user@1002.service/slurm/uid_1000/job_77/step_0",
            "/user.slice/user-1002.slice/user@1002.service/app.slice/slurmstepd.scope/job_77",
            "/slurm_node17/uid_1000/other/uid_1001/job_123",
            "/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0",
            "/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_batch/slurm",
            "/system.slice/node1_slurmstepd.scope/sEKNKTV3WPV500",
            "/slurm/uid_1000/sEKNKTV3WPV500/step_extern",
            "/system.slice/slurmstepd.scope/sEKNKTV3WPV50L/step_0",
            "/system.slice/slurmstepd.scope/sEKNKTV3WPV50/step_0",
            "/system.slice/slurmstepd.scope/sEKNKTV3WPV500x/step_0",
            "/system.slice/slurmstepd.scope/sEKNKTV3WPV500/job_7/step_0",
            "/system.slice/slurmstepd.scope/job_7/sEKNKTV3WPV500/step_0",
            "/system.slice/sEKNKTV3WPV500/step_0",
            "/user/1002/slurmstepd.scope/sEKNKTV3WPV500/step_0",
        ];
        expect_test::expect![[r#"
            /slurm/uid_1000/job_123/step_0/task_1
                slurm 123 step 0 at /slurm/uid_1000/job_123
            /slurm_node17/uid_1000/job_123/step_batch
                slurm 123 step batch at /slurm_node17/uid_1000/job_123
            /slurm/uid_0/job_9
                slurm 9 step - at /slurm/uid_0/job_9
            /system.slice/slurmstepd.scope/job_5/step_0/user/task_0
                slurm 5 step 0 at /system.slice/slurmstepd.scope/job_5
            /system.slice/node1_slurmstepd.scope/job_5/step_extern/user/task_special
                slurm 5 step extern at /system.slice/node1_slurmstepd.scope/job_5
            /slurm/uid_1000/job_123_7/step_0
                slurm 123_7 step 0 at /slurm/uid_1000/job_123_7
            /slurm/uid_1000/job_123+1/step_0
                slurm 123+1 step 0 at /slurm/uid_1000/job_123+1
            /../../job_5/step_0
                -
            /kubepods/podUID/CID/slurm/uid_1/job_2/step_0
                slurm 2 step 0 at /kubepods/podUID/CID/slurm/uid_1/job_2
            /slurm/uid_1000/job_8/step_0/libpod-CID
                slurm 8 step 0 at /slurm/uid_1000/job_8
            /system.slice/slurmstepd.scope/system
                -
            /slurm/uid_1000/job_
                -
            /notslurm/job_7
                -
            /user/1002/slurm/job_77
                -
            /user.slice/user-1002.slice/user@1002.service/slurm/uid_1000/job_77/step_0
                -
            /user.slice/user-1002.slice/user@1002.service/app.slice/slurmstepd.scope/job_77
                -
            /slurm_node17/uid_1000/other/uid_1001/job_123
                slurm 123 step - at /slurm_node17/uid_1000/other/uid_1001/job_123
            /system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0
                slurm with SLUID sEKNKTV3WPV500 step 0 at /system.slice/slurmstepd.scope/sEKNKTV3WPV500
            /system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_batch/slurm
                slurm with SLUID sEKNKTV3WPV500 step batch at /system.slice/slurmstepd.scope/sEKNKTV3WPV500
            /system.slice/node1_slurmstepd.scope/sEKNKTV3WPV500
                slurm with SLUID sEKNKTV3WPV500 step - at /system.slice/node1_slurmstepd.scope/sEKNKTV3WPV500
            /slurm/uid_1000/sEKNKTV3WPV500/step_extern
                slurm with SLUID sEKNKTV3WPV500 step extern at /slurm/uid_1000/sEKNKTV3WPV500
            /system.slice/slurmstepd.scope/sEKNKTV3WPV50L/step_0
                -
            /system.slice/slurmstepd.scope/sEKNKTV3WPV50/step_0
                -
            /system.slice/slurmstepd.scope/sEKNKTV3WPV500x/step_0
                -
            /system.slice/slurmstepd.scope/sEKNKTV3WPV500/job_7/step_0
                slurm with SLUID sEKNKTV3WPV500 step - at /system.slice/slurmstepd.scope/sEKNKTV3WPV500
            /system.slice/slurmstepd.scope/job_7/sEKNKTV3WPV500/step_0
                slurm 7 step - at /system.slice/slurmstepd.scope/job_7
            /system.slice/sEKNKTV3WPV500/step_0
                -
            /user/1002/slurmstepd.scope/sEKNKTV3WPV500/step_0
                -
        "#]]
        .assert_eq(&table(&paths));
    }

    #[test]
    fn pods() {
        let paths = [
            "/kubepods/podUID/CID",
            "/kubepods/burstable/podUID/CID",
            "/kubepods/besteffort/podUID/CID",
            "/kubepods/burstable/podSTATIC/CID",
            "/kubepods.slice/kubepods-podU_ID.slice/cri-containerd-CID.scope",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-CID.scope",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-CID.scope",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-CID.scope/container",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-conmon-CID.scope",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/docker-CID.scope",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podSTATIC.slice/cri-containerd-CID.scope",
            "/system.slice/containerd.service/kubepods-burstable-podU_ID.slice:cri-containerd:CID",
            "/docker/OUTER/kubelet/kubepods/burstable/podUID/CID",
            "/docker/OUTER/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podU_ID.slice/cri-containerd-CID.scope",
            "/system.slice/docker-OUTER.scope/kubepods.slice/kubepods-podU_ID.slice/cri-containerd-CID.scope",
            "/../../kubepods-podU_ID.slice/cri-containerd-CID.scope",
            "/../../podUID/CID",
            "/kubepods/podUID/CID/docker/OUTER",
            "/../cri-containerd-CID.scope",
            "/kubepods/burstable",
            "/kubepods/burstable/podnonsense/x",
            "/home/podSTATIC",
            "/user/1002/podUID/CID",
            "/user/1002/kubepods/podUID",
            "/user.slice/user-1002.slice/user@1002.service/kubepods.slice/kubepods-podU_ID.slice",
        ];
        expect_test::expect![[r#"
            /kubepods/podUID/CID
                pod UID container CID at /kubepods/podUID
            /kubepods/burstable/podUID/CID
                pod UID container CID at /kubepods/burstable/podUID
            /kubepods/besteffort/podUID/CID
                pod UID container CID at /kubepods/besteffort/podUID
            /kubepods/burstable/podSTATIC/CID
                pod STATIC container CID at /kubepods/burstable/podSTATIC
            /kubepods.slice/kubepods-podU_ID.slice/cri-containerd-CID.scope
                pod UID container CID at /kubepods.slice/kubepods-podU_ID.slice
            /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-CID.scope
                pod UID container CID at /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice
            /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-CID.scope
                pod UID container CID at /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice
            /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-CID.scope/container
                pod UID container CID at /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice
            /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-conmon-CID.scope
                pod UID container - at /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice
            /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/docker-CID.scope
                pod UID container CID at /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice
            /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podSTATIC.slice/cri-containerd-CID.scope
                pod STATIC container CID at /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podSTATIC.slice
            /system.slice/containerd.service/kubepods-burstable-podU_ID.slice:cri-containerd:CID
                pod UID container CID at /system.slice/containerd.service/kubepods-burstable-podU_ID.slice:cri-containerd:CID
            /docker/OUTER/kubelet/kubepods/burstable/podUID/CID
                pod UID container CID at /docker/OUTER/kubelet/kubepods/burstable/podUID
            /docker/OUTER/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podU_ID.slice/cri-containerd-CID.scope
                pod UID container CID at /docker/OUTER/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podU_ID.slice
            /system.slice/docker-OUTER.scope/kubepods.slice/kubepods-podU_ID.slice/cri-containerd-CID.scope
                pod UID container CID at /system.slice/docker-OUTER.scope/kubepods.slice/kubepods-podU_ID.slice
            /../../kubepods-podU_ID.slice/cri-containerd-CID.scope
                pod UID container CID at /../../kubepods-podU_ID.slice
            /../../podUID/CID
                pod UID container CID at /../../podUID
            /kubepods/podUID/CID/docker/OUTER
                pod UID container CID at /kubepods/podUID
            /../cri-containerd-CID.scope
                container CID at /../cri-containerd-CID.scope
            /kubepods/burstable
                -
            /kubepods/burstable/podnonsense/x
                -
            /home/podSTATIC
                -
            /user/1002/podUID/CID
                container CID at /user/1002/podUID/CID
            /user/1002/kubepods/podUID
                -
            /user.slice/user-1002.slice/user@1002.service/kubepods.slice/kubepods-podU_ID.slice
                -
        "#]].assert_eq(&table(&paths));
    }

    #[test]
    fn containers() {
        let paths = [
            "/docker/CID",
            "/docker/CID/init.scope",
            "/system.slice/docker-CID.scope",
            "/machine.slice/libpod-CID.scope",
            "/machine.slice/libpod-CID.scope/container",
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-CID.scope",
            "/machine.slice/libpod-conmon-CID.scope",
            "/libpod_parent/libpod-CID",
            "/default/CID",
            "/system.slice/nerdctl-CID.scope",
            "/docker/OUTER/docker/CID",
            "/actions_job/CID",
            "/system.slice/docker.service",
            "/system.slice/sshd.service",
            "/",
            "",
            "/..",
        ];
        expect_test::expect![[r#"
            /docker/CID
                container CID at /docker/CID
            /docker/CID/init.scope
                container CID at /docker/CID
            /system.slice/docker-CID.scope
                container CID at /system.slice/docker-CID.scope
            /machine.slice/libpod-CID.scope
                container CID at /machine.slice/libpod-CID.scope
            /machine.slice/libpod-CID.scope/container
                container CID at /machine.slice/libpod-CID.scope
            /user.slice/user-1000.slice/user@1000.service/user.slice/libpod-CID.scope
                container CID at /user.slice/user-1000.slice/user@1000.service/user.slice/libpod-CID.scope
            /machine.slice/libpod-conmon-CID.scope
                -
            /libpod_parent/libpod-CID
                container CID at /libpod_parent/libpod-CID
            /default/CID
                container CID at /default/CID
            /system.slice/nerdctl-CID.scope
                container CID at /system.slice/nerdctl-CID.scope
            /docker/OUTER/docker/CID
                container CID at /docker/OUTER/docker/CID
            /actions_job/CID
                container CID at /actions_job/CID
            /system.slice/docker.service
                -
            /system.slice/sshd.service
                -
            /
                -

                -
            /..
                -
        "#]]
        .assert_eq(&table(&paths));
    }

    #[test]
    fn cgroups_below_a_container_are_ignored() {
        let check = |path: &str, expected: &str| {
            let path = expand(path);
            assert_eq!(shorten(outermost(&path)), expected);
        };
        check(
            "/../../kubepods-podU_ID.slice/crio-CID.scope/slurm/job_7",
            "/../../kubepods-podU_ID.slice/crio-CID.scope",
        );
        check("/../slurm/uid_7/job_8/step_0", "/../slurm/uid_7/job_8/step_0");
    }

    #[test]
    fn units_of_a_path() {
        let found: Vec<_> =
            units("/user.slice/user-0.slice/user@0.service/app.slice/a\\x2db.scope/x").collect();
        assert_eq!(
            found,
            [
                ("user@0.service", "/user.slice/user-0.slice/user@0.service"),
                ("a\\x2db.scope", "/user.slice/user-0.slice/user@0.service/app.slice/a\\x2db.scope"),
            ]
        );
    }

    proptest::proptest! {
        #[test]
        fn no_path_panics(path in ".{0,80}", parts in "(/(slurm|job_[0-9]|kubepods|pod|[0-9a-f]{32}|:|\\.slice|-|é))*") {
            let _ = place(&path);
            let _ = place(&parts);
            let _ = units(&path).count();
        }
    }
}
