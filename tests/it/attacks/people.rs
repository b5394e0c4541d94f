//! Users of the node: commands run under another user id.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Two users of the node who own nothing of the daemon.
pub(super) const ALICE: u32 = 61_001;
pub(super) const MALLORY: u32 = 61_002;

/// A command that runs as this user; `None`, with the reason said, where the test does not run as root.
pub(super) fn as_user(user: u32, program: &str) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        crate::skip::skip("attacks of another user need root");
        return None;
    }
    #[expect(clippy::disallowed_methods, reason = "the attacker is a process of its own")]
    let mut command = Command::new(program);
    command.uid(user).gid(user).current_dir("/");
    Some(command)
}
