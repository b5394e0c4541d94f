//! Where a report goes: JSON and pictures into files.

use std::path::Path;

use crate::cli::out;
use crate::cli::picture::Format;
use crate::model::printable;
use crate::plot::report::Report;
use crate::plot::{self, Picture, Theme};
use crate::report::ReportOutput;

/// The size of a picture, and of what each panel adds to it, in pixels.
const WIDTH: u32 = 1200;
const HEIGHT: u32 = 600;
const PANEL: u32 = 260;

/// Writes what was asked for.
pub(in crate::cli) fn write(
    told: &ReportOutput,
    output: Option<&Path>,
    picture: Option<&Path>,
) -> anyhow::Result<()> {
    if let Some(path) = output {
        let mut json = serde_json::to_string_pretty(&told.json)?;
        json.push('\n');
        out::file(path, printable::json(&json).as_bytes())?;
    }
    if let Some(path) = picture {
        Format::of(path)?.write(&draw(&told.plot), path)?;
    }
    Ok(())
}

fn draw(report: &Report) -> Picture {
    let chart = report.chart();
    let panels = u32::try_from(chart.panels.len()).unwrap_or(u32::MAX);
    let height = panels.saturating_mul(PANEL).clamp(HEIGHT, 4000);
    plot::draw(&chart, WIDTH, height, &Theme::LIGHT)
}
