//! Checks that a program may be a hook: only root and the daemon's user can have put it there.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Write permission for group or others.
const WRITABLE: u32 = 0o022;
/// Sticky bit: only the owner of a file may rename it, although others may write into the folder.
const STICKY: u32 = 0o1000;

/// Why a program must not be run as hook.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The path is not absolute.
    #[error("{0} is not an absolute path")]
    Relative(PathBuf),
    /// It cannot be inspected.
    #[error("cannot inspect {path}")]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The error.
        #[source]
        source: std::io::Error,
    },
    /// It is not a file, or not executable.
    #[error("{0} is not an executable file")]
    NoProgram(PathBuf),
    /// It belongs to another user, who could replace it.
    #[error("{path} belongs to user {owner}, not to root or to memwarden's own user")]
    Owner {
        /// The path.
        path: PathBuf,
        /// The user id of the owner.
        owner: u32,
    },
    /// Other users could replace it.
    #[error("{path} can be written by others (mode {mode:o})")]
    Writable {
        /// The path.
        path: PathBuf,
        /// The mode bits.
        mode: u32,
    },
}

/// The program's real path, where it and every folder on the path belong to root or the daemon's user, and no other
/// user may write there.
///
/// # Errors
/// Why it must not be run.
pub fn program(path: &Path) -> Result<PathBuf, CheckError> {
    if !path.is_absolute() {
        return Err(CheckError::Relative(path.to_owned()));
    }
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| CheckError::Unreadable { path, source }
    };
    let real = std::fs::canonicalize(path).map_err(unreadable(path))?;
    // A symbolic link decides what is started, like its destination.
    if real != path {
        folders(path)?;
    }
    let metadata = std::fs::metadata(&real).map_err(unreadable(&real))?;
    if !metadata.is_file() || metadata.mode() & 0o111 == 0 {
        return Err(CheckError::NoProgram(real));
    }
    judge(&real, metadata.uid(), metadata.mode(), false)?;
    folders(&real)?;
    Ok(real)
}

fn folders(path: &Path) -> Result<(), CheckError> {
    for (place, folder) in
        path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()).enumerate()
    {
        let metadata = std::fs::metadata(folder)
            .map_err(|source| CheckError::Unreadable { path: folder.to_owned(), source })?;
        judge(folder, metadata.uid(), metadata.mode(), place > 0)?;
    }
    Ok(())
}

fn judge(path: &Path, owner: u32, mode: u32, above: bool) -> Result<(), CheckError> {
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(CheckError::Owner { path: path.to_owned(), owner });
    }
    // In a folder with the sticky bit, such as /tmp, other users cannot replace the file.
    if mode & WRITABLE != 0 && !(above && mode & STICKY != 0) {
        return Err(CheckError::Writable { path: path.to_owned(), mode: mode & 0o7777 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_what_nobody_else_can_change_is_a_hook() {
        let folder = tempfile::tempdir().unwrap();
        mode(folder.path(), 0o755);
        let path = folder.path().join("hook");
        let output = || {
            program(&path).map_err(|error| error.to_string().replace(folder.path().to_str().unwrap(), "DIR"))
        };
        assert_eq!(output(), Err("cannot inspect DIR/hook".to_owned()));
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        mode(&path, 0o644);
        assert_eq!(output(), Err("DIR/hook is not an executable file".to_owned()));
        mode(&path, 0o755);
        assert_eq!(output(), Ok(path.clone()));
        mode(&path, 0o775);
        assert_eq!(output(), Err("DIR/hook can be written by others (mode 775)".to_owned()));
        mode(&path, 0o755);
        mode(folder.path(), 0o757);
        assert_eq!(output(), Err("DIR can be written by others (mode 757)".to_owned()));
        mode(folder.path(), 0o1777);
        assert_eq!(output(), Err("DIR can be written by others (mode 1777)".to_owned()));
        assert!(matches!(program(Path::new("hook")), Err(CheckError::Relative(_))));
        assert!(matches!(program(folder.path()), Err(CheckError::NoProgram(_))));
    }

    #[test]
    fn a_link_from_a_place_that_others_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook");
        std::os::unix::fs::symlink("/bin/true", &path).unwrap();
        mode(folder.path(), 0o755);
        assert!(program(&path).is_ok());
        mode(folder.path(), 0o777);
        assert!(matches!(program(&path), Err(CheckError::Writable { .. })));
    }

    #[test]
    fn another_users_program_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook");
        std::fs::write(&path, "").unwrap();
        mode(&path, 0o755);
        if std::os::unix::fs::chown(&path, Some(65_534), None).is_err() {
            crate::skip::skip("a file of another user takes root to make");
            return;
        }
        assert!(matches!(program(&path), Err(CheckError::Owner { owner: 65_534, .. })));
    }
}
