//! Tests of what several modules must agree on.

mod severity;
