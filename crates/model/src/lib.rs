//! The data types of memwarden: units, time, metrics, points, frames, settings.
//!
//! Pure data. Nothing here reads a clock, a file or a socket.

pub mod acknowledged;
pub mod analyzer;
pub mod attention;
pub mod bounds;
pub mod checkpoint;
pub mod checksum;
pub mod desc;
pub mod ends;
pub mod error_chain;
pub mod facts;
pub mod fair;
pub mod finding;
pub mod fit;
pub mod fits;
pub mod format;
pub mod frame;
pub mod health;
pub mod histogram;
pub mod ids;
pub mod kernel_log;
pub mod label;
pub mod limited_groups;
pub mod lock;
pub mod names;
pub mod node_set;
pub mod outlook;
pub mod pattern;
pub mod point;
pub mod printable;
pub mod room;
pub mod seldom;
pub mod series;
pub mod setting;
pub mod shortage;
pub mod source;
pub mod steps;
pub mod subordinate;
pub mod time;
pub mod timeline;
pub mod units;
pub mod xid;
