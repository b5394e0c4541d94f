//! The section `perf_logs`.

use std::path::PathBuf;

use super::schema;
use crate::model::setting::Settings;
use crate::model::units::Bytes;

/// Performance logs of training jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct PerfLogs {
    /// Folder of the logs; absent if they are disabled.
    pub folder: Option<PathBuf>,
    /// Number of steps between two lines.
    pub every_steps: u64,
    pub text: bool,
    /// `perf_realtime.log`.
    pub table: bool,
    /// `perf_summary.json`.
    pub summary: bool,
    /// Event files.
    pub tensorboard: bool,
    /// Size at which a file is rotated.
    pub max_size: Bytes,
    /// Number of rotated files kept for each file.
    pub max_files: u32,
}

impl PerfLogs {
    pub(super) fn check(settings: &Settings, complain: &mut dyn FnMut(&str, String)) -> Self {
        let mut logs = Self {
            folder: settings.path(&schema::PERF_FOLDER),
            every_steps: settings.count(&schema::PERF_EVERY),
            text: false,
            table: false,
            summary: false,
            tensorboard: false,
            max_size: settings.size(&schema::PERF_SIZE),
            max_files: u32::try_from(settings.count(&schema::PERF_FILES)).unwrap_or(u32::MAX),
        };
        for (place, format) in settings.texts(&schema::PERF_FORMATS).iter().enumerate() {
            let wanted = match format.as_str() {
                "text" => &mut logs.text,
                "table" => &mut logs.table,
                "summary" => &mut logs.summary,
                "tensorboard" => &mut logs.tensorboard,
                _ => {
                    let what = format!("`{format}` is not one of text, table, summary, tensorboard");
                    complain(&format!("perf_logs.formats[{place}]"), what);
                    continue;
                }
            };
            *wanted = true;
        }
        if logs.max_size < Bytes::new(64 << 10) {
            complain("perf_logs.max_size", "is less than 64KiB".to_owned());
        }
        logs
    }
}
