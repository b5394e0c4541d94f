//! Screens as SVG: the pictures of the documents.

use std::fmt::Write as _;

use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::style::{Color, Modifier};

/// Width and height of a cell, and the border, in pixels.
const CELL: (f64, f64) = (8.4, 18.0);
const BORDER: f64 = 12.0;
const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d8dade";

fn color(color: Color) -> &'static str {
    match color {
        Color::Reset => FOREGROUND,
        Color::Green => "#6cc070",
        Color::Magenta => "#d58bd8",
        Color::Yellow => "#e2b93d",
        Color::Red => "#ff6b68",
        other => panic!("a color without a place in the pictures: {other:?}"),
    }
}

fn place(cells: usize, size: f64) -> f64 {
    size.mul_add(f64::from(u32::try_from(cells).unwrap()), BORDER)
}

/// The cells of a screen as SVG, in the colors of a dark terminal.
pub(super) fn svg(buffer: &Buffer, title: &str) -> String {
    let (columns, rows) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let (width, height) = (place(columns, CELL.0) + BORDER, place(rows, CELL.1) + BORDER);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\">\n<title>{title}</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n\
         <g font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\" \
         xml:space=\"preserve\">\n"
    );
    for (y, row) in buffer.content.chunks(columns).enumerate() {
        let mut x = 0;
        for same in row.chunk_by(|a, b| a.fg == b.fg && a.modifier == b.modifier) {
            run(&mut out, (x, y), same);
            x += same.len();
        }
    }
    out.push_str("</g>\n</svg>\n");
    out
}

/// Cells of one style, in one row.
fn run(out: &mut String, (x, y): (usize, usize), cells: &[Cell]) {
    let text: String = cells.iter().map(Cell::symbol).collect();
    let modifier = cells[0].modifier;
    let is_reversed = modifier.contains(Modifier::REVERSED);
    let (left, top) = (place(x, CELL.0), place(y, CELL.1));
    let width = place(cells.len(), CELL.0) - BORDER;
    let mut fill = color(cells[0].fg);
    if is_reversed {
        let _ = writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
            CELL.1
        );
        fill = BACKGROUND;
    }
    if text.trim().is_empty() {
        return;
    }
    // Spaces in a row would be drawn as one.
    let text = text.replace(' ', "\u{a0}");
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let bold = if modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let dim = if modifier.contains(Modifier::DIM) { " opacity=\"0.6\"" } else { "" };
    // Each font has its own width: the length of the text is given.
    let _ = writeln!(
        out,
        "<text x=\"{left:.1}\" y=\"{:.1}\" textLength=\"{width:.1}\" lengthAdjust=\"spacingAndGlyphs\" \
         fill=\"{fill}\"{bold}{dim}>{text}</text>",
        top + 13.5
    );
}
