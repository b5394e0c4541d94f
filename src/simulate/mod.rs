//! A simulated node, without a GPU, files or other processes, for `memwarden demo`.
//!
//! `scene` is what happens on the node, as a function of the second; `sources` give it to the engine under the names of the
//! real sources. NVML's values and the messages of jobs go through the code of the sources `gpu` and `training`.

mod scene;
mod sources;

pub use scene::SECONDS;
pub use sources::REGISTRY;
