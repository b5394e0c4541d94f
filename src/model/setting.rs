//! Settings as declared data.
//!
//! An option is declared once, in the module that reads it; its YAML key, the check of its value, its line in the
//! commented default file and its place in `--help` are generated from the declaration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::units::{Amount, Bytes};

/// One key of the configuration.
#[derive(Debug)]
pub struct Opt {
    /// The key, snake case.
    pub key: &'static str,
    /// What it does: one or two sentences.
    pub help: &'static str,
    /// What it accepts.
    pub kind: OptKind,
    /// The default as YAML text, checked like a written value.
    pub default: &'static str,
}

/// What an option accepts.
#[derive(Clone, Copy, Debug)]
pub enum OptKind {
    /// `true` or `false`.
    Bool,
    /// A duration with its unit: `500ms`, `10s`, `5m`, `1h`, `1d`; the range is inclusive.
    Duration(Duration, Duration),
    /// A size with its unit: `512KiB`, `2GiB`, `1GB`.
    Size,
    /// A percentage: `90%`, exposed as 0..1.
    Ratio,
    /// A size with its unit, or a percentage of all there is; empty means "not set".
    Amount,
    /// A whole number within the inclusive range.
    Count(u64, u64),
    /// Text; empty means "not set".
    Text,
    /// A path; empty means "not set". A relative one is relative to the configuration file's folder.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// A mapping from text to text, such as headers.
    Map,
    /// A section with its own keys.
    Section(&'static [&'static Opt]),
    /// A list of sections with the same keys.
    Sections(&'static [&'static Opt]),
}

/// A checked value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`OptKind::Bool`].
    Bool(bool),
    /// Of [`OptKind::Duration`].
    Duration(Duration),
    /// Of [`OptKind::Size`].
    Size(Bytes),
    /// Of [`OptKind::Ratio`].
    Ratio(f64),
    /// Of [`OptKind::Amount`].
    Amount(Option<Amount>),
    /// Of [`OptKind::Count`].
    Count(u64),
    /// Of [`OptKind::Text`] and [`OptKind::Choice`].
    Text(String),
    /// Of [`OptKind::Path`].
    Path(PathBuf),
    /// Of [`OptKind::Texts`].
    Texts(Vec<String>),
    /// Of [`OptKind::Map`].
    Map(BTreeMap<String, String>),
    /// Of [`OptKind::Section`].
    Section(Settings),
    /// Of [`OptKind::Sections`].
    Sections(Vec<Settings>),
}

/// The checked values of one section: every declared key has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
}

macro_rules! getter {
    ($(#[$doc:meta])* $name:ident, $variant:ident, $type:ty) => {
        $(#[$doc])*
        ///
        /// # Panics
        /// If the option has another kind or belongs to another section: a defect that the registry's test detects.
        pub fn $name(&self, opt: &'static Opt) -> $type {
            match self.values.get(opt.key) {
                Some(Value::$variant(value)) => value.to_owned(),
                other => panic!("option {} was read as {}, it is {other:?}", opt.key, stringify!($variant)),
            }
        }
    };
}

impl Settings {
    /// Sets one value; called by the configuration reader after its checks.
    pub fn set(&mut self, opt: &'static Opt, value: Value) {
        self.values.insert(opt.key, value);
    }

    getter!(
        /// The value of a [`OptKind::Bool`].
        bool, Bool, bool
    );
    getter!(
        /// The value of a [`OptKind::Duration`].
        duration, Duration, Duration
    );
    getter!(
        /// The value of a [`OptKind::Size`].
        size, Size, Bytes
    );
    getter!(
        /// The value of a [`OptKind::Ratio`], 0..1.
        ratio, Ratio, f64
    );
    getter!(
        /// The value of a [`OptKind::Amount`]; absent where it is empty.
        amount, Amount, Option<Amount>
    );
    getter!(
        /// The value of a [`OptKind::Count`].
        count, Count, u64
    );
    getter!(
        /// The value of a [`OptKind::Texts`].
        texts, Texts, Vec<String>
    );
    getter!(
        /// The value of a [`OptKind::Map`].
        map, Map, BTreeMap<String, String>
    );
    getter!(
        /// The value of a [`OptKind::Section`].
        section, Section, Settings
    );
    getter!(
        /// The values of a [`OptKind::Sections`].
        sections, Sections, Vec<Settings>
    );
    getter!(
        /// The value of a [`OptKind::Choice`].
        choice, Text, String
    );

    /// The value of a [`OptKind::Text`]; absent where it is empty.
    pub fn text(&self, opt: &'static Opt) -> Option<String> {
        Some(self.choice(opt)).filter(|text| !text.is_empty())
    }

    /// The value of a [`OptKind::Path`]; absent where it is empty.
    ///
    /// # Panics
    /// As the other getters.
    pub fn path(&self, opt: &'static Opt) -> Option<PathBuf> {
        match self.values.get(opt.key) {
            Some(Value::Path(path)) => Some(path.clone()).filter(|path| !path.as_os_str().is_empty()),
            other => panic!("option {} was read as a path, it is {other:?}", opt.key),
        }
    }
}

/// Shorthand for an [`OptKind::Duration`] with bounds in whole seconds.
pub const fn seconds(from: u64, to: u64) -> OptKind {
    OptKind::Duration(Duration::from_secs(from), Duration::from_secs(to))
}
