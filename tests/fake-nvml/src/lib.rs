//! NVML over a scenario file.
