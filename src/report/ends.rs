//! `why`: how processes ended, and why.

use std::fmt::Write as _;

use super::text::{self, Page};
use crate::model::ends::{End, ShownEnds};
use crate::model::format;
use crate::node_view::ends::{evidence, remarks, sentence};
use crate::node_view::table::{Cell, Row};

/// The ends as text: as a table, or the first one explained.
pub fn ends_text(shown: &ShownEnds, all: bool, page: Page) -> String {
    if all && !shown.ends.is_empty() {
        return table(&shown.ends, page);
    }
    match shown.ends.first() {
        Some(end) => {
            let parts: Vec<_> = shown.ends.iter().skip(1).collect();
            explained(end, page) + &of_parts(&parts, !end.is_abnormal(), page)
        }
        None if all => {
            "No end is known: memwarden keeps the last ends of workloads, ranks and killed processes on this node.\n".to_owned()
        }
        None => "No such end is known: memwarden keeps the last ends of workloads and ranks on this node. \
                 `memwarden why --all` lists them.\n"
            .to_owned(),
    }
}

fn table(ends: &[End], page: Page) -> String {
    let row = |end: &End| {
        Row::new(end.number.to_string(), end.health())
            .number("end", 3, end.number.to_string())
            .text("ended", 0, format::timestamp(end.unix_seconds))
            .text("workload", 0, end.workload.as_str())
            .text("rank", 3, end.rank.as_str())
            .text("process", 2, format!("{} {}", end.comm, end.pid))
            .text("cause", 0, Cell::text(end.cause.label()).of(end.health()))
            .text("probability", 1, format::percent(end.probability))
            .value("step", 2, end.step.map(crate::model::units::real), format::whole)
    };
    let mut out = "Ends\n".to_owned();
    text::rows(&mut out, ends.iter().map(row), page);
    out
}

/// The ends of processes of a program that went on, and what that means where it `succeeded`.
pub(super) fn of_parts(ends: &[&End], succeeded: bool, page: Page) -> String {
    /// The others are counted.
    const MOST: usize = 5;
    let mut out = String::new();
    for end in ends.iter().take(MOST) {
        out.push_str(&page.marked(end.health(), &sentence(end)));
        out.push('\n');
    }
    if ends.len() > MOST {
        out.push_str(&format!("{} further processes of it failed.\n", ends.len() - MOST));
    }
    if succeeded && !ends.is_empty() {
        out.push_str(
            "The command reported success nevertheless: what these processes had to do may be missing.\n",
        );
    }
    out
}

/// One end with its evidence.
pub(super) fn explained(end: &End, page: Page) -> String {
    let mut out = page.marked(end.health(), &sentence(end));
    let mut line = |text: &str| {
        // Writing to a String succeeds.
        let _ = write!(out, "\n  {text}");
    };
    remarks(end).iter().for_each(|remark| line(remark));
    line(&format!(
        "Cause: {} (probability {}), at {}.",
        end.cause.label().replace('_', " "),
        format::percent(end.probability),
        format::timestamp(end.unix_seconds)
    ));
    let seen: Vec<String> = end.evidence.iter().map(evidence).collect();
    if !seen.is_empty() {
        line(&format!("Evidence: {}.", seen.join("; ")));
    }
    if !end.settles.is_empty() {
        line(&format!("It would be certain with {}.", end.settles));
    }
    out.push('\n');
    out
}
