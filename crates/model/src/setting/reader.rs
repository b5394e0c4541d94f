//! Reads YAML text against declared options, and collects every mistake.

use std::collections::BTreeMap;
use std::path::Path;

use super::problem::{ConfigError, Problem};
use super::tree::{self, Content, Node};
use super::{Opt, OptKind, Section, Settings, Value};

/// Checks `text` against one section: for a file of another format than the daemon's own.
///
/// `check` reports contradictions through `complain(key, what)`; relative paths are resolved from the folder of
/// `path`.
///
/// # Errors
/// [`ConfigError::Refused`], with every mistake in the text.
pub fn parse_section<S: Section, T>(
    text: &str,
    path: &Path,
    check: impl FnOnce(S, &mut dyn FnMut(&str, String)) -> T,
) -> Result<T, ConfigError> {
    checked(text, path, |reader, root| S::read(&reader.section(root, "", S::OPTIONS.iter())), check)
}

/// Reads `text` by `read`, then applies `check`; the error has the mistakes that either finds.
///
/// # Errors
/// [`ConfigError::Refused`], with every mistake.
pub fn checked<R, T>(
    text: &str,
    path: &Path,
    read: impl FnOnce(&mut Reader<'_>, Option<&Node>) -> R,
    check: impl FnOnce(R, &mut dyn FnMut(&str, String)) -> T,
) -> Result<T, ConfigError> {
    let root = tree::parse(text).map_err(|problem| ConfigError::refused(path, vec![problem]))?;
    let mut reader = Reader { folder: path.parent().unwrap_or(Path::new("")), problems: Vec::new() };
    let found = read(&mut reader, root.as_ref());
    let checked = check(found, &mut |key, what| {
        let line = root.as_ref().and_then(|root| line_of(root, key));
        reader.problems.push(Problem { line, key: key.to_owned(), what });
    });
    if reader.problems.is_empty() { Ok(checked) } else { Err(ConfigError::refused(path, reader.problems)) }
}

/// Reads the nodes of a file, and keeps the mistakes.
#[derive(Debug)]
pub struct Reader<'a> {
    folder: &'a Path,
    pub problems: Vec<Problem>,
}

impl Reader<'_> {
    fn complain(&mut self, line: usize, key: &str, what: impl Into<String>) {
        self.problems.push(Problem { line: Some(line), key: key.to_owned(), what: what.into() });
    }

    /// The entries of a mapping, with unknown and repeated keys reported.
    pub fn entries<'n>(
        &mut self,
        node: Option<&'n Node>,
        path: &str,
        known: &[&str],
    ) -> BTreeMap<&'n str, &'n Node> {
        let mut found: BTreeMap<&str, &Node> = BTreeMap::new();
        let Some(node) = node.filter(|node| !node.is_null()) else { return found };
        let Content::Mapping(entries) = &node.content else {
            self.complain(node.line, path, format!("expected a section, found {}", node.kind()));
            return found;
        };
        let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, line, value) in entries {
            let key = join(path, name);
            if !known.contains(&name.as_str()) {
                self.complain(*line, &key, format!("unknown key; {}", suggestion(name, known)));
            } else if let Some(first) = lines.insert(name, *line) {
                self.complain(*line, &key, format!("written twice; first on line {first}"));
            } else {
                found.insert(name, value);
            }
        }
        found
    }

    /// The values of a section.
    pub fn section(
        &mut self,
        node: Option<&Node>,
        path: &str,
        opts: impl Iterator<Item = &'static Opt>,
    ) -> Settings {
        let opts: Vec<&'static Opt> = opts.collect();
        let known: Vec<&str> = opts.iter().map(|opt| opt.key).collect();
        let entries = self.entries(node, path, &known);
        let mut settings = Settings::default();
        for opt in opts {
            let key = join(path, opt.key);
            let written = entries.get(opt.key).copied().filter(|node| !node.is_null());
            let value = match written {
                Some(node) => self.value(node, &key, opt).map(Ok),
                None => Some(opt.declared()),
            };
            let accepted = value.map(|value| value.and_then(|value| opt.accept(&value).map(|()| value)));
            match accepted {
                Some(Ok(value)) => settings.set(opt.key, value),
                Some(Err(what)) => {
                    self.problems.push(Problem { line: written.map(|node| node.line), key, what });
                }
                // A mistake that is reported already.
                None => {}
            }
        }
        settings
    }

    fn value(&mut self, node: &Node, key: &str, opt: &Opt) -> Option<Value> {
        match (opt.kind, &node.content) {
            (OptKind::Section(opts), Content::Mapping(_)) => {
                Some(Value::Section(self.section(Some(node), key, opts.iter())))
            }
            (OptKind::Sections(opts), Content::List(items)) => {
                let mut found = Vec::new();
                for (place, item) in items.iter().enumerate() {
                    let key = format!("{key}[{place}]");
                    found.push(self.section(Some(item), &key, opts.iter()));
                }
                Some(Value::Sections(found))
            }
            (OptKind::Texts, Content::List(items)) => {
                let mut found = Vec::new();
                for (place, item) in items.iter().enumerate() {
                    match &item.content {
                        Content::Scalar { text, .. } if !item.is_null() => found.push(text.clone()),
                        _ => self.complain(
                            item.line,
                            &format!("{key}[{place}]"),
                            format!("expected text, found {}", item.kind()),
                        ),
                    }
                }
                Some(Value::Texts(found))
            }
            (OptKind::Map, Content::Mapping(entries)) => {
                let mut found = BTreeMap::new();
                for (name, line, item) in entries {
                    let key = join(key, name);
                    let Content::Scalar { text, .. } = &item.content else {
                        self.complain(*line, &key, format!("expected text, found {}", item.kind()));
                        continue;
                    };
                    if found.insert(name.clone(), text.clone()).is_some() {
                        self.complain(*line, &key, "written twice");
                    }
                }
                Some(Value::Map(found))
            }
            (_, Content::Scalar { text, quoted }) => match opt.parse(text, *quoted) {
                Ok(Value::Path(path)) if path.is_relative() => Some(Value::Path(self.folder.join(path))),
                Ok(value) => Some(value),
                Err(what) => {
                    self.complain(node.line, key, what);
                    None
                }
            },
            _ => {
                self.complain(node.line, key, format!("expected {}, found {}", opt.wanted(), node.kind()));
                None
            }
        }
    }
}

/// The dotted key of a key in a section.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The line of a dotted key, or of its nearest parent in the file.
fn line_of(root: &Node, key: &str) -> Option<usize> {
    let mut node = root;
    let mut line = None;
    for part in key.split('.') {
        let (name, index) = match part.split_once('[') {
            Some((name, rest)) => (name, rest.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        let Content::Mapping(entries) = &node.content else { break };
        let Some((_, at, value)) = entries.iter().find(|(found, ..)| found == name) else { break };
        line = Some(*at);
        node = value;
        if let (Some(index), Content::List(items)) = (index, &value.content)
            && let Some(item) = items.get(index)
        {
            line = Some(item.line);
            node = item;
        }
    }
    line
}

/// Suggests the most similar key, or lists all.
pub fn suggestion(name: &str, known: &[&str]) -> String {
    let near = known.iter().map(|word| (distance(name, word), word)).filter(|(far, _)| *far <= 2).min();
    match near {
        Some((_, word)) => format!("did you mean `{word}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// The edit distance of two short words (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(64).enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = corner + usize::from(from != *to);
            corner = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}
