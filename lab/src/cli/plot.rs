//! `memwarden plot`: a chart from a recording, a report or an older tool's log.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::recording::chart;
use memwarden::cli::picture::{self, Format};
use memwarden::config;
use memwarden::model::units::{Bytes, Unit as _};
use memwarden::plot::{self, Baseline, Chart, Limit, Theme, Unit};

/// Draw recordings, reports and logs as a chart.
///
/// Reads CSV (`t_s,bytes[,limit]`, or named columns), the JSON reports of memwarden and of its Python client, and the
/// logs and JSON records of MindRLHF's host monitor, FlagScale's perf_monitor, GPUMemoryProfiler, MemoryDebugger and
/// Tiny-Torch's memory profiler; which one a file is, is found from its content. Several files become panels
/// one below the other. Exit codes: 0 success, 1 an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  memwarden plot memory.csv --limit 80GiB --output memory.svg")]
pub(super) struct Args {
    /// Recording, report or log to draw.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File that the chart is written to, .svg or .png, in place of standard output; `-` is standard output, which
    /// gets SVG.
    #[arg(short, long, value_name = "FILE", default_value = "-", hide_default_value = true)]
    output: PathBuf,
    /// Title of the chart.
    #[arg(long)]
    title: Option<String>,
    /// Limit to draw as a line, for example 80GiB.
    #[arg(long, value_name = "SIZE", value_parser = config::size)]
    limit: Option<Bytes>,
    /// Columns of a CSV file to draw, separated by commas [default: columns in bytes that are not
    /// all zero].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    columns: Vec<String>,
    /// Start the value axis near the lowest value instead of at zero.
    #[arg(long)]
    fit: bool,
    /// Width of the chart in pixels.
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u32).range(200..=8000))]
    width: u32,
    /// Height of the chart in pixels [default: 600, and more for many panels].
    #[arg(long, value_parser = clap::value_parser!(u32).range(120..=8000))]
    height: Option<u32>,
    /// Color theme of the chart.
    #[arg(long, value_enum, default_value_t = Shade::Light)]
    theme: Shade,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shade {
    /// Dark lines on a white background.
    Light,
    /// Light lines on a dark background.
    Dark,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let format = Format::of(&self.output)?;
        let chart = self.chart()?;
        let drawn = plot::draw(
            &chart,
            self.width,
            self.height.unwrap_or_else(|| picture::height(&chart)),
            &self.theme(),
        );
        format.write(&drawn, &self.output)?;
        Ok(ExitCode::SUCCESS)
    }

    fn theme(&self) -> Theme {
        match self.theme {
            Shade::Light => Theme::LIGHT,
            Shade::Dark => Theme::DARK,
        }
    }

    fn chart(&self) -> anyhow::Result<Chart> {
        let charts = self
            .files
            .iter()
            .map(|file| chart::read(file, &self.columns))
            .collect::<Result<Vec<Chart>, _>>()?;
        let mut chart = plot::together(charts);
        if let Some(title) = &self.title {
            chart.title.clone_from(title);
        }
        for panel in &mut chart.panels {
            if let Some(limit) = self.limit
                && panel.unit == Unit::Bytes
            {
                panel.limit = Some(Limit { value: limit.value(), name: String::new() });
            }
            if self.fit {
                panel.baseline = Baseline::Fit;
            }
        }
        Ok(chart)
    }
}
