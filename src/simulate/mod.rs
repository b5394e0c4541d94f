//! A simulated node: what its sources measure in each second, without a GPU, files or other processes.
//!
//! `scene` is what happens, as a function of the second; `sources` give it to the engine under the names of the real
//! sources. NVML's values and the messages of jobs go through the code of the sources `gpu` and `training`.

mod scene;
mod sources;

pub use scene::SECONDS;
pub use sources::REGISTRY;
