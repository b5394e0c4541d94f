//! GPUs, and who holds their memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::events::LastHolders;
use super::forecast::{self, Forecast, Forecasts};
use super::lookup::{Lookup, MetricRow};
use super::owner::Owner;
use super::workload::Workload;
use crate::catalog::gpu;
use crate::model::desc::Desc;
use crate::model::finding::Subject;
use crate::model::format;
use crate::model::health::Health;

/// States of NVML in which a driver exists and none of its GPUs is visible.
const UNSEEN: [(&str, &str); 4] = [
    ("no_permission", "memwarden may not open the devices"),
    ("version_mismatch", "the library and the driver are of different versions"),
    ("worker_failed", "the GPU worker process does not run"),
    ("unknown_error", "the driver returns an error"),
];

/// A GPU; all amounts in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    pub index: String,
    pub uuid: String,
    /// The name of its model.
    pub name: String,
    /// Its address on the PCI bus.
    pub pci: String,
    pub health: Health,
    /// `ok`, `lost`, `hung`, `unknown_error` or `unobserved`; empty where it is not known.
    pub status: String,
    /// The driver call that does not return; empty where none hangs.
    pub hung_call: String,
    /// Seconds since its last complete sample.
    pub sample_age: Option<f64>,
    /// Whether it has no memory of its own, and its processes allocate from the memory of the host.
    pub uses_host_memory: bool,
    /// Memory in use.
    pub used: Option<f64>,
    /// All memory.
    pub total: Option<f64>,
    /// Memory that can still be allocated.
    pub free: Option<f64>,
    /// Memory reserved by the driver.
    pub reserved: Option<f64>,
    /// Memory in use that belongs to no listed process.
    pub unattributed: Option<f64>,
    /// Share of time in which a kernel ran, 0 to 1.
    pub utilization: Option<f64>,
    /// Temperature in °C.
    pub temperature: Option<f64>,
    /// Power draw in watts.
    pub power: Option<f64>,
    /// The enforced power limit in watts.
    pub power_limit: Option<f64>,
    /// Reasons for which the clocks are throttled now.
    pub throttled: Vec<String>,
    /// XID errors since memwarden started.
    pub xids: Vec<Xid>,
    /// Uncorrected ECC errors since the driver was loaded.
    pub uncorrected_ecc: Option<f64>,
    /// Who holds its memory, most first; for a GPU that does not answer, who held it last.
    pub holders: Vec<Holder>,
    /// Whether the holders are those of the last sample before the GPU stopped answering.
    pub holders_are_last_known: bool,
    pub mig: Vec<Mig>,
    /// What is predicted of its memory.
    pub forecast: Option<Forecast>,
    /// The time left as text, such as `4 min (3 to 7)`, or why there is none.
    pub time_left: String,
}

/// A workload that uses a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Whose it is.
    pub owner: Owner,
    /// Its memory on the GPU; absent where the driver does not report it.
    pub memory: Option<f64>,
    /// Its ranks on the GPU.
    pub ranks: Vec<String>,
}

/// XID errors of one number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Xid {
    /// The number.
    pub xid: String,
    pub severity: String,
    /// How many there were.
    pub count: f64,
    /// What it means; empty where it is not known.
    pub meaning: String,
}

impl Xid {
    /// How severe it is; one that the catalog of XIDs does not have is unknown.
    pub fn health(&self) -> Health {
        Health::of_word(&self.severity)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mig {
    /// The GPU instance, and the compute instance in it.
    pub instance: String,
    /// Memory in use.
    pub used: Option<f64>,
    /// All memory.
    pub total: Option<f64>,
    /// The UUID of the instance.
    pub uuid: String,
    /// What is predicted of the memory of the GPU instance; absent for further compute instances in it.
    pub forecast: Option<Forecast>,
}

impl Mig {
    /// What the analyzers call its memory.
    pub(super) fn subject(&self, gpu: &Gpu) -> Subject {
        let number = self.instance.split('/').next().unwrap_or_default();
        Subject::gpu_instance(&gpu.index.as_str().into(), &self.uuid.as_str().into(), &number.into())
    }

    /// The time left as text, after a comma; empty where none is predicted.
    pub(super) fn time_left(&self) -> String {
        let left = self.forecast.as_ref().and_then(forecast::time_left);
        left.map_or_else(String::new, |left| format!(", time left: {left}"))
    }
}

impl Gpu {
    /// The used share of the memory that can be allocated; absent where it is not known.
    pub fn share(&self) -> Option<f64> {
        format::share(self.used, self.whole())
    }

    /// The time left as text; `problem` is that of a problem with it, `is_fragmented` whether an allocator on it is.
    pub(super) fn say_time_left(&mut self, problem: Option<f64>, is_fragmented: bool) {
        let known = self.forecast.as_ref();
        let predicted = known.and_then(forecast::time_left);
        self.time_left = match (predicted, problem, known) {
            _ if !self.answers() => "unknown".to_owned(),
            (Some(left), ..) => left,
            (None, Some(left), _) => format!("about {}", format::duration(left)),
            // The next allocation can fail, although the memory does not grow.
            _ if is_fragmented => "unknown".to_owned(),
            _ if self.uses_host_memory => "that of the host".to_owned(),
            (None, None, Some(forecast)) if forecast.is_ready() => "no end predicted".to_owned(),
            (None, None, Some(_)) => "too few samples".to_owned(),
            (None, None, None) => format::UNKNOWN.to_owned(),
        };
    }

    /// Whether its values are current.
    pub fn answers(&self) -> bool {
        self.status == "ok"
    }

    /// Its status in words, for a GPU that does not answer.
    pub fn status_words(&self) -> &'static str {
        match self.status.as_str() {
            "ok" => "answers",
            "hung" => "a driver call does not return",
            "lost" => "it fell off the bus, requires a reset, or is not listed by the driver",
            "unobserved" => "no process of memwarden receives data for it",
            "unknown_error" => "the driver returns an error",
            _ => "its status is not known",
        }
    }
}

type Field = fn(&mut Gpu) -> &mut Option<f64>;
type MigField = fn(&mut Mig) -> &mut Option<f64>;

fn figures() -> [(&'static Desc, Field); 10] {
    [
        (&gpu::SAMPLE_AGE.desc, |own| &mut own.sample_age),
        (&gpu::MEMORY_USED.desc, |own| &mut own.used),
        (&gpu::MEMORY_TOTAL.desc, |own| &mut own.total),
        (&gpu::MEMORY_FREE.desc, |own| &mut own.free),
        (&gpu::MEMORY_RESERVED.desc, |own| &mut own.reserved),
        (&gpu::MEMORY_UNATTRIBUTED.desc, |own| &mut own.unattributed),
        (&gpu::UTILIZATION.desc, |own| &mut own.utilization),
        (&gpu::TEMPERATURE.desc, |own| &mut own.temperature),
        (&gpu::POWER.desc, |own| &mut own.power),
        (&gpu::POWER_LIMIT.desc, |own| &mut own.power_limit),
    ]
}

/// GPUs by index and UUID.
type All<'f> = BTreeMap<(u32, &'f str, &'f str), Gpu>;

fn entry<'a, 'f>(all: &'a mut All<'f>, row: &MetricRow<'f>) -> &'a mut Gpu {
    let (index, uuid) = (row.label("gpu"), row.label("uuid"));
    all.entry((index.parse().unwrap_or(u32::MAX), index, uuid)).or_insert_with(|| Gpu {
        index: index.to_owned(),
        uuid: uuid.to_owned(),
        ..Gpu::default()
    })
}

pub(super) fn gpus(
    lookup: &Lookup<'_>,
    forecasts: &Forecasts<'_>,
    workloads: &[Workload],
    last: Option<&LastHolders>,
) -> Vec<Gpu> {
    let mut all = All::new();
    for row in lookup.current(&gpu::STATUS.desc) {
        row.label("status").clone_into(&mut entry(&mut all, &row).status);
    }
    for row in lookup.current(&gpu::INFO.desc) {
        let own = entry(&mut all, &row);
        row.label("name").clone_into(&mut own.name);
        row.label("pci").clone_into(&mut own.pci);
    }
    for row in lookup.current(&gpu::USES_HOST_MEMORY.desc) {
        entry(&mut all, &row).uses_host_memory = true;
    }
    for row in lookup.current(&gpu::HUNG_CALL.desc) {
        row.label("call").clone_into(&mut entry(&mut all, &row).hung_call);
    }
    for (desc, field) in figures() {
        for row in lookup.rows(desc) {
            *field(entry(&mut all, &row)) = Some(row.value());
        }
    }
    for row in lookup.current(&gpu::THROTTLED.desc) {
        entry(&mut all, &row).throttled.push(row.label("reason").replace('_', " "));
    }
    let meanings: BTreeMap<&str, &str> =
        lookup.current(&gpu::XID_MEANING.desc).map(|row| (row.label("xid"), row.label("meaning"))).collect();
    for row in lookup.current(&gpu::XID_ERRORS.desc) {
        let xid = row.label("xid");
        entry(&mut all, &row).xids.push(Xid {
            xid: xid.to_owned(),
            severity: row.label("severity").to_owned(),
            count: row.value(),
            meaning: meanings.get(xid).copied().unwrap_or_default().to_owned(),
        });
    }
    for row in lookup.rows(&gpu::ECC_ERRORS.desc) {
        if row.label("error").starts_with("uncorrected") && row.label("scope") == "volatile" {
            let own = entry(&mut all, &row);
            own.uncorrected_ecc = Some(own.uncorrected_ecc.unwrap_or(0.0) + row.value());
        }
    }
    let instance =
        |row: &MetricRow<'_>| format!("{}/{}", row.label("gpu_instance"), row.label("compute_instance"));
    for row in lookup.current(&gpu::MIG_INFO.desc) {
        let (instance, uuid) = (instance(&row), row.label("uuid").to_owned());
        let is_its = |own: &&mut Gpu| !own.uuid.is_empty() && own.uuid == row.label("parent");
        if let Some(parent) = all.values_mut().find(is_its) {
            parent.mig.push(Mig { instance, uuid, ..Mig::default() });
        }
    }
    let memory: [(_, MigField); 2] =
        [(&gpu::MIG_TOTAL.desc, |own| &mut own.total), (&gpu::MIG_USED.desc, |own| &mut own.used)];
    for (desc, field) in memory {
        for row in lookup.rows(desc) {
            let is_it = |mig: &&mut Mig| mig.uuid == row.label("uuid") && mig.instance == instance(&row);
            if let Some(mig) = all.values_mut().flat_map(|own| &mut own.mig).find(is_it) {
                *field(mig) = Some(row.value());
            }
        }
    }
    let mut gpus: Vec<Gpu> = all.into_values().collect();
    for own in &mut gpus {
        let subject = Subject::gpu(&own.index.as_str().into(), &own.uuid.as_str().into());
        own.forecast = forecasts.forecast(&subject);
        own.holders = holders(&own.index, workloads);
        if own.holders.is_empty()
            && !own.answers()
            && let Some(last) = last.and_then(|last| last.of(&own.uuid))
        {
            let known = last.iter().map(|(name, memory)| Holder {
                owner: workloads
                    .iter()
                    .find(|workload| workload.name == *name)
                    .map_or_else(|| Owner { workload: name.clone(), ..Owner::default() }, Owner::of),
                memory: *memory,
                ranks: Vec::new(),
            });
            own.holders = known.collect();
            own.holders_are_last_known = true;
        }
        own.health = match (own.status.as_str(), &own.forecast) {
            ("hung" | "lost" | "unknown_error", _) => Health::Critical,
            ("ok" | "", _) if own.used.is_none() => Health::Unknown,
            ("ok", Some(forecast)) => forecast.health(),
            _ => Health::Unknown,
        };
        let predicted: Vec<_> = own.mig.iter().map(|mig| forecasts.forecast(&mig.subject(own))).collect();
        for (mig, predicted) in own.mig.iter_mut().zip(predicted) {
            own.health = predicted.as_ref().map_or(own.health, |forecast| own.health.max(forecast.health()));
            mig.forecast = predicted;
        }
    }
    gpus
}

fn holders(index: &str, workloads: &[Workload]) -> Vec<Holder> {
    let using = workloads.iter().filter_map(|workload| {
        let held = workload.gpus.iter().find(|(gpu, _)| gpu == index);
        let ranks: Vec<String> =
            workload.ranks.iter().filter(|rank| rank.gpu == index).map(|rank| rank.rank.clone()).collect();
        let memory = held.and_then(|(_, memory)| *memory);
        (held.is_some() || !ranks.is_empty()).then(|| Holder { owner: Owner::of(workload), memory, ranks })
    });
    let mut holders: Vec<Holder> = using.collect();
    holders.sort_by(|one, next| next.memory.unwrap_or(0.0).total_cmp(&one.memory.unwrap_or(0.0)));
    holders
}

/// The status of NVML, such as `ok`; empty where the source has none.
pub(super) fn nvml(lookup: &Lookup<'_>) -> String {
    let status = lookup.current(&gpu::NVML_STATUS.desc).next();
    status.map_or_else(String::new, |row| row.label("status").to_owned())
}

/// Why GPUs that exist are not visible; absent where they are, or where there is no driver.
pub(super) fn unseen(lookup: &Lookup<'_>) -> Option<String> {
    let status = lookup.current(&gpu::NVML_STATUS.desc).next()?;
    let (word, why) = UNSEEN.iter().find(|(word, _)| *word == status.label("status"))?;
    Some(format!("GPUs are not visible: {why} ({word})"))
}
