//! Init and shutdown, versions, process names.

use std::ffi::c_char;
use std::path::Path;

use super::system_calls;
use crate::abi::{Code, Out, OutText, answer};
use crate::faults::Faults;
use crate::scenario::Scenario;
use crate::target::suffer;
use crate::{event_sets, gpm_samples, machine, session};

fn init(name: &str) -> Code {
    answer(|| {
        if machine::current().scenario.crash_on_init {
            std::process::abort();
        }
        let loaded = suffer(name);
        loaded.scenario.init.check()?;
        Faults::from(&loaded.scenario).refuse(name)?;
        session::enter(&loaded);
        Ok(())
    })
}

/// `nvmlInit_v2` of nvml.h.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Code {
    init("nvmlInit_v2")
}

/// `nvmlInit` of nvml.h.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> Code {
    init("nvmlInit")
}

/// `nvmlInitWithFlags` of nvml.h; the flags change nothing here.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: u32) -> Code {
    init("nvmlInitWithFlags")
}

/// `nvmlShutdown` of nvml.h; it also works after a driver reload, to let the client start again.
#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Code {
    answer(|| {
        let loaded = suffer("nvmlShutdown");
        Faults::from(&loaded.scenario).refuse("nvmlShutdown")?;
        if session::leave()? {
            event_sets::free_all();
            gpm_samples::free_all();
        }
        Ok(())
    })
}

/// `nvmlErrorString` of nvml.h.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    code.text().as_ptr()
}

/// `nvmlSystemGetNVMLVersion` of nvml.h, which needs no initialization.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetNVMLVersion(version: OutText, length: u32) -> Code {
    answer(|| {
        let loaded = suffer("nvmlSystemGetNVMLVersion");
        Faults::from(&loaded.scenario).refuse("nvmlSystemGetNVMLVersion")?;
        version.set(&loaded.scenario.nvml_version, length)
    })
}

fn cuda_version(name: &str, version: &Out<u32>) -> Code {
    answer(|| {
        let loaded = suffer(name);
        Faults::from(&loaded.scenario).refuse(name)?;
        version.set(loaded.scenario.cuda_version)
    })
}

/// `nvmlSystemGetCudaDriverVersion` of nvml.h, which needs no initialization.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<u32>) -> Code {
    cuda_version("nvmlSystemGetCudaDriverVersion", &version)
}

/// `nvmlSystemGetCudaDriverVersion_v2` of nvml.h, which needs no initialization.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<u32>) -> Code {
    cuda_version("nvmlSystemGetCudaDriverVersion_v2", &version)
}

system_calls! {
    nvmlSystemGetDriverVersion(loaded, version: OutText, length: u32) {
        version.set(&loaded.scenario.driver_version, length)
    }

    nvmlSystemGetProcessName(loaded, pid: u32, name: OutText, length: u32) {
        match process_name(&loaded.scenario, pid) {
            Some(text) => name.set_cut(&text, length),
            None => Err(Code::NOT_FOUND),
        }
    }
}

fn process_name(scenario: &Scenario, pid: u32) -> Option<String> {
    let named = scenario.devices.iter().flat_map(|device| {
        let instances = device.instances().flat_map(|(_, instance)| &instance.processes);
        device.processes.iter().chain(instances)
    });
    let name = named.filter(|process| process.pid == pid).find_map(|process| process.name.clone());
    name.or_else(|| {
        let executable = std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe"));
        Some(executable.ok()?.to_string_lossy().into_owned())
    })
}
