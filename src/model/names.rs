//! Enums whose values have names: in labels, in JSON, in the protocol of training processes.

/// An enum of `named!`, for code that reads any of them.
pub trait Word: Copy + PartialEq + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// Its name in the protocol, and as the value of a label.
    fn word(self) -> &'static str;
}

/// Defines enums whose every value has a name, with `ALL`, their values in the order of the declaration, and `label()`.
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
            $vis const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// Its name, which is the value of its label.
            $vis const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label),+
                }
            }
        }

        impl $crate::model::names::Word for $name {
            const ALL: &'static [Self] = &Self::ALL;

            fn word(self) -> &'static str {
                self.label()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.label())
            }
        }
    )+};
}

pub(crate) use named;
