//! What this process allocated, and the scenario file in which it shows it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, test_kill_process};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// What a context takes; that of a real driver takes several hundred MiB.
const CONTEXT: u64 = 64 * MIB;

/// The driver rounds allocations up to this.
const GRANULE: u64 = 2 * MIB;

/// The name of an entry of this library in the scenario, by which it removes those of processes that ended.
const NAME: &str = "fake-cuda";

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    InvalidValue,
    OutOfMemory,
    NotInitialized,
    InvalidDevice,
    InvalidContext,
    Unknown,
}

impl Refusal {
    /// The number in cuda.h.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::InvalidValue => 1,
            Self::OutOfMemory => 2,
            Self::NotInitialized => 3,
            Self::InvalidDevice => 101,
            Self::InvalidContext => 201,
            Self::Unknown => 999,
        }
    }
}

/// The state of the library in this process.
#[derive(Debug)]
pub(crate) struct State {
    scenario: Option<PathBuf>,
    /// The device file, where the machine has one.
    file: Option<std::fs::File>,
    /// The GPU of the context.
    device: Option<usize>,
    allocations: BTreeMap<u64, u64>,
    next: u64,
}

impl State {
    pub(crate) const fn new() -> Self {
        Self {
            scenario: None,
            file: None,
            device: None,
            allocations: BTreeMap::new(),
            next: 0x7000_0000_0000,
        }
    }

    /// Finds the scenario file.
    pub(crate) fn init(&mut self) -> Result<(), Refusal> {
        let path = std::env::var_os("FAKE_NVML_SCENARIO").ok_or(Refusal::NotInitialized)?;
        self.scenario = Some(path.into());
        // Who uses a GPU has its device open; most machines of the tests have none.
        self.file = std::fs::File::open("/dev/nvidia0").ok();
        self.devices().map(|_| ())
    }

    fn path(&self) -> Result<&Path, Refusal> {
        self.scenario.as_deref().ok_or(Refusal::NotInitialized)
    }

    fn read(&self) -> Result<Value, Refusal> {
        let text = fs::read_to_string(self.path()?).map_err(|_| Refusal::Unknown)?;
        serde_json::from_str(&text).map_err(|_| Refusal::Unknown)
    }

    /// The number of GPUs.
    pub(crate) fn devices(&self) -> Result<usize, Refusal> {
        Ok(self.read()?.get("devices").and_then(Value::as_array).map_or(0, Vec::len))
    }

    /// The PCI address of a GPU, as CUDA writes it: with a domain of four digits.
    pub(crate) fn pci(&self, device: i32) -> Result<String, Refusal> {
        let index = usize::try_from(device).map_err(|_| Refusal::InvalidDevice)?;
        let scenario = self.read()?;
        let gpu =
            scenario.get("devices").and_then(|devices| devices.get(index)).ok_or(Refusal::InvalidDevice)?;
        let given = gpu.get("pci").and_then(Value::as_str);
        let address = given.map_or_else(|| format!("00000000:{:02X}:00.0", 0x10 + index), str::to_owned);
        Ok(address.strip_prefix("0000").filter(|_| address.len() > 12).unwrap_or(&address).to_owned())
    }

    /// Makes the context of a GPU.
    pub(crate) fn retain(&mut self, device: i32) -> Result<(), Refusal> {
        let index = usize::try_from(device).map_err(|_| Refusal::InvalidDevice)?;
        if index >= self.devices()? {
            return Err(Refusal::InvalidDevice);
        }
        self.device = Some(index);
        self.show(CONTEXT)
    }

    /// Removes the context with its allocations.
    pub(crate) fn release(&mut self) -> Result<(), Refusal> {
        self.allocations.clear();
        let shown = self.show(0);
        self.device = None;
        shown
    }

    fn size(&self) -> u64 {
        CONTEXT + self.allocations.values().sum::<u64>()
    }

    /// The address of new memory.
    pub(crate) fn allocate(&mut self, size: u64) -> Result<u64, Refusal> {
        if size == 0 {
            return Err(Refusal::InvalidValue);
        }
        let size = size.div_ceil(GRANULE) * GRANULE;
        self.show(self.size().saturating_add(size))?;
        let address = self.next;
        self.next += size;
        self.allocations.insert(address, size);
        Ok(address)
    }

    /// Frees memory.
    pub(crate) fn free(&mut self, address: u64) -> Result<(), Refusal> {
        self.allocations.remove(&address).ok_or(Refusal::InvalidValue)?;
        self.show(self.size())
    }

    /// Checks that a range is allocated.
    pub(crate) fn touch(&self, address: u64, size: u64) -> Result<(), Refusal> {
        let found = self.allocations.range(..=address).next_back();
        let inside = found.is_some_and(|(start, length)| address - start + size <= *length);
        if inside { Ok(()) } else { Err(Refusal::InvalidValue) }
    }

    /// Free and total memory of the GPU of the context.
    pub(crate) fn memory(&self) -> Result<(u64, u64), Refusal> {
        let device = self.device.ok_or(Refusal::InvalidContext)?;
        let mut scenario = self.read()?;
        let gpu = scenario.get_mut("devices").and_then(|devices| devices.get_mut(device));
        let gpu = gpu.ok_or(Refusal::InvalidDevice)?;
        let (total, _) = capacity(gpu);
        Ok((total.saturating_sub(used(gpu)), total))
    }

    /// Shows the memory of this process in the scenario; 0 removes it. Refused where the GPU does not have it.
    fn show(&self, memory: u64) -> Result<(), Refusal> {
        let device = self.device.ok_or(Refusal::InvalidContext)?;
        let path = self.path()?;
        let lock = File::create(path.with_extension("lock")).map_err(|_| Refusal::Unknown)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|_| Refusal::Unknown)?;
        let mut scenario = self.read()?;
        let gpu = scenario.get_mut("devices").and_then(|devices| devices.get_mut(device));
        let gpu = gpu.and_then(Value::as_object_mut).ok_or(Refusal::InvalidDevice)?;
        let own = std::process::id();
        let processes = gpu.entry("processes").or_insert_with(|| json!([]));
        let processes = processes.as_array_mut().ok_or(Refusal::Unknown)?;
        processes.retain(|entry| {
            let pid = entry.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
            let ours = entry.get("name").and_then(Value::as_str) == Some(NAME);
            pid != Some(own) && !(ours && pid.is_some_and(ended))
        });
        if memory > 0 {
            processes.push(json!({"pid": own, "memory": memory, "name": NAME, "sm": 10, "mem": 5}));
        }
        let gpu = Value::Object(std::mem::take(gpu));
        let (total, _) = capacity(&gpu);
        if used(&gpu) > total {
            return Err(Refusal::OutOfMemory);
        }
        if let Some(place) = scenario.get_mut("devices").and_then(|devices| devices.get_mut(device)) {
            *place = gpu;
        }
        let next = path.with_extension(format!("{own}.next"));
        fs::write(&next, scenario.to_string()).map_err(|_| Refusal::Unknown)?;
        fs::rename(&next, path).map_err(|_| Refusal::Unknown)
    }
}

/// Whether no process has this number.
fn ended(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// Memory that can be allocated on a GPU, and what the driver reserves; as fake-nvml where the file does not say.
fn capacity(gpu: &Value) -> (u64, u64) {
    let figure = |key: &str, otherwise: u64| {
        gpu.get("memory").and_then(|memory| memory.get(key)).and_then(Value::as_u64).unwrap_or(otherwise)
    };
    let reserved = figure("reserved", 464 * MIB);
    (figure("total", 81_559 * MIB).saturating_sub(reserved), reserved)
}

/// The sum over the processes of a GPU.
fn used(gpu: &Value) -> u64 {
    let processes = gpu.get("processes").and_then(Value::as_array);
    let memory = |entry: &Value| entry.get("memory").and_then(Value::as_u64).unwrap_or(0);
    processes.into_iter().flatten().map(memory).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(folder: &tempfile::TempDir) -> State {
        let path = folder.path().join("scenario.json");
        let processes =
            json!([{"pid": 4_000_001, "memory": 100 * MIB}, {"pid": 4_000_002, "memory": MIB, "name": NAME}]);
        let gpu = json!({"memory": {"total": 1_024 * MIB, "reserved": 24 * MIB}, "processes": processes});
        fs::write(&path, json!({"devices": [gpu]}).to_string()).unwrap();
        State { scenario: Some(path), ..State::new() }
    }

    #[test]
    fn allocations_are_memory_of_the_process_in_the_scenario() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = state(&folder);
        assert_eq!(state.allocate(5), Err(Refusal::InvalidContext));
        state.retain(0).unwrap();
        let first = state.allocate(3 * MIB).unwrap();
        assert_eq!(state.memory(), Ok((1_000 * MIB - 100 * MIB - CONTEXT - 4 * MIB, 1_000 * MIB)));
        assert_eq!(state.touch(first + MIB, 3 * MIB), Ok(()));
        assert_eq!(state.touch(first + MIB, 4 * MIB), Err(Refusal::InvalidValue));
        state.free(first).unwrap();
        assert_eq!(state.free(first), Err(Refusal::InvalidValue));
        let listed = state.read().unwrap();
        let listed = listed["devices"][0]["processes"].as_array().unwrap();
        assert_eq!(listed.len(), 2, "the other fake process has ended: {listed:?}");
        state.release().unwrap();
        assert_eq!(state.read().unwrap()["devices"][0]["processes"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn memory_that_the_gpu_does_not_have_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = state(&folder);
        state.retain(0).unwrap();
        assert_eq!(state.allocate(1_000 * MIB), Err(Refusal::OutOfMemory));
        assert!(state.allocate(800 * MIB).is_ok());
        assert_eq!(state.allocate(100 * MIB), Err(Refusal::OutOfMemory));
        assert_eq!(state.retain(1), Err(Refusal::InvalidDevice));
    }

    #[test]
    fn addresses_have_the_form_of_cuda() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(state(&folder).pci(0).as_deref(), Ok("0000:10:00.0"));
        assert_eq!(state(&folder).pci(3), Err(Refusal::InvalidDevice));
    }
}
