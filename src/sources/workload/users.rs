//! User names from the password file. Users of a directory service are shown by number.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::host::fs;
use crate::model::label::Label;

/// Samples after which the file is read again for a number without a name.
const RETRY: u32 = 60;

/// User names by number.
pub(super) struct Users {
    path: PathBuf,
    names: HashMap<u32, Label>,
    wait: u32,
}

impl Users {
    /// The file is read at the first lookup.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, names: HashMap::new(), wait: 0 }
    }

    /// Called at the start of each sample.
    pub(super) const fn tick(&mut self) {
        self.wait = self.wait.saturating_sub(1);
    }

    /// The name of a user, or the number if there is none.
    pub(super) fn name(&mut self, uid: u32) -> Label {
        if !self.names.contains_key(&uid) && self.wait == 0 {
            self.wait = RETRY;
            if let Ok(text) = fs::read_text(&self.path) {
                self.names = parse(&text);
            }
        }
        self.names.get(&uid).cloned().unwrap_or_else(|| uid.into())
    }
}

fn parse(text: &str) -> HashMap<u32, Label> {
    let line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.contains(char::is_control))?;
        Some((fields.nth(1)?.parse().ok()?, Label::from(name)))
    };
    // The first line with a number counts, as for getpwuid.
    let mut names = HashMap::new();
    for (uid, name) in text.lines().filter_map(line) {
        names.entry(uid).or_insert(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_users_have_names_and_others_numbers() {
        let text =
            "root:x:0:0:root:/root:/bin/sh\n# no\n:x:5:\nada:x:1000:1::/:/\ntoor:x:0:0\nbad:x:-1:\ncut:x";
        let names = parse(text);
        assert_eq!(names.len(), 2);
        assert_eq!((names[&0].as_str(), names[&1000].as_str()), ("root", "ada"));
        assert_eq!(Users::new("/nonexistent".into()).name(7).as_str(), "7");
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "[a-z0-9:\\n]{0,200}") {
            let _ = parse(&text);
        }
    }
}
