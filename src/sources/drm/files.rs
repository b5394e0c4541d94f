//! The only code of this source that opens files: the kernel's, below the configured roots.

use std::io;
use std::path::{Path, PathBuf};

use crate::host::fs::read_text;
use crate::model::bounds::{DEGREES, JOULES, MEGAHERTZ, MEMORY, WATTS};
use crate::model::units::{Bytes, Celsius, Count, Hertz, Joules, Ratio, Watts};

/// Most entries of one folder that are looked at, except for the descriptors of a process.
const MOST_ENTRIES: usize = 1024;
/// Most sensors of one kind in a folder of hwmon.
const MOST_SENSORS: u32 = 8;

/// A value that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The name of the value, as of the fields of NVML.
    pub field: &'static str,
    /// `unsupported`, `permission`, `implausible` or `error`.
    pub status: &'static str,
    /// The error number of the operating system; 0 where there is none.
    pub code: u32,
}

/// A sensor of hwmon.
#[derive(Debug)]
struct Sensor {
    kind: &'static str,
    label: String,
    path: PathBuf,
}

/// Reads the files of one GPU.
#[derive(Debug)]
pub struct Files<'r, R> {
    /// The folder of the card, `class/drm/cardN`.
    pub card: &'r Path,
    /// The folder of its hwmon device.
    hwmon: Option<PathBuf>,
    /// The sensors of hwmon whose labels have been read.
    sensors: Vec<Sensor>,
    /// The values that could not be read.
    pub refused: Vec<Refused>,
    /// Called with the name of each file before it is read.
    report: R,
}

impl<'r, R: Fn(&str)> Files<'r, R> {
    /// The files of the card in this folder, with the first hwmon device whose name is `hwmon`.
    pub fn new(card: &'r Path, hwmon: &[&str], report: R) -> Self {
        let mut files = Self { card, hwmon: None, sensors: Vec::new(), refused: Vec::new(), report };
        let folder = card.join("device/hwmon");
        let mut names = names(&folder).unwrap_or_default();
        names.sort();
        files.hwmon = names
            .into_iter()
            .map(|name| folder.join(name))
            .find(|folder| files.text(&folder.join("name")).is_ok_and(|name| hwmon.contains(&name.trim())));
        files
    }

    /// Reports what is read next.
    pub fn reads(&self, what: &str) {
        (self.report)(what);
    }

    /// The text of a file.
    ///
    /// # Errors
    /// As [`read_text`].
    pub fn text(&self, path: &Path) -> io::Result<String> {
        self.reads(&path.file_name().unwrap_or_default().to_string_lossy());
        read_text(path)
    }

    /// The number in a file of the card's folder, such as `device/gpu_busy_percent`, unless it is above `most`.
    pub fn number(&mut self, field: &'static str, file: &str, most: u64) -> Option<u64> {
        self.parsed(field, &self.card.join(file), |text| number(text, most))
    }

    /// A value of a file; what cannot be read is remembered.
    pub fn parsed<T>(
        &mut self,
        field: &'static str,
        path: &Path,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let read = self.text(path);
        self.value(field, read, parse)
    }

    fn value<T>(
        &mut self,
        field: &'static str,
        read: io::Result<String>,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        match read {
            Ok(text) => {
                let value = parse(&text);
                if value.is_none() {
                    self.refused.push(Refused { field, status: "implausible", code: 0 });
                }
                value
            }
            Err(error) => {
                self.refuse(field, &error);
                None
            }
        }
    }

    pub fn bytes(&mut self, field: &'static str, file: &str) -> Option<Bytes> {
        self.number(field, file, MEMORY).map(Bytes::new)
    }

    /// A share that the file has in percent; nothing above 100.
    pub fn percent(&mut self, field: &'static str, file: &str) -> Option<Ratio> {
        let path = self.card.join(file);
        self.parsed(field, &path, |text| Bytes::new(number(text, 100)?).share_of(Bytes::new(100)))
    }

    /// A frequency that the file has in MHz.
    pub fn megahertz(&mut self, field: &'static str, file: &str) -> Option<Hertz> {
        self.number(field, file, MEGAHERTZ).and_then(|megahertz| Hertz::new(float(megahertz) * 1e6))
    }

    /// A temperature, from the first sensor of hwmon that has one of these labels.
    pub fn temperature(&mut self, field: &'static str, labels: &[&str]) -> Option<Celsius> {
        let file = self.labelled(field, "temp", labels)?;
        // In thousandths of a degree; below zero is possible.
        let most = i64::try_from(DEGREES * 1_000).unwrap_or(i64::MAX);
        let parse =
            |text: &str| text.trim().parse::<i32>().ok().filter(|degrees| i64::from(*degrees).abs() <= most);
        let value = self.parsed(field, &file, parse);
        value.and_then(|thousandths| Celsius::new(f64::from(thousandths) / 1e3))
    }

    /// A frequency, from the first sensor of hwmon that has one of these labels, in hertz.
    pub fn frequency(&mut self, field: &'static str, labels: &[&str]) -> Option<Hertz> {
        let file = self.labelled(field, "freq", labels)?;
        let value = self.parsed(field, &file, |text| number(text, MEGAHERTZ * 1_000_000));
        value.and_then(|hertz| Hertz::new(float(hertz)))
    }

    /// A power, from the first of these files of hwmon that exists, in microwatts; nothing for 0 where that means none.
    pub fn power(&mut self, field: &'static str, files: &[&str], zero: bool) -> Option<Watts> {
        let micro = self.sensor(field, files, (WATTS * 1_000_000, zero))?;
        Watts::new(float(micro) / 1e6)
    }

    /// An energy, from the first of these files of hwmon that has counted some, in microjoules.
    pub fn energy(&mut self, field: &'static str, files: &[&str]) -> Option<Joules> {
        let micro = self.sensor(field, files, (JOULES * 1_000_000, false))?;
        Joules::new(float(micro) / 1e6)
    }

    /// Records that a value does not exist.
    pub fn unsupported(&mut self, field: &'static str) {
        self.refused.push(Refused { field, status: "unsupported", code: 0 });
    }

    /// The value of the first file that exists; without `zero`, of the first that has another one than 0.
    fn sensor(&mut self, field: &'static str, files: &[&str], (most, zero): (u64, bool)) -> Option<u64> {
        let found = files.iter().find_map(|file| {
            let path = self.hwmon.as_ref()?.join(file);
            match self.text(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Ok(text) if !zero && text.trim() == "0" => None,
                read => Some(read),
            }
        });
        match found {
            Some(read) => self.value(field, read, |text| number(text, most)),
            None => {
                self.unsupported(field);
                None
            }
        }
    }

    /// The file of the first sensor of this kind that has one of these labels. Labels do not change, so that they are read once.
    fn labelled(&mut self, field: &'static str, kind: &'static str, labels: &[&str]) -> Option<PathBuf> {
        if !self.sensors.iter().any(|sensor| sensor.kind == kind) {
            let named = |number| {
                let hwmon = self.hwmon.as_ref()?;
                let label = self.text(&hwmon.join(format!("{kind}{number}_label"))).ok()?;
                let path = hwmon.join(format!("{kind}{number}_input"));
                Some(Sensor { kind, label: label.trim().to_owned(), path })
            };
            let found: Vec<Sensor> = (1..=MOST_SENSORS).filter_map(named).collect();
            self.sensors.extend(found);
        }
        let own =
            |wanted: &&str| self.sensors.iter().find(|sensor| sensor.kind == kind && sensor.label == *wanted);
        let found = labels.iter().find_map(own).map(|sensor| sensor.path.clone());
        if found.is_none() {
            self.unsupported(field);
        }
        found
    }

    fn refuse(&mut self, field: &'static str, error: &io::Error) {
        let status = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::Unsupported => "unsupported",
            io::ErrorKind::PermissionDenied => "permission",
            io::ErrorKind::InvalidData => "implausible",
            _ => "error",
        };
        let code = error.raw_os_error().and_then(|code| u32::try_from(code).ok()).unwrap_or(0);
        self.refused.push(Refused { field, status, code });
    }
}

fn number(text: &str, most: u64) -> Option<u64> {
    text.trim().parse().ok().filter(|number| *number <= most)
}

/// Exact to 2^53.
fn float(value: u64) -> f64 {
    crate::model::units::Unit::value(Count(value))
}

/// The names of a folder's entries.
pub fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = std::fs::read_dir(folder)?.take(MOST_ENTRIES);
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

/// The first line of a small file, without surrounding spaces; empty where it cannot be read.
pub fn line(path: &Path) -> String {
    let text = read_text(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// The text of a file of a process.
///
/// # Errors
/// As [`read_text`].
pub fn fdinfo(proc: &Path, pid: u32, descriptor: u32) -> io::Result<String> {
    read_text(&proc.join(format!("{pid}/fdinfo/{descriptor}")))
}

/// The DRM devices among the first `most` descriptors of a process, as number and name, such as `renderD128`; and the number
/// of descriptors looked at.
///
/// The name of a link is made by the kernel without a call to the file's file system, so that no user can block it.
///
/// # Errors
/// Errors of the operating system, such as those for a process that has ended.
pub fn devices(proc: &Path, pid: u32, most: usize) -> io::Result<(Vec<(u32, String)>, usize)> {
    let mut found = Vec::new();
    let mut looked_at = 0;
    for entry in std::fs::read_dir(proc.join(format!("{pid}/fd")))?.take(most) {
        looked_at += 1;
        let entry = entry?;
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let device = target.to_str().and_then(|target| target.strip_prefix("/dev/dri/"));
        let number = entry.file_name().to_str().and_then(|number| number.parse().ok());
        found.extend(number.zip(device.map(str::to_owned)));
    }
    Ok((found, looked_at))
}
