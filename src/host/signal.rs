//! Finds a running memwarden, and signals it to release or reopen the GPU driver.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

/// A process that runs the same program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: u32,
    /// Its parent's pid.
    pub parent: u32,
    /// Its subcommand.
    pub command: String,
}

/// Every other process that runs `program` as the calling user, as root, or as the user of the process `named`.
///
/// Processes of other users are skipped: reading the command line of one could block forever.
///
/// # Errors
/// The error if `proc` cannot be listed; processes that end meanwhile are left out.
pub fn peers(proc: &Path, program: &Path, named: Option<u32>) -> io::Result<Vec<Peer>> {
    let own = std::process::id();
    let owner = |folder: &Path| Some(std::fs::metadata(folder).ok()?.uid());
    let named = named.and_then(|pid| owner(&proc.join(pid.to_string())));
    let trusted = [Some(rustix::process::geteuid().as_raw()), Some(0), named];
    let mut found = Vec::new();
    for entry in std::fs::read_dir(proc)? {
        let folder = entry?.path();
        let Some(pid) = pid_of(&folder).filter(|pid| *pid != own) else { continue };
        if owner(&folder).is_some_and(|uid| trusted.contains(&Some(uid)))
            && std::fs::read_link(folder.join("exe")).is_ok_and(|exe| exe == program)
            && let Some((parent, command)) = describe(&folder)
        {
            found.push(Peer { pid, parent, command });
        }
    }
    Ok(found)
}

/// Signals the daemon `pid` to release the GPU driver (USR1), or to use it again (USR2).
///
/// # Errors
/// Errors of the operating system: no such process, or not permitted.
pub fn ask_gpu(pid: u32, release: bool) -> io::Result<()> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::process::kill_process(raw, if release { Signal::USR1 } else { Signal::USR2 })?)
}

fn pid_of(folder: &Path) -> Option<u32> {
    folder.file_name()?.to_str()?.parse().ok()
}

fn describe(folder: &Path) -> Option<(u32, String)> {
    let arguments = std::fs::read(folder.join("cmdline")).ok()?;
    let command = arguments.split(|byte| *byte == 0).nth(1)?;
    let stat = std::fs::read(folder.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    Some((parent, String::from_utf8_lossy(command).into_owned()))
}

/// The file of the running program.
pub fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_the_program_are_peers() {
        let proc = tempfile::tempdir().unwrap();
        let program = proc.path().join("memwarden");
        let make = |pid: u32, exe: &Path, cmdline: &str, parent: u32| {
            let folder = proc.path().join(pid.to_string());
            std::fs::create_dir(&folder).unwrap();
            std::os::unix::fs::symlink(exe, folder.join("exe")).unwrap();
            std::fs::write(folder.join("cmdline"), cmdline).unwrap();
            std::fs::write(folder.join("stat"), format!("{pid} (mem) x) S {parent} 1 1 0\n")).unwrap();
        };
        make(4_000_001, &program, "memwarden\0serve\0", 1);
        make(4_000_002, &program, "memwarden\0gpu-worker\0", 4_000_001);
        make(4_000_003, Path::new("/usr/bin/python3"), "python3\0serve\0", 1);
        std::fs::create_dir(proc.path().join("self")).unwrap();
        // Another user also runs the program.
        make(4_000_004, &program, "memwarden\0serve\0", 1);
        let other_owner = std::os::unix::fs::chown(proc.path().join("4000004"), Some(61_001), None);
        if other_owner.is_err() {
            std::fs::remove_dir_all(proc.path().join("4000004")).unwrap();
        }
        let mut found = peers(proc.path(), &program, None).unwrap();
        found.sort_by_key(|peer| peer.pid);
        let shown: Vec<String> =
            found.iter().map(|peer| format!("{} {} {}", peer.pid, peer.parent, peer.command)).collect();
        assert_eq!(shown, ["4000001 1 serve", "4000002 4000001 gpu-worker"]);
        if other_owner.is_ok() {
            assert_eq!(peers(proc.path(), &program, Some(4_000_004)).unwrap().len(), 3);
        }
    }
}
