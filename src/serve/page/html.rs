//! Pieces of HTML. Every text that comes from outside goes through [`Escaped`] or [`path`].

use std::fmt::{Display, Formatter, Result, Write as _};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::model::format::UNKNOWN;
use crate::model::printable::{escaped, is_hidden};
use crate::node_view::{Health, Link, Owner};

/// Text escaped for HTML elements and attributes.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                hidden if is_hidden(hidden) => f.write_str(&escaped(hidden.encode_utf8(&mut [0; 4])))?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A name as one segment of a path, which no letter of it can leave.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

/// The path of the page about something.
pub(super) fn path(link: &Link) -> String {
    match link {
        Link::Node => "/".to_owned(),
        Link::Gpu(index) => format!("/gpus/{}", segment(index)),
        Link::Workload(name) => format!("/workloads/{}", segment(name)),
        Link::Protection => "/protection".to_owned(),
    }
}

/// A link with a text.
pub(super) struct Anchor<'a>(pub(super) &'a Link, pub(super) &'a str);

impl Display for Anchor<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "<a href=\"{}\">{}</a>", path(self.0), Escaped(self.1))
    }
}

/// A link to a workload.
pub(super) fn workload(name: &str) -> String {
    Anchor(&Link::Workload(name.to_owned()), name).to_string()
}

/// Whose something is, with a link to the workload.
pub(super) fn owner(owner: &Owner) -> String {
    let mut out = workload(&owner.workload);
    let extra = [("run ", &owner.run), ("user ", &owner.user)];
    for (what, name) in extra.into_iter().filter(|(_, name)| !name.is_empty() && **name != owner.workload) {
        let _ = write!(out, " <small>{what}<b>{}</b></small>", Escaped(name));
    }
    out
}

/// The class of a health.
pub(super) const fn class(health: Health) -> &'static str {
    health.word()
}

/// A health as a word with its color.
pub(super) struct Tag<'a>(pub(super) Health, pub(super) &'a str);

impl Display for Tag<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "<span class=\"tag {}\">{}</span>", class(self.0), Escaped(self.1))
    }
}

/// A share as a bar; nothing where it is not known.
pub(super) struct Bar(pub(super) Option<f64>, pub(super) Health);

impl Display for Bar {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Some(share) = self.0 else { return Ok(()) };
        write!(
            f,
            "<svg class=\"bar {}\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
             <rect width=\"{:.1}\" height=\"8\"/></svg>",
            class(self.1),
            share.clamp(0.0, 1.0) * 100.0
        )
    }
}

/// A value as text, or the sign of a value that is not known.
pub(super) fn shown(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), show)
}

/// The beginning of a section with a heading and an id.
pub(super) fn section(out: &mut String, id: &str, title: &str) {
    let _ =
        write!(out, "<section id=\"{id}\" aria-labelledby=\"{id}-title\"><h2 id=\"{id}-title\">{title}</h2>");
}

/// The beginning of a table: its name for screen readers, and its columns. A class of a column says from which width on
/// it is shown.
pub(super) fn table(out: &mut String, name: &str, columns: &[(&str, &str)]) {
    let _ = write!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}, table\"><table><caption>{0}</caption><thead><tr>",
        Escaped(name)
    );
    for (title, class) in columns {
        let _ = write!(out, "<th scope=\"col\" class=\"{class}\">{title}</th>");
    }
    out.push_str("</tr></thead><tbody>");
}

/// The end of a table.
pub(super) fn end_table(out: &mut String) {
    out.push_str("</tbody></table></div>");
}

/// A list of terms and values.
pub(super) fn facts(out: &mut String, facts: &[(&str, String)]) {
    out.push_str("<dl>");
    for (term, value) in facts.iter().filter(|(_, value)| value != UNKNOWN && !value.is_empty()) {
        let _ = write!(out, "<div><dt>{term}</dt><dd>{value}</dd></div>");
    }
    out.push_str("</dl>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leaves_its_place() {
        let name = "<b>/../\"x\"?&#\u{202e}'";
        let link = workload(name);
        assert_eq!(link.matches('<').count(), 2, "{link}");
        assert!(
            link.starts_with("<a href=\"/workloads/%3Cb%3E%2F%2E%2E%2F%22x%22%3F%26%23%E2%80%AE%27\">"),
            "{link}"
        );
        assert!(!link.contains('\u{202e}'));
        assert_eq!(Bar(None, Health::Ok).to_string(), "");
        assert!(Bar(Some(7.0), Health::Critical).to_string().contains("width=\"100.0\""));
    }
}
