//! What is left below each limit of memory, counted as the kernel counts it. Pure: who needs it reads the files.

pub mod meminfo;
