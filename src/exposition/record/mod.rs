//! Recordings of series: their readers.

pub mod csv;
