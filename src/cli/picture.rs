//! Writes pictures; the name of the file selects the format.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::out;
use crate::model::printable;
use crate::plot::png;
use crate::plot::{self, Chart, Picture, Theme, svg};

/// Parses the file of a picture, as the value of an option.
pub fn drawable(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    Format::of(&path).map(|_| path).map_err(|error| error.to_string())
}

/// Height of a chart in pixels: more for more panels.
pub fn height(chart: &Chart) -> u32 {
    let panels = u32::try_from(chart.panels.len()).unwrap_or(u32::MAX);
    panels.saturating_mul(260).clamp(600, 4000)
}

/// Draws a chart into a file.
///
/// # Errors
/// As [`Format::of`] and [`Format::write`].
pub fn chart(chart: &Chart, path: &Path) -> anyhow::Result<()> {
    Format::of(path)?.write(&plot::draw(chart, 1200, height(chart), &Theme::LIGHT), path)
}

#[derive(Clone, Copy, Debug)]
pub enum Format {
    Svg,
    Png,
}

impl Format {
    /// The format by the extension of a file; `-` is SVG on standard output.
    ///
    /// # Errors
    /// A name that ends in neither `.svg` nor `.png`.
    pub fn of(output: &Path) -> anyhow::Result<Self> {
        if output == Path::new("-") {
            return Ok(Self::Svg);
        }
        let extension = output.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "svg" => Ok(Self::Svg),
            "png" => Ok(Self::Png),
            _ => bail!("{}: the name of a picture ends in .svg or .png", output.display()),
        }
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// A picture too large for PNG.
    pub fn render(self, picture: &Picture) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Png => Ok(png::render(picture, printable::is_hidden)?),
            Self::Svg => Ok(svg::render(picture, printable::is_hidden).into_bytes()),
        }
    }

    /// Writes the picture to a file.
    ///
    /// # Errors
    /// As [`Format::render`], and errors of the operating system.
    pub fn write(self, picture: &Picture, output: &Path) -> anyhow::Result<()> {
        out::file(output, &self.render(picture)?)
    }
}
