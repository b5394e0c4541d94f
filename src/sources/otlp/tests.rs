//! The source with real pushes, and a host that is a fixture.
