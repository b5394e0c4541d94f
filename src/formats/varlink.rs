//! The call of varlink (<https://varlink.org/Method-Call>) that systemd-oomd makes before it kills a cgroup: a JSON object
//! that a NUL byte ends. Interface: `src/shared/varlink-io.systemd.oom.Prekill.c` of systemd 260.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Maximum length of a call in bytes: the longest path of the kernel with each byte escaped (6 bytes), and the method.
pub const LONGEST: usize = 32 * 1024;

/// Maximum length of the path of a cgroup in bytes (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

const NOTIFY: &str = "io.systemd.oom.Prekill.Notify";

/// The reply to a call that was carried out.
pub const DONE: &[u8] = b"{\"parameters\":{}}\0";

/// Why a call is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no call of varlink.
    Malformed,
    /// The method is another one.
    Method,
    /// The parameter `cgroup` is missing, or is no path of a cgroup.
    Cgroup,
}

impl Refused {
    /// The reply; a malformed call has none, and ends the connection.
    pub const fn reply(self) -> &'static [u8] {
        match self {
            Self::Malformed => b"",
            Self::Method => b"{\"error\":\"org.varlink.service.MethodNotFound\",\"parameters\":{}}\0",
            Self::Cgroup => {
                b"{\"error\":\"org.varlink.service.InvalidParameter\",\"parameters\":{\"parameter\":\"cgroup\"}}\0"
            }
        }
    }
}

#[derive(Deserialize)]
struct Call<'c> {
    #[serde(borrow)]
    method: Cow<'c, str>,
    #[serde(borrow, default)]
    parameters: Parameters<'c>,
}

/// The text of a value is skipped without recursion, whatever its depth.
#[derive(Default, Deserialize)]
struct Parameters<'c> {
    #[serde(borrow)]
    cgroup: Option<&'c RawValue>,
}

/// The path of the cgroup that is about to be killed, of a call without its NUL byte.
///
/// # Errors
/// Why the call is not carried out.
pub fn prekill(call: &[u8]) -> Result<String, Refused> {
    let Call { method, parameters } = serde_json::from_slice(call).map_err(|_| Refused::Malformed)?;
    if method != NOTIFY {
        return Err(Refused::Method);
    }
    let path = parameters.cgroup.and_then(|cgroup| serde_json::from_str::<String>(cgroup.get()).ok());
    let is_path = |path: &String| path.starts_with('/') && path.len() < LONGEST_PATH && !path.contains('\0');
    path.filter(is_path).ok_or(Refused::Cgroup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_of_a_notification_is_found() {
        for (call, expected) in [
            (
                r#"{"method":"io.systemd.oom.Prekill.Notify","parameters":{"cgroup":"/a.slice/b\u002dc.scope"}}"#,
                Ok("/a.slice/b-c.scope".to_owned()),
            ),
            // Fields that a later version may add.
            (
                r#"{"parameters":{"x":[1],"cgroup":"/"},"method":"io.systemd.oom.Prekill.Notify","more":true}"#,
                Ok("/".to_owned()),
            ),
            (r#"{"method":"io.systemd.oom.Prekill.Notify"}"#, Err(Refused::Cgroup)),
            (r#"{"method":"io.systemd.oom.Prekill.Notify","parameters":{"cgroup":3}}"#, Err(Refused::Cgroup)),
            (
                r#"{"method":"io.systemd.oom.Prekill.Notify","parameters":{"cgroup":"a"}}"#,
                Err(Refused::Cgroup),
            ),
            (
                r#"{"method":"io.systemd.oom.Prekill.Notify","parameters":{"cgroup":"/a\u0000b"}}"#,
                Err(Refused::Cgroup),
            ),
            (r#"{"method":"org.varlink.service.GetInfo"}"#, Err(Refused::Method)),
            (r#"{"parameters":{"cgroup":"/a"}}"#, Err(Refused::Malformed)),
            ("", Err(Refused::Malformed)),
            ("[]", Err(Refused::Malformed)),
            (r#"{"method":"#, Err(Refused::Malformed)),
        ] {
            assert_eq!(prekill(call.as_bytes()), expected, "{call}");
        }
        let long =
            format!(r#"{{"method":"{NOTIFY}","parameters":{{"cgroup":"/{}"}}}}"#, "x".repeat(LONGEST_PATH));
        assert_eq!(prekill(long.as_bytes()), Err(Refused::Cgroup));
        assert_eq!(prekill("[".repeat(LONGEST).as_bytes()), Err(Refused::Malformed));
        let deep = format!(
            r#"{{"method":"{NOTIFY}","parameters":{{"cgroup":"/a","x":{0}{1}}}}}"#,
            "[".repeat(10_000),
            "]".repeat(10_000)
        );
        let small =
            std::thread::Builder::new().stack_size(128 * 1024).spawn(move || prekill(deep.as_bytes()));
        assert_eq!(small.unwrap().join().unwrap(), Ok("/a".to_owned()), "on the stack of its thread");
    }

    #[test]
    fn every_reply_is_one_message() {
        for reply in [DONE, Refused::Method.reply(), Refused::Cgroup.reply()] {
            let (end, text) = reply.split_last().unwrap();
            assert_eq!(*end, 0);
            assert!(serde_json::from_slice::<serde_json::Value>(text).unwrap().is_object());
        }
    }
}
