//! Configuration keys of the `training` source.

use std::path::PathBuf;

use super::compute;
use crate::flops::peaks::Override;
use crate::formats::messages;
use crate::host::local_socket::Access;
use crate::model::setting::{Opt, OptKind, Settings};

static SOCKET: Opt = Opt {
    key: "socket",
    help: "Path of the socket to which training jobs connect; its folder is created if it does not exist.",
    kind: OptKind::Path,
    default: "/run/memwarden/job.sock",
};
static MODE: Opt = Opt {
    key: "mode",
    help: "Permissions of the socket in octal, which determine who may connect; training jobs run as any user.",
    kind: OptKind::Text,
    default: "\"0666\"",
};
static OWNER: Opt = Opt {
    key: "owner",
    help: "Owner of the socket as numbers, UID or UID:GID; empty means the daemon's user and group. Another owner needs CAP_CHOWN.",
    kind: OptKind::Text,
    default: "\"\"",
};
static CLIENTS: Opt = Opt {
    key: "max_clients",
    help: "Maximum number of connected processes, and at most a quarter of the daemon's limit of open files. At the limit, a new connection of a user with fewer connections replaces the newest one of the user with the most; other connections are refused and counted.",
    kind: OptKind::Count(1, 65_536),
    default: "1024",
};
static CLIENTS_PER_USER: Opt = Opt {
    key: "max_clients_per_user",
    help: "Maximum number of connected processes of one user.",
    kind: OptKind::Count(1, 65_536),
    default: "512",
};
static RATE: Opt = Opt {
    key: "messages_per_second",
    help: "Maximum average number of messages per second of one connection. Messages beyond it stay in the socket's buffer; when it is full, the client drops and counts them.",
    kind: OptKind::Count(1, 1_000_000),
    default: "1000",
};
static LINE: Opt = Opt {
    key: "max_line_size",
    help: "Maximum length of one message, up to 64KiB.",
    kind: OptKind::Size,
    default: "64KiB",
};
static MEMORY: Opt = Opt {
    key: "memory_per_user",
    help: "Maximum memory for incomplete messages of one user's processes; a message beyond it is discarded.",
    kind: OptKind::Size,
    default: "4MiB",
};
static TIMELINE: Opt = Opt {
    key: "timeline",
    help: "Number of events of all jobs kept for /api/v1/timeline, up to 4MiB in total.",
    kind: OptKind::Count(0, 100_000),
    default: "2000",
};

static PEAKS: Opt = Opt {
    key: "peak_flops",
    help: "Peak rates of devices in floating-point operations per second with dense matrices, by device name (a * at the end matches any suffix), in addition to the built-in table: 'NVIDIA H100*': 989e12.",
    kind: OptKind::Map,
    default: "{}",
};

pub(super) static OPTIONS: &[&Opt] =
    &[&SOCKET, &MODE, &OWNER, &CLIENTS, &CLIENTS_PER_USER, &RATE, &LINE, &MEMORY, &TIMELINE, &PEAKS];

#[derive(Clone, Debug)]
pub struct Rules {
    /// Path of the socket; none if the key is empty.
    pub socket: Option<PathBuf>,
    /// Permissions and owner of the socket.
    pub access: Access,
    /// Maximum number of connections.
    pub max_clients: usize,
    /// Maximum number of connections of one user.
    pub max_clients_per_user: usize,
    /// Messages per second of one connection.
    pub rate: f64,
    /// Bytes of a line, its newline included.
    pub max_line_size: usize,
    /// Maximum bytes of incomplete lines of one user.
    pub memory: usize,
    /// Maximum number of entries of the timeline.
    pub timeline: usize,
    /// Configured peaks of devices.
    pub peaks: Vec<Override>,
}

impl Rules {
    pub fn read(settings: &Settings) -> Self {
        let count = |opt| usize::try_from(settings.count(opt)).unwrap_or(usize::MAX);
        let size = |opt| usize::try_from(settings.size(opt).get()).unwrap_or(usize::MAX);
        #[expect(clippy::cast_precision_loss, reason = "at most a million")]
        let rate = settings.count(&RATE) as f64;
        Self {
            socket: settings.path(&SOCKET),
            access: Access {
                mode: mode(&settings.choice(&MODE)).unwrap_or(0o666),
                owner: settings.text(&OWNER).and_then(|text| owner(&text)),
            },
            max_clients: count(&CLIENTS),
            max_clients_per_user: count(&CLIENTS_PER_USER),
            rate,
            max_line_size: size(&LINE).min(messages::LONGEST),
            memory: size(&MEMORY),
            timeline: count(&TIMELINE),
            peaks: compute::overrides(&settings.map(&PEAKS)).0,
        }
    }
}

/// Errors in values that have the right type.
pub(super) fn check(settings: &Settings) -> Vec<(String, String)> {
    let mut wrong = Vec::new();
    let text = settings.choice(&MODE);
    if mode(&text).is_none() {
        wrong.push(("mode".to_owned(), format!("`{text}` is not an octal mode, such as 0660")));
    }
    if let Some(text) = settings.text(&OWNER)
        && owner(&text).is_none()
    {
        wrong.push(("owner".to_owned(), format!("`{text}` is neither UID nor UID:GID in numbers")));
    }
    let line = settings.size(&LINE).get();
    if !(256..=messages::LONGEST as u64).contains(&line) {
        wrong.push(("max_line_size".to_owned(), "must be between 256B and 64KiB".to_owned()));
    }
    for name in compute::overrides(&settings.map(&PEAKS)).1 {
        wrong.push((
            "peak_flops".to_owned(),
            format!("the peak of `{name}` is not a number above 0, such as 989e12"),
        ));
    }
    wrong
}

fn mode(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777)
}

fn owner(text: &str) -> Option<(u32, Option<u32>)> {
    match text.split_once(':') {
        Some((user, group)) => Some((user.parse().ok()?, Some(group.parse().ok()?))),
        None => Some((text.parse().ok()?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_owners_are_numbers() {
        assert_eq!(
            [mode("0666"), mode("660"), mode("0888"), mode("7777"), mode("")],
            [Some(0o666), Some(0o660), None, None, None]
        );
        assert_eq!(owner("1000"), Some((1000, None)));
        assert_eq!(owner("0:27"), Some((0, Some(27))));
        assert_eq!([owner("root"), owner("1:"), owner("-1")], [None; 3]);
    }
}
