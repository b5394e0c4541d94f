//! Which function of NVML each thread is in, so that one that does not return can be named.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use crate::model::lock::lock;
use crate::sources::gpu::protocol::Lasting;

/// What one thread does.
#[derive(Debug, Default)]
struct Place {
    /// The function it is in.
    function: Option<&'static str>,
    /// Counts calls.
    calls: u64,
    /// The count at the last look.
    looked: u64,
}

type Shared = Arc<Mutex<Place>>;

thread_local! {
    static HERE: RefCell<Option<Shared>> = const { RefCell::new(None) };
}

/// The threads that call NVML, each with its GPU; without one it is the thread that starts NVML.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<Vec<(Option<u32>, Shared)>>);

impl Calls {
    /// From now on the calls of this thread are seen, as those for this GPU.
    pub(super) fn enter(&self, gpu: Option<u32>) {
        let place = Shared::default();
        HERE.with_borrow_mut(|here| *here = Some(Arc::clone(&place)));
        lock(&self.0).push((gpu, place));
    }

    /// The calls that were under way at the last look and are still.
    pub(super) fn lasting(&self) -> Vec<Lasting> {
        let mut found = Vec::new();
        for (gpu, place) in &*lock(&self.0) {
            let mut place = lock(place);
            let same = place.looked == place.calls;
            place.looked = place.calls;
            if let Some(function) = place.function.filter(|_| same) {
                found.push(Lasting { gpu: *gpu, function: function.to_owned() });
            }
        }
        found
    }
}

/// Makes a call of NVML; `function` is its name in nvml.h.
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
    fn a_call_that_was_seen_twice_lasts() {
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
