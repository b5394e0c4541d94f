//! What keys do.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::state::{Screen, State, Tab};

/// The keys, for the help.
pub(super) const HELP: &[(&str, &str)] = &[
    ("1 to 9, Tab, Shift-Tab", "show a table"),
    ("Up, Down, j, k, PgUp, PgDn, Home, End", "select a row, scroll"),
    ("Enter", "open what is selected: workload, ranks, rank, GPU, problem"),
    ("Esc, Backspace", "back; clear the filter"),
    ("/", "filter the rows; Enter keeps the filter, Esc clears it"),
    ("s, r", "sort by the next column, reverse the order"),
    ("Space", "pause and continue"),
    ("Mouse", "click a table, a row or a column's title; the wheel scrolls"),
    ("?, h", "this help"),
    ("q, Ctrl-C", "quit"),
];

/// Longest filter in characters.
const LONGEST: usize = 80;

impl State {
    /// Takes a key; returns whether the program ends.
    pub fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return true;
        }
        if self.is_typing {
            self.type_key(key.code, is_control);
            return false;
        }
        if is_control {
            return false;
        }
        if self.has_help {
            self.has_help = false;
            return key.code == KeyCode::Char('q');
        }
        let page = isize::try_from(self.page.max(1)).unwrap_or(1);
        let tabs = Tab::all(self.kind).len();
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('?' | 'h') => self.has_help = true,
            KeyCode::Char(' ') => self.pause(),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => {
                if let Some(sort) = self.place().sort {
                    self.sort_by(sort.column);
                }
            }
            KeyCode::Char('/') => self.is_typing = matches!(self.place().screen, Screen::Tab(_)),
            KeyCode::Char(digit @ '1'..='9') => {
                self.show_tab(usize::try_from(u32::from(digit) - u32::from('1')).unwrap_or(0));
            }
            KeyCode::Tab | KeyCode::Right => self.show_tab((self.tab() + 1) % tabs),
            KeyCode::BackTab | KeyCode::Left => self.show_tab((self.tab() + tabs - 1) % tabs),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-page),
            KeyCode::PageDown => self.step(page),
            KeyCode::Home | KeyCode::Char('g') => self.step(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX),
            KeyCode::Enter => self.open_selected(),
            KeyCode::Esc | KeyCode::Backspace if self.opened.pop().is_none() => {
                self.place_mut().filter.clear();
            }
            _ => {}
        }
        false
    }

    fn type_key(&mut self, code: KeyCode, is_control: bool) {
        let filter = &mut self.place_mut().filter;
        match code {
            KeyCode::Char('u') if is_control => filter.clear(),
            KeyCode::Char(letter) if !is_control && filter.chars().count() < LONGEST => filter.push(letter),
            KeyCode::Backspace => {
                filter.pop();
            }
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                filter.clear();
                self.is_typing = false;
            }
            _ => {}
        }
    }
}
