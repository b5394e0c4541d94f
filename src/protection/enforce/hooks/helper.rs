//! The helper process: reads requests, runs hooks and answers, until the daemon has ended.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::process::Pid;

use super::protocol::{HookRequest, LONGEST};
use super::running;
use crate::host::child::die_with_parent;

/// Serves requests from standard input until its end; `proc` is the process file system.
pub fn run(proc: &Path) -> io::Result<()> {
    die_with_parent();
    // Processes that a hook leaves behind become children of the helper, so that it can find them. Where this is
    // refused, only the hook's process group is killed.
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
        let request: HookRequest = serde_json::from_str(&line)?;
        let answer = running::run(&request, proc, io::stdin().as_fd());
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        let mut output = io::stdout().lock();
        output.write_all(&text)?;
        output.flush()?;
    }
}
