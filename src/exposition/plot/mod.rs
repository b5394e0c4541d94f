//! Pictures: a display list that becomes SVG or PNG, and charts of series over time.
//!
//! Fill a [`Layer`] with shapes (pixels, origin at the top left, later shapes on top), put it into a
//! [`Picture`], and hand that to [`svg::render`] or `png::render` (feature `png`). The same picture gives
//! the same bytes. [`text`] measures what a text will take; [`Theme`] has the colors.
//! All of it is pure: no files, no clock, no fonts of the system.

pub mod color;
pub mod picture;
#[cfg(feature = "png")]
pub mod png;
pub mod svg;
pub mod text;

pub use color::{Color, Theme};
pub use picture::{Anchor, Layer, Picture, Point, Rect, Stroke, Text};
