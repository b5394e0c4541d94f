//! The helper process: takes a request, runs the hook, answers, and so on until the daemon is gone.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::process::Pid;

use super::protocol::{LONGEST, Request};
use super::running;
use crate::host::child::die_with_parent;

/// Serves requests from standard input until it ends; `proc` is where processes are listed.
///
/// # Errors
/// The operating system's, where the daemon cannot be heard or told.
pub fn run(proc: &Path) -> io::Result<()> {
    die_with_parent();
    // Whatever a hook leaves behind becomes our child, so that it can be found. Where this is refused, only the
    // hook's own process group is ended.
    let _ = rustix::process::set_child_subreaper(Some(Pid::INIT));
    let stdin = io::stdin();
    let mut input = BufReader::new(stdin.lock());
    let mut line = String::new();
    loop {
        line.clear();
        let most = u64::try_from(LONGEST).unwrap_or(u64::MAX);
        if input.by_ref().take(most).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let request: Request = serde_json::from_str(&line)?;
        let answer = running::run(&request, proc, io::stdin().as_fd());
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        let mut output = io::stdout().lock();
        output.write_all(&text)?;
        output.flush()?;
    }
}
