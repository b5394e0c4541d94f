//! The pages of the documents, and what stands in them.

use std::path::Path;

pub(crate) fn root() -> &'static Path {
    Path::new(crate::TREE)
}

pub(crate) fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The pages of `docs/` and the folders below it, as paths from the root.
pub(crate) fn book() -> Vec<String> {
    let mut pages = Vec::new();
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{folder}/{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Every document, as paths from the root.
pub(crate) fn pages() -> Vec<String> {
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "clients/PROTOCOL.md",
        "clients/python/README.md",
        "tests/fake-nvml/README.md",
    ];
    others.map(str::to_owned).into_iter().chain(book()).collect()
}

/// A fenced block: the words after the fence, and the text.
pub(crate) struct Block {
    pub(crate) info: String,
    pub(crate) text: String,
}

/// The text of a page without its fenced blocks, and these.
pub(crate) fn blocks(text: &str) -> (String, Vec<Block>) {
    let (mut prose, mut found) = (String::new(), Vec::new());
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(info), None) => open = Some(Block { info: info.trim().to_owned(), text: String::new() }),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
            (None, None) => prose.push_str(&format!("{line}\n")),
        }
    }
    assert!(open.is_none(), "a fenced block is not closed");
    (prose, found)
}

/// What stands between backticks; spans do not reach over an empty line.
pub(crate) fn spans(prose: &str) -> Vec<String> {
    let paragraphs = prose.split("\n\n");
    let inside = paragraphs.flat_map(|text| text.split('`').skip(1).step_by(2).collect::<Vec<_>>());
    inside.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}
