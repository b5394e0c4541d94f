//! Files that a user names: links, FIFOs, devices, terminals.
