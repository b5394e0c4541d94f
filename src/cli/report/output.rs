//! Where a report goes: JSON and pictures into files.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

#[cfg(feature = "png")]
use crate::exposition::plot::png;
use crate::exposition::plot::report::Report;
use crate::exposition::plot::{self, Theme, svg};
use crate::exposition::report::Told;

/// The size of a picture, and of what each panel adds to it, in pixels.
const WIDTH: u32 = 1200;
const HEIGHT: u32 = 600;
const PANEL: u32 = 260;

/// A file that a picture can be drawn to.
pub(in crate::cli) fn drawable(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(path),
        Some("png") if cfg!(feature = "png") => Ok(path),
        Some("png") => Err("this memwarden was built without PNG; write it as .svg".to_owned()),
        _ => Err("the name of a picture ends in .svg or .png".to_owned()),
    }
}

/// Writes what was asked for.
pub(in crate::cli) fn write(
    told: &Told,
    output: Option<&Path>,
    picture: Option<&Path>,
) -> anyhow::Result<()> {
    if let Some(path) = output {
        let mut json = serde_json::to_string_pretty(&told.json)?;
        json.push('\n');
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = picture {
        let bytes = draw(&told.plot, path)?;
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn draw(report: &Report, path: &Path) -> anyhow::Result<Vec<u8>> {
    let chart = report.chart();
    let panels = u32::try_from(chart.panels.len()).unwrap_or(u32::MAX);
    let height = panels.saturating_mul(PANEL).clamp(HEIGHT, 4000);
    let picture = plot::draw(&chart, WIDTH, height, &Theme::LIGHT);
    #[cfg(feature = "png")]
    if path.extension().is_some_and(|extension| extension == "png") {
        return Ok(png::render(&picture)?);
    }
    let _ = path;
    Ok(svg::render(&picture).into_bytes())
}
