//! `--format` and `--output`: the format and the destination of a report; the same options in every command.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::out;
use super::report::standard_output_page;
use crate::model::printable;
use crate::report::Page;
use crate::report::text::wrapped;

/// The format and the destination of a report.
///
/// `F` has the formats of the command; its default is the format where neither option names one.
#[derive(Debug, clap::Args)]
pub struct Output<F: ValueEnum + Default + Send + Sync + 'static> {
    /// Format of the report [default: the one that the name of the --output file ends in, as in .json, otherwise the
    /// first one].
    #[arg(long, value_enum)]
    format: Option<F>,
    /// File that the report is written to, in place of standard output; `-` is standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The formats of most reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Plain text.
    #[default]
    Text,
    /// JSON, with units in the keys.
    Json,
}

impl<F: ValueEnum + Default + Send + Sync + 'static> Output<F> {
    /// The selected format, by `--format` or by the name of the file.
    pub fn format(&self) -> F {
        let ending = || self.output.as_deref()?.extension()?.to_str();
        let of_the_name = || F::from_str(ending()?, true).ok();
        self.format.clone().or_else(of_the_name).unwrap_or_default()
    }

    /// Whether the report goes to standard output because no file was named.
    pub fn is_default(&self) -> bool {
        self.output.is_none()
    }

    /// What the report is formatted for: a terminal, or a file without colors and without a width.
    pub fn page(&self) -> Page {
        if self.is_default() { standard_output_page() } else { Page::default() }
    }

    /// Writes text of several lines, wrapped on a terminal. Names in it must have been escaped.
    pub fn text(&self, text: &str) -> anyhow::Result<()> {
        self.put(printable::lines(&wrapped(text, self.page())).as_bytes())
    }

    /// Writes text of several lines that may have the colors of reports, wrapped on a terminal.
    pub fn colored(&self, text: &str) -> anyhow::Result<()> {
        self.put(printable::colored(&wrapped(text, self.page())).as_bytes())
    }

    /// Writes rows for programs, as they are.
    pub fn rows(&self, text: &str) -> anyhow::Result<()> {
        self.put(printable::lines(text).as_bytes())
    }

    pub fn json(&self, text: &str) -> anyhow::Result<()> {
        self.put(printable::json(text).as_bytes())
    }

    /// Writes a value as indented JSON.
    pub fn value(&self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        self.json(&pretty(value)?)
    }

    fn put(&self, bytes: &[u8]) -> anyhow::Result<()> {
        out::file(self.output.as_deref().unwrap_or(Path::new("-")), bytes)
    }
}

impl Output<Format> {
    /// Writes a report: its text for where it goes, or the value as JSON.
    pub fn report(
        &self,
        text: impl FnOnce(Page) -> String,
        value: &impl serde::Serialize,
    ) -> anyhow::Result<()> {
        match self.format() {
            Format::Text => self.colored(&text(self.page())),
            Format::Json => self.value(value),
        }
    }
}

/// A value as indented JSON, with a line feed at its end.
pub fn pretty(value: &impl serde::Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(|text| text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        output: Output<Format>,
    }

    fn format(args: &[&str]) -> Format {
        <Line as clap::Parser>::parse_from([&["memwarden"], args].concat()).output.format()
    }

    #[test]
    fn the_option_goes_before_the_name_of_the_file() {
        for args in [&[][..], &["--output", "-"], &["--output", "report"], &["--output", "x.md"]] {
            assert_eq!(format(args), Format::Text, "{args:?}");
        }
        assert_eq!(format(&["--output", "x.json"]), Format::Json);
        assert_eq!(format(&["-o", "x.JSON"]), Format::Json);
        assert_eq!(format(&["--output", "x.json", "--format", "text"]), Format::Text);
        assert_eq!(format(&["--output", "x.txt", "--format", "json"]), Format::Json);
    }
}
