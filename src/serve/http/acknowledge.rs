//! `POST /api/v1/acknowledge`: an operator acknowledges a problem.
//!
//! Only root, and the daemon's own user, on the socket of commands: the kernel tells who they are.

use std::sync::Arc;

use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};

use super::alerts::json;
use super::answer::Answer;
use super::connection::Client;
use super::jobs;
use crate::host::clock;
use crate::model::acknowledged::{Acknowledgement, ProblemId};
use crate::model::health::Health;
use crate::model::printable::escaped;
use crate::node_view::NodeView;

/// Longest name of an operator, in bytes.
const LONGEST_NAME: usize = 256;

/// Takes acknowledgements; they apply from the next sample on.
pub trait Acknowledge: Send + Sync {
    /// Acknowledges a problem that is as bad as `health`.
    fn acknowledge(&self, id: ProblemId, health: Health, acknowledgement: Acknowledgement);
}

/// The body of a request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Acknowledging {
    pub problem: String,
    pub by: String,
}

/// The response to a client; `node` gets the newest view.
pub(super) fn answer(
    receiver: &dyn Acknowledge,
    client: Client,
    headers: &HeaderMap,
    body: &[u8],
    node: impl FnOnce() -> Arc<NodeView>,
) -> Answer {
    if !client.uid.is_some_and(jobs::sees_all) {
        let why = "Only root can acknowledge a problem, over the daemon's socket (web.socket).";
        return Answer::text(StatusCode::FORBIDDEN, why).closing();
    }
    if !headers.get(header::CONTENT_TYPE).is_some_and(json) {
        let why = "The Content-Type of a request must be application/json.";
        return Answer::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why).closing();
    }
    let Acknowledging { problem: name, by } = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(error) => {
            return Answer::text(StatusCode::BAD_REQUEST, format!("The body is not a request: {error}."));
        }
    };
    if by.is_empty() || by.len() > LONGEST_NAME {
        let why = format!("The name of the operator must have 1 to {LONGEST_NAME} bytes.");
        return Answer::text(StatusCode::BAD_REQUEST, why);
    }
    let node = node();
    // Those that are acknowledged come last: of two problems with one name, each request acknowledges the next.
    let Some(problem) = node.problems.iter().find(|problem| problem.name == name) else {
        return Answer::text(StatusCode::NOT_FOUND, "The node has no such problem.");
    };
    let by = escaped(&by).into_owned();
    tracing::info!(problem = name, by, "A problem was acknowledged.");
    let acknowledgement = Acknowledgement { by, unix_seconds: clock::now().unix().as_secs_f64() };
    receiver.acknowledge(problem.id.clone(), problem.health, acknowledgement);
    Answer::text(StatusCode::OK, "The problem is acknowledged from the next sample on.")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::model::finding::Subject;
    use crate::node_view::Problem;
    use crate::serve::http::connections::Owner;

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<(ProblemId, Health, String)>>);

    impl Acknowledge for Heard {
        fn acknowledge(&self, id: ProblemId, health: Health, acknowledgement: Acknowledgement) {
            self.0.lock().unwrap().push((id, health, acknowledgement.by));
        }
    }

    #[test]
    fn only_root_on_the_socket_acknowledges_a_problem() {
        let ids = ["0", "1"].map(|gpu| ProblemId::new("xid", Subject::gpu(&gpu.into(), &"GPU-7".into())));
        let problems = ids.iter().map(|id| Problem {
            id: id.clone(),
            name: id.to_string(),
            health: Health::Critical,
            ..Problem::default()
        });
        let node = Arc::new(NodeView { problems: problems.collect(), ..NodeView::default() });
        let heard = Heard::default();
        let code = |uid: Option<u32>, kind: &str, body: &str| {
            let client = Client { local: [127, 0, 0, 1].into(), uid, certificate: true, owner: Owner::Root };
            let headers = [(header::CONTENT_TYPE, kind.parse().unwrap())].into_iter().collect();
            answer(&heard, client, &headers, body.as_bytes(), || Arc::clone(&node)).code()
        };
        let body = r#"{"problem": "xid/gpu/1", "by": "al\u001b[2Jice"}"#;
        // No password and no certificate is enough over TCP.
        for stranger in [None, Some(1000), Some(65_534)] {
            assert_eq!(code(stranger, "application/json", body), 403);
        }
        assert_eq!(code(Some(0), "text/plain", body), 415);
        for wrong in ["", "[]", r#"{"problem": "xid/gpu/1"}"#, r#"{"problem": "xid/gpu/1", "by": ""}"#] {
            assert_eq!(code(Some(0), "application/json", wrong), 400, "{wrong}");
        }
        assert_eq!(code(Some(0), "application/json", r#"{"problem": "xid/gpu/2", "by": "a"}"#), 404);
        assert!(heard.0.lock().unwrap().is_empty());
        assert_eq!(code(Some(0), "application/json", body), 200);
        let [(id, Health::Critical, by)] = &heard.0.lock().unwrap()[..] else { panic!() };
        assert!(*id == ids[1] && by == "al\\x1b[2Jice", "{by}");
    }
}
