//! W&B run files (`run-ID.wandb`): a log of protobuf records in LevelDB's format.
//!
//! The format: `wandb/sdk/internal/datastore.py` of W&B 0.16 and `core/internal/stream` of newer versions, and LevelDB's
//! `log_format.md`: seven bytes `:W&B`, 0xBEE1 and the version, then blocks of 32 KiB with chunks of a CRC-32 (IEEE, of the
//! kind and the data), a length and a kind (whole, first, middle, last). The messages: `wandb_internal.proto`. A file of a run
//! that was killed, or that still runs, ends within a chunk; that is a remark.
//!
//! Keys of system metrics: clients before 0.18 write `memory` for the percentage of the host's memory, newer ones
//! `memory_percent`; both write `gpu.N.memoryAllocatedBytes` and `gpu.N.memoryAllocated` (percent), where the oldest have
//! only the percentage. `system.` and `system/` are prefixes in exported histories; `/l:LABEL` names the client in runs that
//! several clients write (shared mode). From 0.27 on (`core/internal/monitor/cgroup.go`) the percentage and the available memory
//! are those of the cgroup where it has a limit, while the recorded total stays that of the host.
//!
//! Steps are those of the history, at its `_timestamp` ([`STEPS`]); clients from 0.18 on write the key of a value as a path.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use flate2::Crc;
use prost::Message as _;

use super::console::Console;
use super::protobuf::{Fields, Malformed};
use super::quantity::LARGEST;
use super::wandb_keys::{COUNTS, Count, DEVICES, Of, labelled, name};
use super::{RunRecord, RunRecordError, Samples};
use memwarden::model::steps::Steps;
use memwarden::model::units::{MIB, whole};

/// The front of each file.
pub(crate) const MAGIC: &[u8] = b":W&B";
/// The rest of the header: the magic number and the version.
const VERSION: [u8; 3] = [0xE1, 0xBE, 0];
const BLOCK: usize = 32 << 10;
const HEADER: usize = 7;
/// Maximum length of a record; a larger one is no record of metrics, and is skipped.
const LONGEST: usize = 16 << 20;
/// Maximum number of GPUs: each of them can be a series.
const MOST_GPUS: u32 = 1024;
/// Maximum number of keys that a remark names.
const MOST_UNREAD: usize = 8;
/// The least percentage from which a total is computed: older clients round to a tenth.
const LEAST_PART: f64 = 1.0;
/// Share of the recorded total below which a computed one is that of a cgroup, and no error of rounding.
const OTHER_TOTAL: f64 = 0.9;
/// Keys of the step of the training, the first one that is recorded counts: those of the `Trainer` of Hugging Face and of PyTorch
/// Lightning, a usual one, and the number of calls of `wandb.log`, which is the step only where a script logs once in each.
const STEPS: [&str; 4] = ["train/global_step", "trainer/global_step", "global_step", "_step"];

// The fields that are read, of wandb/proto/wandb_internal.proto. What has lists is read by the numbers of its fields.

#[derive(Clone, prost::Message)]
pub(super) struct Output {
    /// 0 is standard error.
    #[prost(int32, tag = "1")]
    pub(super) output_type: i32,
    #[prost(string, tag = "3")]
    pub(super) line: String,
}

#[derive(Clone, prost::Message)]
pub(super) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

#[derive(Clone, prost::Message)]
pub(super) struct Item {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "16")]
    pub(super) value_json: String,
}

#[derive(Clone, prost::Message)]
pub(super) struct Run {
    #[prost(string, tag = "1")]
    pub(super) run_id: String,
    #[prost(string, tag = "8")]
    pub(super) display_name: String,
}

#[derive(Clone, prost::Message)]
pub(super) struct Exit {
    #[prost(int32, tag = "1")]
    pub(super) exit_code: i32,
    #[prost(bool, tag = "3")]
    pub(super) not_complete: bool,
}

#[derive(Clone, prost::Message)]
pub(super) struct Total {
    #[prost(uint64, tag = "1")]
    pub(super) total: u64,
}

#[derive(Clone, prost::Message)]
pub(super) struct Gpu {
    #[prost(uint64, tag = "2")]
    pub(super) memory_total: u64,
}

/// Reads a run file.
///
/// # Errors
/// [`RunRecordError`], with the offset of the chunk or record.
pub(crate) fn read(mut input: impl Read) -> Result<RunRecord, RunRecordError> {
    let mut found = Found::default();
    let (mut block, mut start) = (Vec::with_capacity(BLOCK), 0_u64);
    // The record whose parts are joined, and its offset; absent between records.
    let mut partial: Option<(u64, Vec<u8>)> = None;
    loop {
        block.clear();
        (&mut input).take(BLOCK as u64).read_to_end(&mut block)?;
        let mut at = 0;
        if start == 0 {
            let header = block.get(..HEADER).and_then(|header| header.strip_prefix(MAGIC));
            if header != Some(&VERSION) {
                let problem = "not the header of a W&B run file of version 0";
                return Err(RunRecordError::At { offset: 0, problem });
            }
            at = HEADER;
        }
        let is_last = block.len() < BLOCK;
        while block.len() - at >= HEADER {
            let offset = start + at as u64;
            let wrong = |problem| RunRecordError::At { offset, problem };
            let chunk = &block[at..];
            let length = usize::from(u16::from_le_bytes([chunk[4], chunk[5]]));
            let kind = chunk[6];
            if kind == 0 && chunk.iter().all(|byte| *byte == 0) {
                // A file system that lost its last writes leaves zeros.
                at = block.len();
                break;
            }
            let Some(data) = chunk.get(HEADER..HEADER + length) else {
                if is_last {
                    break;
                }
                return Err(wrong("a chunk that is longer than its block"));
            };
            let mut sum = Crc::new();
            sum.update(&[kind]);
            sum.update(data);
            // A fuzzer finds no checksum.
            if sum.sum().to_le_bytes() != chunk[..4] && !cfg!(fuzzing) {
                return Err(wrong("the checksum of the chunk is wrong"));
            }
            at += HEADER + length;
            match (kind, &mut partial) {
                (1, None) => found.record(data).map_err(|problem| problem.at(offset))?,
                (2, None) => partial = Some((offset, data.to_vec())),
                (3 | 4, Some((from, bytes))) => {
                    if bytes.len() <= LONGEST {
                        bytes.extend_from_slice(data);
                    }
                    if kind == 4 {
                        if bytes.len() > LONGEST {
                            found.skipped += 1;
                        } else {
                            found.record(bytes).map_err(|problem| problem.at(*from))?;
                        }
                        partial = None;
                    }
                }
                (1..=4, _) => return Err(wrong("a part of a record that does not follow the one before it")),
                _ => return Err(wrong("an unknown kind of chunk")),
            }
        }
        start += block.len() as u64;
        if is_last {
            if at < block.len() || partial.is_some() {
                found.remarks.push(format!("the file ends within a record, at offset {start}"));
            }
            return found.finish();
        }
    }
}

/// A record that cannot be read.
enum RecordProblem {
    Message,
    TooMany(RunRecordError),
}

impl From<Malformed> for RecordProblem {
    fn from(_: Malformed) -> Self {
        Self::Message
    }
}

impl From<prost::DecodeError> for RecordProblem {
    fn from(_: prost::DecodeError) -> Self {
        Self::Message
    }
}

impl From<RunRecordError> for RecordProblem {
    fn from(error: RunRecordError) -> Self {
        Self::TooMany(error)
    }
}

impl RecordProblem {
    fn at(self, offset: u64) -> RunRecordError {
        match self {
            Self::Message => RunRecordError::At { offset, problem: "a record that is not a message of W&B" },
            Self::TooMany(error) => error,
        }
    }
}

#[derive(Default)]
struct Found {
    samples: Samples,
    /// By the place of their key in [`STEPS`].
    steps: [Steps; STEPS.len()],
    console: Console,
    name: String,
    exit_code: Option<i32>,
    /// Total memory of each GPU and of the host, as the client reported it.
    totals: BTreeMap<Of, f64>,
    /// The same computed from a sample in bytes and in percent: the weight of the sample, and the total.
    computed: BTreeMap<Of, (f64, f64)>,
    /// Devices whose memory is recorded in percent.
    percent: BTreeMap<Of, Vec<(f64, f64)>>,
    /// The memory of the host that is available, by client.
    available: BTreeMap<Of, Vec<(f64, f64)>>,
    /// Every device with a sample.
    devices: BTreeSet<Of>,
    /// Keys of memory that are not read.
    unread: BTreeSet<String>,
    skipped: u64,
    remarks: Vec<String>,
}

/// The values of one device, or of the host, at one time.
#[derive(Default)]
struct Amounts {
    bytes: Option<f64>,
    percent: Option<f64>,
}

impl Found {
    fn record(&mut self, bytes: &[u8]) -> Result<(), RecordProblem> {
        for field in Fields(bytes) {
            match field? {
                (2, history) => self.history(history)?,
                (4 | 13, output) => {
                    let output = Output::decode(output)?;
                    self.console.feed(output.output_type == 0, output.line.as_bytes());
                }
                (7, stats) => self.stats(stats)?,
                (17, run) => {
                    let Run { run_id: id, display_name: name } = Run::decode(run)?;
                    self.name = if name.is_empty() || name == id { id } else { format!("{name} ({id})") };
                }
                (18, exit) => {
                    let exit = Some(Exit::decode(exit)?).filter(|exit| !exit.not_complete);
                    self.exit_code = exit.map(|exit| exit.exit_code).or(self.exit_code);
                }
                (26, environment) => self.environment(environment)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn environment(&mut self, environment: &[u8]) -> Result<(), RecordProblem> {
        let mut gpus = 0..MOST_GPUS;
        for field in Fields(environment) {
            let (of, total) = match field? {
                (21, memory) => (None, Total::decode(memory)?.total),
                (24, gpu) => match gpus.next() {
                    Some(place) => (Some(("GPU", place)), Gpu::decode(gpu)?.memory_total),
                    None => return Err(RunRecordError::TooMany.into()),
                },
                _ => continue,
            };
            #[expect(clippy::cast_precision_loss, reason = "an amount of memory")]
            self.totals.insert((of, String::new()), total as f64);
        }
        Ok(())
    }

    fn history(&mut self, history: &[u8]) -> Result<(), RecordProblem> {
        let mut at = None;
        let mut steps = [None; STEPS.len()];
        for field in Fields(history) {
            let (1, item) = field? else { continue };
            let Some((key, value)) = history_item(item)? else { continue };
            let known = if key == "_timestamp" {
                &mut at
            } else if let Some(place) = STEPS.iter().position(|step| *step == key) {
                &mut steps[place]
            } else {
                continue;
            };
            // The first one counts, also where it is no number.
            known.get_or_insert_with(|| value.parse::<f64>().ok());
        }
        let Some(at) = at.flatten() else { return Ok(()) };
        for (step, steps) in steps.into_iter().map(Option::flatten).zip(&mut self.steps) {
            if let Some(step) = step.filter(|step| (0.0..=LARGEST).contains(step)) {
                steps.push(at, whole(step));
            }
        }
        Ok(())
    }

    fn stats(&mut self, stats: &[u8]) -> Result<(), RecordProblem> {
        let mut time = None;
        for field in Fields(stats) {
            if let (2, timestamp) = field? {
                time = Some(Timestamp::decode(timestamp)?);
            }
        }
        let Some(time) = time else { return Ok(()) };
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
        let at = time.seconds as f64 + f64::from(time.nanos) / 1e9;
        let mut amounts: BTreeMap<Of, Amounts> = BTreeMap::new();
        for field in Fields(stats) {
            let (3, item) = field? else { continue };
            let item = Item::decode(item)?;
            let key = ["system.", "system/"].iter().find_map(|front| item.key.strip_prefix(front));
            let (key, label) =
                key.unwrap_or(&item.key).split_once("/l:").unwrap_or((key.unwrap_or(&item.key), ""));
            if !key.contains("emory") && !key.contains("hbm") {
                continue;
            }
            let Ok(value) = item.value_json.trim_matches('"').parse::<f64>() else { continue };
            let of = |device| (device, label.to_owned());
            match key {
                "memory" | "memory_percent" => amounts.entry(of(None)).or_default().percent = Some(value),
                "proc.memory.availableMB" => amounts.entry(of(None)).or_default().bytes = Some(value * MIB),
                "proc.memory.rssMB" => {
                    self.samples.push(&labelled("memory of the process", label), false, at, value * MIB)?;
                }
                _ => {
                    let device = DEVICES.iter().find_map(|(front, kind)| {
                        let (number, quantity) = key.strip_prefix(front)?.split_once('.')?;
                        Some((*kind, number.parse::<u32>().ok()?, quantity))
                    });
                    let Some((kind, number, quantity)) = device else {
                        if key.ends_with("MB") || key.ends_with("Bytes") {
                            self.unread(key);
                        }
                        continue;
                    };
                    if number >= MOST_GPUS {
                        return Err(RunRecordError::TooMany.into());
                    }
                    let device = Some((kind, number));
                    let Some((_, count, unit)) = COUNTS.iter().find(|(name, ..)| *name == quantity) else {
                        // The rest are clocks, temperatures and the time of accesses.
                        if quantity.ends_with("Bytes") || quantity.contains("hbm") {
                            self.unread(key);
                        }
                        continue;
                    };
                    match count {
                        Count::Used => amounts.entry(of(device)).or_default().bytes = Some(value * unit),
                        Count::Percent => amounts.entry(of(device)).or_default().percent = Some(value),
                        Count::Total => {
                            self.totals.entry(of(device)).or_insert(value * unit);
                        }
                    }
                }
            }
        }
        amounts.into_iter().try_for_each(|(of, amounts)| self.amounts(of, at, &amounts))?;
        Ok(())
    }

    /// Remembers a key of memory that is not read, without the number of its device.
    fn unread(&mut self, key: &str) {
        if self.unread.len() < MOST_UNREAD {
            let words = key.split('.').map(|word| if word.parse::<u32>().is_ok() { "N" } else { word });
            self.unread.insert(words.collect::<Vec<_>>().join("."));
        }
    }

    fn amounts(&mut self, of: Of, at: f64, amounts: &Amounts) -> Result<(), RunRecordError> {
        let Amounts { bytes, percent } = *amounts;
        self.devices.insert(of.clone());
        if let (Some(bytes), Some(percent)) = (bytes, percent) {
            // The larger the part, the less its rounding counts.
            let part = if of.0.is_some() { percent } else { 100.0 - percent };
            let best = self.computed.entry(of.clone()).or_default();
            if part > best.0 {
                *best = (part, bytes / part * 100.0);
            }
        }
        match (of.0, bytes, percent) {
            (Some(_), Some(bytes), _) => self.samples.push(&name(&of), true, at, bytes)?,
            (Some(_), None, Some(percent)) => kept(self.percent.entry(of).or_default(), at, percent)?,
            (None, Some(available), _) => kept(self.available.entry(of).or_default(), at, available)?,
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self) -> Result<RunRecord, RunRecordError> {
        let total = |of: &Of| {
            // What the environment names is that of the client without a label, and of others where it is all that is known.
            let known = self.totals.get(of).or_else(|| self.totals.get(&(of.0, String::new())));
            let known = known.copied().filter(|total| *total > 0.0);
            let computed = self.computed.get(of).filter(|(part, _)| *part >= LEAST_PART);
            let computed = computed.map(|(_, total)| total.round());
            match (of.0, known, computed) {
                // The amounts are those of a cgroup.
                (None, Some(known), Some(computed)) if computed < known * OTHER_TOTAL => Some(computed),
                _ => known.or(computed),
            }
        };
        for (of, points) in &self.percent {
            match total(of) {
                Some(total) => {
                    for (at, percent) in points {
                        self.samples.push(&name(of), true, *at, percent / 100.0 * total)?;
                    }
                }
                None => self.remarks.push(format!(
                    "{} is recorded in percent of a total that is not recorded, and left out",
                    name(of)
                )),
            }
        }
        for (of, points) in &self.available {
            let Some(total) = total(of) else { continue };
            for (at, available) in points {
                self.samples.push(&name(of), false, *at, total - available)?;
            }
            self.samples.limit(&name(of), total);
        }
        for of in self.devices.iter().filter(|of| of.0.is_some()) {
            if let Some(total) = total(of) {
                self.samples.limit(&name(of), total);
            }
        }
        if !self.unread.is_empty() {
            let keys: Vec<String> = self.unread.into_iter().collect();
            self.remarks.push(format!("keys of memory that are not read: {}", keys.join(", ")));
        }
        if self.skipped > 0 {
            self.remarks.push(format!("{} records of more than 16 MiB were skipped", self.skipped));
        }
        if self.exit_code.is_none() {
            self.remarks.push("no exit code: the run was killed, or had not ended".to_owned());
        }
        let ends = vec![self.console.end(self.name, self.exit_code)];
        let series = self.samples.finish(&mut self.remarks);
        let steps = self.steps.into_iter().find(Steps::is_known).unwrap_or_default();
        Ok(RunRecord { tool: "W&B", series, steps, ends, remarks: self.remarks })
    }
}

/// Key and value of an item of the history; absent where the key is a path of several parts.
fn history_item(item: &[u8]) -> Result<Option<(&str, &str)>, RecordProblem> {
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| RecordProblem::Message);
    let (mut key, mut value, mut parts) = ("", "", 0_usize);
    for field in Fields(item) {
        match field? {
            (1, bytes) if parts == 0 => key = text(bytes)?,
            (2, bytes) => {
                key = text(bytes)?;
                parts += 1;
            }
            (16, bytes) => value = text(bytes)?,
            _ => {}
        }
    }
    Ok((parts <= 1).then_some((key, value)))
}

/// Keeps a sample until the total is known.
fn kept(points: &mut Vec<(f64, f64)>, at: f64, value: f64) -> Result<(), RunRecordError> {
    if points.len() == super::MOST_SAMPLES / 8 {
        return Err(RunRecordError::TooMany);
    }
    points.push((at, value));
    Ok(())
}
