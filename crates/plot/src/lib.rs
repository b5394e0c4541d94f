//! Pictures: charts of series over time, and any other display list, as SVG or PNG.
//!
//! For a chart, fill a [`Chart`] and hand it to [`draw()`]. For another picture, fill a [`Layer`] with shapes
//! (pixels, origin at the top left, later shapes on top) and put it into a [`Picture`]. Either is written by
//! [`svg::render`] or [`png::render`]; the same picture gives the same bytes. [`text`]
//! measures what a text will take; [`Theme`] has the colors. All of it is pure: no files, no clock, no fonts
//! of the system. Which characters are not to be drawn as they are, its callers say.

pub mod chart;
mod clip;
pub mod color;
mod decimate;
mod draw;
mod gaps;
mod labels;
mod legend;
mod marks;
mod outlines;
mod panel;
pub mod picture;
pub mod png;
mod range;
pub mod report;
mod strip;
pub mod svg;
pub mod text;
mod ticks;
mod times;
mod together;
mod words;

pub use chart::{Band, Baseline, Chart, Event, Fan, Limit, Line, Panel, TimeAxis};
pub use color::{Color, Theme};
pub use draw::picture as draw;
pub use picture::{Anchor, Layer, Picture, Point, Rect, Stroke, Text};
pub use ticks::Unit;
pub use times::{duration, moment};
pub use together::together;

#[cfg(test)]
mod tests;
