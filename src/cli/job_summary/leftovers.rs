//! Files of a job's user that are still in a folder such as /dev/shm.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::host::user_files::Folder;
use crate::job_summary::{JobState, JobSummary};
use crate::report::job_summary::{LeftFile, LeftFiles, Leftovers};

/// Maximum number of entries that are read; users can create as many as they like.
const MOST: usize = 20_000;
/// Maximum depth of folders.
const DEPTH: usize = 4;
/// Maximum number of files that are named.
const NAMED: usize = 5;

/// The files of the job's user in `folder`. Only what belongs to a job that ended, of a user without another job on this
/// node, is certain to be left; otherwise the reason is returned.
pub(super) fn find(folder: &Path, summary: &JobSummary) -> Leftovers {
    let found = match unclear(summary) {
        Some(why) => Err(why.to_owned()),
        None => {
            let user = summary.user_id.unwrap_or(0);
            of_user(folder, user).map_err(|error| format!("{} cannot be read: {error}", folder.display()))
        }
    };
    Leftovers::new(folder, found)
}

/// Why the files of the user are not known to be left by the job.
fn unclear(summary: &JobSummary) -> Option<&'static str> {
    match summary {
        JobSummary { state: JobState::Running, .. } => Some("the job has not ended"),
        JobSummary { user_id: None, .. } => Some("the user of the job is not known"),
        JobSummary { user_id: Some(0), .. } => Some("the job is one of root"),
        JobSummary { other_jobs_of_user: 1.., .. } => Some("the user has another job on this node"),
        _ => None,
    }
}

fn of_user(top: &Path, user: u32) -> std::io::Result<LeftFiles> {
    let mut found = LeftFiles::default();
    let mut looked_at = 0;
    let mut queue: VecDeque<(PathBuf, usize)> = VecDeque::from([(top.to_owned(), 0)]);
    while let Some((path, depth)) = queue.pop_front() {
        let folder = match Folder::open(&path) {
            Ok(folder) => folder,
            Err(error) if depth == 0 => return Err(error),
            // It was removed or replaced meanwhile.
            Err(_) => continue,
        };
        let names = match folder.names(MOST - looked_at) {
            Ok(names) => names,
            Err(error) if depth == 0 => return Err(error),
            Err(_) => continue,
        };
        looked_at += names.len();
        for name in names {
            let Ok(status) = folder.entry(&name) else { continue };
            if status.uid() != user {
                continue;
            }
            if status.is_dir() && depth < DEPTH {
                queue.push_back((path.join(&name), depth + 1));
            } else if status.is_file() {
                found.files += 1;
                // The space that the file occupies, which is less than its size where it has holes.
                let bytes = status.blocks().saturating_mul(512);
                found.bytes = found.bytes.saturating_add(bytes);
                name_file(&mut found.largest, &path.join(&name), top, bytes);
            }
        }
        if looked_at >= MOST {
            found.incomplete = true;
            break;
        }
    }
    Ok(found)
}

/// Keeps the largest files.
fn name_file(largest: &mut Vec<LeftFile>, path: &Path, top: &Path, bytes: u64) {
    let name = path.strip_prefix(top).map_or(path.as_os_str(), Path::as_os_str);
    let place = largest.partition_point(|file| file.bytes >= bytes);
    largest.insert(place, LeftFile { name: OsStr::to_string_lossy(name).into_owned(), bytes });
    largest.truncate(NAMED);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_of_the_user_are_found_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("far"), vec![1; 100_000]).unwrap();
        fs::create_dir_all(root.path().join("a/b/c/d/e")).unwrap();
        for (name, size) in [("small", 10), ("large", 50_000), ("a/b/deep", 20_000), ("a/b/c/d/e/deeper", 9)]
        {
            fs::write(root.path().join(name), vec![1; size]).unwrap();
        }
        symlink(other.path(), root.path().join("link")).unwrap();
        symlink(other.path().join("far"), root.path().join("file")).unwrap();
        let found = of_user(root.path(), own).unwrap();
        let names: Vec<&str> = found.largest.iter().map(|file| file.name.as_str()).collect();
        assert_eq!((found.files, found.incomplete), (3, false), "{names:?}");
        assert_eq!(names, ["large", "a/b/deep", "small"]);
        assert!(found.bytes >= 70_010 && found.bytes < 100_000, "{}", found.bytes);
        assert_eq!(of_user(root.path(), own + 1).unwrap().files, 0);
        assert!(of_user(&root.path().join("none"), own).is_err());
    }

    #[test]
    fn only_the_largest_are_named() {
        let mut largest = Vec::new();
        for bytes in [3, 9, 1, 7, 5, 8, 2] {
            name_file(&mut largest, Path::new("/x/f"), Path::new("/x"), bytes);
        }
        let sizes: Vec<u64> = largest.iter().map(|file| file.bytes).collect();
        assert_eq!(sizes, [9, 8, 7, 5, 3]);
    }

    #[test]
    fn files_of_a_user_with_another_job_are_not_reported_as_left() {
        let job = |state, user_id, other_jobs_of_user| JobSummary {
            state,
            user_id,
            other_jobs_of_user,
            ..JobSummary::default()
        };
        let ended = JobState::Ended;
        assert_eq!(unclear(&job(ended, Some(1000), 0)), None);
        for (summary, why) in [
            (job(JobState::Running, Some(1000), 0), "the job has not ended"),
            (job(ended, None, 0), "the user of the job is not known"),
            (job(ended, Some(0), 0), "the job is one of root"),
            (job(ended, Some(1000), 1), "the user has another job on this node"),
        ] {
            assert_eq!(unclear(&summary), Some(why));
        }
    }
}
