//! The address space and live memory, drawn.
