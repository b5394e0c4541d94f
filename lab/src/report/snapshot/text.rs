//! A report as tables for people.

use std::fmt::Write as _;

use crate::files::snapshot::analysis::{
    Analysis, Comparison, Gap, Group, Holder, Leaks, Neighbor, Origin, Request, Totals, TraceReport, Windows,
};
use crate::files::snapshot::{SegmentKind, Settings};
use memwarden::model::format;
use memwarden::model::health::Health;
use memwarden::model::printable::escaped;
use memwarden::model::units::Bytes;
use memwarden::node_view::table::{Cell, Row};
use memwarden::report::Page;
use memwarden::report::text;

/// One snapshot.
pub(crate) fn report(file: &str, len: usize, analysis: &Analysis<'_>, page: Page, out: &mut String) {
    let totals = &analysis.totals;
    let size = Bytes::new(u64::try_from(len).unwrap_or(u64::MAX));
    let events: u64 = analysis.traces.iter().map(|trace| trace.events).sum();
    let blocks = totals.active_blocks.saturating_add(totals.free_blocks);
    let _ = writeln!(
        out,
        "{file}: {size}, {}, {}, {}, {}\n",
        format::counted(analysis.devices.len(), "device"),
        format::counted(totals.segments, "segment"),
        format::counted(blocks, "block"),
        format::counted(events, "event"),
    );
    sums(totals, page, out);
    if analysis.devices.len() > 1 {
        groups("By device", &analysis.devices, page, out);
    }
    if analysis.streams.len() > analysis.devices.len() {
        groups("By stream", &analysis.streams, page, out);
    }
    groups("By pool", &analysis.pools, page, out);
    requests(&analysis.requests, page, out);
    holders("Owners of allocated memory", &analysis.stacks, page, out);
    gaps(&analysis.gaps, out);
    for trace in &analysis.traces {
        self::trace(trace, page, out);
    }
    settings(analysis.allocator_settings.as_ref(), page, out);
    out.push_str("Advice\n");
    for advice in &analysis.advice {
        // The only advice is `none` where nothing would help.
        let level = if advice.setting == "none" { Health::Ok } else { Health::Warning };
        let setting = page.marked(level, &escaped(&advice.setting));
        let _ = writeln!(out, "  {setting}\n      {}", escaped(&advice.why));
    }
    if !analysis.notes.is_empty() {
        out.push_str("\nRemarks about the file\n");
        for note in &analysis.notes {
            let _ = writeln!(out, "  {}", escaped(note));
        }
    }
    out.push('\n');
}

fn sums(totals: &Totals, page: Page, out: &mut String) {
    let whole = totals.reserved_bytes;
    let row = |name: &str, bytes: Bytes| {
        let row = Row::default().text("", 0, name).number("", 0, bytes.to_string());
        row.number("", 1, share(bytes, whole))
    };
    let mut rows = vec![row("reserved", whole), row("  allocated", totals.allocated_bytes)];
    let pending = totals.active_bytes.saturating_sub(totals.allocated_bytes);
    if pending > Bytes::ZERO {
        rows.push(row("  freed, still used by another stream", pending));
    }
    rows.extend([
        row("    of that, internal fragmentation (rounding)", totals.internal_bytes),
        row("  free", totals.free_bytes),
        row("    releasable", totals.releasable_bytes),
        row("    not releasable", totals.unreleasable_bytes),
        row("  largest free range", totals.largest_free_bytes),
    ]);
    text::titled(out, "Memory", rows, page);
}

fn groups(title: &str, groups: &[Group], page: Page, out: &mut String) {
    let mut rows = Vec::new();
    for group in groups {
        let mut name = format!("device {}", group.device);
        if let Some(stream) = group.stream {
            let _ = write!(name, ", stream {stream:#x}");
        }
        if let Some(pool) = group.pool {
            name.push_str(match pool {
                SegmentKind::Small => ", small",
                SegmentKind::Large => ", large",
            });
        }
        if let Some((first, second)) = group.private_pool.filter(|pool| *pool != (0, 0)) {
            let _ = write!(name, ", private pool {first}.{second}");
        }
        let totals = &group.totals;
        rows.push(
            Row::default()
                .text("", 0, name)
                .number("segments", 5, totals.segments.to_string())
                .number("reserved", 0, totals.reserved_bytes.to_string())
                .number("allocated", 1, totals.allocated_bytes.to_string())
                .number("free", 4, totals.free_bytes.to_string())
                .number("releasable", 2, totals.releasable_bytes.to_string())
                .number("not releasable", 0, totals.unreleasable_bytes.to_string())
                .number("largest free", 3, totals.largest_free_bytes.to_string()),
        );
    }
    text::titled(out, title, rows, page);
}

fn requests(requests: &[Request], page: Page, out: &mut String) {
    if requests.is_empty() {
        return;
    }
    let mut rows = Vec::new();
    for request in requests {
        let origin = match request.origin {
            Origin::Given => "as requested",
            Origin::Failed => "last failed request",
            Origin::TraceP99 => "p99 of the trace",
            Origin::TraceMax => "largest of the trace",
            Origin::LiveP99 => "p99 of live blocks",
            Origin::LiveMax => "largest live block",
        };
        let unusable = request.unusable_ratio.map_or_else(|| "no free memory".to_owned(), format::percent);
        rows.push(
            Row::default()
                .text("", 0, origin)
                .number("size", 0, request.size_bytes.to_string())
                .number("served from cache", 0, if request.fits { "yes" } else { "no" })
                .number("unusable share", 0, unusable)
                .number("unusable", 1, request.lost_bytes.to_string()),
        );
    }
    text::titled(out, "Free memory that a request can use", rows, page);
}

fn holders(title: &str, holders: &[Holder], page: Page, out: &mut String) {
    let row = |holder: &Holder| {
        Row::default()
            .number("allocated", 0, holder.live_bytes.to_string())
            .value("share", 1, holder.share_ratio, format::percent)
            .number("blocks", 2, holder.blocks.to_string())
            .prose("allocated by", &holder.stack.short)
    };
    if !holders.is_empty() {
        text::titled(out, title, holders.iter().map(row), page);
    }
}

fn gaps(gaps: &[Gap], out: &mut String) {
    if gaps.is_empty() {
        return;
    }
    let side = |neighbor: Option<&Neighbor>| match neighbor {
        Some(neighbor) => format!("{} {}", neighbor.size_bytes, neighbor.stack.short),
        None => "edge of the segment".to_owned(),
    };
    out.push_str("Largest gaps between live blocks\n");
    for gap in gaps {
        let _ = writeln!(
            out,
            "  {} at {:#x}, device {}, in a segment of {}\n      below: {}\n      above: {}",
            gap.size_bytes,
            gap.address,
            gap.device,
            gap.segment_bytes,
            side(gap.before.as_ref()),
            side(gap.after.as_ref()),
        );
    }
    out.push('\n');
}

fn trace(trace: &TraceReport, page: Page, out: &mut String) {
    let span = trace.span_seconds.map_or(String::new(), |span| format!(" over {span:.3} s"));
    let _ =
        writeln!(out, "Trace of device {}: {}{span}", trace.device, format::counted(trace.events, "event"));
    let peak = &trace.peak;
    let when = match (peak.event, peak.after_seconds) {
        (0, _) => "before the first event".to_owned(),
        (event, Some(seconds)) => format!("after {seconds:.3} s, event {event}"),
        (event, None) => format!("event {event}"),
    };
    let row = |name: &str, value: Bytes, more: String| {
        let row = Row::default().text("", 0, name).number("", 0, value.to_string());
        row.prose("", Cell::plain(more))
    };
    let rows = vec![
        row("allocated at its start", trace.base_bytes, String::new()),
        row("allocated at its end", trace.end_bytes, String::new()),
        row("peak allocated", peak.live_bytes, when),
        row("peak reserved", trace.reserved_peak_bytes, String::new()),
    ];
    text::rows(out, rows, page);
    let _ = writeln!(
        out,
        "  segments allocated from the driver: {}, freed: {}\n",
        trace.segment_allocations, trace.segment_frees
    );
    holders("Owners at the peak", &peak.holders, page, out);
    for failure in &trace.failures {
        let when = failure.after_seconds.map_or(String::new(), |seconds| format!(" after {seconds:.3} s"));
        let _ = writeln!(
            out,
            "Out of memory{when}: {} requested, {} free on the device\n      {}\n",
            failure.requested_bytes, failure.device_free_bytes, failure.stack.short
        );
    }
    leaks(&trace.leaks, page, out);
}

fn leaks(leaks: &Leaks, page: Page, out: &mut String) {
    let by = match leaks.windows {
        Windows::OptimizerSteps => "optimizer steps",
        Windows::RiseAndFall => "rises and falls of allocated memory",
    };
    let _ = writeln!(out, "Allocated in the trace and not freed: {}", leaks.unfreed_bytes);
    let suspects = leaks.stacks.iter().filter(|stack| stack.suspect).count();
    let _ = match (leaks.conclusive, suspects) {
        (false, _) => writeln!(
            out,
            "  {} whole {by}: too few to tell a leak from a step in progress (3 are needed)",
            leaks.whole_steps
        ),
        (true, 0) => writeln!(out, "  no leak over {} whole {by}", leaks.whole_steps),
        (true, _) => {
            writeln!(out, "  {suspects} suspected of leaking, over {} whole {by}", leaks.whole_steps)
        }
    };
    let row = |stack: &crate::files::snapshot::analysis::Unfreed| {
        let growth = match stack.per_step_bytes.filter(|_| stack.suspect) {
            Some(bytes) => format!("{bytes} per step, in {} steps", stack.in_steps),
            None => String::new(),
        };
        Row::default()
            .text("", 0, Cell::plain(if stack.suspect { "leak?" } else { "" }))
            .number("not freed", 0, stack.live_bytes.to_string())
            .number("allocations", 1, stack.allocations.to_string())
            .text("growth", 0, Cell::plain(growth))
            .prose("allocated by", &stack.stack.short)
    };
    text::rows(out, leaks.stacks.iter().map(row), page);
    out.push('\n');
}

fn settings(settings: Option<&Settings<'_>>, page: Page, out: &mut String) {
    let Some(settings) = settings else {
        out.push_str("Allocator settings: snapshots of this PyTorch release do not contain them\n\n");
        return;
    };
    let conf = if settings.conf.is_empty() { "not set".into() } else { escaped(&settings.conf) };
    let _ = writeln!(out, "Allocator settings: PYTORCH_CUDA_ALLOC_CONF {conf}");
    let mut rows = Vec::new();
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            rows.push(Row::default().text("", 0, name).prose("", value));
        }
    };
    row("expandable_segments", settings.expandable_segments.map(|on| on.to_string()));
    let split =
        settings.max_split_size_bytes.map_or("no limit".to_owned(), |size| Bytes::new(size).to_string());
    row("max_split_size", Some(split));
    row("garbage_collection_threshold", settings.garbage_collection_threshold_ratio.map(|at| at.to_string()));
    row("roundup_power2_divisions", settings.roundup_power2_divisions.map(|most| most.to_string()));
    text::rows(out, rows, page);
    out.push('\n');
}

/// What changed between two snapshots.
pub(crate) fn comparison(comparison: &Comparison, page: Page, out: &mut String) {
    let (before, after) = (&comparison.before, &comparison.after);
    let mut rows = Vec::new();
    for (name, before, after) in [
        ("reserved", before.reserved_bytes, after.reserved_bytes),
        ("allocated", before.allocated_bytes, after.allocated_bytes),
        ("internal fragmentation (rounding)", before.internal_bytes, after.internal_bytes),
        ("releasable", before.releasable_bytes, after.releasable_bytes),
        ("not releasable", before.unreleasable_bytes, after.unreleasable_bytes),
        ("largest free range", before.largest_free_bytes, after.largest_free_bytes),
    ] {
        let difference = i128::from(after.get()) - i128::from(before.get());
        rows.push(
            Row::default()
                .text("", 0, name)
                .number("before", 0, before.to_string())
                .number("after", 1, after.to_string())
                .number("change", 0, signed(difference)),
        );
    }
    out.push_str("Memory\n");
    text::rows(out, rows, page);
    out.push_str("\nLargest changes by owner\n");
    let rows = comparison.stacks.iter().map(|stack| {
        Row::default()
            .number("change", 0, signed(stack.change_bytes))
            .text("allocated", 1, format!("{} to {}", stack.before_bytes, stack.after_bytes))
            .text("blocks", 2, format!("{} to {}", stack.before_blocks, stack.after_blocks))
            .prose("allocated by", &stack.stack.short)
    });
    text::rows(out, rows, page);
}

fn signed(bytes: i128) -> String {
    let amount = Bytes::new(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
    match bytes {
        0 => "none".to_owned(),
        1.. => format!("+{amount}"),
        _ => format!("-{amount}"),
    }
}

fn share(part: Bytes, whole: Bytes) -> String {
    part.share_of(whole).map_or_else(String::new, |share| format::percent(share.get()))
}
