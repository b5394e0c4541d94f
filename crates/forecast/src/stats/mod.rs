//! Numerics: pure functions of numbers, no state, no allocation.

pub mod first_passage;
pub mod normal;
pub mod robust;
pub mod trend;
