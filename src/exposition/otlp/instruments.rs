//! One observable instrument for each declared metric, and none for anything else.
//!
//! The SDK can neither remove an instrument nor run one callback for several,
//! so all are made once, from the catalog, and the first one made latches the
//! newest frame: the SDK runs callbacks in the order of their making, and one
//! push is of one frame. Attribute sets not observed are not sent again.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::metrics::{AsyncInstrument, Meter, MeterProvider as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{
    Instrument as SdkInstrument, PeriodicReader, SdkMeterProvider, Stream as SdkStream,
};

use super::exporter::Pulse;
use super::stream::{Stream, streams};
use crate::config::OtlpNames;
use crate::exposition::Frames;
use crate::model::desc::{Desc, Instrument};
use crate::model::frame::Frame;

/// The SDK's limit of attribute sets, from which on they are merged into one.
const SDK_LIMIT: usize = 2_000;

/// What a provider is made from; kept, so that a dead one can be replaced.
pub(super) struct Plan {
    pub(super) catalog: Vec<&'static Desc>,
    pub(super) names: OtlpNames,
    pub(super) frames: Frames,
    pub(super) interval: Duration,
    pub(super) resource: Resource,
    pub(super) pulse: Arc<Pulse>,
}

/// The frame of the push that runs now.
struct Latch {
    frames: Frames,
    pulse: Arc<Pulse>,
    frame: Mutex<Option<Arc<Frame>>>,
}

impl Latch {
    fn close(&self) {
        self.pulse.beat();
        *self.frame.lock().unwrap_or_else(PoisonError::into_inner) = self.frames.borrow().clone();
    }

    fn frame(&self) -> Option<Arc<Frame>> {
        self.frame.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Plan {
    /// Starts pushing through `exporter`, on a thread of the SDK.
    pub(super) fn start(&self, exporter: impl PushMetricExporter) -> SdkMeterProvider {
        let streams = streams(&self.catalog, self.names);
        let mut limits: HashMap<String, usize> = HashMap::new();
        for stream in streams.iter().filter(|stream| stream.budget > SDK_LIMIT) {
            // Two metrics may have one name and different units.
            let limit = limits.entry(stream.name.clone()).or_default();
            *limit = (*limit).max(stream.budget + 1);
        }
        let limit = move |instrument: &SdkInstrument| {
            let limit = limits.get(instrument.name())?;
            SdkStream::builder().with_cardinality_limit(*limit).build().ok()
        };
        let reader = PeriodicReader::builder(exporter).with_interval(self.interval).build();
        let provider = SdkMeterProvider::builder()
            .with_resource(self.resource.clone())
            .with_reader(reader)
            .with_view(limit)
            .build();
        let scope =
            InstrumentationScope::builder("memwarden").with_version(env!("CARGO_PKG_VERSION")).build();
        let meter = provider.meter_with_scope(scope);
        let latch = Arc::new(Latch {
            frames: self.frames.clone(),
            pulse: Arc::clone(&self.pulse),
            frame: Mutex::default(),
        });
        self.pulse.beat();
        let first = Arc::clone(&latch);
        // Observes nothing, so it is never sent.
        let _ = meter.u64_observable_gauge("memwarden.latch").with_callback(move |_| first.close()).build();
        for stream in streams {
            register(&meter, stream, Arc::clone(&latch));
        }
        provider
    }
}

fn register(meter: &Meter, stream: Stream, latch: Arc<Latch>) {
    let (name, unit, help) = (stream.name.clone(), stream.unit, stream.help);
    let kind = stream.kind;
    let callback = move |out: &dyn AsyncInstrument<f64>| {
        // A panic here would end the thread of the SDK for good.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some(frame) = latch.frame() {
                stream.observe(&frame, out);
            }
        }));
    };
    macro_rules! make {
        ($kind:ident) => {
            drop(meter.$kind(name).with_unit(unit).with_description(help).with_callback(callback).build())
        };
    }
    match kind {
        Instrument::Gauge => make!(f64_observable_gauge),
        Instrument::Counter => make!(f64_observable_counter),
        Instrument::UpDownCounter => make!(f64_observable_up_down_counter),
    }
}
