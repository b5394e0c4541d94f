//! Other programs that end processes when memory is short, with their thresholds beside the levels of the targets.
//!
//! A program is recognized by the cgroup of its unit, into which only root can put a process: any user can give a process its
//! name. Its user says nothing, because earlyoom runs with `DynamicUser=` and systemd-oomd as `systemd-oom`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Examined;
use crate::host::fs;
use crate::model::facts::{Facts, ProcessRow};
use crate::model::units::{Amount, Bytes};
use crate::model::{format, setting};
use crate::protection::options::Protection;
use crate::protection::options::target::Target;
use crate::protection::policy::{Mode, Resource, Rung};

/// Maximum size of a file of another program in bytes.
const LARGEST: u64 = 256 * 1024;
/// The level at which earlyoom sends SIGTERM without options, as a share: `-m` in earlyoom(1).
const EARLYOOM: f64 = 0.10;
const EARLYOOM_REPAIR: &str = "lower its thresholds: EARLYOOM_ARGS=\"-m 2 -s 2\" in /etc/default/earlyoom";
const NOHANG_REPAIR: &str =
    "lower soft_threshold_min_mem and hard_threshold_min_mem in /etc/nohang/nohang.conf";
const OOMD_REPAIR: &str = "set protection.prekill_socket, and PrekillHookTimeoutSec= in oomd.conf (systemd 260); or exempt the \
                           units of jobs: ManagedOOMPreference=omit";
/// Where systemd looks for configuration files, the first place first (oomd.conf(5)).
const OOMD_FOLDERS: [&str; 4] = ["etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"];

/// What the other programs are compared with.
#[derive(Debug)]
pub(super) struct Guards<'a> {
    proc: &'a Path,
    /// The root of the file system with their files.
    root: &'a Path,
    /// The memory of the host; absent where it is not known.
    total: Option<Bytes>,
    /// The highest soft level of the host of any target.
    soft: Option<Amount>,
    /// The longest time limit of a checkpoint of any target.
    grace: Duration,
    has_socket: bool,
}

/// Whether systemd-oomd would wait for a target.
fn can_be_asked(target: &Target) -> bool {
    let limits = &target.limits;
    limits.mode == Mode::Enforce && limits.max_state >= Some(Rung::Checkpoint) && target.ask.is_configured()
}

impl<'a> Guards<'a> {
    pub(super) fn of(protection: &Protection, proc: &'a Path, root: &'a Path) -> Self {
        let total = fs::read_text(&proc.join("meminfo")).ok().and_then(|text| total(&text));
        let levels =
            protection.targets.iter().filter_map(|target| target.limits.levels[Resource::Host.place()]);
        let bytes = |amount: &Amount| amount.of(total.unwrap_or(Bytes::new(u64::MAX)));
        let grace = protection.targets.iter().map(|target| target.limits.grace).max();
        Self {
            proc,
            root,
            total,
            soft: levels.map(|levels| levels.soft).max_by_key(bytes),
            grace: grace.unwrap_or_default(),
            has_socket: protection.prekill_socket.is_some() && protection.targets.iter().any(can_be_asked),
        }
    }

    /// The programs that run.
    pub(super) fn examine(&self, facts: &Facts) -> Vec<Examined> {
        let rows = facts.processes.iter().flat_map(|table| &table.rows);
        // A unit has several processes while it calls a hook; the first one is its own.
        let mut found: BTreeMap<&str, &ProcessRow> = BTreeMap::new();
        for row in rows {
            let cgroup = row.naming_cgroup.as_deref().or(row.cgroup.as_ref().map(|path| path.as_str()));
            let unit = cgroup.and_then(|path| {
                path.strip_prefix("/")?.strip_prefix("system.slice/")?.strip_suffix(".service")
            });
            if let Some(unit) = unit {
                let first = found.entry(unit).or_insert(row);
                if row.key.start < first.key.start {
                    *first = row;
                }
            }
        }
        let of = |(unit, row): (&str, &ProcessRow)| match unit {
            "earlyoom" => Some(self.earlyoom(&self.arguments(row)?)),
            "nohang" | "nohang-desktop" => Some(self.nohang(unit, &self.arguments(row)?)),
            "systemd-oomd" => Some(self.oomd()),
            _ => None,
        };
        found.into_iter().filter_map(of).collect()
    }

    /// The command line of a process of a system service; absent where it has ended.
    fn arguments(&self, row: &ProcessRow) -> Option<Vec<String>> {
        let path = self.proc.join(row.key.pid.to_string()).join("cmdline");
        let text = fs::read_text(&path).ok()?;
        Some(text.split_terminator('\0').map(str::to_owned).collect())
    }

    fn earlyoom(&self, arguments: &[String]) -> Examined {
        self.level("earlyoom", earlyoom(arguments, self.total), EARLYOOM_REPAIR)
    }

    fn nohang(&self, unit: &str, arguments: &[String]) -> Examined {
        let named = arguments.windows(2).find(|pair| matches!(&*pair[0], "--config" | "-c"));
        let file = named.map_or("/etc/nohang/nohang.conf", |pair| &*pair[1]);
        let text = self.read(&self.root.join(file.trim_start_matches('/')));
        self.level(unit, text.and_then(|text| nohang(&text)), NOHANG_REPAIR)
    }

    /// A program that ends processes at a level of the host's memory; absent where the level is not known.
    fn level(&self, what: &str, theirs: Option<Amount>, repair: &str) -> Examined {
        let Some(theirs) = theirs else {
            return Examined::unknown(what, "runs, and its thresholds cannot be read", repair);
        };
        let at = format!("runs, and ends processes without a checkpoint at {theirs} of available memory");
        let Some(ours) = self.soft else {
            return Examined::missing(what, format!("{at}, which no target watches"), repair);
        };
        let Some(total) = self.total else {
            return Examined::unknown(what, format!("{at}; the memory of the host is not known"), repair);
        };
        if theirs.of(total) >= ours.of(total) {
            return Examined::missing(
                what,
                format!("{at}, before a checkpoint is requested at {ours}"),
                repair,
            );
        }
        Examined::good(what, format!("{at}, below {ours}, at which a checkpoint is requested"))
    }

    /// systemd-oomd acts by pressure and swap, on units that allow it, so that its thresholds are no levels.
    fn oomd(&self) -> Examined {
        const WHAT: &str = "systemd-oomd";
        let acts = "runs, and kills units with ManagedOOM...=kill by pressure or swap";
        if !self.has_socket {
            let found = format!("{acts}, without a checkpoint; whether before memwarden is not known");
            return Examined::unknown(WHAT, found, OOMD_REPAIR);
        }
        let longer =
            format!("set PrekillHookTimeoutSec= in oomd.conf to more than {} s", self.grace.as_secs());
        let Some(time) = self.oomd_timeout() else {
            return Examined::unknown(
                WHAT,
                format!("{acts}; its PrekillHookTimeoutSec= cannot be read"),
                longer,
            );
        };
        let [waits, grace] = [time, self.grace].map(|time| format::duration(time.as_secs_f64()));
        if time.is_zero() {
            Examined::missing(WHAT, format!("{acts}, and waits for no checkpoint"), longer)
        } else if time < self.grace {
            let found = format!("{acts}, and waits {waits} for checkpoints that may take {grace}");
            Examined::missing(WHAT, found, longer)
        } else {
            Examined::good(WHAT, format!("{acts}, and waits up to {waits} for checkpoints"))
        }
    }

    /// PrekillHookTimeoutSec= of systemd-oomd, 0 where it is not set; absent where it cannot be read.
    fn oomd_timeout(&self) -> Option<Duration> {
        let folders = OOMD_FOLDERS.map(|folder| self.root.join(folder));
        let main = folders.iter().map(|folder| folder.join("oomd.conf")).find(|path| path.exists());
        // A file overrides those of the same name in later folders; they are read in the order of their names.
        let mut files: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
        for folder in folders.iter().map(|folder| folder.join("oomd.conf.d")).filter(|folder| folder.exists())
        {
            for entry in std::fs::read_dir(folder).ok()? {
                let entry = entry.ok()?;
                if entry.path().extension().is_some_and(|extension| extension == "conf") {
                    files.entry(entry.file_name()).or_insert(entry.path());
                }
            }
        }
        let mut timeout = Some(Duration::ZERO);
        for path in main.into_iter().chain(files.into_values()) {
            if let Some(value) = oomd_value(&self.read(&path)?) {
                timeout = time_span(&value);
            }
        }
        timeout
    }

    fn read(&self, path: &Path) -> Option<String> {
        String::from_utf8(fs::read_bounded(path, LARGEST).ok()?).ok()
    }
}

/// `MemTotal` of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Bytes::from_kib(line.trim().strip_suffix("kB")?.trim().parse().ok()?)
}

/// The available memory at which earlyoom sends SIGTERM; the lower one of `-m` (percent) and `-M` (KiB). Its percentages are of
/// the memory without tmpfs and the kernel's, so that the amount is at most this. Absent where an option is not understood.
fn earlyoom(arguments: &[String], total: Option<Bytes>) -> Option<Amount> {
    let (mut share, mut size) = (None, None);
    let mut rest = arguments.iter().skip(1).map(String::as_str);
    while let Some(argument) = rest.next() {
        // `-m 5`, `-m5`; the part before the comma is that of SIGTERM.
        let Some((option @ ("-m" | "-M"), attached)) = argument.split_at_checked(2) else { continue };
        let value = if attached.is_empty() { rest.next()? } else { attached };
        let number: f64 =
            value.split(',').next()?.trim().parse().ok().filter(|number: &f64| *number >= 0.0)?;
        match option {
            "-m" => share = Some(number / 100.0),
            _ => size = Some(Bytes::of(number * 1024.0)),
        }
    }
    match (share.map(Amount::Share), size.map(Amount::Bytes)) {
        (Some(share), Some(size)) => {
            let total = total?;
            Some(if share.of(total) <= size.of(total) { share } else { size })
        }
        (share, size) => Some(share.or(size).unwrap_or(Amount::Share(EARLYOOM))),
    }
}

/// `soft_threshold_min_mem` of nohang's configuration, a percentage or MiB (`5 %`, `256 M`).
fn nohang(text: &str) -> Option<Amount> {
    let mut values = text.lines().filter_map(|line| line.split_once('='));
    let (_, value) = values.rfind(|(key, _)| key.trim() == "soft_threshold_min_mem")?;
    let number = |unit: char| {
        value.trim().strip_suffix(unit)?.trim().parse().ok().filter(|number: &f64| *number >= 0.0)
    };
    let share = number('%').map(|percent| Amount::Share(percent / 100.0));
    share.or_else(|| Some(Amount::Bytes(Bytes::of(number('M')? * 1_048_576.0))))
}

/// The last `PrekillHookTimeoutSec=` in the section `[OOM]` of one file.
fn oomd_value(text: &str) -> Option<String> {
    let mut section = "";
    let mut value = None;
    for line in text.lines().map(str::trim) {
        match line.split_once('=') {
            _ if line.starts_with(['#', ';']) => {}
            None if line.starts_with('[') => section = line,
            Some((key, given)) if section == "[OOM]" && key.trim() == "PrekillHookTimeoutSec" => {
                value = Some(given.trim().to_owned());
            }
            _ => {}
        }
    }
    value
}

/// A time span of systemd.time(7), with the units that a time limit has; an empty one is the default, 0.
fn time_span(text: &str) -> Option<Duration> {
    if text == "infinity" {
        return Some(Duration::MAX);
    }
    setting::time_span(text, |unit| match unit {
        "" | "s" | "sec" | "second" | "seconds" => Some(1.0),
        "ms" | "msec" => Some(0.001),
        "m" | "min" | "minute" | "minutes" => Some(60.0),
        "h" | "hr" | "hour" | "hours" => Some(3600.0),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::facts::ProcessTable;
    use crate::model::health::Health;
    use crate::model::ids::ProcessKey;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_level_of_earlyoom_is_that_of_sigterm() {
        let total = Some(Bytes::new(100 << 30));
        for (arguments, expected) in [
            ("earlyoom", Some(Amount::Share(0.10))),
            ("earlyoom -r 0 -m 20,18", Some(Amount::Share(0.20))),
            ("earlyoom -m5 -s 100 --avoid ^x$", Some(Amount::Share(0.05))),
            ("earlyoom -M 1048576", Some(Amount::Bytes(Bytes::new(1 << 30)))),
            // The lower one.
            ("earlyoom -m 10 -M 1048576", Some(Amount::Bytes(Bytes::new(1 << 30)))),
            ("earlyoom -M 1048576,1 -m 0.5", Some(Amount::Share(0.005))),
            ("earlyoom -m", None),
            ("earlyoom -m x", None),
            ("earlyoom -m -1", None),
        ] {
            assert_eq!(earlyoom(&words(arguments), total), expected, "{arguments}");
        }
    }

    #[test]
    fn files_of_others_are_read_as_they_read_them() {
        let text =
            "# soft_threshold_min_mem = 1 %\nsoft_threshold_min_mem = 6 %\nhard_threshold_min_mem=3%\n";
        assert_eq!(nohang(text), Some(Amount::Share(0.06)));
        assert_eq!(nohang("soft_threshold_min_mem = 256 M"), Some(Amount::Bytes(Bytes::new(256 << 20))));
        assert_eq!([nohang(""), nohang("soft_threshold_min_mem = lots")], [None, None]);
        let text = "[OOM]\nPrekillHookTimeoutSec=5\n#PrekillHookTimeoutSec=6\n[X]\nPrekillHookTimeoutSec=7\n";
        assert_eq!(oomd_value(text).as_deref(), Some("5"));
        for (text, seconds) in [
            ("", Some(0.0)),
            ("90", Some(90.0)),
            ("1min 30s", Some(90.0)),
            ("500ms", Some(0.5)),
            ("1 fortnight", None),
        ] {
            assert_eq!(time_span(text).map(|time| time.as_secs_f64()), seconds, "{text}");
        }
        assert_eq!(time_span("infinity"), Some(Duration::MAX));
    }

    /// The health and the text of one program, whose process has this cgroup and command line, with a soft level of 5 %.
    fn examined(
        files: &[(&str, &str)],
        cgroup: &str,
        arguments: &str,
        has_socket: bool,
    ) -> Vec<(Health, String)> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files.iter().copied().chain([("proc/7/cmdline", &*arguments.replace(' ', "\0"))])
        {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let row = ProcessRow {
            parent: 1,
            session: 7,
            uid: 998,
            naming_cgroup: Some(cgroup.into()),
            ..ProcessRow::new(ProcessKey { pid: 7, start: 1 }, "earlyoom".into())
        };
        let processes = Some(Arc::new(ProcessTable { rows: vec![row], ..ProcessTable::default() }));
        let guards = Guards {
            proc: &folder.path().join("proc"),
            root: folder.path(),
            total: Some(Bytes::new(100 << 30)),
            soft: Some(Amount::Share(0.05)),
            grace: Duration::from_secs(60),
            has_socket,
        };
        let all = guards.examine(&Facts { processes, ..Facts::default() });
        all.into_iter().map(|examined| (examined.health, examined.found)).collect()
    }

    #[test]
    fn a_program_counts_in_the_cgroup_of_its_unit_only() {
        let one =
            |cgroup, arguments| examined(&[], cgroup, arguments, false).into_iter().map(|(health, _)| health);
        let health = |cgroup, arguments| one(cgroup, arguments).next();
        let unit = "/system.slice/earlyoom.service";
        assert_eq!(health(unit, "earlyoom -r 0"), Some(Health::Warning));
        assert_eq!(health(unit, "earlyoom -m 2"), Some(Health::Ok));
        assert_eq!(health(unit, "earlyoom -m two"), Some(Health::Unknown));
        for forged in
            ["/user.slice/earlyoom.service", "/", "/system.slice/earlyoom.service/x", "/earlyoom.service"]
        {
            assert_eq!(health(forged, "earlyoom"), None, "{forged}");
        }
    }

    #[test]
    fn the_thresholds_of_nohang_are_in_its_file() {
        let unit = "/system.slice/nohang-desktop.service";
        let file = [("etc/nohang/nohang-desktop.conf", "soft_threshold_min_mem = 3 %\n")];
        let command = "nohang --config /etc/nohang/nohang-desktop.conf";
        let [(health, found)] = &examined(&file, unit, command, false)[..] else { panic!() };
        assert_eq!(*health, Health::Ok);
        assert!(found.contains("at 3 % of available memory"), "{found}");
        assert_eq!(examined(&[], unit, command, false)[0].0, Health::Unknown);
    }

    #[test]
    fn systemd_oomd_waits_as_long_as_its_files_say() {
        let health = |files: &[(&str, &str)], has_socket| {
            let (health, found) =
                examined(files, "/system.slice/systemd-oomd.service", "systemd-oomd", has_socket).remove(0);
            println!("{found}");
            health
        };
        assert_eq!([health(&[], false), health(&[], true)], [Health::Unknown, Health::Warning]);
        let timeout = |value: &str| format!("[OOM]\nPrekillHookTimeoutSec={value}\n");
        let [short, long] = [timeout("10s"), timeout("2min")];
        assert_eq!(health(&[("etc/systemd/oomd.conf", &long)], true), Health::Ok);
        assert_eq!(health(&[("etc/systemd/oomd.conf", &short)], true), Health::Warning);
        // A drop-in overrides the file, and one in /etc that of the same name elsewhere.
        let files = [
            ("usr/lib/systemd/oomd.conf", &*short),
            ("usr/lib/systemd/oomd.conf.d/10-a.conf", &short),
            ("etc/systemd/oomd.conf.d/10-a.conf", &long),
        ];
        assert_eq!(health(&files, true), Health::Ok);
        assert_eq!(health(&[("etc/systemd/oomd.conf", &timeout("soon"))], true), Health::Unknown);
    }
}
