//! Whether memory that is watched leaks, on the evidence of one series.
//!
//! # What it says
//! One [`State`] a series, with the growth rate (per training step too, where the job tells its steps: over the
//! last ten to twenty minutes, the slowest rank's), since when, a confidence and the [`Evidence`]. The rule
//! by which growth becomes `leaking`: in one of seven windows (the last 95 % to 25 % of the samples looked at)
//! two of floor, center and peak climb beyond z = 2.5 against their own wandering, or one beyond 3.5, and
//! none falls; the rise is more than 1 % of the level and 4 MiB; the level is one never held before; the
//! growth is neither slowing nor over; and all of that has held for 3 % of the time looked at (four times as long
//! while the growth accelerates, five times as long at a level where growth had ended before, unless it gains
//! 60 % of its former rate since then). What climbs without having held so long is `growing`. A verdict stands
//! until the growth is seen to end.
//!
//! # Method
//! Two looks. One is at the newest samples (1,344 at most, 22 minutes of seconds), in 64 buckets, where growth counts
//! only if its peaks are above what the past has held again and again; one at the whole of a life that is longer, in
//! half as many. Each has a verdict of its own, for which z is 0.3 more where there are two, and growth of the newest
//! must have held for 6 %. The worse is told; where both leak the whole, unless the newest surely leak faster. So what
//! begins to leak after a week is seen within minutes, and what leaks a little each day is seen at all.
//!
//! Windows of 12 blocks; Theil-Sen slopes against an error that takes the series for white noise plus a random walk
//! ([`super::stats::trend`]). The windows, blocks and envelopes are those of the design in Machida et al. 2013 and
//! Matias et al. made to survive their null tests: Mann-Kendall calls half of all random walks trends, this 3 to 8 %.
//! The end of growth is seen by comparing the newest gain with every earlier gain over the same time (`ended`). The
//! rate that is told is the window's and its newer half's, weighed by how sure each is.
//!
//! # When it stays silent
//! `insufficient` before 60 samples; nothing while values are missing. A fall that lasts (to below two thirds of the
//! old floor for 15 % of the time looked at) is a restart, after which that look begins anew; what the past has held
//! is not forgotten. File cache and reserved-only rises are not watched where finer figures exist
//! ([`super::tracker::Sample`]).
//!
//! # False alarms
//! A linear fill that will stop is a leak until it stops: nothing outside of the process can tell. The
//! first rise of a slow wave is one for a part of the rise. Random walks: one in twelve to thirty of short ones. A
//! large load that takes minutes, after a week in which there was none.

mod analyzer;
mod ended;
mod evidence;
pub mod metrics;
mod owners;
mod pace;
mod verdict;

pub use analyzer::REGISTRATION;
pub(super) use ended::ended;
pub(super) use evidence::{Asked, Look, look, pace_now};
pub use evidence::{Envelope, Evidence};
pub(super) use verdict::Verdict;

pub use crate::model::outlook::LeakState as State;
