use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::PathBuf;

use super::*;
use crate::skip::skip;

/// A user of the node.
const ALICE: u32 = 61_001;
const MALLORY: u32 = 61_002;

/// A folder that only Alice can write; nothing without root.
fn alices() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        skip("files of other users need root");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    chown(folder.path(), Some(ALICE), None).unwrap();
    Some(folder)
}

fn file(folder: &Path, name: &str, mode: u32, owner: u32) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, "text").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    chown(&path, Some(owner), None).unwrap();
    path
}

fn fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: io::Result<T>, expected: Refusal) {
    let error = result.unwrap_err();
    assert_eq!(Refusal::of(&error), Some(expected), "{error}");
}

#[test]
fn the_links_of_the_system_are_followed() {
    if !std::fs::metadata("/").is_ok_and(|root| root.uid() == 0 && root.mode() & 0o022 == 0) {
        return skip("/ does not belong to root alone");
    }
    // Symbolic links on nearly all systems, such as /var/run and /lib64.
    assert!(status(Path::new("/bin/sh")).unwrap().is_file());
    assert!(open(Path::new("/bin/../bin/sh")).is_ok());
    assert!(status(Path::new("/proc/self/exe")).unwrap().is_file());
}

#[test]
fn a_users_link_is_not_followed_wherever_it_is_on_the_way() {
    let Some(folder) = alices() else { return };
    let secret = tempfile::tempdir().unwrap();
    file(secret.path(), "secret", 0o600, 0);
    symlink(secret.path().join("secret"), folder.path().join("last")).unwrap();
    symlink(secret.path(), folder.path().join("middle")).unwrap();
    std::fs::create_dir(folder.path().join("real")).unwrap();
    file(&folder.path().join("real"), "file", 0o644, ALICE);
    for way in ["last", "middle/secret"] {
        let path = folder.path().join(way);
        refused(open(&path), Refusal::Link);
        refused(status(&path), Refusal::Link);
        refused(put(&path, b"x"), Refusal::Link);
    }
    refused(Folder::open(&folder.path().join("middle")), Refusal::Link);
    refused(Folder::make(&folder.path().join("middle/new/newer")), Refusal::Link);
    refused(open(&folder.path().join("real/../last")), Refusal::Up);
    assert!(open(&folder.path().join("real/file")).is_ok());
    assert!(open(&folder.path().join("./real//file")).is_ok());
    assert_eq!(open(&folder.path().join("none/file")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn an_old_kernel_gives_the_same_results() {
    let Some(folder) = alices() else { return };
    std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
    symlink("b", folder.path().join("a/link")).unwrap();
    file(&folder.path().join("a"), "file", 0o644, ALICE);
    let Place { folder, .. } = walk::place(&folder.path().join("x"), Last::Kept).unwrap();
    let names = |names: &[&str]| names.iter().map(OsString::from).collect::<Vec<_>>();
    assert!(walk::by_steps(&folder, &names(&["a", "b"])).is_ok());
    refused(walk::by_steps(&folder, &names(&["a", "link"])), Refusal::Link);
    assert_eq!(
        walk::by_steps(&folder, &names(&["a", "file"])).unwrap_err().kind(),
        io::ErrorKind::NotADirectory
    );
}

#[test]
fn only_regular_files_are_opened_and_no_open_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    fifo(&pipe);
    refused(open(&pipe), Refusal::NotRegular);
    refused(put(&pipe, b"x"), Refusal::NotRegular);
    refused(Folder::open(folder.path()).unwrap().append("pipe"), Refusal::NotRegular);
    refused(open(folder.path()), Refusal::NotRegular);
    for device in ["/dev/null", "/dev/kmsg", "/dev/ptmx"].map(Path::new).iter().filter(|path| path.exists()) {
        refused(open(device), Refusal::NotRegular);
        refused(put(device, b"x"), Refusal::NotRegular);
    }
}

#[test]
fn private_files_of_others_are_not_revealed() {
    let Some(folder) = alices() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let link = |from: &Path, name: &str| {
        let path = folder.path().join(name);
        std::fs::hard_link(from, &path).unwrap();
        path
    };
    let roots = file(elsewhere.path(), "roots", 0o600, 0);
    refused(open(&link(&roots, "a")), Refusal::Private);
    let mallorys = file(elsewhere.path(), "mallorys", 0o600, MALLORY);
    refused(open(&link(&mallorys, "b")), Refusal::Private);
    // Root's file, moved here.
    refused(open(&file(folder.path(), "c", 0o640, 0)), Refusal::Private);
    assert!(open(&file(folder.path(), "d", 0o600, ALICE)).is_ok());
    assert!(open(&file(folder.path(), "e", 0o644, 0)).is_ok());
    assert_eq!(read(&folder.path().join("d"), None, 4).unwrap(), b"text");
    refused(read(&folder.path().join("d"), None, 3), Refusal::TooLarge);
    assert_eq!(read(&folder.path().join("d"), Some(ALICE), 4).unwrap(), b"text");
    refused(read(&folder.path().join("d"), Some(MALLORY), 4), Refusal::Owner);
}

#[test]
fn files_are_accepted_only_from_expected_owners() {
    let Some(folder) = alices() else { return };
    let path = file(folder.path(), "saved", 0o644, ALICE);
    assert!(owned(&path, &[MALLORY, ALICE]).is_ok());
    refused(owned(&path, &[MALLORY]), Refusal::Owner);
    // Alice can move a file of root here.
    refused(owned(&file(folder.path(), "other", 0o644, 0), &[ALICE]), Refusal::Owner);
}

#[test]
fn a_file_is_written_beside_and_then_renamed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    put(&path, b"one").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let other = folder.path().join("other");
    std::fs::hard_link(&path, &other).unwrap();
    put(&path, b"two").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"two");
    assert_eq!(std::fs::read(&other).unwrap(), b"one", "nothing is written through a second name");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    assert_eq!(put(&folder.path().join("no/out"), b"x").unwrap_err().kind(), io::ErrorKind::NotFound);

    let open = Folder::open(folder.path()).unwrap();
    symlink(&other, folder.path().join("link")).unwrap();
    open.replace("link", 0o600, |out| out.write_all(b"three")).unwrap();
    assert_eq!(std::fs::read(&other).unwrap(), b"one");
    assert_eq!(std::fs::read(folder.path().join("link")).unwrap(), b"three");
    let failed = open.replace("link", 0o600, |_| Err(io::ErrorKind::StorageFull.into()));
    assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(open.names(100).unwrap().len(), 3, "nothing is left beside");
    assert_eq!(open.names(2).unwrap().len(), 2);
}

#[test]
fn nothing_is_appended_to_files_that_others_can_write() {
    let Some(folder) = alices() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let target = file(elsewhere.path(), "target", 0o600, 0);
    std::fs::hard_link(&target, folder.path().join("hard")).unwrap();
    symlink(&target, folder.path().join("soft")).unwrap();
    symlink(elsewhere.path(), folder.path().join("folder")).unwrap();
    file(folder.path(), "hers", 0o644, ALICE);
    let open = Folder::make(&folder.path().join("new/newer")).unwrap();
    open.append("log").unwrap();
    let open = Folder::open(folder.path()).unwrap();
    refused(open.append("hard"), Refusal::Owner);
    refused(open.append("soft"), Refusal::Link);
    refused(open.append("hers"), Refusal::Owner);
    refused(open.make_inside("folder"), Refusal::Link);
    assert_eq!(std::fs::read(&target).unwrap(), b"text");
}

/// A process with these user and group ids; ended and reaped when dropped.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn start(user: u32, group: u32) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the process of a user")]
        let mut command = std::process::Command::new("sleep");
        std::os::unix::process::CommandExt::uid(command.arg("600"), user);
        std::os::unix::process::CommandExt::gid(&mut command, group);
        Self(command.spawn().unwrap())
    }

    fn key(&self) -> crate::model::ids::ProcessKey {
        let pid = self.0.id();
        let text = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
        crate::model::ids::ProcessKey { pid, start: crate::host::process::stat(&text).unwrap().start }
    }

    /// Touches a file for it, if it is a process of `permitted`, on a thread of its own.
    fn touch(&self, permitted: u32, path: &Path) -> io::Result<()> {
        let (key, path) = (self.key(), path.to_owned());
        std::thread::spawn(move || touch_as(Path::new("/proc"), key, permitted, &path)).join().unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Touches a file as a process of a user would; needs root.
fn touched_by(user: u32, path: &Path) -> io::Result<()> {
    Sleeper::start(user, user).touch(user, path)
}

#[test]
fn a_file_is_touched_with_the_rights_of_the_user() {
    let Some(folder) = alices() else { return };
    let own = folder.path().join("requested");
    touched_by(ALICE, &own).unwrap();
    let status = std::fs::metadata(&own).unwrap();
    assert_eq!((status.uid(), status.gid()), (ALICE, ALICE));
    // An old file gets a new time, and keeps its content.
    std::fs::write(&own, "text").unwrap();
    std::fs::File::open(&own).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    touched_by(ALICE, &own).unwrap();
    assert_eq!(std::fs::read(&own).unwrap(), b"text");
    assert!(std::fs::metadata(&own).unwrap().mtime() > 0);

    // In the folder of another user, through a link at the name or on the way, and through a FIFO.
    assert!(touched_by(MALLORY, &folder.path().join("foreign")).is_err());
    assert!(!folder.path().join("foreign").exists());
    let secret = tempfile::tempdir().unwrap();
    std::fs::set_permissions(secret.path(), Permissions::from_mode(0o755)).unwrap();
    symlink(secret.path().join("made"), folder.path().join("last")).unwrap();
    refused(touched_by(ALICE, &folder.path().join("last")), Refusal::Link);
    symlink(secret.path(), folder.path().join("way")).unwrap();
    assert!(touched_by(ALICE, &folder.path().join("way/made")).is_err());
    assert!(!secret.path().join("made").exists());
    fifo(&folder.path().join("pipe"));
    assert!(touched_by(ALICE, &folder.path().join("pipe")).is_err());
    refused(touched_by(ALICE, folder.path()), Refusal::NotRegular);
}

#[test]
fn nothing_is_touched_for_a_process_that_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let own = crate::model::ids::ProcessKey { pid: std::process::id(), start: 1 };
    assert!(touch_as(Path::new("/proc"), own, 0, &folder.path().join("a")).is_err());
    assert!(!folder.path().join("a").exists());
}

#[test]
fn nothing_is_touched_for_a_process_with_other_ids_than_those_permitted() {
    let Some(folder) = alices() else { return };
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().join("a");
    // As one that has executed a setuid program since it was checked.
    refused(Sleeper::start(0, 0).touch(ALICE, &path), Refusal::Identity);
    refused(Sleeper::start(MALLORY, ALICE).touch(ALICE, &path), Refusal::Identity);
    assert!(!path.exists());
}

#[test]
fn a_setgid_program_lends_its_group_to_nobody() {
    let Some(folder) = alices() else { return };
    let sleep = folder.path().join("sleep");
    std::fs::copy("/bin/sleep", &sleep).unwrap();
    chown(&sleep, Some(0), Some(MALLORY)).unwrap();
    std::fs::set_permissions(&sleep, Permissions::from_mode(0o2755)).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the process of a user")]
    let mut command = std::process::Command::new(sleep);
    std::os::unix::process::CommandExt::uid(command.arg("600"), ALICE);
    std::os::unix::process::CommandExt::gid(&mut command, ALICE);
    let sleeper = Sleeper(command.spawn().unwrap());
    let status = std::fs::read(format!("/proc/{}/status", sleeper.0.id())).unwrap();
    if crate::host::process::credentials(&status).unwrap().groups[1] != MALLORY {
        return skip("setgid programs have no effect in the folder for temporary files");
    }
    refused(sleeper.touch(ALICE, &folder.path().join("a")), Refusal::Identity);
    assert!(!folder.path().join("a").exists());
}

#[test]
fn nothing_is_touched_with_the_capabilities_of_root() {
    let Some(folder) = alices() else { return };
    // Only by its capabilities could root write here.
    assert!(touched_by(0, &folder.path().join("a")).is_err());
    assert!(!folder.path().join("a").exists());
}

fn may_signal(user: u32, thread: rustix::process::Pid) -> bool {
    #[expect(clippy::disallowed_methods, reason = "the process of a user")]
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "kill -0 $0 2>/dev/null", &thread.to_string()]);
    std::os::unix::process::CommandExt::uid(&mut command, user);
    command.status().unwrap().success()
}

#[test]
fn the_user_may_not_signal_the_thread_that_touches() {
    if !rustix::process::geteuid().is_root() {
        return skip("files of other users need root");
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let (keep, kept) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let rights = crate::host::process::Credentials {
            users: [ALICE; 4],
            groups: [ALICE; 4],
            supplementary: Vec::new(),
        };
        touch::assume(&rights).unwrap();
        sender.send(rustix::thread::gettid()).unwrap();
        let _ = kept.recv();
    });
    let id = receiver.recv().unwrap();
    assert!(!may_signal(ALICE, id), "a signal to a thread is one to its process");
    assert!(may_signal(0, id));
    drop(keep);
    thread.join().unwrap();
}
