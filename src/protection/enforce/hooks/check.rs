//! Checks that a program may be a hook: only root and the daemon's user can have put it there.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Write permission for group or others.
const WRITABLE: u32 = 0o022;
/// Sticky bit: only the owner of a file may rename it, although others may write into the folder.
const STICKY: u32 = 0o1000;

/// The program's real path, where it and every folder on the path belong to root or the daemon's user, and no other
/// user may write there.
///
/// # Errors
/// Why it must not be run.
pub fn program(path: &Path) -> Result<PathBuf, String> {
    if !path.is_absolute() {
        return Err(format!("{} is not an absolute path", path.display()));
    }
    let real = std::fs::canonicalize(path).map_err(|error| unreadable(path, &error))?;
    // A symbolic link decides what is started, like its destination.
    if real != path {
        folders(path)?;
    }
    let metadata = inspected(&real)?;
    if !metadata.is_file() || metadata.mode() & 0o111 == 0 {
        return Err(format!("{} is not an executable file", real.display()));
    }
    judge(&real, &metadata, false)?;
    folders(&real)?;
    Ok(real)
}

fn folders(path: &Path) -> Result<(), String> {
    let folders = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
    for (place, folder) in folders.enumerate() {
        judge(folder, &inspected(folder)?, place > 0)?;
    }
    Ok(())
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("cannot inspect {}: {error}", path.display())
}

fn inspected(path: &Path) -> Result<Metadata, String> {
    std::fs::metadata(path).map_err(|error| unreadable(path, &error))
}

fn judge(path: &Path, metadata: &Metadata, above: bool) -> Result<(), String> {
    let (owner, mode, shown) = (metadata.uid(), metadata.mode(), path.display());
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(format!("{shown} belongs to user {owner}, not to root or to memwarden's own user"));
    }
    // In a folder with the sticky bit, such as /tmp, other users cannot replace the file.
    if mode & WRITABLE != 0 && !(above && mode & STICKY != 0) {
        return Err(format!("{shown} can be written by others (mode {:o})", mode & 0o7777));
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
        let output = || program(&path).map_err(|error| error.replace(folder.path().to_str().unwrap(), "DIR"));
        let missing = "cannot inspect DIR/hook: No such file or directory (os error 2)";
        assert_eq!(output(), Err(missing.to_owned()));
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
        assert_eq!(program(Path::new("hook")), Err("hook is not an absolute path".to_owned()));
        let shown = folder.path().display();
        assert_eq!(program(folder.path()), Err(format!("{shown} is not an executable file")));
    }

    #[test]
    fn a_link_from_a_place_that_others_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook");
        std::os::unix::fs::symlink("/bin/true", &path).unwrap();
        mode(folder.path(), 0o755);
        assert!(program(&path).is_ok());
        mode(folder.path(), 0o777);
        let shown = folder.path().display();
        assert_eq!(program(&path), Err(format!("{shown} can be written by others (mode 777)")));
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
        assert!(program(&path).unwrap_err().contains("belongs to user 65534"));
    }
}
