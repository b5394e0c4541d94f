//! `POST /api/v1/alerts`: receives Alertmanager's webhook messages from authenticated senders.
//!
//! An alert can end a job, so a sender must be authenticated by the web-config file or by a bearer token.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderMap, StatusCode, header};

use super::answer::Answer;
use crate::protection::types::alert::ReceiveAlerts;

/// Maximum size of a body in bytes; a group of 500 alerts has about 256 KiB.
pub(super) const BODY: usize = 512 * 1024;
/// Maximum number of labels of an alert, and of alerts in a message.
const MOST: usize = 1_000;

/// The fields of the webhook's message that are used (Alertmanager, "webhook_config", version 4).
#[derive(Debug, serde::Deserialize)]
struct Message {
    version: String,
    alerts: Vec<Alert>,
}

#[derive(Debug, serde::Deserialize)]
struct Alert {
    status: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Whether the sender of a message may send it, by its headers; `vouched` is whether the web-config file authenticated it.
///
/// # Errors
/// The response that refuses it.
pub(super) async fn admit(
    desk: &Arc<dyn ReceiveAlerts>,
    vouched: bool,
    headers: &HeaderMap,
) -> Result<(), Answer> {
    if !headers.get(header::CONTENT_TYPE).is_some_and(json) {
        // A page of another site can send text and forms without a CORS preflight, but not JSON.
        let why = "The Content-Type of alerts must be application/json.";
        return Err(Answer::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why).closing());
    }
    let bearer = headers.get(header::AUTHORIZATION).and_then(bearer);
    let desk = Arc::clone(desk);
    // The token is in a file, and its file system may hang.
    let admitted = tokio::task::spawn_blocking(move || check(&*desk, vouched, bearer.as_deref())).await;
    admitted.unwrap_or_else(|_| Err(not_processed()))
}

/// The response to a message of an admitted sender.
pub(super) async fn answer(desk: &Arc<dyn ReceiveAlerts>, body: Vec<u8>) -> Answer {
    let desk = Arc::clone(desk);
    let heard = tokio::task::spawn_blocking(move || receive(&*desk, &body)).await;
    heard.unwrap_or_else(|_| not_processed())
}

fn not_processed() -> Answer {
    Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The alerts could not be processed.").closing()
}

fn check(desk: &dyn ReceiveAlerts, vouched: bool, bearer: Option<&str>) -> Result<(), Answer> {
    if vouched {
        return Ok(());
    }
    let (status, why) = match desk.token() {
        Ok(Some(token)) if bearer.is_some_and(|given| same(given, &token)) => return Ok(()),
        Ok(Some(_)) => (StatusCode::UNAUTHORIZED, "Unauthorized.".to_owned()),
        Ok(None) => {
            let why = "Alerts are refused: set protection.alert_token_file, or users in web.config_file.";
            (StatusCode::FORBIDDEN, why.to_owned())
        }
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, why),
    };
    desk.refused();
    Err(Answer::text(status, why).closing())
}

fn receive(desk: &dyn ReceiveAlerts, body: &[u8]) -> Answer {
    let message: Message = match serde_json::from_slice(body) {
        Ok(message) => message,
        Err(error) => {
            return Answer::text(
                StatusCode::BAD_REQUEST,
                format!("The body is not a message of Alertmanager: {error}."),
            );
        }
    };
    if message.version != "4" || message.alerts.len() > MOST {
        let why = "Only messages of version 4 with at most 1000 alerts are accepted.";
        return Answer::text(StatusCode::BAD_REQUEST, why);
    }
    let mut heeded = 0;
    for alert in message.alerts {
        heeded +=
            u32::from(alert.labels.len() <= MOST && desk.receive(alert.labels, alert.status == "firing"));
    }
    Answer::text(StatusCode::OK, format!("Accepted alerts: {heeded}."))
}

/// Whether a Content-Type is JSON, with parameters or without.
pub(super) fn json(value: &http::HeaderValue) -> bool {
    let essence = value.to_str().ok().and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// The token of a `Bearer` authorization.
pub(super) fn bearer(value: &http::HeaderValue) -> Option<String> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

/// Compares in a time that does not depend on the number of equal bytes.
fn same(given: &str, wanted: &str) -> bool {
    let differs = given.bytes().zip(wanted.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    !wanted.is_empty() && given.len() == wanted.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct RecordingReceiver {
        token: Option<&'static str>,
        heard: Mutex<Vec<String>>,
    }

    impl ReceiveAlerts for RecordingReceiver {
        fn token(&self) -> Result<Option<String>, String> {
            Ok(self.token.map(str::to_owned))
        }

        fn receive(&self, labels: BTreeMap<String, String>, fires: bool) -> bool {
            self.heard.lock().unwrap().push(format!("{fires} {labels:?}"));
            labels.contains_key("job")
        }

        fn refused(&self) {
            self.heard.lock().unwrap().push("refused".to_owned());
        }
    }

    const MESSAGE: &str = r#"{"version":"4","groupKey":"{}","status":"firing","receiver":"x","alerts":[
        {"status":"firing","labels":{"alertname":"Low","job":"a"},"annotations":{},"startsAt":"2026-01-01T00:00:00Z"},
        {"status":"resolved","labels":{"alertname":"Low"}}]}"#;

    #[track_caller]
    fn expect(
        token: Option<&'static str>,
        vouched: bool,
        bearer: Option<&str>,
        body: &str,
        code: u16,
        heard: usize,
    ) {
        let desk = RecordingReceiver { token, ..RecordingReceiver::default() };
        let admitted = check(&desk, vouched, bearer);
        let answer = admitted.map_or_else(|refusal| refusal, |()| receive(&desk, body.as_bytes()));
        assert_eq!(answer.code(), code);
        assert_eq!(desk.heard.into_inner().unwrap().len(), heard);
    }

    #[test]
    fn only_known_senders_are_accepted() {
        expect(None, false, None, MESSAGE, 403, 1);
        expect(None, false, Some(""), MESSAGE, 403, 1);
        expect(None, true, None, MESSAGE, 200, 2);
        expect(Some("s3cret"), false, None, MESSAGE, 401, 1);
        expect(Some("s3cret"), false, Some("s3cre"), MESSAGE, 401, 1);
        expect(Some("s3cret"), false, Some("s3creT"), MESSAGE, 401, 1);
        expect(Some(""), false, Some(""), MESSAGE, 401, 1);
        expect(Some("s3cret"), false, Some("s3cret"), MESSAGE, 200, 2);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for body in
            ["", "{}", "[]", r#"{"version":"3","alerts":[]}"#, r#"{"version":"4","alerts":[{}]}"#, "\u{0}"]
        {
            expect(None, true, None, body, 400, 0);
        }
        expect(None, true, None, r#"{"version":"4","alerts":[]}"#, 200, 0);
    }

    #[test]
    fn only_json_is_json() {
        for (value, is) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("text/plain; application/json", false),
            ("application/x-www-form-urlencoded", false),
            ("", false),
        ] {
            assert_eq!(json(&http::HeaderValue::from_static(value)), is, "{value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_body_panics(body: Vec<u8>) {
            let _ = receive(&RecordingReceiver::default(), &body);
        }
    }
}
