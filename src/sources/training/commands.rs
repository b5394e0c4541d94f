//! The commands of ranks, and what is reported of them to the memory of past runs.
//!
//! The script and the arguments come from the command line of the process as the kernel has it. It is read once for each
//! process, by threads that may block; arguments may contain secrets, so that only a hash of them is kept.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ring::digest::{SHA256, digest};

use super::client::Client;
use super::rank::Rank;
use super::rank_identity::RankIdentity;
use crate::formats::messages::{Bye, Hello};
use crate::host::process::readers::{self, ReadRequests, ReadTarget};
use crate::host::process::{self, ProcRoot};
use crate::model::ends::{EndCause, ExitStatus};
use crate::model::facts::Facts;
use crate::model::fair::{Room, Table};
use crate::model::fit::{ByeEnd, Medium, SizeUnit};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::past_runs::{Command, ObservedRank, Outcome, PastRuns, PhasePeak};

/// How much of a command line is read, in bytes; the rest is not compared.
const LONGEST: usize = 16 << 10;
/// Characters of the hash of the arguments.
const HASH: usize = 16;
/// Arguments that differ between the ranks of one run.
const OF_RANK: [&str; 2] = ["--local-rank=", "--local_rank="];

/// Most processes that have left whose exit statuses are awaited, divided between the users.
const MOST_LEFT: usize = 512;
/// How long the exit status of a process is awaited after its connection has ended, unless it still runs: its parent reads it
/// first.
const AWAITED: Duration = Duration::from_secs(3);

/// The script of a process, and the hash of its arguments.
pub(super) type CommandLine = (Label, Label);

/// Reads the command lines of processes as soon as they connect: many die in their first step.
#[derive(Debug)]
pub(super) struct CommandLines {
    proc: PathBuf,
    requests: ReadRequests<()>,
    has_requests: bool,
}

impl CommandLines {
    pub(super) fn new(proc: PathBuf) -> Self {
        Self { proc, requests: ReadRequests::new(readers::shared()), has_requests: false }
    }

    /// Requests the command line of a process that has connected, unless it is known.
    pub(super) fn request(&mut self, client: &Client) {
        let Some(key) = client.key.filter(|_| client.line.get().is_none()) else { return };
        let (proc, found) = (self.proc.clone(), Arc::clone(&client.line));
        let target = ReadTarget { key, uid: client.uid, comm: Label::default(), what: "cmdline" };
        self.requests.request(target, move || {
            let mut root = ProcRoot::new(proc);
            let read = root.connect().ok().and_then(|()| line(&root, key));
            // Another read of it may have been faster.
            let _ = found.set(read);
        });
        self.has_requests = true;
    }

    /// Starts what was requested, without waiting, and drops the requests of processes that are not connected.
    pub(super) fn turn(&mut self, connected: impl FnOnce() -> BTreeSet<ProcessKey>) {
        if !self.has_requests {
            return;
        }
        self.requests.start();
        let connected = connected();
        self.requests.keep(|key| connected.contains(&key));
        self.has_requests = self.requests.are_pending();
    }
}

/// Reports ranks to the memory of past runs.
#[derive(Debug)]
pub(super) struct Commands {
    past_runs: Arc<PastRuns>,
    /// The processes whose connections have ended and whose exit statuses are not known, and since when.
    left: Table<u32, ProcessKey, (Arc<Client>, Timestamp)>,
}

impl Commands {
    pub(super) fn new(past_runs: Arc<PastRuns>) -> Self {
        Self { past_runs, left: Table::new(MOST_LEFT) }
    }

    /// Reports all ranks; `ended` are those whose connections have ended. Returns what is to be said of the earlier runs of each.
    pub(super) fn turn(
        &mut self,
        current: &[(&Arc<Client>, RankIdentity)],
        ended: &[(&Arc<Client>, RankIdentity)],
        facts: &Facts,
        at: Timestamp,
    ) -> BTreeMap<ProcessKey, String> {
        let observed: Vec<ObservedRank> = current
            .iter()
            .chain(ended)
            .filter_map(|(client, identity)| observed(client, identity, facts))
            .collect();
        let is_running =
            |key: ProcessKey| facts.row(key).is_some_and(|row| !matches!(row.state, b'Z' | b'X'));
        for (client, _) in ended {
            let Some(key) = client.key else { continue };
            let oldest = |_: &ProcessKey, (_, since): &(Arc<Client>, Timestamp)| since.monotonic();
            if self.left.contains_key(&key)
                || !matches!(self.left.make_room(client.payer, oldest), Room::Refused)
            {
                self.left.insert(client.payer, key, (Arc::clone(client), at));
            }
        }
        let mut exits = Vec::new();
        self.left.retain(|key, (client, since)| {
            let status = client.exit_status();
            exits.extend(status.map(|status| (*key, status)));
            status.is_none() && (is_running(*key) || at.since(*since) < AWAITED)
        });
        let ends = facts.before.frame.as_ref().map_or(&[][..], |frame| &frame.outlook.ends);
        self.past_runs.tick(&observed, ends, &exits, is_running, at)
    }
}

/// What the memory of past runs is told of a rank; absent where its command is not known.
fn observed(client: &Client, identity: &RankIdentity, facts: &Facts) -> Option<ObservedRank> {
    let process = client.key?;
    let (script, arguments_hash) = client.line.get()?.clone()?;
    let rank = lock(&client.rank);
    let hello = rank.hello.as_ref()?;
    let [parameters, trainable] = shape(&rank, hello);
    let peaks = rank.predictions.iter().filter_map(|prediction| {
        let bytes = prediction.measured?.get();
        Some(PhasePeak { phase: prediction.phase, resource: prediction.medium, bytes })
    });
    let per_token = rank.predictions.iter().filter_map(|prediction| {
        prediction.size.filter(|size| size.unit == SizeUnit::Tokens).map(|size| size.per_unit)
    });
    let resident = facts.row(process).map(|row| row.rss.get());
    let on_devices = rank.devices.values().filter_map(|device| device.allocated_peak);
    Some(ObservedRank {
        process,
        payer: client.payer,
        command: Command {
            user_id: client.uid,
            script,
            arguments_hash,
            world_size: hello.world.unwrap_or(1),
            parameters,
            trainable,
        },
        workload: identity.workload.clone(),
        run: identity.run.clone(),
        has_ended: client.ended(),
        outcome: rank.bye.as_ref().map(outcome),
        phase: rank.phase_now().cloned().unwrap_or_default(),
        has_begun: !rank.phases.is_empty() || rank.predictions.iter().next().is_some(),
        step: rank.step,
        ooms: rank.ooms,
        peaks: peaks.collect(),
        life_peaks: [on_devices.max(), resident.max(rank.resident_peak)],
        bytes_per_token: per_token.reduce(f64::max),
    })
}

/// How a process said that it ends.
fn outcome(bye: &Bye) -> Outcome {
    let text = |text: &Option<String>| Label::printable(text.as_deref().unwrap_or_default());
    let (cause, is_raised) = match (bye.end, bye.resource) {
        (None | Some(ByeEnd::Finished), _) => (EndCause::Finished, false),
        (Some(ByeEnd::OutOfMemory), Some(Medium::Device)) => (EndCause::GpuMemory, true),
        (Some(ByeEnd::OutOfMemory), Some(Medium::Host)) => (EndCause::ProcessLimit, true),
        (Some(ByeEnd::Exception | ByeEnd::OutOfMemory | ByeEnd::OutOfSpace), _) => (EndCause::Failed, true),
        (Some(ByeEnd::Aborted), _) => (EndCause::WillNotFit, false),
        (Some(ByeEnd::Interrupted), _) => (EndCause::Killed, true),
        (Some(ByeEnd::Failed), _) => (EndCause::Failed, false),
    };
    let code = bye.reason.as_deref().filter(|_| bye.end == Some(ByeEnd::Failed));
    Outcome {
        cause,
        status: code.and_then(|code| code.parse().ok()).map(ExitStatus::Code),
        exception: if is_raised { text(&bye.reason) } else { Label::default() },
        resource: bye.resource,
        phase: text(&bye.phase),
    }
}

/// Elements of all parameters of the model, and of those that are trained.
fn shape(rank: &Rank, hello: &Hello) -> [Option<u64>; 2] {
    let (model, params) = (hello.model.as_ref(), rank.params.as_ref());
    let parameters = params.and_then(|own| own.parameters).or_else(|| model?.parameters);
    let trainable = params.and_then(|own| own.trainable).or_else(|| model?.trainable);
    [parameters, trainable]
}

fn line(root: &ProcRoot, key: ProcessKey) -> Option<CommandLine> {
    let (mut buffer, pid) = (Vec::new(), key.pid);
    // The read takes the lock of the process's memory, so a process with a pending signal is not read.
    let text = root.read(pid, "status", &mut buffer).ok()?;
    if process::status(text).signalled {
        return None;
    }
    let line = parsed(root.read_memory(pid, "cmdline", &mut buffer, LONGEST).ok()?);
    // Checked last: no other process had the pid while this one existed.
    let stat = process::stat(root.read(pid, "stat", &mut buffer).ok()?)?;
    line.filter(|_| stat.start == key.start)
}

/// The script of a command line, and the hash of its arguments: without options of the interpreter before the script, and
/// without arguments that differ between ranks.
fn parsed(text: &[u8]) -> Option<CommandLine> {
    let arguments: Vec<_> = text.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let (program, rest) = arguments.split_first()?;
    let is_python = file_name(program).starts_with("python");
    let script = if is_python {
        match python_script(rest)? {
            (Some('m'), module) => format!("-m {}", label(module)),
            (Some(_), _) => "-c".to_owned(),
            (None, script) => label(file_name(script)),
        }
    } else {
        label(file_name(program))
    };
    let own = rest.iter().filter(|own| OF_RANK.iter().all(|start| !own.starts_with(start)));
    // With their lengths, so that no two lists of arguments give the same text.
    let hashed: String = own.map(|own| format!("{}:{own}", own.len())).collect();
    let hash: String =
        digest(&SHA256, hashed.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Some((script.into(), hash[..HASH].into()))
}

/// What Python runs, as its command line has it (`Python/getopt.c` of CPython): with `c` or `m` the text after that option, else
/// a path or `-`. Absent where it runs nothing.
fn python_script<'a>(arguments: &'a [Cow<'_, str>]) -> Option<(Option<char>, &'a str)> {
    let mut rest = arguments.iter().map(|own| &**own);
    while let Some(own) = rest.next() {
        let Some(options) = own.strip_prefix('-').filter(|options| !options.is_empty()) else {
            return Some((None, own));
        };
        if options == "-" {
            return rest.next().map(|script| (None, script));
        }
        // Letters may be joined, and the value of the last one may be joined to them or be the next argument.
        let place = options.find(['c', 'm', 'W', 'X']).filter(|_| !options.starts_with('-'));
        let letter = place.and_then(|place| options[place..].chars().next());
        let joined = place.map(|place| &options[place + 1..]).filter(|value| !value.is_empty());
        match letter {
            Some('c' | 'm') => return joined.or_else(|| rest.next()).map(|value| (letter, value)),
            Some(_) if joined.is_none() => _ = rest.next(),
            None if options == "-check-hash-based-pycs" => _ = rest.next(),
            _ => {}
        }
    }
    None
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn label(text: &str) -> String {
    text.chars().take(64).map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> (String, String) {
        let (script, hash) = parsed(arguments.join("\0").as_bytes()).unwrap();
        (script.as_str().to_owned(), hash.as_str().to_owned())
    }

    #[test]
    fn a_command_is_its_script_and_a_hash_of_its_arguments() {
        let train = of(&["/usr/bin/python3.12", "-u", "/home/bob/train.py", "--key", "s3cret", ""]);
        assert_eq!(train.0, "train.py");
        assert!(train.1.len() == HASH && train.1.bytes().all(|byte| byte.is_ascii_hexdigit()), "{}", train.1);
        let rank =
            of(&["/usr/bin/python3.12", "-u", "/home/bob/train.py", "--local-rank=3", "--key", "s3cret", ""]);
        assert_eq!(rank, train, "the ranks of a run have the same");
        for other in [
            &["python", "-u", "/home/bob/train.py", "--key", "other", ""][..],
            &["python", "-u", "/home/bob/train.py", "--keys3cret", ""],
            &["python", "-u", "/home/al/train.py", "--key", "s3cret", ""],
        ] {
            assert_ne!(of(other).1, train.1, "{other:?}");
        }
        let scripts = [
            (&["python", "-m", "pkg.train", "-c"][..], "-m pkg.train"),
            (&["python", "-c", "print('s3cret')"], "-c"),
            (&["python", "-B", "-"], "-"),
            (&["python", "-W", "ignore", "train.py", "-m"], "train.py"),
            (&["python", "-uX", "dev", "-Wignore", "-Xfaulthandler", "train.py"], "train.py"),
            (&["python", "--check-hash-based-pycs", "never", "train.py"], "train.py"),
            (&["python", "-Bm", "pkg.train", "x"], "-m pkg.train"),
            (&["python", "-mpkg.train", "x"], "-m pkg.train"),
            (&["python", "-uc", "print('s3cret')"], "-c"),
            (&["python", "--", "-c"], "-c"),
            (&["./bin/train\u{1b}[2J", "x"], "train?[2J"),
            (&["", ""], ""),
        ];
        for (arguments, script) in scripts {
            assert_eq!(of(arguments).0, script);
        }
        assert_eq!(parsed(b"python\0-u"), None, "no script");
    }

    proptest::proptest! {
        #[test]
        fn any_command_line_gives_a_short_name(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            if let Some((script, hash)) = parsed(&text) {
                proptest::prop_assert!(script.as_str().chars().count() <= 67 && hash.as_str().len() == HASH);
                proptest::prop_assert!(!script.as_str().contains(char::is_control));
            }
        }
    }
}
