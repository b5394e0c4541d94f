//! The address of a web service without its secrets.

use std::fmt;
use std::sync::Arc;

/// The address of a web service for people: its scheme and host. Paths, queries and what is before an `@` hold the
/// secrets of chat services.
#[derive(Clone, Copy, Debug)]
pub struct ServiceAddress<'u>(pub &'u str);

impl fmt::Display for ServiceAddress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", self.0));
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = host.rsplit('@').next().unwrap_or_default();
        if !scheme.is_empty() {
            write!(f, "{scheme}://")?;
        }
        f.write_str(host)
    }
}

pub(super) fn serialize<S: serde::Serializer>(url: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&ServiceAddress(url))
}
