//! Workloads and ranks that claim to be another's.
