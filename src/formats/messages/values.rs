//! Values of keys: whole numbers, measures, times, texts, keywords and objects. `null` is equivalent to a missing key.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;

use super::bodies::Grown;
use crate::model::names::{Named, named};

/// Maximum length of the name of a phase, an event, a data type or a group, in bytes.
const NAME: usize = 64;
/// Maximum length of other texts, in bytes.
const WORDS: usize = 256;
/// Maximum length of a path, in bytes (`PATH_MAX`).
const PATH: usize = 4_096;
/// Maximum number of devices, data types or groups of one message.
const ENTRIES: usize = 64;
/// Maximum size of the detail of an event, in bytes of JSON.
const DETAIL: usize = 16 * 1024;

/// A number of a training step, which JSON can represent only if it is finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    Finite(f64),
    /// Written as `"nan"`, `"inf"` or `"-inf"`.
    NotFinite,
}

impl Measure {
    /// The number, if it is finite.
    pub const fn finite(self) -> Option<f64> {
        match self {
            Self::Finite(value) => Some(value),
            Self::NotFinite => None,
        }
    }
}

named! {
    pub enum Turn {
        Begin = "begin",
        End = "end",
    }
}

/// A value that is neither a list nor an object.
enum Scalar<'de> {
    Null,
    Whole(u64),
    /// A negative number, or one with a fraction or an exponent.
    Real(f64),
    Text(Cow<'de, str>),
}

/// Accepts scalars; says what is expected instead of another value.
struct Scalars<'a>(fmt::Arguments<'a>);

impl<'de> Visitor<'de> for Scalars<'_> {
    type Value = Scalar<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(self.0)
    }
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Null)
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Scalar::Whole(value))
    }
    #[expect(clippy::cast_precision_loss, reason = "numbers below -2^53 may be rounded")]
    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Scalar::Real(value as f64))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Scalar::Real(value))
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(text)))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Owned(text.to_owned())))
    }
}

/// The value that `take` makes of a scalar; where it makes none, an error that says what is `expected`.
fn scalar<'de, D: Deserializer<'de>, T>(
    from: D,
    expected: fmt::Arguments<'_>,
    take: impl FnOnce(&Scalar<'de>) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    let found = from.deserialize_any(Scalars(expected))?;
    let unexpected = match &found {
        Scalar::Null => return Ok(None),
        Scalar::Whole(value) => Unexpected::Unsigned(*value),
        Scalar::Real(value) => Unexpected::Float(*value),
        Scalar::Text(text) => Unexpected::Str(text),
    };
    match take(&found) {
        Some(value) => Ok(Some(value)),
        None => Err(D::Error::invalid_value(unexpected, &Scalars(expected))),
    }
}

/// Up to 2^53, every whole number is exact in `f64`.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A whole number, at least 0; `2.0` is one too.
pub(super) fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
    scalar(from, format_args!("a whole number, at least 0"), |found| match *found {
        Scalar::Whole(value) => Some(value),
        Scalar::Real(value) if value.fract() == 0.0 && (0.0..=EXACT).contains(&value) => Some(value as u64),
        _ => None,
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts above 2^53 may be rounded")]
fn number(found: &Scalar<'_>) -> Option<f64> {
    match *found {
        Scalar::Whole(value) => Some(value as f64),
        Scalar::Real(value) => Some(value).filter(|value| value.is_finite()),
        _ => None,
    }
}

/// A finite number.
pub(super) fn real<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    scalar(from, format_args!("a number"), number)
}

/// A finite number, at least 0; a negative zero is 0.
pub(super) fn positive<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    scalar(from, format_args!("a number, at least 0"), |found| {
        number(found).filter(|value| *value >= 0.0).map(f64::abs)
    })
}

pub(super) fn measure<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Measure>, D::Error> {
    scalar(from, format_args!("a number, \"nan\", \"inf\" or \"-inf\""), |found| match found {
        Scalar::Text(text) => matches!(&**text, "nan" | "inf" | "-inf").then_some(Measure::NotFinite),
        _ => number(found).map(Measure::Finite),
    })
}

fn text<'de, D: Deserializer<'de>>(from: D, most: usize) -> Result<Option<String>, D::Error> {
    scalar(from, format_args!("text of at most {most} bytes"), |found| match found {
        Scalar::Text(text) if text.len() <= most => Some((**text).to_owned()),
        _ => None,
    })
}

pub(super) fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    text(from, NAME)
}

/// A text that only the owner of the process and root read.
pub(super) fn own<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    words(from)
}

pub(super) fn words<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    text(from, WORDS)
}

/// Maximum number of items of one evidence.
const GROWN: usize = 32;

/// What has grown; items beyond the maximum number are ignored.
pub(super) fn grown<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Grown>>, D::Error> {
    let found = Option::<Vec<Grown>>::deserialize(from)?;
    Ok(found.map(|mut items| {
        items.truncate(GROWN);
        items
    }))
}

pub(super) fn path<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    text(from, PATH)
}

/// One of the words of `T`.
pub(super) fn word<'de, D: Deserializer<'de>, T: Named>(from: D) -> Result<Option<T>, D::Error> {
    let known: Vec<String> = T::LABELS.iter().map(|label| format!("`{label}`")).collect();
    scalar(from, format_args!("one of {}", known.join(" ")), |found| match found {
        Scalar::Text(text) => T::of_label(text),
        _ => None,
    })
}

/// The ordinal of a device, as text.
pub(super) fn ordinal<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    scalar(from, format_args!("the ordinal of a device as text"), |found| match found {
        Scalar::Text(text) => as_ordinal(text),
        _ => None,
    })
}

fn as_ordinal(text: &str) -> Option<u16> {
    text.parse::<u16>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `true` or `false`, or text that has no limit of its own.
pub(super) fn plain<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(from)
}

/// An object with known keys. A list is not one: the code that serde derives would accept it.
pub(super) fn object<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    struct Object<T>(PhantomData<T>);
    impl<'de, T: DeserializeOwned> Visitor<'de> for Object<T> {
        type Value = Option<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }
    from.deserialize_any(Object(PhantomData))
}

/// An object with keys that the sender chooses, each once; entries that are `null` are left out.
fn entries<'de, D, T>(from: D) -> Result<Option<Vec<(String, T)>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Entries<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
        type Value = Option<Vec<(String, T)>>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an object of at most {ENTRIES} entries")
        }
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found: Vec<(String, T)> = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, Option<T>>()? {
                if key.len() > NAME {
                    return Err(Error::custom(format_args!("has a name of more than {NAME} bytes")));
                }
                let Some(value) = value else { continue };
                found.retain(|(other, _)| *other != key);
                if found.len() == ENTRIES {
                    return Err(Error::custom(format_args!("has more than {ENTRIES} entries")));
                }
                found.push((key, value));
            }
            Ok(Some(found))
        }
    }
    from.deserialize_any(Entries(PhantomData))
}

/// Whole numbers by name.
pub(super) fn amounts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<(String, u64)>>, D::Error> {
    #[derive(Deserialize)]
    struct Amount(#[serde(deserialize_with = "whole")] Option<u64>);
    let found: Option<Vec<(String, Amount)>> = entries(from)?;
    let amount = |(name, amount): (_, Amount)| Some((name, amount.0?));
    Ok(found.map(|found| found.into_iter().filter_map(amount).collect()))
}

/// Objects by the ordinals of devices.
pub(super) fn by_device<'de, D, T>(from: D) -> Result<Option<Vec<(u16, T)>>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    #[derive(Deserialize)]
    #[serde(bound = "T: DeserializeOwned")]
    struct Device<T>(#[serde(deserialize_with = "object")] Option<T>);
    let Some(found) = entries::<D, Device<T>>(from)? else { return Ok(None) };
    let mut devices: Vec<(u16, T)> = Vec::new();
    for (key, device) in found {
        let ordinal =
            as_ordinal(&key).ok_or_else(|| D::Error::custom("has a key that is not a device ordinal"))?;
        devices.retain(|(other, _)| *other != ordinal);
        devices.extend(device.0.map(|device| (ordinal, device)));
    }
    Ok(Some(devices))
}

/// Any object, kept as JSON text.
pub(super) fn detail<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let raw: Option<Box<RawValue>> = Option::deserialize(from)?;
    match raw.as_deref().map(RawValue::get) {
        None => Ok(None),
        Some(text) if !text.starts_with('{') => Err(Error::custom("is not an object")),
        Some(text) if text.len() > DETAIL => Err(Error::custom(format_args!("has more than {DETAIL} bytes"))),
        // The text is embedded in other JSON: nesting that is too deep, or an unpaired surrogate, would make all of it
        // invalid.
        Some(text) => match serde_json::from_str::<serde_json::Value>(text) {
            Ok(_) => Ok(Some(text.to_owned())),
            Err(error) => Err(Error::custom(error)),
        },
    }
}
