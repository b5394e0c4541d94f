//! The names of pods and containers, from the names of the folders and links that the kubelet makes for their logs.
//!
//! `/var/log/pods/NAMESPACE_POD_UID/` and `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`
//! (`BuildPodLogsDirectory` and `logSymlink` in pkg/kubelet/kuberuntime/{helpers,legacy}.go of kubernetes, which cuts a long
//! name of a link at 255 bytes; such a container has no name here). Only the names
//! are read: no file and no link is opened.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::host::user_files::Folder;
use crate::model::facts::{ContainerName, PodNames};

/// Most entries of a folder that are read: the kubelet runs 110 pods by default.
const MOST: usize = 20_000;

/// Reads both folders.
///
/// # Errors
/// A folder that cannot be read, or that others than root can write.
pub(super) fn read(pods: &Path, containers: &Path) -> io::Result<PodNames> {
    let mut names = PodNames::default();
    for name in list(pods)? {
        if let Some((uid, pod)) = pod_folder(&name) {
            names.pods.insert(uid.into(), pod);
        }
    }
    for name in list(containers)? {
        if let Some((id, container)) = container_link(&name) {
            names.containers.insert(id.into(), container);
        }
    }
    Ok(names)
}

/// The names in a folder of root, or of the user of this process, that no other user can write.
pub(super) fn list(path: &Path) -> io::Result<Vec<String>> {
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let folder = Folder::open(path).map_err(at)?;
    let about = folder.entry(".".as_ref()).map_err(at)?;
    let trusted = about.uid() == 0 || about.uid() == rustix::process::geteuid().as_raw();
    if !trusted || about.mode() & 0o022 != 0 {
        let what = format!("{} can be written by others than root", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    let names = folder.names(MOST).map_err(at)?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

/// The UID and the names in `NAMESPACE_POD_UID`.
fn pod_folder(name: &str) -> Option<(&str, ContainerName)> {
    let [namespace, pod, uid] = three_parts(name)?;
    let valid = is_name(namespace) && is_name(pod) && is_uid(uid);
    valid.then(|| (uid, ContainerName::new(namespace, pod, "")))
}

/// The container's ID and the names in `POD_NAMESPACE_CONTAINER-ID.log`.
fn container_link(name: &str) -> Option<(&str, ContainerName)> {
    let (rest, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let names = three_parts(rest)?;
    let [pod, namespace, container] = names;
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let valid = is_id && names.into_iter().all(is_name);
    valid.then(|| (id, ContainerName::new(namespace, pod, container)))
}

fn three_parts(text: &str) -> Option<[&str; 3]> {
    text.split('_').collect::<Vec<_>>().try_into().ok()
}

/// Whether a text can be the name of a pod, a namespace or a container: a DNS subdomain (RFC 1123).
pub(super) fn is_name(text: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (1..=253).contains(&text.len()) && text.bytes().all(part) && text.as_bytes()[0] != b'.'
}

/// Whether a text can be a pod's UID: a UUID, or the hash of a static pod's manifest.
fn is_uid(text: &str) -> bool {
    matches!(text.len(), 32 | 36) && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const UID: &str = "1a2b3c4d-0000-1111-2222-0123456789ab";

    #[test]
    fn names_are_split() {
        let id = "0123456789abcdef".repeat(4);
        let (uid, pod) = pod_folder("kube-system_etcd-node1_0123456789abcdef0123456789abcdef").unwrap();
        assert_eq!((uid.len(), pod.namespace.as_str(), pod.pod.as_str()), (32, "kube-system", "etcd-node1"));
        let link = format!("llama-0_team_train-x-{id}.log");
        let (found, container) = container_link(&link).unwrap();
        assert_eq!(found, id);
        assert_eq!(container, ContainerName::new("team", "llama-0", "train-x"));
        for odd in [
            "",
            "a_b",
            "a_b_c",
            "a_b_c_d",
            &format!("A_b_{UID}"),
            &format!("a_.._{UID}"),
            &format!("a_b_{UID}_"),
        ] {
            assert!(pod_folder(odd).is_none(), "{odd}");
        }
        for odd in [
            "",
            "a_b_c.log",
            &format!("a_b_c-{id}"),
            &format!("a_b-{id}.log"),
            &format!("a_b_\x1b[2J-{id}.log"),
            &format!("a_b_c-{}.log", &id[1..]),
            &format!("a_b_c_d-{id}.log"),
        ] {
            assert!(container_link(odd).is_none(), "{odd}");
        }
    }

    #[test]
    fn folders_that_others_can_write_are_not_read_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (pods, containers) = (root.path().join("pods"), root.path().join("containers"));
        assert_eq!(read(&pods, &containers).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir_all(pods.join(format!("team_llama-0_{UID}"))).unwrap();
        fs::create_dir(&containers).unwrap();
        // A link to nowhere is a name as any other.
        let id = "0123456789abcdef".repeat(4);
        symlink("/nonexistent", containers.join(format!("llama-0_team_train-{id}.log"))).unwrap();
        let mode = |mode| fs::set_permissions(&pods, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        fs::set_permissions(&containers, fs::Permissions::from_mode(0o755)).unwrap();
        let names = read(&pods, &containers).unwrap();
        assert_eq!(names.pods[&UID.into()], ContainerName::new("team", "llama-0", ""));
        assert_eq!(names.containers[&id.as_str().into()], ContainerName::new("team", "llama-0", "train"));
        for open in [0o775, 0o757, 0o1777] {
            mode(open);
            assert_eq!(read(&pods, &containers).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_name_panics(name in ".{0,80}", parts in "([a-z_.-]|[0-9a-f]{32,64}|\\.log){0,12}") {
            for name in [&name, &parts] {
                let _ = (pod_folder(name), container_link(name));
            }
        }
    }
}
