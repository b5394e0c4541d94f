//! The names of the signals that can request a checkpoint.

use crate::types::step::SignalNumber;

/// Names and numbers (signal(7); the same on x86-64 and aarch64), without the signals that stop, continue or kill.
const NAMES: &[(&str, u8)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("USR1", 10),
    ("USR2", 12),
    ("ALRM", 14),
    ("TERM", 15),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
];

/// The signal of a name, with or without `SIG`.
///
/// # Errors
/// What is wrong, and which names there are.
pub fn by_name(name: &str) -> Result<SignalNumber, String> {
    let wanted = name.strip_prefix("SIG").unwrap_or(name);
    if ["KILL", "STOP", "CONT", "TSTP"].contains(&wanted) {
        return Err(format!("{name} cannot be caught, so it cannot ask for a checkpoint"));
    }
    let found = NAMES.iter().find(|(name, _)| *name == wanted);
    found.and_then(|(_, number)| SignalNumber::new(*number)).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        format!("`{name}` is not a signal; there are {}", names.join(", "))
    })
}

/// The name of a number, without `SIG`.
pub fn name(signal: SignalNumber) -> &'static str {
    match signal {
        SignalNumber::KILL => "KILL",
        SignalNumber::STOP => "STOP",
        _ => NAMES.iter().find(|(_, number)| *number == signal.get()).map_or("?", |(name, _)| name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        assert_eq!(by_name("USR1"), Ok(SignalNumber::USR1));
        assert_eq!(by_name("SIGTERM"), Ok(SignalNumber::TERM));
        assert!(by_name("KILL").unwrap_err().contains("cannot be caught"));
        assert!(by_name("usr1").unwrap_err().contains("USR1, USR2"));
        assert_eq!(NAMES.iter().filter(|(name, number)| by_name(name).unwrap().get() != *number).count(), 0);
        assert_eq!([SignalNumber::USR1, SignalNumber::KILL].map(name), ["USR1", "KILL"]);
    }
}
