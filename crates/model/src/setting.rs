//! Settings as declared data.
//!
//! [`options`](crate::options) declares a section once, as a struct: its YAML keys, the check of each value, the
//! commented default file and the typed values are generated from the declaration.

mod parse;
pub mod problem;
pub mod reader;
pub mod tree;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use parse::{amount, duration, size, time_span};

use super::label::Label;
use super::units::{Amount, Bytes};

/// One key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// The key, snake case.
    pub key: &'static str,
    /// What it does: one or two sentences.
    pub help: &'static str,
    /// What it accepts.
    pub kind: OptKind,
    /// Whether it can be empty, which means "not set".
    pub optional: bool,
    /// The least and the largest value, as YAML text; absent where every value of the kind is accepted.
    pub range: Option<[&'static str; 2]>,
    /// The default as YAML text, checked like a written value; empty for a section, an empty list and "not set".
    pub default: &'static str,
    /// Checks a value of its kind for its type.
    accept: fn(&Value) -> Result<(), String>,
}

/// What an option accepts.
#[derive(Clone, Copy, Debug)]
pub enum OptKind {
    /// `true` or `false`.
    Bool,
    /// A duration with its unit: `500ms`, `10s`, `5m`, `1h`, `1d`.
    Duration,
    /// A size with its unit: `512KiB`, `2GiB`, `1GB`.
    Size,
    /// A size with its unit, or a percentage of all there is.
    Amount,
    /// A whole number.
    Count,
    Text,
    /// A path. A relative one is relative to the configuration file's folder.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    Texts,
    /// A mapping from text to text, such as headers.
    Map,
    /// A section with its own keys.
    Section(&'static [Opt]),
    /// A list of sections with the same keys.
    Sections(&'static [Opt]),
}

/// A checked value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of an optional [`Opt`] that is empty.
    Unset,
    /// Of [`OptKind::Bool`].
    Bool(bool),
    /// Of [`OptKind::Duration`].
    Duration(Duration),
    /// Of [`OptKind::Size`].
    Size(Bytes),
    /// Of [`OptKind::Amount`].
    Amount(Amount),
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

/// The checked values of one section, by key. A key without a value has the declared default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
}

impl Settings {
    /// Sets one value; called by the configuration reader after its checks.
    pub fn set(&mut self, key: &'static str, value: Value) {
        self.values.insert(key, value);
    }

    pub fn section(&self, key: &str) -> Option<&Self> {
        match self.values.get(key) {
            Some(Value::Section(settings)) => Some(settings),
            _ => None,
        }
    }

    /// The values of the section of this key, to change them.
    pub fn section_mut(&mut self, key: &str) -> Option<&mut Self> {
        match self.values.get_mut(key) {
            Some(Value::Section(settings)) => Some(settings),
            _ => None,
        }
    }

    /// The value of an option; the declared default where there is none. The default of the type applies only where
    /// the declared one is refused, which the configuration reader reports.
    pub fn get<T: Setting + Default>(&self, opt: &Opt) -> T {
        let declared = || T::of(&opt.declared().ok()?).ok();
        self.values.get(opt.key).and_then(|value| T::of(value).ok()).or_else(declared).unwrap_or_default()
    }
}

/// A type of option.
pub trait Setting: Sized {
    /// What the option accepts.
    const KIND: OptKind;
    /// Whether it can be empty.
    const OPTIONAL: bool = false;
    /// The word that stands for no value; where there is none, an optional value is not set while it is empty.
    const NONE: Option<&'static str> = None;

    /// The typed value.
    ///
    /// # Errors
    /// What is wrong with the value.
    fn of(value: &Value) -> Result<Self, String>;
}

/// A section that [`options`](crate::options) declares.
pub trait Section: Default {
    /// Its keys, in the order of the default file.
    const OPTIONS: &'static [Opt];

    /// Its typed values.
    fn read(settings: &Settings) -> Self;
}

/// The error of a value that the reader did not check against this option.
pub fn another_kind() -> String {
    "is a value of another kind".to_owned()
}

fn too_large(_: std::num::TryFromIntError) -> String {
    "is too large".to_owned()
}

macro_rules! kinds {
    ($($type:ty: $kind:ident $variant:ident $value:ident => $typed:expr;)+) => {$(
        impl Setting for $type {
            const KIND: OptKind = OptKind::$kind;

            fn of(value: &Value) -> Result<Self, String> {
                match value {
                    Value::$variant($value) => $typed,
                    _ => Err(another_kind()),
                }
            }
        }
    )+};
}

kinds! {
    bool: Bool Bool value => Ok(*value);
    Duration: Duration Duration value => Ok(*value);
    Bytes: Size Size value => Ok(*value);
    Amount: Amount Amount value => Ok(*value);
    u64: Count Count value => Ok(*value);
    u32: Count Count value => Self::try_from(*value).map_err(too_large);
    u16: Count Count value => Self::try_from(*value).map_err(too_large);
    usize: Count Count value => Self::try_from(*value).map_err(too_large);
    String: Text Text value => Ok(value.clone());
    Label: Text Text value => Ok(value.as_str().into());
    PathBuf: Path Path value => Ok(value.clone());
    Vec<String>: Texts Texts value => Ok(value.clone());
    BTreeMap<String, String>: Map Map value => Ok(value.clone());
}

impl<T: Setting> Setting for Option<T> {
    const KIND: OptKind = T::KIND;
    const OPTIONAL: bool = T::NONE.is_none();

    fn of(value: &Value) -> Result<Self, String> {
        match value {
            Value::Unset => Ok(None),
            Value::Text(word) if T::NONE == Some(word) => Ok(None),
            value => T::of(value).map(Some),
        }
    }
}

impl<T: Section> Setting for T {
    const KIND: OptKind = OptKind::Section(T::OPTIONS);

    fn of(value: &Value) -> Result<Self, String> {
        match value {
            Value::Section(settings) => Ok(T::read(settings)),
            _ => Err(another_kind()),
        }
    }
}

impl<T: Section> Setting for Vec<T> {
    const KIND: OptKind = OptKind::Sections(T::OPTIONS);

    fn of(value: &Value) -> Result<Self, String> {
        match value {
            Value::Sections(sections) => Ok(sections.iter().map(T::read).collect()),
            _ => Err(another_kind()),
        }
    }
}

impl Opt {
    /// Declares an option of a type; called by [`options`](crate::options).
    pub const fn new<T: Setting>(
        field: &'static str,
        help: &'static str,
        default: &'static str,
        range: Option<[&'static str; 2]>,
    ) -> Self {
        let key = match field.as_bytes() {
            // A key that is a word of Rust.
            [b'r', b'#', ..] => field.split_at(2).1,
            _ => field,
        };
        let accept = |value: &Value| T::of(value).map(drop);
        Self { key, help, kind: T::KIND, optional: T::OPTIONAL, range, default, accept }
    }
}

/// Declares sections of the configuration: one struct for each, with a key for each field.
///
/// The doc comment of a field is its text in the default file. A default is YAML text: a number or a word as it is, any
/// other text in quotes. Without one, an optional value is not set, and a list is empty. The range is inclusive.
///
/// ```
/// use std::time::Duration;
/// memwarden_model::options! {
///     /// Reading of a folder.
///     pub struct Options {
///         /// Time between two reads of the folder.
///         interval: Duration = 2s in 1s..=1h;
///         /// Words that are looked for.
///         words: Vec<String>;
///     }
/// }
/// assert_eq!(Options::OPTIONS[0].key, "interval");
/// assert_eq!(Options::default().interval, Duration::from_secs(2));
/// ```
#[macro_export]
macro_rules! options {
    ($(
        $(#[$attribute:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $help:literal])+
                $key:ident: $type:ty $(= $default:tt $(in $from:literal..=$to:literal)?)?;
            )+
        }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $($(#[doc = $help])+ $vis $key: $type,)+
        }

        impl $name {
            /// Its keys, in the order of the default file.
            $vis const OPTIONS: &'static [$crate::setting::Opt] = &[$(
                $crate::setting::Opt::new::<$type>(
                    stringify!($key),
                    concat!($($help),+),
                    concat!($(stringify!($default))?),
                    $crate::options!(@range $($($from, $to)?)?),
                )
            ),+];

            /// Its typed values.
            $vis fn read(settings: &$crate::setting::Settings) -> Self {
                let mut options = Self::OPTIONS.iter();
                Self { $($key: options.next().map(|opt| settings.get(opt)).unwrap_or_default()),+ }
            }
        }

        impl $crate::setting::Section for $name {
            const OPTIONS: &'static [$crate::setting::Opt] = $name::OPTIONS;

            fn read(settings: &$crate::setting::Settings) -> Self {
                $name::read(settings)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::read(&Default::default())
            }
        }
    )+};
    (@range) => { None };
    (@range $from:literal, $to:literal) => { Some([stringify!($from), stringify!($to)]) };
}

/// Declares an enum that is an option: each variant with its word. One variant is `#[default]`.
#[macro_export]
macro_rules! choice {
    ($(
        $(#[$attribute:meta])*
        $vis:vis enum $name:ident { $($(#[$inner:meta])* $variant:ident = $word:literal,)+ }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis enum $name { $($(#[$inner])* $variant,)+ }

        $crate::words!($name, &[$($word),+], |word: &str| match word {
            $($word => Some(Self::$variant),)+
            _ => None,
        });
    )+};
}

/// Makes a type an option that is one of some words; the function returns the value of a word. With the type in
/// `Option<…>`, the first word stands for no value.
#[macro_export]
macro_rules! words {
    (Option<$type:ty>, $words:expr, $of:expr) => {
        $crate::words!(@ $type, $words, $of, const NONE: Option<&'static str> = Some($words[0]););
    };
    ($type:ty, $words:expr, $of:expr) => {
        $crate::words!(@ $type, $words, $of,);
    };
    (@ $type:ty, $words:expr, $of:expr, $($none:tt)*) => {
        impl $crate::setting::Setting for $type {
            const KIND: $crate::setting::OptKind = $crate::setting::OptKind::Choice($words);
            $($none)*

            fn of(value: &$crate::setting::Value) -> Result<Self, String> {
                let found = match value {
                    $crate::setting::Value::Text(word) => $of(word.as_str()),
                    _ => None,
                };
                found.ok_or_else($crate::setting::another_kind)
            }
        }
    };
}
