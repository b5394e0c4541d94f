//! `/api/v1/jobs/ID`: what a Slurm job used on this node.
//!
//! On the socket of commands a user reads its own jobs, and root all. An address that only this host reaches shows none
//! without authentication, because it cannot tell users apart; whoever reaches another address reads all jobs.

use http::StatusCode;

use super::answer::Answer;
use super::connection::Client;
use crate::job_summary::Ledger;
use crate::model::timeline::Viewer;

/// The path before the ID of a job.
pub(super) const FOLDER: &str = "/api/v1/jobs/";

/// Whether this user of the node sees the jobs of all users: root, and the daemon's own.
pub(super) fn sees_all(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// What a client reads of the words of jobs; `known` is whether the web-config file authenticates it.
pub(super) fn viewer(client: Client, known: bool) -> Viewer {
    match client.uid {
        Some(uid) if sees_all(uid) => Viewer::All,
        Some(uid) => Viewer::User(uid),
        None if known => Viewer::All,
        None => Viewer::Stranger,
    }
}

/// The response to a client whose user is not known, on an address that all users of the node reach.
pub(super) fn refusal(client: Client, known: bool) -> Option<Answer> {
    let sentence = "This address shows no jobs, because it cannot tell users apart: \
                    use the socket (web.socket), or users or client certificates in web.config_file.";
    let is_refused = client.uid.is_none() && !known && client.local.to_canonical().is_loopback();
    is_refused.then(|| Answer::text(StatusCode::FORBIDDEN, sentence))
}

/// The response for one job; `known` is whether the web-config file authenticates the client.
pub(super) fn answer(jobs: &Ledger, job: &str, client: Client, known: bool) -> Answer {
    if let Some(refusal) = refusal(client, known) {
        return refusal;
    }
    let Some(summary) = jobs.summary(job) else {
        return Answer::text(
            StatusCode::NOT_FOUND,
            "Job not found: it had no process and no GPU on this node, or ended more than a day ago.",
        );
    };
    if client.uid.is_some_and(|uid| !sees_all(uid) && summary.user_id != Some(uid)) {
        return Answer::text(StatusCode::FORBIDDEN, "The job belongs to another user.");
    }
    Answer::own_json(&summary, "The summary of a job")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::SlurmGpu;
    use crate::model::point::Batch;
    use crate::model::source::Reporter as _;
    use crate::model::time::Timestamp;
    use crate::serve::http::connections::Owner;

    #[test]
    fn a_job_is_found_by_its_id() {
        let jobs = Ledger::new(Some("node1"));
        let mut out = Batch::new();
        let held = SlurmGpu { job: "7".into(), user: Some(1000), gpu: "0".into(), uuid: "".into() };
        out.facts.slurm_gpus = vec![held];
        jobs.report(Timestamp::from_secs(1), &mut out);
        let code = |job: &str, local: [u8; 4], uid, known| {
            let client = Client { local: local.into(), uid, certificate: false, owner: Owner::Root };
            answer(&jobs, job, client, known).code()
        };
        let (loopback, network) = ([127, 0, 0, 1], [10, 0, 0, 7]);
        for allowed in [Some(0), Some(rustix::process::geteuid().as_raw()), Some(1000)] {
            assert_eq!(code("7", loopback, allowed, false), 200, "{allowed:?}");
        }
        assert_eq!(code("7", loopback, Some(1001), false), 403);
        assert_eq!((code("7", loopback, None, false), code("7", loopback, None, true)), (403, 200));
        assert_eq!(code("7", network, None, false), 200);
        for unknown in ["8", "", "7/", "07", &"7".repeat(5000)] {
            assert_eq!(code(unknown, loopback, Some(0), false), 404, "{unknown}");
        }
    }
}
