//! Decides from one series whether the tracked memory leaks.
//!
//! # What it says
//! One [`LeakState`](crate::LeakState) per series, with the growth rate, its start, a confidence and the
//! [`Evidence`](evidence::Evidence). Growth becomes `leaking` by this rule: in one of seven windows (the last 95 % to 25 % of the evaluated samples) two of floor,
//! center and peak climb beyond z = 2.5 against their own variation, or one beyond 3.5; the rise
//! exceeds 1 % of the level and 4 MiB; the level is new; the growth is neither slowing down nor over; and all of this
//! has held for 3 % of the evaluated time (four times as long while the growth accelerates, five times as long at a
//! level where growth ended before, unless it gains 60 % of its former rate since then). Growth that has not lasted
//! as long is `growing`. A state `leaking` remains until the growth ends.
//!
//! # Method
//! There are two evaluations. One covers the newest samples (at most 1,344, 22 minutes at one sample a second), in 64
//! buckets, where growth counts only if its peaks exceed what the past reached; the other covers the whole
//! history if it is longer, in half as many buckets. Each has its own verdict, for which z must be 0.3 higher where
//! there are two, and growth of the newest samples must have lasted for 6 %. The worse verdict is reported; if both
//! are leaks, that of the whole history, unless the newest samples leak faster. Thus a leak that begins
//! after a week is detected within minutes, and a leak of a little each day is detected at all.
//!
//! Windows of 12 blocks; Theil-Sen slopes against an error that models the series as white noise plus a random walk
//! ([`crate::stats::trend`]). The windows, blocks and envelopes are those of Machida et al. 2013 and Matias et al.,
//! modified to pass their null tests: Mann-Kendall calls half of all random walks trends, this test 3 to 8 %. The end
//! of growth is found by comparing the newest gain with every earlier gain over the same time (`ended`). The reported
//! rate is the mean of the rates of the window and of its newer half, weighted by their precision.
//!
//! # When it stays silent
//! The state is `insufficient` before 60 samples; nothing is evaluated while values are missing. A lasting decrease
//! (below two thirds of the old floor for 15 % of the evaluated time) is a restart, after which that evaluation
//! begins anew; the levels of the past are kept. File cache and growth of reserved memory are not tracked where more
//! precise values exist ([`crate::tracker::Sample`]).
//!
//! # False alarms
//! A linear fill that will stop is a leak until it stops: nothing outside the process can distinguish it. The first
//! rise of a slow oscillation is one for a part of the rise. Random walks: one in twelve to thirty of short ones. A
//! large load that takes minutes, after a week without one.

pub(crate) mod ended;
pub mod evidence;
pub(crate) mod verdict;
