//! Tests of what several modules must agree on.

mod series;
mod severity;
