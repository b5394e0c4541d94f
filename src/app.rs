//! Builds everything from the configuration and runs it.
