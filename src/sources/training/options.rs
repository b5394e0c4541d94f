//! Configuration keys of the `training` source.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::flops::peaks::Override;
use crate::host::local_socket::Access;
use crate::model::setting::{OptKind, Setting, Value};
use crate::model::units::Bytes;

crate::options! {
    /// The options of the source.
    pub struct Options {
        /// Path of the socket to which training jobs connect; its folder is created if it does not exist.
        socket: Option<PathBuf> = "/run/memwarden/job.sock";
        /// Permissions of the socket in octal, which determine who may connect; training jobs run as any user.
        mode: Mode = "0666";
        /// Owner of the socket as numbers, UID or UID:GID; empty means the daemon's user and group. Another owner needs
        /// CAP_CHOWN.
        owner: Option<Owner>;
        /// Maximum number of connected processes, and at most a quarter of the daemon's limit of open files. At the
        /// limit, a new connection of a user with fewer connections replaces the newest one of the user with the most;
        /// other connections are refused and counted.
        max_clients: usize = 1024 in 1..=65536;
        /// Maximum number of connected processes of one user.
        max_clients_per_user: usize = 512 in 1..=65536;
        /// Maximum average number of messages per second of one connection. Messages beyond it stay in the socket's
        /// buffer; when it is full, the client drops and counts them.
        messages_per_second: u32 = 1000 in 1..=1000000;
        /// Maximum length of one message, up to 64KiB.
        max_line_size: Bytes = 64KiB in 256B..=64KiB;
        /// Maximum memory for incomplete messages of one user's processes; a message beyond it is discarded.
        memory_per_user: Bytes = 4MiB;
        /// Number of events of all jobs kept for /api/v1/timeline, up to 4MiB in total.
        timeline: usize = 2000 in 0..=100000;
        /// Peak rates of devices in floating-point operations per second with dense matrices, by device name (a * at the
        /// end matches any suffix), in addition to the built-in table: 'NVIDIA H100*': 989e12.
        peak_flops: Peaks;
    }
}

/// Permissions of the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode(u32);

/// The user and the group that own the socket; absent for the daemon's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32, Option<u32>);

impl Setting for Mode {
    const KIND: OptKind = OptKind::Text;

    fn of(value: &Value) -> Result<Self, String> {
        let text = String::of(value)?;
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.map(Self).ok_or_else(|| format!("`{text}` is not an octal mode, such as 0660"))
    }
}

impl Setting for Owner {
    const KIND: OptKind = OptKind::Text;

    fn of(value: &Value) -> Result<Self, String> {
        let text = String::of(value)?;
        let numbers = match text.split_once(':') {
            Some((user, group)) => user.parse().ok().zip(group.parse().ok().map(Some)),
            None => text.parse().ok().zip(Some(None)),
        };
        let owner = numbers.map(|(user, group)| Self(user, group));
        owner.ok_or_else(|| format!("`{text}` is neither UID nor UID:GID in numbers"))
    }
}

/// Peak rates of devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peaks(pub(super) Vec<Override>);

impl Setting for Peaks {
    const KIND: OptKind = OptKind::Map;

    fn of(value: &Value) -> Result<Self, String> {
        let each = |(name, text): (String, String)| match text.parse::<f64>() {
            Ok(flops) if flops.is_finite() && flops > 0.0 => Ok(Override { name, flops }),
            _ => Err(format!("the peak of `{name}` is not a number above 0, such as 989e12")),
        };
        BTreeMap::of(value)?.into_iter().map(each).collect::<Result<_, _>>().map(Self)
    }
}

impl Options {
    /// Permissions and owner of the socket.
    pub fn access(&self) -> Access {
        Access { mode: self.mode.0, owner: self.owner.map(|Owner(user, group)| (user, group)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: Setting>(text: &str) -> Option<T> {
        T::of(&Value::Text(text.to_owned())).ok()
    }

    #[test]
    fn modes_and_owners_are_numbers() {
        assert_eq!(Options::default().access(), Access { mode: 0o666, owner: None });
        assert_eq!(
            ["0666", "660", "0888", "7777", ""].map(read),
            [Some(Mode(0o666)), Some(Mode(0o660)), None, None, None]
        );
        assert_eq!(read("1000"), Some(Owner(1000, None)));
        assert_eq!(read("0:27"), Some(Owner(0, Some(27))));
        assert_eq!(["root", "1:", "-1"].map(read::<Owner>), [None; 3]);
    }
}
