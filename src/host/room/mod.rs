//! What is left below each limit of memory, counted as the kernel counts it. Pure: the sampler and the guard read the files, each with
//! descriptors of its own, and both decide by what is computed here.

pub mod group;
pub mod meminfo;
pub mod processes;
