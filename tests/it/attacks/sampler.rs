//! Processes that no file of /proc answers for.
