//! Parses JSON to messages in one pass, and tracks the current key for errors.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::bodies::{Body, NAME};
use super::scalar::{Real, Whole};
use super::{Message, Problem};

/// Maximum number of devices of one process.
const DEVICES: usize = 64;
/// Maximum number of data types or groups of one message.
const AMOUNTS: usize = 64;
/// Maximum size of the detail of an event, in bytes of JSON.
const DETAIL: usize = 16 * 1024;
/// Maximum length of the cause in an error, in bytes: it may quote the input.
const CAUSE: usize = 160;

/// The current key, and the key that contains it.
#[derive(Debug, Default)]
pub(super) struct Place {
    outer: Option<&'static str>,
    inner: Option<&'static str>,
}

impl Place {
    pub(super) fn enter(&mut self, key: &'static str) {
        if self.outer.is_none() { self.outer = Some(key) } else { self.inner = Some(key) }
    }

    pub(super) fn leave(&mut self) {
        if self.inner.take().is_none() {
            self.outer = None;
        }
    }

    fn key(&self) -> Option<String> {
        match (self.outer, self.inner) {
            (Some(outer), Some(inner)) => Some(format!("{outer}.{inner}")),
            (Some(outer), None) => Some(outer.to_owned()),
            _ => None,
        }
    }
}

/// A type that is parsed key by key.
pub(super) trait Fields: Default {
    /// Parses the value of `key`; returns false for an unknown key.
    fn take<'de, A: MapAccess<'de>>(
        &mut self,
        key: &str,
        map: &mut A,
        place: &mut Place,
    ) -> Result<bool, A::Error>;

    /// A required key that is missing.
    fn missing(&self) -> Option<&'static str>;
}

/// Parses the value of one key, with a [`Place`] for errors.
pub(super) trait Read<T> {
    fn read<'de, A: MapAccess<'de>>(self, map: &mut A, place: &mut Place) -> Result<Option<T>, A::Error>;
}

impl<T, S> Read<T> for S
where
    S: for<'de> DeserializeSeed<'de, Value = Option<T>>,
{
    fn read<'de, A: MapAccess<'de>>(self, map: &mut A, _place: &mut Place) -> Result<Option<T>, A::Error> {
        map.next_value_seed(self)
    }
}

macro_rules! fields {
    (
        $(#[$doc:meta])*
        $name:ident {$($(#[$each:meta])* $field:ident: $type:ty = $seed:expr),+ $(,)?}
        required [$($required:ident),*]
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$each])* pub $field: Option<$type>),+
        }

        impl $crate::formats::messages::fields::Fields for $name {
            fn take<'de, A: serde::de::MapAccess<'de>>(
                &mut self,
                key: &str,
                map: &mut A,
                place: &mut $crate::formats::messages::fields::Place,
            ) -> Result<bool, A::Error> {
                use $crate::formats::messages::fields::Read as _;
                match key {
                    $(stringify!($field) => {
                        place.enter(stringify!($field));
                        self.$field = $seed.read(map, place)?;
                        place.leave();
                    })+
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn missing(&self) -> Option<&'static str> {
                $(if self.$required.is_none() {
                    return Some(stringify!($required));
                })*
                None
            }
        }
    };
}
pub(super) use fields;

/// A key, borrowed from the line where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Key(Cow::Borrowed(text)))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Key(Cow::Owned(text.to_owned())))
    }
}

struct Object<'p, T> {
    place: &'p mut Place,
    what: PhantomData<T>,
}

impl<'de, T: Fields> DeserializeSeed<'de> for Object<'_, T> {
    type Value = Option<T>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Fields> Visitor<'de> for Object<'_, T> {
    type Value = Option<T>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = T::default();
        while let Some(Key(key)) = map.next_key()? {
            if !found.take(&key, &mut map, self.place)? {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Some(found))
    }
}

/// An object within a message.
pub(super) struct Nested<T>(PhantomData<T>);

impl<T> Nested<T> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Fields> Read<T> for Nested<T> {
    fn read<'de, A: MapAccess<'de>>(self, map: &mut A, place: &mut Place) -> Result<Option<T>, A::Error> {
        map.next_value_seed(Object { place, what: PhantomData })
    }
}

/// Objects by the ordinals of devices.
pub(super) struct Numbered<T>(PhantomData<T>);

impl<T> Numbered<T> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Fields> Read<Vec<(u16, T)>> for Numbered<T> {
    fn read<'de, A: MapAccess<'de>>(
        self,
        map: &mut A,
        place: &mut Place,
    ) -> Result<Option<Vec<(u16, T)>>, A::Error> {
        map.next_value_seed(Ordinals { place, what: PhantomData })
    }
}

struct Ordinals<'p, T> {
    place: &'p mut Place,
    what: PhantomData<T>,
}

impl<'de, T: Fields> DeserializeSeed<'de> for Ordinals<'_, T> {
    type Value = Option<Vec<(u16, T)>>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Fields> Visitor<'de> for Ordinals<'_, T> {
    type Value = Option<Vec<(u16, T)>>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {DEVICES} devices by their ordinals")
    }
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found: Vec<(u16, T)> = Vec::new();
        while let Some(Key(key)) = map.next_key()? {
            let digits = key.bytes().all(|byte| byte.is_ascii_digit());
            let ordinal = key.parse::<u16>().ok().filter(|_| digits);
            let Some(ordinal) = ordinal else {
                return Err(Error::custom("has a key that is not a device ordinal"));
            };
            let seed = Object { place: &mut *self.place, what: PhantomData };
            let Some(device) = map.next_value_seed(seed)? else { continue };
            found.retain(|(other, _)| *other != ordinal);
            if found.len() == DEVICES {
                return Err(Error::custom(format_args!("has more than {DEVICES} devices")));
            }
            found.push((ordinal, device));
        }
        Ok(Some(found))
    }
}

/// Whole numbers by name.
pub(super) struct Amounts;

impl<'de> DeserializeSeed<'de> for Amounts {
    type Value = Option<Vec<(String, u64)>>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Amounts {
    type Value = Option<Vec<(String, u64)>>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {AMOUNTS} whole numbers")
    }
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found: Vec<(String, u64)> = Vec::new();
        while let Some(Key(key)) = map.next_key()? {
            if key.len() > NAME {
                return Err(Error::custom(format_args!("has a name of more than {NAME} bytes")));
            }
            let Some(amount) = map.next_value_seed(Whole)? else { continue };
            found.retain(|(other, _)| *other != key);
            if found.len() == AMOUNTS {
                return Err(Error::custom(format_args!("has more than {AMOUNTS} entries")));
            }
            found.push((key.into_owned(), amount));
        }
        Ok(Some(found))
    }
}

/// Any object, kept as JSON text.
pub(super) struct Detail;

impl<'de> DeserializeSeed<'de> for Detail {
    type Value = Option<String>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        let raw: Box<RawValue> = serde::Deserialize::deserialize(from)?;
        match raw.get() {
            "null" => Ok(None),
            text if !text.starts_with('{') => Err(Error::custom("is not an object")),
            text if text.len() > DETAIL => Err(Error::custom(format_args!("has more than {DETAIL} bytes"))),
            // The text is embedded in other JSON: nesting that is too deep, or an unpaired surrogate, would make all
            // of it invalid.
            text => match serde_json::from_str::<Value>(text) {
                Ok(_) => Ok(Some(text.to_owned())),
                Err(error) => Err(Error::custom(error)),
            },
        }
    }
}

/// Reads one line.
pub(super) fn object(text: &str) -> Result<Message, Problem> {
    let mut place = Place::default();
    let mut from = serde_json::Deserializer::from_str(text);
    let read = Line { place: &mut place }.deserialize(&mut from).and_then(|message| {
        from.end()?;
        Ok(message)
    });
    read.map_err(|error| problem(&error, &place))
}

/// The cause without its position, which is of no use, and with a bounded length.
fn problem(error: &serde_json::Error, place: &Place) -> Problem {
    let mut why = error.to_string();
    if let Some(end) = why.rfind(" at line ") {
        why.truncate(end);
    }
    if why.len() > CAUSE {
        let end = (0..=CAUSE).rev().find(|end| why.is_char_boundary(*end));
        why.truncate(end.unwrap_or(0));
        why.push('…');
    }
    let why = why.replace(char::is_control, "?");
    match (error.is_data(), place.key()) {
        (true, Some(key)) => Problem::Key { key, why },
        _ => Problem::Json(why),
    }
}

struct Line<'p> {
    place: &'p mut Place,
}

impl<'de> DeserializeSeed<'de> for Line<'_> {
    type Value = Message;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Message, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Line<'_> {
    type Value = Message;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message, A::Error> {
        let Self { place } = self;
        let first: Option<Key<'de>> = map.next_key()?;
        if let Some(Key(key)) = &first
            && key == "type"
        {
            let kind = kind(&mut map, place)?;
            return body(&kind, &mut map, place);
        }
        // Clients write the type first; otherwise the message is parsed through an intermediate tree.
        let mut tree: Map<String, Value> = Map::new();
        if let Some(Key(key)) = first {
            tree.insert(key.into_owned(), map.next_value()?);
            while let Some((key, value)) = map.next_entry::<String, Value>()? {
                tree.insert(key, value);
            }
        }
        let kind = match tree.remove("type") {
            Some(Value::String(kind)) => kind,
            found => {
                place.enter("type");
                let why = if found.is_some() { "is not text" } else { "is missing" };
                return Err(Error::custom(why));
            }
        };
        let entries = tree.into_iter();
        body(&kind, &mut MapDeserializer::new(entries), place)
            .map_err(|error: serde_json::Error| Error::custom(error.to_string()))
    }
}

fn kind<'de, A: MapAccess<'de>>(map: &mut A, place: &mut Place) -> Result<Cow<'de, str>, A::Error> {
    place.enter("type");
    let Key(kind) = map.next_value()?;
    place.leave();
    Ok(kind)
}

fn body<'de, A: MapAccess<'de>>(kind: &str, map: &mut A, place: &mut Place) -> Result<Message, A::Error> {
    macro_rules! read {
        ($make:expr) => {{
            let (fields, rest) = read(map, place)?;
            Message { t: rest.t, dropped: rest.dropped, body: $make(fields) }
        }};
    }
    Ok(match kind {
        "step" => read!(Body::Step),
        "phase" => read!(Body::Phase),
        "mem" => read!(Body::Mem),
        "hello" => read!(|hello| Body::Hello(Box::new(hello))),
        "event" => read!(Body::Event),
        "oom" => read!(Body::Oom),
        "checkpoint" => read!(Body::Checkpoint),
        "params" => read!(|params| Body::Params(Box::new(params))),
        "bye" => read!(Body::Bye),
        _ => read!(|_: Nothing| Body::Unknown),
    })
}

/// The keys that every message may have.
#[derive(Default)]
struct Rest {
    t: Option<f64>,
    dropped: Option<u64>,
}

/// A message of an unknown type.
#[derive(Default)]
struct Nothing;

impl Fields for Nothing {
    fn take<'de, A: MapAccess<'de>>(
        &mut self,
        _key: &str,
        _map: &mut A,
        _place: &mut Place,
    ) -> Result<bool, A::Error> {
        Ok(false)
    }

    fn missing(&self) -> Option<&'static str> {
        None
    }
}

fn read<'de, T: Fields, A: MapAccess<'de>>(map: &mut A, place: &mut Place) -> Result<(T, Rest), A::Error> {
    let (mut found, mut rest) = (T::default(), Rest::default());
    while let Some(Key(key)) = map.next_key()? {
        if found.take(&key, map, place)? {
            continue;
        }
        match &*key {
            "t" => {
                place.enter("t");
                rest.t = Real.read(map, place)?;
                place.leave();
            }
            "dropped" => {
                place.enter("dropped");
                rest.dropped = Whole.read(map, place)?;
                place.leave();
            }
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
    }
    if let Some(missing) = found.missing() {
        place.enter(missing);
        return Err(Error::custom("is missing"));
    }
    Ok((found, rest))
}
