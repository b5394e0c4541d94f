//! Values of keys: whole numbers, measures, times, texts and keywords. `null` is equivalent to a missing key.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Unexpected, Visitor};

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

macro_rules! keywords {
    ($(#[$doc:meta])* $name:ident {$($(#[$each:meta])* $variant:ident = $word:literal),+ $(,)?}) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$each])* $variant),+
        }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name in the protocol.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl Keyword for $name {
            fn of(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|each| each.word() == text)
            }

            fn words() -> String {
                let words: Vec<&str> = Self::ALL.iter().map(|each| each.word()).collect();
                words.join(", ")
            }
        }
    };
}

/// One of a fixed set of values.
pub(super) trait Keyword: Sized {
    fn of(text: &str) -> Option<Self>;
    fn words() -> String;
}

keywords! {
    /// Activation recomputation for the backward pass.
    Recompute {
        /// No recomputation.
        None = "none",
        Selective = "selective",
        Full = "full",
    }
}
keywords! {
    /// Whether a phase begins or ends.
    Turn {
        Begin = "begin",
        End = "end",
    }
}
keywords! {
    /// State of a checkpoint.
    SaveState {
        /// It is being written.
        Saving = "saving",
        /// It is on disk.
        Saved = "saved",
        /// It could not be written.
        Failed = "failed",
    }
}

/// A whole number, at least 0; `2.0` is one too.
pub(super) struct Whole;
/// A finite number.
pub(super) struct Real;
/// A finite number, at least 0.
pub(super) struct Positive;
pub(super) struct Measured;
/// `true` or `false`.
pub(super) struct Truth;
/// Text of at most that many bytes.
pub(super) struct Text(pub(super) usize);
/// One of the values of a type.
pub(super) struct OneOf<T>(std::marker::PhantomData<T>);

impl<T> OneOf<T> {
    pub(super) const fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}

/// A visitor that is its own seed; other values are rejected with its `expecting` text.
macro_rules! seed {
    (($($generic:ident)?) $name:ty => $value:ty, $expecting:expr, {$($body:tt)*}) => {
        impl<'de, $($generic: Keyword)?> DeserializeSeed<'de> for $name {
            type Value = Option<$value>;
            fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
                from.deserialize_any(self)
            }
        }

        impl<'de, $($generic: Keyword)?> Visitor<'de> for $name {
            type Value = Option<$value>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let expecting: &dyn Fn(&Self, &mut fmt::Formatter<'_>) -> fmt::Result = &$expecting;
                expecting(self, f)
            }
            fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
                Ok(None)
            }
            $($body)*
        }
    };
}

/// Up to 2^53, every whole number is exact in `f64`.
const EXACT: f64 = 9_007_199_254_740_992.0;

seed!(() Whole => u64, |_, f| f.write_str("a whole number, at least 0"), {
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(value))
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole and in range")]
    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        if value.fract() == 0.0 && (0.0..=EXACT).contains(&value) {
            Ok(Some(value as u64))
        } else {
            Err(E::invalid_value(Unexpected::Float(value), &self))
        }
    }
});

#[expect(clippy::cast_precision_loss, reason = "counts above 2^53 may be rounded")]
const fn real(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "counts above 2^53 may be rounded")]
const fn signed(value: i64) -> f64 {
    value as f64
}

seed!(() Real => f64, |_, f| f.write_str("a number"), {
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(real(value)))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(signed(value)))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        if value.is_finite() { Ok(Some(value)) } else { Err(E::invalid_value(Unexpected::Float(value), &self)) }
    }
});

seed!(() Positive => f64, |_, f| f.write_str("a number, at least 0"), {
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(real(value)))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        if value.is_finite() && value >= 0.0 {
            // A negative zero is read as 0.
            Ok(Some(value.abs()))
        } else {
            Err(E::invalid_value(Unexpected::Float(value), &self))
        }
    }
});

seed!(() Measured => Measure, |_, f| f.write_str("a number, \"nan\", \"inf\" or \"-inf\""), {
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(Measure::Finite(real(value))))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(Measure::Finite(signed(value))))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Some(if value.is_finite() { Measure::Finite(value) } else { Measure::NotFinite }))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match text {
            "nan" | "inf" | "-inf" => Ok(Some(Measure::NotFinite)),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
});

seed!(() Truth => bool, |_, f| f.write_str("true or false"), {
    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(value))
    }
});

seed!(() Text => String, |this: &Text, f| write!(f, "text of at most {} bytes", this.0), {
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        if text.len() > self.0 {
            return Err(E::invalid_length(text.len(), &self));
        }
        Ok(Some(text.to_owned()))
    }
});

seed!((T) OneOf<T> => T, |_, f| write!(f, "one of {}", T::words()), {
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match T::of(text) {
            Some(word) => Ok(Some(word)),
            None => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
});
