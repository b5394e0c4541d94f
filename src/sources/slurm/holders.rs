//! Reads which job holds each GPU from the files that a prolog wrote.
//!
//! The name of a file is the index of a GPU, or the UUID of a GPU or of a MIG device. Each line of the file is the ID of a
//! job, and may contain the ID of the job's user: the files of Princeton's jobstats (`/run/gpustat`) and of the job
//! mapping of NVIDIA's dcgm-exporter have this form. Root writes them; a file or a folder that another user could have
//! written is refused.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::host::user_files::{self, Folder};
use crate::model::label::Label;

/// Files read in one round: 16 GPUs with 7 MIG devices each, by index and by UUID.
const MOST_FILES: usize = 256;
/// Jobs of one GPU: those that share it by MPS or sharding.
const MOST_JOBS: usize = 16;
/// Longest file in bytes; one line has at most 22.
const LONGEST: u64 = 4096;

/// A GPU, as the name of its file identifies it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Device {
    /// NVML's index.
    Index(Label),
    /// The UUID of a GPU or of a MIG device.
    Uuid(Label),
}

/// A job that holds a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Job {
    pub(crate) id: Label,
    /// Its user, where the file has it.
    pub(crate) user: Option<u32>,
}

/// The jobs of each GPU, and the reason why a file was not used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holders {
    pub(super) jobs: BTreeMap<Device, Vec<Job>>,
    pub(super) refused: Option<String>,
}

/// Reads every file of a folder.
///
/// # Errors
/// The folder does not exist, cannot be read, or others than root and the user of this process can write it.
pub(super) fn read(folder: &Path) -> io::Result<Holders> {
    let opened = Folder::open(folder)?;
    if !is_roots(&opened.entry(".".as_ref())?) {
        let why = "it does not belong to root, or other users can write it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let mut holders = Holders::default();
    for name in opened.names(MOST_FILES)? {
        let Some(device) = device(&name) else { continue };
        match jobs_of(&folder.join(&name), &opened, &name) {
            Ok(jobs) => drop(holders.jobs.insert(device, jobs)),
            // The epilog has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let why = format!("{}: {error}", folder.join(&name).display());
                holders.refused.get_or_insert(why);
            }
        }
    }
    Ok(holders)
}

/// Whether only root, or the user of this process, can write a file or a folder.
fn is_roots(status: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    [0, own].contains(&status.uid()) && status.mode() & 0o022 == 0
}

/// The GPU that a file is named for; nothing for other names, such as those of files that are being written.
fn device(name: &OsString) -> Option<Device> {
    let name = name.to_str()?;
    if (1..=4).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Device::Index(name.into()));
    }
    let uuid = name.strip_prefix("GPU-").or_else(|| name.strip_prefix("MIG-"))?;
    let plain = uuid.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/".contains(&byte));
    ((8..=96).contains(&uuid.len()) && plain).then(|| Device::Uuid(name.into()))
}

fn jobs_of(path: &Path, folder: &Folder, name: &OsString) -> io::Result<Vec<Job>> {
    let status = folder.entry(name)?;
    if !status.is_file() || !is_roots(&status) {
        let why = "it is not a regular file of root that only root can write";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let text = user_files::read(path, Some(status.uid()), LONGEST)?;
    parse(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it does not contain the ID of a job"))
}

/// The jobs of a file; nothing if a line is none. An empty file means that no job holds the GPU.
pub(crate) fn parse(text: &[u8]) -> Option<Vec<Job>> {
    let text = std::str::from_utf8(text).ok()?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(MOST_JOBS).map(job).collect()
}

/// One line: `JOB` or `JOB UID`.
fn job(line: &str) -> Option<Job> {
    let mut words = line.split_ascii_whitespace();
    let id = words.next().filter(|id| id.bytes().all(|byte| byte.is_ascii_digit()))?;
    let id: u32 = id.parse().ok().filter(|id| *id > 0)?;
    let user = words.next().map(|user| user.parse::<u32>()).transpose().ok()?;
    words.next().is_none().then(|| Job { id: id.into(), user })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn jobs(text: &str) -> String {
        parse(text.as_bytes()).map_or_else(
            || "refused".to_owned(),
            |jobs| jobs.iter().map(|job| format!("{} of {:?};", job.id, job.user)).collect(),
        )
    }

    #[test]
    fn a_line_is_a_job_and_its_user() {
        for (text, expected) in [
            ("45916256 262563\n", "45916256 of Some(262563);"),
            ("7\n8\n", "7 of None;8 of None;"),
            ("", ""),
            ("7 1000 x", "refused"),
            ("7 ada", "refused"),
            ("0", "refused"),
            ("-7", "refused"),
            ("99999999999", "refused"),
            ("7\nx\n", "refused"),
            ("+7", "refused"),
        ] {
            assert_eq!(jobs(text), expected, "{text:?}");
        }
        assert_eq!(parse(b"\xff"), None);
        assert_eq!(parse(b"7\n".repeat(100).as_slice()).unwrap().len(), MOST_JOBS);
    }

    #[test]
    fn only_the_names_of_gpus_are_read() {
        let device = |name: &str| device(&name.into());
        assert_eq!(device("0"), Some(Device::Index("0".into())));
        for uuid in ["GPU-03aa20a1-2e97-d125-629d-fd4e5734553f", "MIG-265a219d-a49f-578a-825d-222c72699c16"] {
            assert_eq!(device(uuid), Some(Device::Uuid(uuid.into())));
        }
        for other in ["", "x", "12345", ".0.new", "GPU-", "GPU-a b c d e f", "GPU-\u{202e}aaaaaaaa", "0x1"] {
            assert_eq!(device(other), None, "{other:?}");
        }
    }

    #[test]
    fn only_files_that_root_wrote_are_believed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("gpustat");
        assert_eq!(read(&folder).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let put = |name: &str, text: &str, mode: u32| {
            fs::write(folder.join(name), text).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        put("0", "7 1000\n", 0o644);
        let first = read(&folder).unwrap();
        let job = Job { id: "7".into(), user: Some(1000) };
        assert_eq!(first.jobs, BTreeMap::from([(Device::Index("0".into()), vec![job])]));
        assert_eq!(first.refused, None);
        // One that others can write, a link, one that is too long, a folder.
        put("1", "8 1000\n", 0o666);
        put("3", &"9\n".repeat(4000), 0o644);
        symlink("0", folder.join("2")).unwrap();
        fs::create_dir(folder.join("4")).unwrap();
        let second = read(&folder).unwrap();
        assert_eq!(second.jobs, first.jobs);
        assert!(second.refused.is_some());
        // A folder in which others can create files.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(read(&folder).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, name in ".{0,40}") {
            let _ = parse(&bytes);
            let _ = device(&name.into());
        }
    }
}
