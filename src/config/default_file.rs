//! Generates the commented default file from the declarations.

use super::schema::Schema;
use crate::model::setting::{Opt, OptKind};

/// The text of `config/memwarden.yaml`: every key with its help and default.
pub fn write(schema: &Schema) -> String {
    let mut out = String::from(
        "# The default configuration of memwarden: every key, with what it does and what it is when left out.\n\
         # Durations, sizes and shares are written with their units (10s, 2GiB, 90%).\n\
         # Check a file with: memwarden check-config FILE\n",
    );
    for section in schema.sections {
        out.push('\n');
        option(&mut out, section, 0);
    }
    for group in &schema.groups {
        out.push('\n');
        comment(&mut out, group.about, 0);
        out.push_str(&format!("{}:\n", group.key));
        for part in &group.parts {
            comment(&mut out, part.about, 2);
            out.push_str(&format!("  {}:\n", part.key));
            for opt in part.options() {
                option(&mut out, opt, 4);
            }
        }
    }
    for module in &schema.modules {
        out.push('\n');
        option(&mut out, module.section, 0);
    }
    out
}

fn option(out: &mut String, opt: &Opt, indent: usize) {
    comment(out, opt.help, indent);
    let margin = " ".repeat(indent);
    match opt.kind {
        OptKind::Section(opts) => {
            out.push_str(&format!("{margin}{}:\n", opt.key));
            for opt in opts {
                option(out, opt, indent + 2);
            }
        }
        OptKind::Sections(opts) => {
            out.push_str(&format!("{margin}{}: []\n", opt.key));
            out.push_str(&format!("{margin}# Each entry:\n"));
            for (place, opt) in opts.iter().enumerate() {
                let mut entry = String::new();
                option(&mut entry, opt, 0);
                for line in entry.lines() {
                    let bullet = if place == 0 && !line.starts_with('#') { "- " } else { "  " };
                    match line.strip_prefix('#') {
                        Some(text) => out.push_str(&format!("{margin}#     #{text}\n")),
                        None => out.push_str(&format!("{margin}#   {bullet}{line}\n")),
                    }
                }
            }
        }
        kind => {
            let default = match (kind, opt.default.trim_matches('"')) {
                (OptKind::Map, "") => "{}",
                (OptKind::Texts, "") => "[]",
                (_, "") => "\"\"",
                (OptKind::Text | OptKind::Texts, _) => opt.default,
                (_, written) => written,
            };
            out.push_str(&format!("{margin}{}: {default}\n", opt.key));
        }
    }
}

/// Wraps a sentence at 100 columns.
fn comment(out: &mut String, text: &str, indent: usize) {
    let margin = " ".repeat(indent);
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent + line.len() + word.len() > 96 {
            out.push_str(&format!("{margin}# {line}\n"));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    out.push_str(&format!("{margin}# {line}\n"));
}
