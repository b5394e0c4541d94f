//! YAML as a tree with line numbers; duplicate keys are kept and reported as errors.

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::problem::Problem;

/// Maximum number of nodes; a configuration has a few hundred.
const MOST_NODES: usize = 100_000;
/// Maximum depth; the deepest key is six levels down.
const DEEPEST: usize = 32;

#[derive(Clone, Debug)]
pub struct Node {
    /// Line number from 1.
    pub line: usize,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub enum Content {
    /// Text, and whether it was quoted.
    Scalar {
        text: String,
        quoted: bool,
    },
    List(Vec<Node>),
    /// Keys with their lines, in the order written.
    Mapping(Vec<(String, usize, Node)>),
}

impl Node {
    /// The kind of node, for error messages.
    pub fn kind(&self) -> &'static str {
        match &self.content {
            Content::Scalar { text, quoted: false } if text.is_empty() => "nothing",
            Content::Scalar { .. } => "a value",
            Content::List(_) => "a list",
            Content::Mapping(_) => "a section",
        }
    }

    /// Whether the key has no value.
    pub fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar { text, quoted: false } if matches!(text.as_str(), "" | "~" | "null"))
    }
}

/// Parses `text`; absent where it is empty.
pub fn parse(text: &str) -> Result<Option<Node>, Problem> {
    let problem = |line: usize, what: String| Problem { line: Some(line), key: String::new(), what };
    let mut open: Vec<Open> = Vec::new();
    let mut root = None;
    let mut nodes = 0;
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| problem(error.marker().line(), format!("not YAML: {}", error.info())))?;
        let line = span.start.line();
        nodes += 1;
        if nodes > MOST_NODES {
            return Err(problem(line, format!("more than {MOST_NODES} YAML nodes")));
        }
        let finished = match event {
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return Err(problem(
                        line,
                        "a second document; one file holds one configuration".to_owned(),
                    ));
                }
                None
            }
            Event::Alias(_) => {
                return Err(problem(line, "aliases are not supported; write the value in full".to_owned()));
            }
            Event::Scalar(text, style, anchor, tag) => {
                refuse_decoration(line, anchor, tag.is_some())?;
                let quoted = style != ScalarStyle::Plain;
                Some(Node { line, content: Content::Scalar { text: text.into_owned(), quoted } })
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_decoration(line, anchor, tag.is_some())?;
                open.push(Open { node: Node { line, content: Content::List(Vec::new()) }, key: None });
                None
            }
            Event::MappingStart(anchor, tag) => {
                refuse_decoration(line, anchor, tag.is_some())?;
                open.push(Open { node: Node { line, content: Content::Mapping(Vec::new()) }, key: None });
                None
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(|open| open.node),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => None,
        };
        if open.len() > DEEPEST {
            return Err(problem(line, format!("nested more than {DEEPEST} levels deep")));
        }
        let Some(node) = finished else { continue };
        match open.last_mut() {
            None => root = Some(node),
            Some(parent) => parent.take(node)?,
        }
    }
    Ok(root.filter(|node| !node.is_null()))
}

fn refuse_decoration(line: usize, anchor: usize, tagged: bool) -> Result<(), Problem> {
    let what = match (anchor, tagged) {
        (0, false) => return Ok(()),
        (0, true) => "YAML tags are not supported",
        _ => "YAML anchors are not supported; write the value in full",
    };
    Err(Problem { line: Some(line), key: String::new(), what: what.to_owned() })
}

/// A list or a section that has not ended.
struct Open {
    node: Node,
    /// The key whose value follows, in a section.
    key: Option<(String, usize)>,
}

impl Open {
    fn take(&mut self, node: Node) -> Result<(), Problem> {
        match (&mut self.node.content, self.key.take(), node.content) {
            (Content::Mapping(entries), Some((name, line)), content) => {
                entries.push((name, line, Node { content, ..node }));
            }
            (Content::Mapping(_), None, Content::Scalar { text, .. }) => self.key = Some((text, node.line)),
            (Content::Mapping(_), None, content) => {
                let what = format!("{} cannot be a key", Node { content, ..node }.kind());
                return Err(Problem { line: Some(node.line), key: String::new(), what });
            }
            (Content::List(items), _, content) => items.push(Node { content, ..node }),
            (Content::Scalar { .. }, ..) => {}
        }
        Ok(())
    }
}
