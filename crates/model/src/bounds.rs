//! The largest values that can be true of a GPU, of every vendor. A larger one is no value, such as the "unknown" of another call.

/// Bytes of memory: more than any GPU has.
pub const MEMORY: u64 = 16 << 40;

/// Degrees Celsius at which no chip works.
pub const DEGREES: u64 = 200;

/// The draw of a rack, in watts.
pub const WATTS: u64 = 100_000;

/// Two hundred years of a kilowatt, in joules.
pub const JOULES: u64 = 1 << 43;

/// Frequency of a clock in MHz, four times that of the fastest memory.
pub const MEGAHERTZ: u64 = 50_000;
