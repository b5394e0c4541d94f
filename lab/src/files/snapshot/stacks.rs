//! Call stacks, each stored once, which identify the code that allocated memory.
//!
//! A stack consists of the Python frames if there are any, otherwise of all frames: allocations are distinguished by
//! the line of the program, not by the C++ calls below it. Frames are innermost first.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use super::error::SnapshotError;
use super::fields::Field;
use crate::files::pickle::{Budget, OverBudget, bytes_of};
use memwarden::model::printable::escaped;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(u32);

impl StackId {
    /// No stack was recorded.
    pub const UNKNOWN: Self = Self(0);

    pub(super) const fn at(number: u32) -> Self {
        Self(number)
    }

    /// The number, from 0.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One call of a stack. Text is as in the file; [`std::fmt::Display`] formats it in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame<'a> {
    /// The function.
    pub name: &'a [u8],
    /// The file; `??` where unknown.
    pub file: &'a [u8],
    /// The line; absent where unknown.
    pub line: Option<u32>,
}

impl Frame<'_> {
    /// Whether this is a line of a Python program.
    pub fn is_python(&self) -> bool {
        self.file.ends_with(b".py") || (self.file.starts_with(b"<") && self.line.is_some())
    }

    /// Whether the file belongs to an installed library, not to the program.
    pub fn is_library(&self) -> bool {
        let has = |part: &[u8]| self.file.windows(part.len()).any(|window| window == part);
        has(b"-packages/") || has(b"/lib/python") || self.file.starts_with(b"<frozen")
    }
}

impl std::fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, file) = (String::from_utf8_lossy(self.name), String::from_utf8_lossy(self.file));
        let (name, file) = (escaped(&name), escaped(&file));
        match self.line {
            Some(line) => write!(f, "{name} ({file}:{line})"),
            None if file.is_empty() || file == "??" => write!(f, "{name}"),
            None => write!(f, "{name} ({file})"),
        }
    }
}

#[derive(Debug)]
pub struct Stacks<'a> {
    frames: Vec<Frame<'a>>,
    members: Vec<u32>,
    /// Where each stack starts in `members`; it ends where the next one starts.
    starts: Vec<u32>,
}

impl<'a> Stacks<'a> {
    /// Only [`StackId::UNKNOWN`].
    pub(super) fn none() -> Self {
        Self { frames: Vec::new(), members: Vec::new(), starts: vec![0] }
    }

    /// Number of stacks, including [`StackId::UNKNOWN`].
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// The frames of a stack, innermost first; empty where none were recorded.
    pub fn frames(&self, stack: StackId) -> impl DoubleEndedIterator<Item = &Frame<'a>> + ExactSizeIterator {
        self.numbers(stack.0).iter().map(|frame| &self.frames[*frame as usize])
    }

    fn numbers(&self, stack: u32) -> &[u32] {
        let end = self.starts.get(stack as usize + 1).map_or(self.members.len(), |end| *end as usize);
        &self.members[self.starts[stack as usize] as usize..end]
    }
}

/// Overhead of a map per entry, in bytes.
const MAP_ENTRY: u64 = 128;
const NOT_YET: u32 = u32::MAX;
/// Flags of a frame in the table of nodes, and of a Python frame; the other bits are its number.
const FRAME: u32 = 1 << 31;
const PYTHON: u32 = 1 << 30;

/// Collects the stacks while a snapshot is decoded.
#[derive(Debug)]
pub(super) struct Collector<'a> {
    stacks: Stacks<'a>,
    /// The frame or the stack of each node of the pickle.
    of_node: Vec<u32>,
    frames: HashMap<Frame<'a>, u32>,
    /// The newest stack of a hash, and for each stack the older one of the same hash.
    newest: HashMap<u64, u32>,
    older: Vec<u32>,
    hasher: RandomState,
    python: Vec<u32>,
    all: Vec<u32>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(root: &Field<'_, '_>, budget: &mut Budget) -> Result<Self, SnapshotError> {
        let (mut of_node, nodes) = (Vec::new(), root.arena.nodes());
        budget.reserve(&mut of_node, nodes).map_err(|source| root.over(source))?;
        of_node.resize(nodes, NOT_YET);
        Ok(Self {
            stacks: Stacks::none(),
            of_node,
            frames: HashMap::new(),
            newest: HashMap::new(),
            older: vec![NOT_YET],
            hasher: RandomState::new(),
            python: Vec::new(),
            all: Vec::new(),
        })
    }

    /// The stack of a list of frames. Each list is read once, however often it is referenced.
    pub(super) fn stack(
        &mut self,
        list: &Field<'_, 'a>,
        budget: &mut Budget,
    ) -> Result<StackId, SnapshotError> {
        let items = list.list()?;
        // The table has stacks for lists and frames for dictionaries, and this is not a dictionary.
        if let Some(known) = list.id.node().map(|node| self.of_node[node]).filter(|known| *known != NOT_YET) {
            return Ok(StackId(known));
        }
        let over = |source| list.over(source);
        self.python.clear();
        self.all.clear();
        let len = list.arena.len(list.id);
        budget.reserve(&mut self.all, len).map_err(over)?;
        budget.reserve(&mut self.python, len).map_err(over)?;
        for item in items {
            let known = item.id.node().map_or(0, |node| self.of_node[node]);
            let is_known = known != NOT_YET && known & FRAME != 0;
            let frame = if is_known { known } else { self.frame(&item, budget)? };
            let number = frame & !(FRAME | PYTHON);
            self.all.push(number);
            if frame & PYTHON != 0 {
                self.python.push(number);
            }
        }
        let chosen = if self.python.is_empty() { &self.all } else { &self.python };
        let stack = if chosen.is_empty() {
            StackId::UNKNOWN.0
        } else {
            let hash = self.hasher.hash_one(chosen);
            let newest = self.newest.get(&hash).copied().unwrap_or(NOT_YET);
            let mut known = newest;
            while known != NOT_YET && self.stacks.numbers(known) != chosen.as_slice() {
                known = self.older[known as usize];
            }
            if known == NOT_YET {
                known = count(self.stacks.starts.len());
                let start = count(self.stacks.members.len());
                budget.take(MAP_ENTRY).map_err(over)?;
                budget.push(&mut self.stacks.starts, start).map_err(over)?;
                budget.reserve(&mut self.stacks.members, chosen.len()).map_err(over)?;
                self.stacks.members.extend_from_slice(chosen);
                budget.push(&mut self.older, newest).map_err(over)?;
                self.newest.insert(hash, known);
            }
            known
        };
        if let Some(node) = list.id.node() {
            self.of_node[node] = stack;
        }
        Ok(StackId(stack))
    }

    fn frame(&mut self, field: &Field<'_, 'a>, budget: &mut Budget) -> Result<u32, SnapshotError> {
        let node = field.id.node().ok_or_else(|| field.wrong("a dictionary"))?;
        let mut frame = Frame { name: b"", file: b"", line: None };
        for (key, value) in field.record()? {
            match key {
                b"name" => frame.name = value.text()?,
                b"filename" => frame.file = value.text()?,
                // 0 and 2^64-1 mean an unknown line.
                b"line" => frame.line = u32::try_from(value.signed()?).ok().filter(|line| *line > 0),
                _ => {}
            }
        }
        let number = match self.frames.get(&frame) {
            Some(number) => *number,
            None => {
                let number = count(self.stacks.frames.len());
                budget.take(MAP_ENTRY).map_err(|source| field.over(source))?;
                budget.push(&mut self.stacks.frames, frame).map_err(|source| field.over(source))?;
                self.frames.insert(frame, number);
                number
            }
        };
        let kind = if frame.is_python() { FRAME | PYTHON } else { FRAME };
        if number >= PYTHON {
            return Err(field.over(OverBudget { limit: u64::from(PYTHON) }));
        }
        self.of_node[node] = number | kind;
        Ok(number | kind)
    }

    pub(super) fn finish(mut self, budget: &mut Budget) -> Stacks<'a> {
        budget.drop(&mut self.of_node);
        budget.drop(&mut self.python);
        budget.drop(&mut self.all);
        budget.give(MAP_ENTRY * (bytes_of::<u8>(self.stacks.frames.len() + self.stacks.starts.len() - 1)));
        self.stacks
    }
}

/// Converts a count: frames, stacks and their members are fewer than the bytes of the file.
fn count(len: usize) -> u32 {
    u32::try_from(len).expect("each takes a byte of the file, which is below 4 GiB")
}
