//! Converts users of the configuration to numbers: users of the password file by name, any user by number.

use std::path::Path;

use crate::host::fs;

/// The numbers of these users, or the first unknown one.
pub(super) fn numbers(users: &[String], passwd: &Path) -> Result<Vec<u32>, String> {
    let text = fs::read_text(passwd).unwrap_or_default();
    users.iter().map(|user| number(user, &text).ok_or_else(|| user.clone())).collect()
}

fn number(user: &str, passwd: &str) -> Option<u32> {
    if let Ok(number) = user.parse() {
        return Some(number);
    }
    let line = |line: &str| {
        let mut fields = line.split(':');
        (fields.next()? == user).then(|| fields.nth(1)?.parse().ok())?
    };
    passwd.lines().find_map(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let passwd = "root:x:0:0::/:/bin/sh\nada:x:1000:1::/:/\nodd:x:y:1\n";
        let found = ["ada", "root", "77", "odd", "ad", "", "bob"].map(|user| number(user, passwd));
        assert_eq!(found, [Some(1000), Some(0), Some(77), None, None, None, None]);
        assert_eq!(
            numbers(&["5".to_owned(), "eve".to_owned()], Path::new("/nonexistent")),
            Err("eve".to_owned())
        );
    }
}
