//! One user who takes every place of a table.
