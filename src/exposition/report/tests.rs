//! Every report over frames that are made up.
