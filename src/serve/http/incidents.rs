//! `/api/v1/incidents`: the records of protection, for authenticated clients.
//!
//! The record files are readable by their owner only and include the output of hooks. Over HTTP they are served only
//! to clients that the web-config file authenticates, by a password or by a client certificate.

use std::io::ErrorKind;
use std::sync::Arc;

use http::{StatusCode, header};

use super::answer::Answer;
use crate::protection::types::incidents::{self, IncidentError, Incidents, RECORD};
use crate::serve::page;

/// The requested object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The list of incidents.
    List,
    /// The record of one incident, by its ID.
    Record(String),
    /// One file of an incident, by ID and file name.
    File(String, String),
}

impl Wanted {
    const LIST: &'static str = "/api/v1/incidents";

    /// Parses a path; absent where it is not a path of incidents.
    pub(super) fn of(path: &str) -> Option<Self> {
        let rest = path.strip_prefix(Self::LIST)?;
        if rest.is_empty() {
            return Some(Self::List);
        }
        let rest = rest.strip_prefix('/')?;
        Some(match rest.split_once('/') {
            None => Self::Record(rest.to_owned()),
            Some((id, file)) => Self::File(id.to_owned(), file.to_owned()),
        })
    }

    fn content_type(&self) -> &'static str {
        let Self::File(_, name) = self else { return "application/json" };
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("json") => "application/json",
            Some("csv") => "text/csv; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        }
    }
}

/// The response; `known` is whether the client is authenticated.
pub(super) async fn answer(store: Option<Arc<dyn Incidents>>, wanted: Wanted, known: bool) -> Answer {
    if !known {
        return Answer::text(
            StatusCode::FORBIDDEN,
            "Incidents are served to authenticated clients only: list basic_auth_users, or require client \
             certificates, in the file of web.config_file. `memwarden incidents` on this host reads them as root.",
        );
    }
    let content_type = wanted.content_type();
    let listing = wanted == Wanted::List;
    // A disk may be slow; the request's time limit ends only the wait for it.
    let read = tokio::task::spawn_blocking(move || match wanted {
        Wanted::List => incidents::json(store.as_deref()),
        Wanted::Record(id) => read(store.as_deref(), &id, RECORD),
        Wanted::File(id, file) => read(store.as_deref(), &id, &file),
    });
    match read.await {
        Ok(Ok(bytes)) => Answer::page(content_type, bytes.into())
            .with(header::CACHE_CONTROL, "no-store")
            .with(header::CONTENT_SECURITY_POLICY, page::NOTHING_ALLOWED),
        Ok(Err(IncidentError::Name(_))) => none(),
        Ok(Err(IncidentError::Io { source, .. })) if !listing && source.kind() == ErrorKind::NotFound => {
            none()
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "The incidents cannot be read.");
            Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The incidents cannot be read; see the log.")
        }
        Err(_) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The daemon is stopping."),
    }
}

fn read(store: Option<&dyn Incidents>, id: &str, file: &str) -> Result<Vec<u8>, IncidentError> {
    let none = || IncidentError::Name(id.to_owned());
    store.ok_or_else(none)?.file(id, file)
}

fn none() -> Answer {
    Answer::text(StatusCode::NOT_FOUND, "Incident not found.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_the_list_a_record_or_a_file() {
        assert_eq!(Wanted::of("/api/v1/incidents"), Some(Wanted::List));
        assert_eq!(Wanted::of("/api/v1/incidents/a"), Some(Wanted::Record("a".to_owned())));
        let file = Wanted::of("/api/v1/incidents/a/memory.svg").unwrap();
        assert_eq!(file, Wanted::File("a".to_owned(), "memory.svg".to_owned()));
        assert_eq!(file.content_type(), "image/svg+xml");
        assert_eq!(Wanted::of("/api/v1/incidentsx"), None);
    }
}
