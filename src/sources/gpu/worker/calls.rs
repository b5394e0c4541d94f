//! Records the NVML function that each thread is in, to name one that does not return.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use crate::model::lock::lock;
use crate::sources::gpu::protocol::Lasting;

/// The current call of one thread.
#[derive(Debug, Default)]
struct CallSlot {
    gpu: Option<u32>,
    /// The NVML function in progress.
    function: Option<&'static str>,
    /// Number of calls so far.
    calls: u64,
    /// The number of calls at the last check.
    looked: u64,
}

type CallsShared = Arc<Mutex<CallSlot>>;

thread_local! {
    static HERE: RefCell<Option<CallsShared>> = const { RefCell::new(None) };
}

/// The threads that call NVML.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<Vec<CallsShared>>);

impl Calls {
    /// Records the calls of this thread from now on, as calls for this GPU, if they are for one.
    pub(super) fn enter(&self, gpu: Option<u32>) {
        let place = CallsShared::default();
        lock(&place).gpu = gpu;
        HERE.with_borrow_mut(|here| *here = Some(Arc::clone(&place)));
        let mut threads = lock(&self.0);
        // Those of threads that ended are nobody's.
        threads.retain(|place| Arc::strong_count(place) > 1);
        threads.push(place);
    }

    /// The calls that were in progress at the last check and still are.
    pub(super) fn lasting(&self) -> Vec<Lasting> {
        let mut found = Vec::new();
        for place in &*lock(&self.0) {
            let mut place = lock(place);
            let same = place.looked == place.calls;
            place.looked = place.calls;
            if let Some(function) = place.function.filter(|_| same) {
                found.push(Lasting { gpu: place.gpu, function: function.to_owned() });
            }
        }
        found
    }
}

/// The calls of this thread are for this GPU from now on.
pub(super) fn about(gpu: Option<u32>) {
    HERE.with_borrow(|here| {
        if let Some(place) = here {
            lock(place).gpu = gpu;
        }
    });
}

/// Runs an NVML call and records it; `function` is its name in nvml.h.
pub(super) fn call<T>(function: &'static str, run: impl FnOnce() -> T) -> T {
    mark(Some(function));
    let answer = run();
    mark(None);
    answer
}

fn mark(function: Option<&'static str>) {
    HERE.with_borrow(|here| {
        if let Some(place) = here {
            let mut place = lock(place);
            place.function = function;
            place.calls += u64::from(function.is_some());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_seen_in_two_checks_is_long() {
        let calls = Calls::default();
        calls.enter(Some(3));
        let named = |calls: &Calls| calls.lasting().into_iter().map(|call| call.function).collect::<Vec<_>>();
        call("nvmlDeviceGetName", || {
            assert_eq!(named(&calls), [""; 0], "it has only begun");
            assert_eq!(named(&calls), ["nvmlDeviceGetName"]);
        });
        assert_eq!(named(&calls), [""; 0]);
        for _ in 0..3 {
            call("nvmlDeviceGetName", || {
                assert_eq!(named(&calls), [""; 0], "another call of the same function")
            });
        }
    }
}
