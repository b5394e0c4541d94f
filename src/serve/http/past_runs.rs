//! `/api/v1/past-runs`: what the last runs of each command used on this node, and how they ended.
//!
//! The rules of `/api/v1/jobs/ID`: on the socket of commands a user reads its own runs, and root all.

use super::answer::Answer;
use super::connection::Client;
use super::jobs;
use crate::past_runs::{PastRuns, ShownRuns};

pub(super) const PATH: &str = "/api/v1/past-runs";

/// The response; `known` is whether the web-config file authenticates the client.
pub(super) fn answer(past_runs: &PastRuns, client: Client, known: bool) -> Answer {
    if let Some(refusal) = jobs::refusal(client, known) {
        return refusal;
    }
    Answer::own_json(&shown(past_runs, client), "The past runs")
}

/// The runs that a client sees.
fn shown(past_runs: &PastRuns, client: Client) -> ShownRuns {
    past_runs.shown(client.uid.filter(|uid| !jobs::sees_all(*uid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::connections::Owner;

    #[test]
    fn a_user_sees_its_own_runs_and_root_all() {
        let run = |user: u32, number: u64| {
            format!(
                r#"[{user},{{"user_id":{user},"script":"s","arguments_hash":"a","world_size":1,"parameters":null,"trainable":null}},
                [{{"number":{number},"run":"","ranks":1,"started_unix_seconds":1.0,"ended_unix_seconds":2.0,"step":1,
                "cause":"finished","peaks":[],"bytes_per_token":null}}]]"#
            )
        };
        let past_runs = PastRuns::default();
        let commands = [run(1000, 1), run(1001, 2)].join(",");
        let file = format!(r#"{{"memwarden_past_runs":2,"last_number":2,"commands":[{commands}]}}"#);
        past_runs.restore(file.as_bytes()).unwrap();
        let client =
            |uid| Client { local: [127, 0, 0, 1].into(), uid, certificate: false, owner: Owner::Root };
        let seen = |uid: u32| {
            let runs = shown(&past_runs, client(Some(uid))).runs;
            runs.iter().map(|run| run.command.user_id).collect::<Vec<_>>()
        };
        assert_eq!([seen(0), seen(1000), seen(1002)], [vec![1001, 1000], vec![1000], vec![]]);
        let code = |uid, known| answer(&past_runs, client(uid), known).code();
        assert_eq!([code(None, false), code(None, true), code(Some(1000), false)], [403, 200, 200]);
    }
}
