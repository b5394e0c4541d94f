//! What a user's processes can do to protection.
