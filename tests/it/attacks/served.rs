//! Requests from other users and other sites, and text with control characters.
