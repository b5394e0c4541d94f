//! How something is, in four words. What is not known is never ok.

use serde::{Deserialize, Serialize};

use crate::model::finding::Severity;

/// The health of the node or of a part of it, by how much attention it requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// It is measured, and nothing is wrong.
    Ok,
    /// It cannot be measured, or not yet.
    #[default]
    Unknown,
    /// It requires attention.
    Warning,
    /// It requires action now.
    Critical,
}

impl Health {
    /// Its word, which is shown beside every color.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl From<Severity> for Health {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Ok,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_worse_than_ok() {
        assert!(Health::Unknown > Health::Ok && Health::Critical > Health::Warning);
        assert_eq!(Health::default(), Health::Unknown);
        let word = serde_json::to_string(&Health::Warning).unwrap();
        assert_eq!(word, format!("\"{}\"", Health::Warning.word()));
    }
}
