//! Event sets.

use std::thread;
use std::time::Duration;

use super::{device_calls, system_calls};
use crate::abi::{Answer, Code, EventV1, EventV2, Out, SetHandle};
use crate::{clock, event_sets, machine, session};

/// How often a wait looks at the scenario.
const POLL: Duration = Duration::from_millis(10);

/// Waits for the set's next event and passes it to `deliver`.
fn wait(set: SetHandle, timeout_ms: u32, deliver: impl FnOnce(EventV2) -> Answer) -> Answer {
    let deadline = clock::monotonic() + Duration::from_millis(timeout_ms.into());
    loop {
        let loaded = machine::current();
        session::check(&loaded)?;
        if let Some(event) = event_sets::get(set)?.next(&loaded) {
            return deliver(event);
        }
        let left = deadline.saturating_duration_since(clock::monotonic());
        if left.is_zero() {
            return Err(Code::TIMEOUT);
        }
        thread::sleep(left.min(POLL));
    }
}

system_calls! {
    nvmlEventSetCreate(_loaded, set: Out<SetHandle>) {
        // Null is refused before a set is made that the caller could not free.
        set.set(SetHandle(0))?;
        set.set(event_sets::create())
    }

    nvmlEventSetFree(_loaded, set: SetHandle) {
        event_sets::free(set)
    }

    nvmlEventSetWait_v2(_loaded, set: SetHandle, data: Out<EventV2>, timeout_ms: u32) {
        data.present()?;
        wait(set, timeout_ms, |event| data.set(event))
    }

    nvmlEventSetWait(_loaded, set: SetHandle, data: Out<EventV1>, timeout_ms: u32) {
        data.present()?;
        wait(set, timeout_ms, |EventV2 { device, kind, data: number, .. }| {
            data.set(EventV1 { device, kind, data: number })
        })
    }
}

device_calls! {
    nvmlDeviceRegisterEvents(target, kinds: u64, set: SetHandle) {
        let set = event_sets::get(set)?;
        if target.place.instance.is_some() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if kinds & !target.gpu().supported_events != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        set.watch(&target, kinds);
        Ok(())
    }

    nvmlDeviceGetSupportedEventTypes(target, kinds: Out<u64>) {
        kinds.set(target.physical()?.supported_events)
    }
}
