//! The values of one pickle, as nodes that refer to each other by number.

use super::budget::{Budget, OverBudget};

/// A value of an [`Arena`]; small values are stored in the number itself and take no other memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(u32);

const INLINE: u32 = 1 << 31;
const CONSTANT: u32 = INLINE | 1 << 30;

impl Id {
    pub(super) const NONE: Self = Self(CONSTANT);
    pub(super) const FALSE: Self = Self(CONSTANT | 1);
    pub(super) const TRUE: Self = Self(CONSTANT | 2);
    /// An empty memo entry.
    pub(super) const FORGOTTEN: Self = Self(u32::MAX);

    pub(super) const fn small(value: u16) -> Self {
        // Small integers have at most 16 bits; 30 are available.
        Self(INLINE | value as u32)
    }

    /// The number of the node, where the value is one: below [`Arena::nodes`], and the same for the same object.
    pub const fn node(self) -> Option<usize> {
        if self.0 & INLINE == 0 { Some(self.0 as usize) } else { None }
    }
}

/// The kind of a value, and its content. Containers are read through the arena.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer that fits 64 bits, with or without a sign.
    Int(i128),
    /// A number with a fraction.
    Float(f64),
    /// Text as in the file: UTF-8 if Python wrote it, but this is not checked.
    Text(&'a [u8]),
    /// A list, for [`Arena::items`].
    List,
    /// A tuple, for [`Arena::items`].
    Tuple,
    /// A dictionary, for [`Arena::pairs`].
    Dict,
}

impl Value<'_> {
    /// The kind, in words for an error.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "text",
            Self::List => "a list",
            Self::Tuple => "a tuple",
            Self::Dict => "a dictionary",
        }
    }
}

/// A sequence of items, and the sequence that continues it.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    len: u32,
    next: u32,
}

const NO_RUN: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
enum Node {
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Text { start: u32, len: u32 },
    Tuple { start: u32, len: u32 },
    List { first: u32, last: u32 },
    Dict { first: u32, last: u32 },
}

/// All values of a pickle. Text is not copied from the file.
#[derive(Debug)]
pub struct Arena<'a> {
    file: &'a [u8],
    nodes: Vec<Node>,
    runs: Vec<Run>,
    items: Vec<Id>,
    pub(super) root: Id,
}

impl<'a> Arena<'a> {
    pub(super) const fn new(file: &'a [u8]) -> Self {
        Self { file, nodes: Vec::new(), runs: Vec::new(), items: Vec::new(), root: Id::NONE }
    }

    pub fn release(mut self, budget: &mut Budget) {
        budget.drop(&mut self.nodes);
        budget.drop(&mut self.runs);
        budget.drop(&mut self.items);
    }

    pub const fn root(&self) -> Id {
        self.root
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub fn value(&self, id: Id) -> Value<'a> {
        let Some(node) = id.node() else {
            return match id {
                Id::TRUE => Value::Bool(true),
                Id::FALSE => Value::Bool(false),
                Id(small) if small < CONSTANT => Value::Int(i128::from(small & !INLINE)),
                _ => Value::None,
            };
        };
        match self.nodes[node] {
            Node::Int(value) => Value::Int(i128::from(value)),
            Node::Unsigned(value) => Value::Int(i128::from(value)),
            Node::Float(value) => Value::Float(value),
            Node::Text { start, len } => Value::Text(&self.file[start as usize..(start + len) as usize]),
            Node::Tuple { .. } => Value::Tuple,
            Node::List { .. } => Value::List,
            Node::Dict { .. } => Value::Dict,
        }
    }

    /// The items of a list or tuple, in order; empty for other values.
    pub fn items(&self, id: Id) -> Items<'_> {
        let (run, now) = self.runs_of(id, false);
        Items { arena: self, run, now: now.iter() }
    }

    /// The keys and values of a dictionary, in the order they were set; empty for other values.
    pub fn pairs(&self, id: Id) -> Pairs<'_> {
        let (run, now) = self.runs_of(id, true);
        Pairs(Items { arena: self, run, now: now.iter() })
    }

    /// Number of values in a container: a dictionary has two for each key.
    pub fn len(&self, id: Id) -> usize {
        let (mut run, now) = self.runs_of(id, matches!(self.value(id), Value::Dict));
        let mut len = now.len();
        while let Some(more) = self.next_run(&mut run) {
            len += more.len();
        }
        len
    }

    /// The first sequence of a container, and the values of a tuple.
    fn runs_of(&self, id: Id, dict: bool) -> (u32, &[Id]) {
        match id.node().map(|node| self.nodes[node]) {
            Some(Node::Tuple { start, len }) if !dict => {
                (NO_RUN, &self.items[start as usize..(start + len) as usize])
            }
            Some(Node::List { first, .. }) if !dict => (first, &[]),
            Some(Node::Dict { first, .. }) if dict => (first, &[]),
            _ => (NO_RUN, &[]),
        }
    }

    fn next_run(&self, run: &mut u32) -> Option<&[Id]> {
        let Run { start, len, next } = *self.runs.get(*run as usize)?;
        *run = next;
        Some(&self.items[start as usize..(start + len) as usize])
    }

    fn push(&mut self, node: Node, budget: &mut Budget) -> Result<Id, OverBudget> {
        let id =
            u32::try_from(self.nodes.len()).expect("a node takes a byte of the file, which is below 4 GiB");
        if id >= INLINE {
            return Err(OverBudget { limit: u64::from(INLINE) });
        }
        budget.push(&mut self.nodes, node)?;
        Ok(Id(id))
    }

    pub(super) fn int(&mut self, value: i64, budget: &mut Budget) -> Result<Id, OverBudget> {
        match u16::try_from(value) {
            Ok(small) => Ok(Id::small(small)),
            Err(_) => self.push(Node::Int(value), budget),
        }
    }

    pub(super) fn unsigned(&mut self, value: u64, budget: &mut Budget) -> Result<Id, OverBudget> {
        match i64::try_from(value) {
            Ok(value) => self.int(value, budget),
            Err(_) => self.push(Node::Unsigned(value), budget),
        }
    }

    pub(super) fn float(&mut self, value: f64, budget: &mut Budget) -> Result<Id, OverBudget> {
        self.push(Node::Float(value), budget)
    }

    /// Text at a position in the file, which the caller has checked.
    pub(super) fn text(&mut self, start: usize, len: usize, budget: &mut Budget) -> Result<Id, OverBudget> {
        self.push(Node::Text { start: place(start), len: place(len) }, budget)
    }

    pub(super) fn list(&mut self, budget: &mut Budget) -> Result<Id, OverBudget> {
        self.push(Node::List { first: NO_RUN, last: NO_RUN }, budget)
    }

    pub(super) fn dict(&mut self, budget: &mut Budget) -> Result<Id, OverBudget> {
        self.push(Node::Dict { first: NO_RUN, last: NO_RUN }, budget)
    }

    pub(super) fn tuple(&mut self, items: &[Id], budget: &mut Budget) -> Result<Id, OverBudget> {
        let start = self.keep(items, budget)?;
        self.push(Node::Tuple { start, len: place(items.len()) }, budget)
    }

    fn keep(&mut self, items: &[Id], budget: &mut Budget) -> Result<u32, OverBudget> {
        let start = place(self.items.len());
        budget.reserve(&mut self.items, items.len())?;
        self.items.extend_from_slice(items);
        Ok(start)
    }

    /// Adds to a list, or to a dictionary; false where `to` is something else.
    pub(super) fn extend(
        &mut self,
        to: Id,
        dict: bool,
        items: &[Id],
        budget: &mut Budget,
    ) -> Result<bool, OverBudget> {
        let Some(node) = to.node() else { return Ok(false) };
        let last = match self.nodes[node] {
            Node::List { last, .. } if !dict => last,
            Node::Dict { last, .. } if dict => last,
            _ => return Ok(false),
        };
        if items.is_empty() {
            return Ok(true);
        }
        let (start, len) = (self.keep(items, budget)?, place(items.len()));
        if let Some(run) = self.runs.get_mut(last as usize).filter(|run| run.start + run.len == start) {
            run.len += len;
            return Ok(true);
        }
        let new = place(self.runs.len());
        budget.push(&mut self.runs, Run { start, len, next: NO_RUN })?;
        if let Some(run) = self.runs.get_mut(last as usize) {
            run.next = new;
        }
        let (first, last) = match &mut self.nodes[node] {
            Node::List { first, last } | Node::Dict { first, last } => (first, last),
            _ => return Ok(false),
        };
        *last = new;
        if *first == NO_RUN {
            *first = new;
        }
        Ok(true)
    }
}

/// The items of a list or tuple.
#[derive(Clone, Debug)]
pub struct Items<'r> {
    arena: &'r Arena<'r>,
    run: u32,
    now: std::slice::Iter<'r, Id>,
}

impl Iterator for Items<'_> {
    type Item = Id;

    #[inline]
    fn next(&mut self) -> Option<Id> {
        loop {
            if let Some(id) = self.now.next() {
                return Some(*id);
            }
            self.now = self.arena.next_run(&mut self.run)?.iter();
        }
    }
}

/// The keys and values of a dictionary.
#[derive(Clone, Debug)]
pub struct Pairs<'r>(Items<'r>);

impl Iterator for Pairs<'_> {
    type Item = (Id, Id);

    #[inline]
    fn next(&mut self) -> Option<(Id, Id)> {
        Some((self.0.next()?, self.0.next()?))
    }
}

/// Converts an index or a length: each item takes a byte of a file below 4 GiB.
fn place(at: usize) -> u32 {
    u32::try_from(at).expect("each item takes a byte of the file, which is below 4 GiB")
}
