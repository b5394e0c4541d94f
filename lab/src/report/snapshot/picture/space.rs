//! The address space: segments one after the other, wrapped like text.

use super::{LEFT, MARGIN, RIGHT, THEME, heading, legend};
use crate::files::snapshot::{BlockState, Segment, SegmentKind, Snapshot};
use memwarden::model::units::{self, Bytes, real};
use memwarden::plot::{Color, Layer, Rect};

const LIVE: Color = THEME.series[0];
const UNRELEASABLE: Color = THEME.series[1];
const PENDING: Color = THEME.series[4];
const IDLE: Color = Color::new(0xD0, 0xD4, 0xD9);
const ROW: f64 = 16.0;
const STEP: f64 = 20.0;
/// All segments take about so many rows.
const ROWS: f64 = 18.0;
/// More segments than this are drawn without the line between them.
const APART: usize = 6_000;

/// Draws one device's segments, by address; gives back where it ends.
pub(super) fn draw(layer: &mut Layer, top: f64, snapshot: &Snapshot<'_>, device: i64) -> f64 {
    let mut segments: Vec<&Segment> =
        snapshot.segments.iter().filter(|segment| segment.device == device).collect();
    segments.sort_by_key(|segment| segment.address);
    heading(layer, top, "Address space");
    legend(
        layer,
        180.0,
        top,
        &[
            (LIVE, "in use".to_owned()),
            (PENDING, "freed, another stream may still use it".to_owned()),
            (UNRELEASABLE, "free, not releasable".to_owned()),
            (IDLE, "free, can be given back".to_owned()),
        ],
    );
    let total: u64 = segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.size));
    let (wide, gap) = (RIGHT - MARGIN, if segments.len() > APART { 0.0 } else { 1.0 });
    let room = (ROWS * wide - gap * real(u64::try_from(segments.len()).unwrap_or(u64::MAX))).max(wide);
    let mut space = Space { top: top + 14.0, wide, scale: room / real(total.max(1)), at: 0.0 };
    for segment in segments {
        let mut own = Layer::default();
        space.segment(&mut own, snapshot, segment);
        layer.group(title(snapshot, segment), own);
        space.at += gap;
    }
    let rows = ((space.at - gap) / wide).ceil().max(1.0);
    let bottom = space.top + rows * STEP;
    let scale =
        format!("{} a row; segments by address, a white line between two", per_row(wide, space.scale));
    super::number(layer, super::Point::new(LEFT.min(MARGIN), bottom + 10.0), scale, super::Anchor::Start);
    bottom + 10.0
}

fn per_row(wide: f64, scale: f64) -> Bytes {
    Bytes::new(units::whole((wide / scale.max(1e-12)).min(9e15)))
}

fn title(snapshot: &Snapshot<'_>, segment: &Segment) -> String {
    let live: u64 = snapshot
        .blocks(segment)
        .iter()
        .filter(|block| block.state != BlockState::Free)
        .fold(0, |sum, block| sum.saturating_add(block.size));
    let pool = match segment.kind {
        SegmentKind::Small => "small",
        SegmentKind::Large => "large",
    };
    format!(
        "{:#x}: {} ({pool} pool, stream {:#x}{}), {} in use",
        segment.address.unwrap_or(0),
        Bytes::new(segment.size),
        segment.stream,
        if segment.expandable { ", expandable" } else { "" },
        Bytes::new(live),
    )
}

struct Space {
    top: f64,
    wide: f64,
    /// Pixels for a byte.
    scale: f64,
    /// How far it is drawn, in pixels, as if there was one row.
    at: f64,
}

impl Space {
    fn segment(&mut self, layer: &mut Layer, snapshot: &Snapshot<'_>, segment: &Segment) {
        let blocks = snapshot.blocks(segment);
        let whole = blocks.iter().all(|block| block.state == BlockState::Free);
        let start = self.at;
        let (mut size, mut from, mut last) = (0u64, start, None);
        for block in blocks {
            let color = match block.state {
                BlockState::Allocated => LIVE,
                BlockState::PendingFree => PENDING,
                BlockState::Free if whole => IDLE,
                BlockState::Free => UNRELEASABLE,
            };
            let place = start + real(size) * self.scale;
            // What is narrower than half a pixel goes with what is next to it.
            if last.is_some_and(|last| last != color) && place - from >= 0.5 {
                self.paint(layer, from, place, last.unwrap_or(color));
                from = place;
                last = Some(color);
            } else if last.is_none() || place - from < 0.5 {
                last = Some(color);
            }
            size = size.saturating_add(block.size);
        }
        let end = (start + real(segment.size) * self.scale).max(start + 0.7);
        self.paint(layer, from, end, last.unwrap_or(IDLE));
        self.at = end;
    }

    /// Paints from one place to another, over as many rows as it takes.
    fn paint(&self, layer: &mut Layer, mut from: f64, to: f64, color: Color) {
        while from < to {
            let row = (from / self.wide).floor();
            let end = to.min((row + 1.0) * self.wide);
            let x = MARGIN + from - row * self.wide;
            layer.rect(Rect::new(x, self.top + row * STEP, end - from, ROW), color);
            if end <= from {
                break;
            }
            from = end;
        }
    }
}
