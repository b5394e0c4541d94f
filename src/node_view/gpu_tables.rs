//! The tables and sections about GPUs: the GPUs of a node, the memory of one, who holds it, its device and its XID errors.

use super::forecast::Forecast;
use super::problem::Link;
use super::sheet::{ChartOf, Facts, Item, Section};
use super::table::{Cell, Row, Table};
use super::{Gpu, NodeView, Owner};
use crate::history::recent::{Quantity, Subject};
use crate::model::format;

impl NodeView {
    pub fn gpu_table(&self) -> Table {
        let empty = self.gpus_unseen.clone().unwrap_or_else(|| "No GPU was found.".to_owned());
        Table::new("GPUs", self.gpus.iter().map(gpu_row), empty)
    }
}

fn gpu_row(gpu: &Gpu) -> Row {
    let current = |value: Option<f64>| value.filter(|_| gpu.answers());
    let link = Link::Gpu(gpu.index.clone());
    let status = match (gpu.answers(), gpu.status.as_str()) {
        (true, _) => gpu.health.label(),
        (false, "") => "unknown",
        (false, status) => status,
    };
    let holder = gpu.holders.first().map(|holder| holder.owner.workload.clone());
    let held = Cell::text(gpu.held_by());
    let held = match holder {
        Some(name) => held.to(Link::Workload(name)),
        None => held,
    };
    Row::new(&*gpu.index, gpu.health)
        .to(link.clone())
        .text("GPU", 0, Cell::index(&gpu.index).to(link))
        .text("status", 0, Cell::text(status).of(gpu.health))
        .number("memory", 0, Cell::number(current(gpu.used), format::bytes).share(current(gpu.share())))
        .bytes("of", 2, current(gpu.whole()))
        .trail(Subject::Gpu(gpu.uuid.as_str().into()), Quantity::Used, gpu.whole())
        .text("time left", 1, &gpu.time_left)
        .text("held by", 0, held)
        .value("busy", 3, current(gpu.utilization), format::percent)
        .value("temperature", 4, current(gpu.temperature), |celsius| format!("{celsius:.0} °C"))
        .value("power", 6, current(gpu.power), |watts| format!("{watts:.0} W"))
        .text("notes", 7, gpu.notes())
}

impl Gpu {
    /// All memory that can be used.
    pub fn whole(&self) -> Option<f64> {
        self.used.zip(self.free).map(|(used, free)| used + free).or(self.total)
    }

    /// Who holds its memory, in few words.
    pub fn held_by(&self) -> String {
        let Some(first) = self.holders.first() else {
            return if self.answers() { "no workload" } else { "unknown" }.to_owned();
        };
        let last = if self.holders_are_last_known { "last: " } else { "" };
        let more = match self.holders.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{last}{}{more}", first.owner)
    }

    /// What is remarkable about it, in few words.
    fn notes(&self) -> String {
        let mut notes: Vec<String> =
            self.xids.iter().map(|xid| format!("XID {} ×{:.0}", xid.xid, xid.count)).collect();
        if self.uses_host_memory {
            notes.push("uses the memory of the host".to_owned());
        }
        if self.uncorrected_ecc.is_some_and(|errors| errors > 0.0) {
            notes.push("uncorrected ECC errors".to_owned());
        }
        if !self.throttled.is_empty() {
            notes.push(format!("throttled: {}", self.throttled.join(", ")));
        }
        if !self.mig.is_empty() {
            notes.push(format!("{} MIG instances", self.mig.len()));
        }
        notes.join("; ")
    }

    pub fn holder_table(&self) -> Table {
        let rows = self.holders.iter().map(|holder| {
            let Owner { workload, run, user, .. } = &holder.owner;
            let link = Link::Workload(workload.clone());
            let memory = Cell::number(holder.memory, format::bytes);
            Row::new(&**workload, self.health)
                .to(link.clone())
                .text("workload", 0, Cell::text(workload).to(link))
                .text("run", 2, run)
                .text("user", 1, user)
                .number("memory", 0, memory.share(format::share(holder.memory, self.total)))
                .text("ranks", 3, holder.ranks.join(", "))
        });
        let name = if self.holders_are_last_known { "Who held it last" } else { "Who holds it" };
        let empty = match self.answers() {
            true => "No workload uses this GPU.",
            false => "It is not known who uses this GPU.",
        };
        Table::new(name, rows, empty)
    }

    pub fn xid_table(&self) -> Table {
        let rows = self.xids.iter().map(|xid| {
            Row::new(&*xid.xid, xid.health())
                .text("XID", 0, &xid.xid)
                .text("severity", 0, Cell::text(&xid.severity).of(xid.health()))
                .count("count", 0, Some(xid.count))
                .prose("meaning", &xid.meaning)
        });
        Table::new("XID errors", rows, "")
    }
}

impl Gpu {
    pub(super) fn memory_section(&self) -> Section {
        let shown = |value| format::shown(value, format::bytes);
        let figure = if self.uses_host_memory && self.answers() {
            let held: f64 = self.holders.iter().filter_map(|holder| holder.memory).sum();
            format!(
                "It has no memory of its own: its processes hold {} of the memory of the host.",
                format::bytes(held)
            )
        } else if self.answers() {
            let share =
                self.share().map_or_else(String::new, |share| format!(" ({})", format::percent(share)));
            let (used, whole) = (shown(self.used), shown(self.whole()));
            format!("{used} of {whole} used{share}, time left: {}", format::or_unknown(&self.time_left))
        } else {
            let age = format::shown(self.sample_age, format::duration);
            let why = format!("{}: {}", self.status, self.status_words());
            format!("Its memory is unknown: {why}. The last sample is {age} old.")
        };
        let chart = ChartOf {
            title: "Memory of the GPU",
            subject: Subject::Gpu(self.uuid.as_str().into()),
            curves: vec![("used", Quantity::Used)],
            limit: self.whole(),
            forecast: self.forecast.clone(),
        };
        let growth = self.forecast.as_ref().and_then(Forecast::growth);
        let of_last = if self.answers() { "" } else { ", of the last sample" };
        let amount = |bytes: f64| format!("{}{of_last}", format::bytes(bytes));
        let facts = Facts::default()
            .number("used", self.used, amount)
            .number("free", self.free, amount)
            .number("growth", growth, format::rate)
            .bytes("reserved by the driver", self.reserved)
            .bytes("of no listed process", self.unattributed)
            .text("hung call", &self.hung_call);
        let items =
            vec![Item::Text(Some(self.health), figure), Item::Chart(Box::new(chart)), Item::Facts(facts)];
        Section::new("memory", "Memory", items)
    }

    pub(super) fn device_section(&self) -> Section {
        let current = |value: Option<f64>| value.filter(|_| self.answers());
        let watts = |watts: f64| format!("{watts:.0} W");
        let mut facts = Facts::default()
            .number("busy", current(self.utilization), format::percent)
            .number("temperature", current(self.temperature), |celsius| format!("{celsius:.0} °C"))
            .number("power", current(self.power), watts)
            .number("power limit", self.power_limit, watts)
            .text("throttled", self.throttled.join(", "))
            .number("uncorrected ECC errors", self.uncorrected_ecc, format::whole)
            .text("UUID", &self.uuid)
            .text("PCI address", &self.pci);
        for mig in &self.mig {
            let shown = |value| format::shown(value, format::bytes);
            let (used, total, left) = (shown(mig.used), shown(mig.total), mig.time_left());
            let text = format!("{}: {used} of {total}{left}", mig.instance);
            facts = facts.text("MIG instance", text);
        }
        let mut items = vec![Item::Facts(facts)];
        let xids = self.xid_table();
        if !xids.rows.is_empty() {
            items.push(Item::Table(xids));
        }
        Section::new("device", "Device", items)
    }
}
