//! Whether the daemon is healthy and ready, and the reload of its configuration.

use http::StatusCode;

use super::Routes;
use crate::host::clock;
use crate::serve::http::answer::Answer;
use crate::serve::http::meter;

impl Routes {
    /// Responds with status 200 whatever the state of the sampler; a stall is named in the text.
    pub(super) fn healthy(&self) -> Answer {
        match self.events.stalled(clock::now()) {
            None => Answer::text(StatusCode::OK, "memwarden is healthy."),
            Some(stalled) => Answer::text(
                StatusCode::OK,
                format!("memwarden responds, but sampling has stalled: {stalled}."),
            ),
        }
    }

    pub(super) fn ready(&self) -> Answer {
        let stalled = self.events.stalled(clock::now());
        let at = stalled.map_or_else(String::new, |stalled| format!(": {stalled}"));
        let Some(frame) = self.frame() else {
            return Answer::text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("No sample has been taken yet{at}."),
            );
        };
        let age = self.freshness.age(&frame);
        let stale_after = *self.stale_after.borrow();
        if age > stale_after {
            let sentence = format!(
                "The newest sample is {:.1} s old, more than {:.1} s: sampling has stalled{at}.",
                age.as_secs_f64(),
                stale_after.as_secs_f64()
            );
            return Answer::text(StatusCode::SERVICE_UNAVAILABLE, sentence);
        }
        Answer::text(StatusCode::OK, "memwarden is ready.")
    }

    pub(super) async fn reloaded(&self, open: &meter::Request) -> Answer {
        let Some(reload) = &self.reload else {
            return Answer::text(
                StatusCode::FORBIDDEN,
                "Lifecycle API is not enabled; set web.enable_lifecycle or pass --web.enable-lifecycle.",
            );
        };
        let outcome = reload.request();
        // A reload continues if its client disconnects.
        let _waits = open.waits();
        match outcome.await {
            Ok(Ok(())) => Answer::text(StatusCode::OK, "Reloaded."),
            Ok(Err(error)) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, error),
            Err(_) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The daemon is stopping."),
        }
    }
}
