//! Cells of a terminal: text that is cut to its room, in the styles of severities.

use crate::node_view::Health;
use crate::report::text::shortened;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether there are colors; without them, severity is shown by symbols, bold and reverse letters.
    pub has_colors: bool,
    /// Whether letters beyond ASCII can be drawn.
    pub is_unicode: bool,
}

/// How a text is emphasized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Dim,
    Title,
    Selected,
    Health(Health),
    /// The verdict's line.
    Verdict(Health),
}

impl Look {
    pub(super) fn style(self, tone: Tone) -> Style {
        let plain = Style::new();
        let colored = |color: Color| if self.has_colors { plain.fg(color) } else { plain };
        match tone {
            Tone::Plain => plain,
            Tone::Dim => plain.add_modifier(Modifier::DIM),
            Tone::Title => plain.add_modifier(Modifier::BOLD),
            Tone::Selected => plain.add_modifier(Modifier::REVERSED),
            Tone::Health(Health::Ok) => colored(Color::Green),
            Tone::Health(Health::Unknown) => colored(Color::Magenta),
            Tone::Health(Health::Warning) => colored(Color::Yellow).add_modifier(Modifier::BOLD),
            Tone::Health(Health::Critical) => colored(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Verdict(health @ Health::Critical) => {
                self.style(Tone::Health(health)).add_modifier(Modifier::REVERSED)
            }
            Tone::Verdict(health) => self.style(Tone::Health(health)).add_modifier(Modifier::BOLD),
        }
    }
}

/// A buffer that text is written into. Text must have been made printable.
pub(super) struct Canvas<'b> {
    pub(super) buffer: &'b mut Buffer,
    pub(super) look: Look,
    /// Whether everything is dim, because it is not current.
    pub(super) is_dim: bool,
}

impl Canvas<'_> {
    /// Writes text into `width` columns at most and returns the columns that it took; what does not fit is cut off.
    pub(super) fn put(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) -> u16 {
        let mut style = self.look.style(tone);
        if self.is_dim && !matches!(tone, Tone::Verdict(_) | Tone::Selected) {
            style = style.add_modifier(Modifier::DIM);
        }
        let area = self.buffer.area;
        if y >= area.bottom() || x >= area.right() {
            return 0;
        }
        let text = if self.look.is_unicode { text.to_owned() } else { ascii(text) };
        let width = usize::from(width.min(area.right() - x));
        let (end, _) = self.buffer.set_stringn(x, y, text, width, style);
        end - x
    }

    /// Writes a text that is cut in the middle where it is too long.
    pub(super) fn name(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) -> u16 {
        self.put(x, y, width, &shortened(text, usize::from(width)), tone)
    }

    /// Fills a line with the style of a tone.
    pub(super) fn fill(&mut self, area: Rect, tone: Tone) {
        let style = self.look.style(tone);
        self.buffer.set_style(area, style);
    }
}

/// The signs that this program writes, as ASCII; other letters are left to the terminal.
fn ascii(text: &str) -> String {
    text.chars()
        .map(|letter| match letter {
            '–' | '\u{2212}' | '─' => '-',
            '…' => '~',
            '×' => 'x',
            '·' | '│' => '|',
            '°' => ' ',
            '▲' => '^',
            '▼' => 'v',
            letter => letter,
        })
        .collect()
}
