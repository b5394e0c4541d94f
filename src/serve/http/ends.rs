//! `/api/v1/ends`: how processes ended on this node, and why.
//!
//! The rules of `/api/v1/jobs/ID`: on the socket of commands a user reads those of its own processes, and root all.

use super::answer::Answer;
use super::connection::Client;
use super::jobs;
use crate::model::ends::{End, ShownEnds};
use crate::model::frame::Frame;

pub(super) const PATH: &str = "/api/v1/ends";
/// The version of the answer.
const VERSION: u32 = 1;

/// The response; `known` is whether the web-config file authenticates the client.
pub(super) fn answer(frame: Option<&Frame>, client: Client, known: bool) -> Answer {
    if let Some(refusal) = jobs::refusal(client, known) {
        return refusal;
    }
    Answer::own_json(&shown(frame, client), "The ends")
}

/// The ends that a client sees, the newest first.
fn shown(frame: Option<&Frame>, client: Client) -> ShownEnds {
    let sees = |end: &End| client.uid.is_none_or(|uid| jobs::sees_all(uid) || end.user_id == uid);
    let all = frame.iter().flat_map(|frame| frame.outlook.ends.iter().rev());
    ShownEnds {
        schema_version: VERSION,
        ends: all.filter(|end| sees(end)).map(|end| End::clone(end)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::connections::Owner;

    #[test]
    fn a_user_sees_its_own_ends_and_root_all() {
        let end = |number, user_id| {
            let end = End { number, user_id, ..End::default() };
            std::sync::Arc::new(end)
        };
        let ends = [end(1, 1000), end(2, 1001)].into();
        let frame = Frame {
            sequence: 1,
            at: crate::model::time::Timestamp::from_secs(1),
            families: Vec::new(),
            sources: Vec::new(),
            findings: Vec::new(),
            outlook: crate::model::outlook::Outlook { ends, ..Default::default() },
            timeline: std::sync::Arc::default(),
            acknowledged: std::sync::Arc::default(),
        };
        let client =
            |uid| Client { local: [127, 0, 0, 1].into(), uid, certificate: false, owner: Owner::Root };
        let seen = |uid: u32| {
            shown(Some(&frame), client(Some(uid))).ends.iter().map(|end| end.number).collect::<Vec<_>>()
        };
        assert_eq!([seen(0), seen(1000), seen(1002)], [vec![2, 1], vec![1], vec![]]);
        let code = |uid, known| answer(Some(&frame), client(uid), known).code();
        assert_eq!([code(None, false), code(None, true), code(Some(1000), false)], [403, 200, 200]);
        assert_eq!(shown(None, client(Some(0))).ends, []);
    }
}
