//! Metric declarations: each metric is declared once, in the module that measures it.
//!
//! Names are written only in these declarations. HELP and TYPE, the OTLP instruments and `memwarden metrics` are
//! generated from these declarations, and tests compare their names with their units.

#![warn(missing_docs)]

use std::marker::PhantomData;

use super::names::named;
use super::units::Unit;

named! {
    /// How a metric behaves over time.
    #[derive(serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Kind {
        /// A value that goes up and down.
        Gauge = "gauge",
        /// A cumulative total that only restarts at zero.
        Counter = "counter",
        /// Counts of values by size. Its last label is `le`: the points of one histogram are the cumulative counts of
        /// its buckets by their bound, `+Inf` last, and the sum of all values, whose `le` is [`SUM`].
        Histogram = "histogram",
    }
}

/// The `le` of the point that holds the sum of a histogram's values.
pub const SUM: &str = "sum";

/// The `le` of the last bucket, which includes all values.
pub const INFINITE: &str = "+Inf";

/// The name of the same quantity in the OpenTelemetry semantic conventions (v1.44.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Semconv {
    /// The instrument's name, for example `hw.gpu.memory.usage`.
    pub name: &'static str,
    /// The instrument that the convention requires.
    pub instrument: Instrument,
    /// Attributes with a fixed value, for example `("hw.type", "gpu")`.
    pub fixed: &'static [(&'static str, &'static str)],
    /// Label names and the attributes that they become; a label that is not listed keeps its name.
    pub renamed: &'static [(&'static str, &'static str)],
    /// A label and its value that a series must have to be sent, where others count the same again.
    pub only: Option<(&'static str, &'static str)>,
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

/// The declaration of a metric: everything except its values.
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
    /// Maximum number of series of this metric in one frame; further ones are counted, not exposed.
    pub budget: usize,
    /// The gauge that exposes the largest value of this one in the peak window.
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
    /// The standard translation (dots to underscores, unit and `_total` appended) returns [`Desc::name`].
    pub fn otlp_name(&self) -> String {
        let base = self.name.strip_suffix("_total").unwrap_or(self.name);
        // `{step}` is a UCUM annotation, which the translation drops, so that this part of the name must remain.
        let suffix = if self.suffix.ends_with("_per_step") { "" } else { self.suffix };
        base.strip_suffix(suffix).unwrap_or(base).replace('_', ".")
    }
}

/// A metric of one unit: what [`crate::point::Batch::put`] accepts.
pub trait Metric {
    /// The unit its values must have.
    type Unit: Unit;
    /// The declaration.
    fn desc(&'static self) -> &'static Desc;
}

const DEFAULT_BUDGET: usize = 2_000;

macro_rules! metric_kind {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[must_use]
        pub struct $name<U> {
            /// The declaration.
            pub desc: Desc,
            unit: PhantomData<fn() -> U>,
        }

        impl<U: Unit> $name<U> {
            /// Declares a metric; called by [`crate::metrics`].
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

            /// Sets what a dimensionless number counts, as a UCUM annotation such as `{process}`.
            pub const fn counting(mut self, ucum: &'static str) -> Self {
                self.desc.ucum = ucum;
                self
            }

            /// Sets the maximum number of series in one frame.
            pub const fn budget(mut self, series: usize) -> Self {
                self.desc.budget = series;
                self
            }

            /// Sets the semantic convention's name, instrument, fixed attributes and renamed labels.
            pub const fn semconv(
                mut self,
                name: &'static str,
                instrument: Instrument,
                fixed: &'static [(&'static str, &'static str)],
                renamed: &'static [(&'static str, &'static str)],
            ) -> Self {
                self.desc.semconv = Some(Semconv { name, instrument, fixed, renamed, only: None });
                self
            }

            /// Restricts the semantic convention to the series with this value of a label, which is not sent.
            pub const fn only(mut self, label: &'static str, value: &'static str) -> Self {
                if let Some(semconv) = &mut self.desc.semconv {
                    semconv.only = Some((label, value));
                }
                self
            }

            /// Sets the gauge that exposes the largest value in the peak window; it has the same labels.
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
    /// A metric whose value goes up and down.
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
/// Defines one static per metric, and `METRICS`, the list of their declarations.
///
/// ```
/// use memwarden_model::units::Bytes;
/// memwarden_model::metrics! {
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
            pub static $id: $crate::desc::$kind<$unit> =
                $crate::desc::$kind::<$unit>::new($name, concat!($($help),+), &[$(stringify!($label)),*])
                $(.$set($($argument)*))*;
        )+

        /// Every metric declared here.
        pub static METRICS: &[&$crate::desc::Desc] = &[$(&$id.desc),+];
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Bytes, Count};

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
