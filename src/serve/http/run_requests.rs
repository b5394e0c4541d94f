//! `POST /api/v1/runs/RUN/checkpoint`: another node of a run asks for a checkpoint of it.

use std::sync::Arc;

use http::{HeaderMap, StatusCode, header};
use percent_encoding::percent_decode_str;

use super::alerts::json;
use super::answer::Answer;
use crate::protection::types::run_request::{
    Credentials, ReceiveRunRequests, RunAnswer, RunOutcome, RunRequest,
};

/// The run in a path; absent where the path is another one.
pub(super) fn run(path: &str) -> Option<String> {
    let name = path.strip_prefix("/api/v1/runs/")?.strip_suffix("/checkpoint")?;
    let name = percent_decode_str(name).decode_utf8().ok()?;
    (!name.is_empty() && name.len() <= 1024).then(|| name.into_owned())
}

/// The response; `certificate` is whether the client has a certificate that the web-config file trusts.
pub(super) async fn answer(
    receiver: &Arc<dyn ReceiveRunRequests>,
    run: String,
    path: &str,
    certificate: bool,
    headers: &HeaderMap,
    body: Vec<u8>,
) -> Answer {
    if !headers.get(header::CONTENT_TYPE).is_some_and(json) {
        let why = "The Content-Type of a request must be application/json.";
        return Answer::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why).closing();
    }
    let authorization =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (receiver, path) = (Arc::clone(receiver), path.to_owned());
    // The token is in a file, whose file system may hang, and the guard is waited for.
    let answered = tokio::task::spawn_blocking(move || {
        let authorization = authorization.as_deref();
        let request = Credentials { authorization, path: &path, body: &body, certificate };
        if let Err(why) = receiver.authorize(request) {
            let status =
                if authorization.is_some() { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
            return Answer::text(status, why).closing();
        }
        match serde_json::from_slice::<RunRequest>(&body) {
            Ok(request) => shown(&receiver.receive(&run, request)),
            Err(error) => {
                Answer::text(StatusCode::BAD_REQUEST, format!("The body is not a request: {error}."))
            }
        }
    });
    let failed = |_| Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The request could not be processed.");
    answered.await.unwrap_or_else(failed)
}

fn shown(answer: &RunAnswer) -> Answer {
    let status = match answer.outcome {
        RunOutcome::Replayed => StatusCode::CONFLICT,
        RunOutcome::Busy => StatusCode::TOO_MANY_REQUESTS,
        RunOutcome::Clock | RunOutcome::Invalid => StatusCode::BAD_REQUEST,
        RunOutcome::OtherUser | RunOutcome::NotAllowed => StatusCode::FORBIDDEN,
        RunOutcome::NoJob => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    };
    let body = serde_json::to_vec(answer).unwrap_or_default();
    Answer::page("application/json", body.into()).with_status(status).with(header::CACHE_CONTROL, "no-store")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_run() {
        assert_eq!(run("/api/v1/runs/slurm-7/checkpoint").as_deref(), Some("slurm-7"));
        assert_eq!(run("/api/v1/runs/a%2Fb%20c/checkpoint").as_deref(), Some("a/b c"));
        for path in
            ["/api/v1/runs//checkpoint", "/api/v1/runs/a", "/api/v1/runs/%FF/checkpoint", "/api/v1/run"]
        {
            assert_eq!(run(path), None, "{path}");
        }
    }
}
