//! Forecasts when a resource is exhausted at its current growth, and with which probability.
//!
//! # What it says
//! The time to exhaustion as 10 %, 50 % and 90 % quantiles, provided that growth continues; the probability of
//! exhaustion within each horizon, including the chance that growth stops.
//!
//! # Method
//! The peak line (the 90 % quantile of past bucket peaks, each extrapolated to now) drifts with the rate of
//! [`crate::leak`]'s window and diffuses as the variogram estimates. It looks as far back as the forecast looks
//! ahead, because the highest of a number of future peaks is as likely above the highest of the same number of past
//! peaks as below it; where the growth is found in a history longer than the newest samples, it looks back as far as
//! the newest samples reach, and the variation of the earlier means is added. The time of first passage over the
//! limit has the inverse Gaussian distribution ([`crate::stats::first_passage`]), with 8 % of the rate added to its
//! standard error, because no leak keeps a constant rate: with this, eight of ten recorded leaks reach the limit
//! between the outer quantiles. Growth that has lasted for T continues for another t with probability √(T/(T+t)) (a
//! Pareto law of its duration); the probability is multiplied by this. Where the memory that the device reports is constant under a caching allocator, the allocated memory is
//! extrapolated instead, plus at least what the device used above it.
//!
//! Growth that goes on reaches new maxima (`records`). If the last one is longer ago than three quarters of the longest
//! time between two of them, the probability that growth goes on decreases with the square of that time. Growth that is
//! no leak yet and is below an earlier maximum is probably a return to that level: the probability is a twentieth.
//!
//! Peaks that recur, and that are high and rare enough to stand out from that line, are forecast one by one
//! (`recurrence`): the first one that reaches the limit is the end. If their intervals deviate by more than a fifth of
//! the period, and the line reaches the limit sooner, the line is used. If only they grow, and not the level below them,
//! their slope must be five standard errors.
//! Where the job reports phases, the peaks are those of its phases (`phase`): of a rank's allocator as the job measured
//! them, of a workload's host memory and of the cgroups it is in as the samples in the phase show them.
//!
//! # When it stays silent
//! There is no limit; there is no growth (constant peaks that recur are none); growth has lasted less than half of what a leak requires; the time to
//! exhaustion is more than 2.5 times as long as the observed growth.
//!
//! # False alarms
//! A fill that stops below the limit; the rising half of a slow oscillation; the first large load after an idle week,
//! if it takes minutes. A forecast cannot predict a jump between two samples: alert on the level too.

pub(crate) mod forecast;
pub mod phase;
pub(crate) mod records;
pub mod recurrence;
