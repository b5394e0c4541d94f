//! A fragmented allocator as a problem: since when, what fails, and how much time is left as far as it is known.

use super::training::{Allocator, Rank};
use crate::model::format;
use crate::model::health::Health;

impl Allocator {
    /// Free memory in bytes that the allocator can release to the device: as reported, or what is free and not unreleasable.
    fn releasable_bytes(&self) -> Option<f64> {
        let free = || Some(self.reserved? - self.allocated?);
        self.releasable.or_else(|| Some((free()? - self.unreleasable?).max(0.0)))
    }

    /// The largest allocation in bytes that can succeed now: one in the largest free block, or one in memory of the device
    /// after everything releasable was released. Absent where the job does not report these.
    pub fn largest_allocation(&self) -> Option<f64> {
        Some(self.largest_free?.max(self.device_free? + self.releasable_bytes()?))
    }

    /// How it is: fragmented requires attention; fragmenting is an observation, as the severity of its finding states.
    pub fn health(&self) -> Health {
        match self.state.as_str() {
            "" => Health::Unknown,
            "fragmented" => Health::Warning,
            _ => Health::Ok,
        }
    }
}

/// What is wrong with the allocator of a rank, and its cause, without final periods. `on` names its GPU, `state` is that of
/// the finding, `since` and `now` are in seconds since 1970.
pub(super) fn stated(rank: &Rank, on: &str, state: &str, since: f64, now: f64) -> (String, String) {
    let left = rank.forecast.as_ref().and_then(super::forecast::time_left);
    let left = left.map_or_else(
        || "time left unknown".to_owned(),
        |left| format!("its memory is predicted to run out in {left}"),
    );
    let since = format::clock(since, now);
    let what = format!("The allocator of rank {}{on} is {state} since {since}, {left}", rank.rank);
    (what, cause(rank))
}

/// What no longer succeeds, and how much memory cannot be released.
fn cause(rank: &Rank) -> String {
    let Some(own) = rank.allocators.iter().max_by(|one, next| {
        let lost = |own: &Allocator| own.unreleasable.unwrap_or(0.0);
        lost(one).total_cmp(&lost(next))
    }) else {
        return String::new();
    };
    let amount = |value: Option<f64>| value.map_or_else(|| "an unknown amount".to_owned(), format::bytes);
    let limit = own.largest_allocation().map_or_else(
        || "the size from which allocations fail is unknown".to_owned(),
        |largest| format!("an allocation above {} fails", format::bytes(largest)),
    );
    let failed = own.ooms.filter(|failed| *failed > 0.0);
    let failed = failed.map_or_else(String::new, |failed| format!(", {failed:.0} failed so far"));
    format!(
        "{limit}{failed}, {} of {} reserved cannot be released",
        amount(own.unreleasable),
        amount(own.reserved),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::outlook::{Forecast, Tte};
    use crate::model::units::GIB;
    fn allocator() -> Allocator {
        Allocator {
            allocated: Some(47.0 * GIB),
            reserved: Some(76.0 * GIB),
            unreleasable: Some(25.0 * GIB),
            largest_free: Some(2.0 * GIB),
            device_free: Some(1.0 * GIB),
            state: "fragmented".to_owned(),
            ..Allocator::default()
        }
    }

    fn said(own: Allocator, forecast: Option<Forecast>) -> String {
        let rank = Rank { rank: "3".to_owned(), allocators: vec![own], forecast, ..Rank::default() };
        let (what, because) = stated(&rank, " on GPU 0", "fragmented", 1_700_000_000.0, 1_700_000_600.0);
        format!("{what}: {because}")
    }

    #[test]
    fn the_largest_allocation_is_in_a_free_block_or_on_the_device() {
        // 76 - 47 - 25 = 4 GiB can be released beside 1 GiB that is free.
        assert_eq!(allocator().largest_allocation(), Some(5.0 * GIB));
        assert_eq!(Allocator { releasable: Some(0.0), ..allocator() }.largest_allocation(), Some(2.0 * GIB));
        assert_eq!(Allocator { device_free: None, ..allocator() }.largest_allocation(), None);
        assert_eq!(Allocator { largest_free: None, ..allocator() }.largest_allocation(), None);
    }

    #[test]
    fn what_is_not_known_is_said_to_be_unknown() {
        let begin = "The allocator of rank 3 on GPU 0 is fragmented since 22:13 UTC";
        let lost = "25.0 GiB of 76.0 GiB reserved cannot be released";
        assert_eq!(
            said(allocator(), None),
            format!("{begin}, time left unknown: an allocation above 5.0 GiB fails, {lost}")
        );
        let silent = Allocator { largest_free: None, ooms: Some(2.0), ..allocator() };
        let tte = Tte { p10: 250.0, p50: 250.0, p90: Some(250.0) };
        let forecast = Forecast { time_to_exhaustion: Some(tte), ..Forecast::default() };
        assert_eq!(
            said(silent, Some(forecast)),
            format!(
                "{begin}, its memory is predicted to run out in 4 min: \
                 the size from which allocations fail is unknown, 2 failed so far, {lost}"
            )
        );
        let unknown = Allocator { unreleasable: None, reserved: None, ..allocator() };
        assert!(said(unknown, None).contains("an unknown amount of an unknown amount reserved"));
    }

    #[test]
    fn only_a_fragmented_allocator_requires_attention() {
        let health = |state: &str| Allocator { state: state.to_owned(), ..Allocator::default() }.health();
        assert_eq!(
            ["", "fine", "fragmenting", "fragmented"].map(health),
            [Health::Unknown, Health::Ok, Health::Ok, Health::Warning]
        );
    }
}
