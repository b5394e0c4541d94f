//! Checks a file against the declarations and collects every mistake.

use std::collections::BTreeMap;
use std::path::Path;

use super::checked::Config;
use super::problem::{ConfigError, Problem};
use super::schema::Schema;
use super::tree::{self, Content, Node};
use crate::model::setting::{Opt, OptKind, Section, Settings, Value};

/// Maximum size of a configuration file in bytes.
const LARGEST: u64 = 1 << 20;

/// A value from the command line; it takes precedence over the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The flag, for messages.
    pub flag: String,
    /// The dotted key, for example `sources.gpu.nvml_library`.
    pub key: String,
    /// The values: one for most options, any number for a list.
    pub values: Vec<String>,
}

impl Override {
    pub fn new(flag: &str, key: &str, values: Vec<String>) -> Self {
        Self { flag: flag.to_owned(), key: key.to_owned(), values }
    }
}

/// Reads and checks the file at `path`.
///
/// # Errors
/// [`ConfigError`], with every mistake in the file and the overrides.
pub fn parse(path: &Path, schema: &Schema, overrides: &[Override]) -> Result<Config, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    let what = match metadata.len() {
        _ if !metadata.is_file() => Some("is not a regular file".to_owned()),
        size if size > LARGEST => Some(format!("{size} bytes; a configuration has at most {LARGEST}")),
        _ => None,
    };
    if let Some(what) = what {
        return Err(ConfigError::refused(path, vec![Problem { line: None, key: String::new(), what }]));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse_str(&text, path, schema, overrides)
}

/// Refuses a file that has no key, for a reload: it is one that is being written, and would drop every target.
///
/// # Errors
/// [`ConfigError`] where it has none, or cannot be read.
pub fn require_key(path: &Path) -> Result<(), ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() || metadata.len() > LARGEST {
        return Ok(());
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let what = "the file has no key; to go back to the defaults, restart memwarden".to_owned();
    match tree::parse(&text) {
        Ok(None) => Err(ConfigError::refused(path, vec![Problem { line: None, key: String::new(), what }])),
        _ => Ok(()),
    }
}

/// Checks `text`; `path` is used in messages and for relative paths.
///
/// # Errors
/// [`ConfigError::Refused`], with every mistake in the text and the overrides.
pub fn parse_str(
    text: &str,
    path: &Path,
    schema: &Schema,
    overrides: &[Override],
) -> Result<Config, ConfigError> {
    let read = |reader: &mut Reader<'_>, root: Option<&Node>| {
        let mut tables = reader.top(root, schema);
        for given in overrides {
            if let Err(what) = tables.replace(given, schema) {
                reader.problems.push(Problem { line: None, key: given.flag.clone(), what });
            }
        }
        tables
    };
    checked(text, path, read, |tables, complain| Config::check(&tables, schema, complain))
}

/// Checks `text` against one section: for a file of another format than the daemon's own.
///
/// `check` reports contradictions through `complain(key, what)`; relative paths are resolved from the folder of
/// `path`.
pub(crate) fn parse_section<S: Section, T>(
    text: &str,
    path: &Path,
    check: impl FnOnce(S, &mut dyn FnMut(&str, String)) -> T,
) -> Result<T, ConfigError> {
    checked(text, path, |reader, root| S::read(&reader.section(root, "", S::OPTIONS.iter())), check)
}

/// Reads `text` by `read`, then applies `check`; the error has the mistakes that either finds.
fn checked<R, T>(
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

/// The sections of a file, checked key by key.
pub(super) struct Tables {
    /// By key, each a section.
    pub(super) sections: Settings,
    /// By group, then by part.
    pub(super) groups: BTreeMap<&'static str, BTreeMap<&'static str, Settings>>,
}

impl Tables {
    /// The values of a section of another module.
    pub(super) fn section(&self, opt: &Opt) -> Settings {
        self.sections.section(opt.key).cloned().unwrap_or_default()
    }

    /// Replaces a value of the file by one from the command line.
    fn replace(&mut self, given: &Override, schema: &Schema) -> Result<(), String> {
        let of = |name: &str, known: &[&str]| {
            format!("unknown option `{}`; {}", given.key, suggestion(name, known))
        };
        let unknown = || format!("unknown option `{}`", given.key);
        let mut parts = given.key.split('.');
        let first = parts.next().ok_or_else(unknown)?;
        let group = schema.groups.iter().find(|group| group.key == first);
        let section = schema.sections().find(|section| section.key == first);
        let (settings, opts): (&mut Settings, Vec<&'static Opt>) = match (group, section.map(|opt| opt.kind))
        {
            (Some(group), _) => {
                let name = parts.next().ok_or_else(unknown)?;
                let known: Vec<&str> = group.parts.iter().map(|part| part.key).collect();
                let part =
                    group.parts.iter().find(|part| part.key == name).ok_or_else(|| of(name, &known))?;
                let settings = self.groups.get_mut(group.key).and_then(|parts| parts.get_mut(name));
                (settings.ok_or_else(unknown)?, part.options().collect())
            }
            (None, Some(OptKind::Section(opts))) => {
                (self.sections.section_mut(first).ok_or_else(unknown)?, opts.iter().collect())
            }
            (None, Some(_)) => return Err(unknown()),
            (None, None) => {
                let groups = schema.groups.iter().map(|group| group.key);
                let known: Vec<&str> = schema.sections().map(|section| section.key).chain(groups).collect();
                return Err(of(first, &known));
            }
        };
        let key = parts.next().ok_or_else(unknown)?;
        let known: Vec<&str> = opts.iter().map(|opt| opt.key).collect();
        let opt = opts.into_iter().find(|opt| opt.key == key).ok_or_else(|| of(key, &known))?;
        if parts.next().is_some() {
            return Err(unknown());
        }
        let value = match (opt.kind, given.values.as_slice()) {
            (OptKind::Texts, values) => Value::Texts(values.to_vec()),
            (_, [value]) => opt.parse(value, false)?,
            _ => return Err("takes one value".to_owned()),
        };
        opt.accept(&value)?;
        settings.set(opt.key, value);
        Ok(())
    }
}

struct Reader<'a> {
    folder: &'a Path,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn complain(&mut self, line: usize, key: &str, what: impl Into<String>) {
        self.problems.push(Problem { line: Some(line), key: key.to_owned(), what: what.into() });
    }

    fn top(&mut self, root: Option<&Node>, schema: &Schema) -> Tables {
        let mut names: Vec<&str> = schema.sections().map(|section| section.key).collect();
        names.extend(schema.groups.iter().map(|group| group.key));
        let entries = self.entries(root, "", &names);
        let mut tables = Tables { sections: Settings::default(), groups: BTreeMap::new() };
        for section in schema.sections() {
            let node = entries.get(section.key).copied();
            let OptKind::Section(opts) = section.kind else { continue };
            let settings = self.section(node, section.key, opts.iter());
            tables.sections.set(section.key, Value::Section(settings));
        }
        for group in &schema.groups {
            let names: Vec<&str> = group.parts.iter().map(|part| part.key).collect();
            let written = self.entries(entries.get(group.key).copied(), group.key, &names);
            let parts = group.parts.iter().map(|part| {
                let key = join(group.key, part.key);
                let node = written.get(part.key).copied();
                (part.key, self.section(node, &key, part.options()))
            });
            let parts = parts.collect();
            tables.groups.insert(group.key, parts);
        }
        tables
    }

    /// The entries of a mapping, with unknown and repeated keys reported.
    fn entries<'n>(
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

    fn section(
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

fn join(path: &str, key: &str) -> String {
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
fn suggestion(name: &str, known: &[&str]) -> String {
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
