//! Label values: cheap to clone, short, and free of control characters.

use std::fmt;
use std::sync::Arc;

/// The longest label value kept, in bytes; a longer one is cut on a character boundary.
///
/// Kubernetes names have at most 253 bytes; cgroup paths are the longest label values.
pub const LONGEST: usize = 256;

#[derive(Clone, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Label(Arc<str>);

impl Label {
    /// A text that a job or a file name chose; control characters become `?`.
    pub fn printable(text: &str) -> Self {
        if text.contains(char::is_control) { text.replace(char::is_control, "?").into() } else { text.into() }
    }

    /// A text of 1 to `longest` bytes, if these are ASCII letters, digits and the bytes of `others`.
    pub fn of_letters(text: &[u8], longest: usize, others: &[u8]) -> Option<Self> {
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || others.contains(byte);
        let is_valid = (1..=longest).contains(&text.len()) && text.iter().all(is_allowed);
        std::str::from_utf8(text).ok().filter(|_| is_valid).map(Self::from)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is empty, which is equivalent to an absent label.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// By text. Labels are mostly compared with their own clones, as keys of maps: those are equal without a look at the text.
impl Ord for Label {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { std::cmp::Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<'de> serde::Deserialize<'de> for Label {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?))
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        let mut end = text.len().min(LONGEST);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self(Arc::from(&text[..end]))
    }
}

impl From<&Label> for Label {
    fn from(label: &Label) -> Self {
        label.clone()
    }
}

impl From<&String> for Label {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<String> for Label {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

macro_rules! from_number {
    ($($number:ty),*) => {$(
        impl From<$number> for Label {
            fn from(number: $number) -> Self {
                Self::from(number.to_string().as_str())
            }
        }
    )*};
}
from_number!(u8, u16, u32, u64, usize, i32, i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let long = "é".repeat(200);
        let label = Label::from(long.as_str());
        assert_eq!(label.as_str().len(), LONGEST);
        assert!(label.as_str().chars().all(|c| c == 'é'));
        let odd = format!("a{long}");
        assert_eq!(Label::from(odd.as_str()).as_str().len(), LONGEST - 1);
    }
}
