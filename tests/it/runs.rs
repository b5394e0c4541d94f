//! Ranks and runs of jobs that report nothing, and of jobs that do.

use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::harness::{Daemon, Page, program, wait_for};

const SOON: Duration = Duration::from_secs(40);

/// Processes that a launcher would start, with their ranks in the environment. They end with the test.
struct Launched(Vec<Child>);

impl Launched {
    fn start(mark: &str, ranks: &[&[(&str, &str)]]) -> Self {
        let start = |environment: &&[(&str, &str)]| {
            let script = "import sys, time; print(flush=True); time.sleep(600)";
            let mut child = program("python3")
                .args(["-S", "-c", script, mark])
                .envs(environment.iter().copied())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            child
        };
        Self(ranks.iter().map(start).collect())
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn ranks(page: &Page) -> Vec<[&str; 5]> {
    let infos = page.0.iter().filter(|series| series.name == "memwarden_rank_info");
    let mut ranks: Vec<[&str; 5]> = infos
        .map(|info| ["workload", "run", "rank", "local_rank", "world"].map(|name| info.labels[name].as_str()))
        .collect();
    ranks.sort_unstable();
    ranks
}

#[test]
fn ranks_and_their_run_are_known_where_the_job_reports_nothing() {
    let mark = format!("launched-{}", std::process::id());
    let both = [("WORLD_SIZE", "16"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
    let rank = |rank: &'static str, local: &'static str| {
        [&[("RANK", rank), ("LOCAL_RANK", local)][..], &both[..]].concat()
    };
    let (first, second) = (rank("8", "0"), rank("9", "1"));
    let _launched = Launched::start(&mark, &[&first, &second]);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("memwarden.yaml");
    let matchers = format!("sources: {{workload: {{matchers: [{{name: train, command_line: {mark}}}]}}}}");
    std::fs::write(&config, format!("sampling: {{interval: 200ms}}\n{matchers}\n")).unwrap();
    let daemon = Daemon::start(&["--config.file", config.to_str().unwrap()]);
    let page = daemon.wait_page("the ranks", SOON, |page| ranks(page).len() == 2);
    let run = "node1:29500";
    assert_eq!(ranks(&page), [["train", run, "8", "0", "16"], ["train", run, "9", "1", "16"]]);
    assert_eq!(page.get("memwarden_workload_info", &[("workload", "train"), ("run", run)]), Some(1.0));
    assert_eq!(page.sum("memwarden_training_ranks", &[]), 0.0, "none is connected");

    // A rank that connects, is the same rank, and keeps the run of its launcher.
    let script = "import json, os, socket, sys, time\n\
         s = socket.socket(socket.AF_UNIX)\n\
         s.connect(sys.argv[2])\n\
         hello = {'type': 'hello', 'v': 1, 'rank': 10, 'local_rank': 2, 'world': 16, 'framework': 'none'}\n\
         s.sendall((json.dumps(hello) + '\\n').encode())\n\
         sys.stdin.read()\n";
    let socket = wait_for("the job socket", SOON, || Some(daemon.job_socket()).filter(|path| path.exists()));
    let mut connected = program("python3")
        .args(["-S", "-c", script, &mark])
        .arg(&socket)
        .envs(rank("10", "2"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let page = daemon.wait_page("the third rank", SOON, |page| {
        ranks(page).len() == 3 && page.sum("memwarden_training_ranks", &[]) == 1.0
    });
    assert_eq!(ranks(&page)[0], ["train", run, "10", "2", "16"]);
    connected.stdin.take().unwrap().write_all(b"").unwrap();
    assert!(connected.wait().unwrap().success());
    daemon.wait_page("two ranks again", SOON, |page| ranks(page).len() == 2);
}
