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
