//! `/api/v1/jobs/ID`: what a Slurm job used on this node.

use http::{StatusCode, header};

use super::answer::Answer;
use crate::job_summary::Ledger;

/// The path before the ID of a job.
pub(super) const FOLDER: &str = "/api/v1/jobs/";

/// The response for one job.
pub(super) fn answer(jobs: &Ledger, job: &str) -> Answer {
    let Some(summary) = jobs.summary(job) else {
        return Answer::text(
            StatusCode::NOT_FOUND,
            "Job not found: it had no process and no GPU on this node, or ended more than a day ago.",
        );
    };
    match serde_json::to_vec(&summary) {
        Ok(bytes) => Answer::page("application/json", bytes.into()).with(header::CACHE_CONTROL, "no-store"),
        Err(error) => {
            tracing::error!(%error, "The summary of a job could not be written.");
            Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The summary could not be written.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::SlurmGpu;
    use crate::model::point::Batch;
    use crate::model::source::Reporter as _;
    use crate::model::time::Timestamp;

    #[test]
    fn a_job_is_found_by_its_id() {
        let jobs = Ledger::new(Some("node1"));
        let mut out = Batch::new();
        let held = SlurmGpu { job: "7".into(), user: Some(1000), gpu: "0".into(), uuid: "".into() };
        out.facts.slurm_gpus = vec![held];
        jobs.report(Timestamp::from_secs(1), &mut out);
        assert_eq!(answer(&jobs, "7").code(), 200);
        for unknown in ["8", "", "7/", "07", &"7".repeat(5000)] {
            assert_eq!(answer(&jobs, unknown).code(), 404, "{unknown}");
        }
    }
}
