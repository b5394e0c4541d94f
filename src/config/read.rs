//! Checks a file against the declarations and collects every mistake.

use std::collections::BTreeMap;
use std::path::Path;

use super::checked::Config;
use super::schema::Schema;
use crate::model::setting::problem::{ConfigError, Problem};
use crate::model::setting::reader::{Reader, checked, join, suggestion};
use crate::model::setting::tree::{self, Node};
use crate::model::setting::{Opt, OptKind, Settings, Value};

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
        let mut tables = Tables::of(reader, root, schema);
        for given in overrides {
            if let Err(what) = tables.replace(given, schema) {
                reader.problems.push(Problem { line: None, key: given.flag.clone(), what });
            }
        }
        tables
    };
    checked(text, path, read, |tables, complain| Config::check(&tables, schema, complain))
}

/// The sections of a file, checked key by key.
pub(super) struct Tables {
    /// By key, each a section.
    pub(super) sections: Settings,
    /// By group, then by part.
    pub(super) groups: BTreeMap<&'static str, BTreeMap<&'static str, Settings>>,
}

impl Tables {
    /// Reads every section and group.
    fn of(reader: &mut Reader<'_>, root: Option<&Node>, schema: &Schema) -> Self {
        let mut names: Vec<&str> = schema.sections().map(|section| section.key).collect();
        names.extend(schema.groups.iter().map(|group| group.key));
        let entries = reader.entries(root, "", &names);
        let mut tables = Tables { sections: Settings::default(), groups: BTreeMap::new() };
        for section in schema.sections() {
            let node = entries.get(section.key).copied();
            let OptKind::Section(opts) = section.kind else { continue };
            let settings = reader.section(node, section.key, opts.iter());
            tables.sections.set(section.key, Value::Section(settings));
        }
        for group in &schema.groups {
            let names: Vec<&str> = group.parts.iter().map(|part| part.key).collect();
            let written = reader.entries(entries.get(group.key).copied(), group.key, &names);
            let parts = group.parts.iter().map(|part| {
                let key = join(group.key, part.key);
                let node = written.get(part.key).copied();
                (part.key, reader.section(node, &key, part.options()))
            });
            let parts = parts.collect();
            tables.groups.insert(group.key, parts);
        }
        tables
    }

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
