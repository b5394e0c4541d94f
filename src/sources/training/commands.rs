//! The commands of ranks, and what is reported of them to the memory of past runs.
//!
//! The script and the arguments come from the command line of the process as the kernel has it. It is read once for each
//! process, by threads that may block; arguments may contain secrets, so that only a hash of them is kept.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

use super::client::Client;
use super::rank::Rank;
use super::rank_identity::RankIdentity;
use crate::formats::messages::Hello;
use crate::host::process::ProcRoot;
use crate::host::process::readers::{self, ReadRequests, ReadTarget};
use crate::model::facts::Facts;
use crate::model::fit::SizeUnit;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::past_runs::{Command, ObservedRank, PastRuns, PhasePeak};

/// How much of a command line is read, in bytes; the rest is not compared.
const LONGEST: usize = 16 << 10;
/// Characters of the hash of the arguments.
const HASH: usize = 16;
/// Arguments that differ between the ranks of one run.
const OF_RANK: [&str; 2] = ["--local-rank=", "--local_rank="];

/// The script of a process, and the hash of its arguments.
type Line = (Label, Label);

/// The command lines of the connected ranks.
#[derive(Debug)]
pub(super) struct Commands {
    proc: PathBuf,
    /// Absent until it could be opened.
    root: Option<Arc<ProcRoot>>,
    past_runs: Arc<PastRuns>,
    requests: ReadRequests<Option<Line>>,
    /// Absent where it could not be read.
    known: HashMap<ProcessKey, Option<Line>>,
}

impl Commands {
    pub(super) fn new(proc: PathBuf, past_runs: Arc<PastRuns>) -> Self {
        let requests = ReadRequests::new(readers::shared());
        Self { proc, root: None, past_runs, requests, known: HashMap::new() }
    }

    fn root(&mut self) -> Option<Arc<ProcRoot>> {
        if self.root.is_none() {
            let mut root = ProcRoot::new(self.proc.clone());
            root.connect().ok()?;
            self.root = Some(Arc::new(root));
        }
        self.root.clone()
    }

    /// Reads the command lines of new ranks, and reports all ranks; `ended` are those whose connections have ended. Returns what
    /// is to be said of the earlier runs of each.
    pub(super) fn turn(
        &mut self,
        current: &[(&Arc<Client>, RankIdentity)],
        ended: &[(&Arc<Client>, RankIdentity)],
        facts: &Facts,
        at: Timestamp,
    ) -> BTreeMap<ProcessKey, String> {
        let all = || current.iter().chain(ended);
        let root = self.root();
        for (key, root) in current.iter().filter_map(|(client, _)| Some((client.key?, root.as_ref()?))) {
            let row = facts.processes.as_ref().and_then(|table| table.get(key.pid));
            if let Some(row) = row.filter(|row| row.key == key && !self.known.contains_key(&key)) {
                let target = ReadTarget { key, uid: row.uid, comm: row.comm.clone(), what: "cmdline" };
                let root = Arc::clone(root);
                self.requests.request(target, move || line(&root, key.pid));
            }
        }
        let is_seen = |key: ProcessKey| all().any(|(client, _)| client.key == Some(key));
        self.requests.keep(is_seen);
        for (key, answer) in self.requests.answers() {
            self.known.insert(key, answer.flatten());
        }
        self.known.retain(|key, _| is_seen(*key));
        let observed: Vec<ObservedRank> =
            all().filter_map(|(client, identity)| self.observed(client, identity)).collect();
        let is_running = |key: ProcessKey| {
            let row = facts.processes.as_ref().and_then(|table| table.get(key.pid));
            row.is_some_and(|row| row.key == key && !matches!(row.state, b'Z' | b'X'))
        };
        let killed: Vec<_> = facts.oom_victims.iter().map(|victim| victim.process).collect();
        self.past_runs.tick(&observed, &killed, is_running, at)
    }

    fn observed(&self, client: &Client, identity: &RankIdentity) -> Option<ObservedRank> {
        let process = client.key?;
        let (script, arguments_hash) = self.known.get(&process)?.clone()?;
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
            said_bye: rank.bye.is_some(),
            step: rank.step,
            ooms: rank.ooms,
            peaks: peaks.collect(),
            bytes_per_token: per_token.reduce(f64::max),
        })
    }
}

/// Elements of all parameters of the model, and of those that are trained.
fn shape(rank: &Rank, hello: &Hello) -> [Option<u64>; 2] {
    let (model, params) = (hello.model.as_ref(), rank.params.as_ref());
    let parameters = params.and_then(|own| own.parameters).or_else(|| model?.parameters);
    let trainable = params.and_then(|own| own.trainable).or_else(|| model?.trainable);
    [parameters, trainable]
}

fn line(root: &ProcRoot, pid: u32) -> Option<Line> {
    let mut buffer = Vec::new();
    // The read takes the lock of the process's memory, so a process with a pending signal is not read.
    let text = root.read(pid, "status", &mut buffer).ok()?;
    if crate::host::process::status(text).signalled {
        return None;
    }
    parsed(root.read_memory(pid, "cmdline", &mut buffer, LONGEST).ok()?)
}

/// The script of a command line, and the hash of its arguments: without options of the interpreter before the script, and
/// without arguments that differ between ranks.
fn parsed(text: &[u8]) -> Option<Line> {
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
