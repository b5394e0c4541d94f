//! What a metric is: declared once, in the room that measures it.
//!
//! From these declarations come HELP and TYPE, the OTLP instruments,
//! `memwarden metrics`, and the tests that compare names with units.

use std::marker::PhantomData;

use super::units::Unit;

/// What the name of every metric of ours begins with.
pub const PREFIX: &str = "memwarden_";

/// How a metric behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A cumulative total that only restarts at zero.
    Counter,
    /// Counts of values by size. Its last label is `le`: the points of one histogram are the cumulative counts of its
    /// buckets by their bound, `+Inf` last, and the sum of all values, whose `le` is [`SUM`].
    Histogram,
}

/// The `le` of the point that has the sum of a histogram's values.
pub const SUM: &str = "sum";

/// The `le` of the last bucket, which has all values.
pub const INFINITE: &str = "+Inf";

/// The name the OpenTelemetry semantic conventions have for the same thing (v1.44.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Semconv {
    /// The instrument's name, for example `hw.gpu.memory.usage`.
    pub name: &'static str,
    /// The instrument the convention asks for.
    pub instrument: Instrument,
    /// Attributes with a fixed value, for example `("hw.type", "gpu")`.
    pub fixed: &'static [(&'static str, &'static str)],
    /// Which of our labels becomes which attribute; a label not named keeps its own name.
    pub renamed: &'static [(&'static str, &'static str)],
}

/// The OTLP instrument of a semantic convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Instrument {
    /// Last value.
    Gauge,
    /// Monotonic sum.
    Counter,
    /// Sum that may fall.
    UpDownCounter,
}

/// Everything about a metric but its values.
#[derive(Debug, serde::Serialize)]
pub struct Desc {
    /// The Prometheus name, complete with unit and `_total`.
    pub name: &'static str,
    #[serde(skip)]
    help: &'static str,
    /// Label names, in the order their values are given.
    pub labels: &'static [&'static str],
    /// Gauge, counter or histogram.
    pub kind: Kind,
    /// The name's unit suffix, without `_total`.
    #[serde(skip)]
    pub suffix: &'static str,
    /// The UCUM unit over OTLP.
    pub ucum: &'static str,
    /// The semantic convention's name for it, where there is one.
    pub semconv: Option<Semconv>,
    /// The most series of this metric in one frame; what exceeds it is counted, not exposed.
    pub budget: usize,
    /// The gauge that keeps this one's largest value of the peak window.
    #[serde(skip)]
    pub peak: Option<&'static Desc>,
}

impl Desc {
    /// One sentence on what is measured.
    pub fn help(&self) -> &'static str {
        self.help.trim()
    }

    /// The OTLP name: the Prometheus name without `_total` and unit, dotted.
    ///
    /// The standard translation (dots to underscores, unit and `_total` appended) gives back [`Desc::name`].
    pub fn otlp_name(&self) -> String {
        let base = self.name.strip_suffix("_total").unwrap_or(self.name);
        // `{step}` is an annotation (UCUM), which the translation drops: it could not give this part of the name back.
        let suffix = if self.suffix.ends_with("_per_step") { "" } else { self.suffix };
        base.strip_suffix(suffix).unwrap_or(base).replace('_', ".")
    }
}

/// A metric of one unit: what [`crate::model::point::Batch::put`] accepts.
pub trait Metric {
    /// The unit its values must have.
    type Unit: Unit;
    /// Its declaration.
    fn desc(&'static self) -> &'static Desc;
}

/// Series in one frame where a declaration does not say otherwise.
const DEFAULT_BUDGET: usize = 2_000;

macro_rules! metric_kind {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<U> {
            /// The declaration.
            pub desc: Desc,
            unit: PhantomData<fn() -> U>,
        }

        impl<U: Unit> $name<U> {
            /// Declares it; [`crate::metrics`] is the way to call this.
            pub const fn new(
                name: &'static str,
                help: &'static str,
                labels: &'static [&'static str],
            ) -> Self {
                Self {
                    desc: Desc {
                        name,
                        help,
                        labels,
                        kind: Kind::$name,
                        suffix: U::SUFFIX,
                        ucum: U::UCUM,
                        semconv: None,
                        budget: DEFAULT_BUDGET,
                        peak: None,
                    },
                    unit: PhantomData,
                }
            }

            /// Says what a dimensionless number counts, as a UCUM annotation such as `{process}`.
            #[must_use]
            pub const fn counting(mut self, ucum: &'static str) -> Self {
                self.desc.ucum = ucum;
                self
            }

            /// Sets the most series in one frame.
            #[must_use]
            pub const fn budget(mut self, series: usize) -> Self {
                self.desc.budget = series;
                self
            }

            /// Gives the semantic convention's name, instrument, fixed attributes and renamed labels.
            #[must_use]
            pub const fn semconv(
                mut self,
                name: &'static str,
                instrument: Instrument,
                fixed: &'static [(&'static str, &'static str)],
                renamed: &'static [(&'static str, &'static str)],
            ) -> Self {
                self.desc.semconv = Some(Semconv { name, instrument, fixed, renamed });
                self
            }

            /// Keeps the largest value of the peak window in `gauge`, which has the same labels.
            #[must_use]
            pub const fn peak(mut self, gauge: &'static Gauge<U>) -> Self {
                self.desc.peak = Some(&gauge.desc);
                self
            }
        }

        impl<U: Unit> Metric for $name<U> {
            type Unit = U;
            fn desc(&'static self) -> &'static Desc {
                &self.desc
            }
        }
    };
}

metric_kind!(
    /// A metric that goes up and down.
    Gauge
);
metric_kind!(
    /// A metric that only grows; its name ends in `_total`.
    Counter
);
metric_kind!(
    /// A metric that counts values by size; its last label is `le`.
    Histogram
);

/// Declares metrics; the doc comment is the HELP text.
///
/// Defines one static a metric and `METRICS`, the list of their declarations.
///
/// ```
/// use memwarden::model::units::Bytes;
/// memwarden::metrics! {
///     /// Memory that new processes can get without swapping.
///     pub AVAILABLE: Gauge<Bytes> = "memwarden_host_memory_available_bytes" {};
/// }
/// assert_eq!(METRICS[0].help(), "Memory that new processes can get without swapping.");
/// ```
#[macro_export]
macro_rules! metrics {
    ($(
        $(#[doc = $help:literal])+
        pub $id:ident: $kind:ident<$unit:ty> = $name:literal {$($label:ident),*} $(.$set:ident($($argument:tt)*))*;
    )+) => {
        $(
            $(#[doc = $help])+
            pub static $id: $crate::model::desc::$kind<$unit> =
                $crate::model::desc::$kind::<$unit>::new($name, concat!($($help),+), &[$(stringify!($label)),*])
                $(.$set($($argument)*))*;
        )+

        /// Every metric declared here.
        pub static METRICS: &[&$crate::model::desc::Desc] = &[$(&$id.desc),+];
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::{Bytes, Count};

    #[test]
    fn the_otlp_name_translates_back() {
        static USED: Gauge<Bytes> = Gauge::new("memwarden_gpu_memory_used_bytes", "x", &[]);
        static FAULTS: Counter<Count> = Counter::new("memwarden_host_major_faults_total", "x", &[]);
        static TRAFFIC: Counter<Bytes> = Counter::new("memwarden_gpu_pcie_received_bytes_total", "x", &[]);
        assert_eq!(USED.desc.otlp_name(), "memwarden.gpu.memory.used");
        assert_eq!(FAULTS.desc.otlp_name(), "memwarden.host.major.faults");
        assert_eq!(TRAFFIC.desc.otlp_name(), "memwarden.gpu.pcie.received");
    }
}
