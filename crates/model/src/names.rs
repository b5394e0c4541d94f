//! Enums whose values have names: in labels, in JSON, in the protocol of training processes.

/// An enum of `named!`, for code that reads any of them.
pub trait Named: Sized {
    /// The name of every value.
    const LABELS: &'static [&'static str];

    /// The value of a name; absent where none has it.
    fn of_label(label: &str) -> Option<Self>;
}

/// Defines enums whose every value has a name, with `ALL` and `LABELS`, in the order of the declaration, `label()` and
/// `of_label()`.
#[macro_export]
macro_rules! named {
    ($($(#[$attribute:meta])* $vis:vis enum $name:ident {
        $($(#[$each:meta])* $variant:ident = $label:literal),+ $(,)?
    })+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$each])* $variant),+
        }

        #[allow(dead_code, reason = "not each of them is iterated over")]
        impl $name {
            /// Every value, so that what counts or shows them has them all from the start.
            $vis const ALL: [Self; Self::LABELS.len()] = [$(Self::$variant),+];

            /// The name of every value.
            $vis const LABELS: &'static [&'static str] = &[$($label),+];

            /// The value of a name; absent where none has it.
            $vis fn of_label(label: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|each| each.label() == label)
            }

            /// Its name, which is the value of its label.
            $vis const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label),+
                }
            }
        }

        impl $crate::names::Named for $name {
            const LABELS: &'static [&'static str] = Self::LABELS;

            fn of_label(label: &str) -> Option<Self> {
                Self::of_label(label)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.label())
            }
        }
    )+};
}

pub use named;
