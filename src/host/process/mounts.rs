//! `/proc/PID/mountinfo`: the tmpfs among the mounts that a process sees.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use super::{field, number};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmpfsMount {
    /// The id of the mount, which another mount can get after this one is gone.
    pub id: u64,
    /// The number of the file system: of two mounts with the same, both show the same files.
    pub device: Box<str>,
    /// The absolute path, as the process sees it.
    pub point: PathBuf,
    /// Whether files can be written there.
    pub is_writable: bool,
}

/// Every tmpfs in the text; lines that are not complete or malformed are ignored.
pub fn tmpfs_mounts(text: &[u8]) -> Vec<TmpfsMount> {
    text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| mount(line.strip_suffix(b"\n")?)).collect()
}

/// The id of the mount of an open file, from its file in `/proc/PID/fdinfo`.
pub fn mount_id(fdinfo: &[u8]) -> Option<u64> {
    fdinfo.split(|byte| *byte == b'\n').find_map(|line| number(field(line, b"mnt_id")?))
}

/// `36 35 0:48 ROOT POINT OPTIONS [OPTIONAL…] - TYPE SOURCE OPTIONS`.
fn mount(line: &[u8]) -> Option<TmpfsMount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let device = fields.nth(1)?;
    let point = unescaped(fields.nth(1)?)?;
    let options = fields.next()?;
    fields.by_ref().find(|field| *field == b"-")?;
    if fields.next()? != b"tmpfs" {
        return None;
    }
    let of_file_system = fields.nth(1)?;
    let is_writable = [options, of_file_system]
        .iter()
        .all(|options| !options.split(|byte| *byte == b',').any(|option| option == b"ro"));
    let is_device = device.iter().all(|byte| byte.is_ascii_digit() || *byte == b':');
    let device = std::str::from_utf8(device).ok().filter(|_| is_device)?.into();
    let point = PathBuf::from(OsString::from_vec(point));
    point.is_absolute().then_some(TmpfsMount { id, device, point, is_writable })
}

/// A field without the octal escapes of the kernel (`\040` for a space).
fn unescaped(field: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, more)) = rest.split_first() {
        rest = more;
        if first != b'\\' {
            out.push(first);
            continue;
        }
        let (digits, more) = rest.split_at_checked(3)?;
        let octal = std::str::from_utf8(digits).ok()?;
        out.push(u8::from_str_radix(octal, 8).ok()?);
        rest = more;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tmpfs_is_recognized_by_its_type_alone() {
        let text = b"\
22 27 0:20 / /proc rw,nosuid shared:13 - proc proc rw\n\
31 29 0:26 / /dev/shm rw,nosuid,nodev shared:4 master:2 - tmpfs tmpfs rw,size=65536k\n\
40 27 0:41 / /tmp/a\\040b\\134c rw - tmpfs none rw\n\
41 27 0:42 / /secret ro,relatime - tmpfs none rw\n\
42 27 0:43 / /secret2 rw,relatime - tmpfs none ro,size=4k\n\
43 27 0:44 / /fuse rw - fuse.tmpfs tmpfs rw\n\
44 27 0:45 / /bad\\9 rw - tmpfs none rw\n\
45 27 0:46 /part /cut rw - tmpfs no";
        let found: Vec<_> = tmpfs_mounts(text)
            .into_iter()
            .map(|own| format!("{} {} {} {}", own.id, own.device, own.point.display(), own.is_writable))
            .collect();
        assert_eq!(
            found,
            [
                "31 0:26 /dev/shm true",
                "40 0:41 /tmp/a b\\c true",
                "41 0:42 /secret false",
                "42 0:43 /secret2 false"
            ]
        );
        assert_eq!(mount_id(b"pos:\t0\nflags:\t012100000\nmnt_id:\t31\nino:\t1\n"), Some(31));
        assert_eq!(mount_id(b"pos:\t0\n"), None);
    }
}
