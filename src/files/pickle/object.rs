//! Symbols: the calls and external references of a pickle, as inert nodes.
//!
//! Reading one of these operations records the name, the arguments and the offset. No code here can resolve a name.

use super::arena::{Arena, Id, NO_RUN, Node, Value, place};
use super::budget::{Budget, OverBudget};
use super::error::Problem;
use super::machine::Machine;
use super::opcode as op;

/// How Python would create an [`Object`] when loading the pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// A function is called with arguments (REDUCE).
    Call,
    /// An instance of a class is made (NEWOBJ).
    New,
    /// It is loaded from outside the pickle by an identifier (BINPERSID), which is in `arguments`.
    Persistent,
}

/// The result of a call, and what is added to it afterwards: read through [`Arena::items`] and [`Arena::pairs`].
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// How it would be created.
    pub made: Made,
    /// What would be called: a [`Value::Global`] in every regular file; `None` for a persistent one.
    pub function: Id,
    /// The arguments: a tuple in every regular file.
    pub arguments: Id,
    /// The last state of a BUILD operation; `None` without one.
    pub state: Id,
    /// The offset of the operation, in bytes from the start of the pickle.
    pub at: u32,
    /// Whether what was added are keys and values.
    pub(super) dict: bool,
    pub(super) first: u32,
    pub(super) last: u32,
}

impl<'a> Arena<'a> {
    /// Module and name of a class or function; absent for other values.
    pub fn global(&self, id: Id) -> Option<(&'a [u8], &'a [u8])> {
        let Node::Global { module, name } = self.nodes[id.node()?] else { return None };
        match (self.value(module), self.value(name)) {
            (Value::Text(module), Value::Text(name)) => Some((module, name)),
            _ => None,
        }
    }

    /// The object; absent for other values.
    pub fn object(&self, id: Id) -> Option<&Object> {
        let Node::Object { index } = self.nodes[id.node()?] else { return None };
        self.objects.get(index as usize)
    }

    /// Every object, including those that are not reachable from the root.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    fn symbol(&mut self, object: Object, budget: &mut Budget) -> Result<Id, OverBudget> {
        let index = place(self.objects.len());
        budget.push(&mut self.objects, object)?;
        self.push(Node::Object { index }, budget)
    }
}

impl Machine<'_, '_> {
    /// Executes an operation that builds a symbol.
    pub(super) fn symbol(&mut self, code: u8) -> Result<(), Problem> {
        let at = self.at - 1;
        match code {
            op::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                self.make(|arena, budget| {
                    let module = arena.text(module.0, module.1, budget)?;
                    let name = arena.text(name.0, name.1, budget)?;
                    arena.push(Node::Global { module, name }, budget)
                })
            }
            op::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                let texts = [module, name].map(|id| matches!(self.arena.value(id), Value::Text(_)));
                if texts != [true, true] {
                    return Err(Problem::NoName);
                }
                self.make(|arena, budget| arena.push(Node::Global { module, name }, budget))
            }
            op::REDUCE | op::NEWOBJ => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                let made = if code == op::REDUCE { Made::Call } else { Made::New };
                self.object(made, function, arguments, at)
            }
            op::BINPERSID => {
                let arguments = self.pop()?;
                self.object(Made::Persistent, Id::NONE, arguments, at)
            }
            op::BUILD => self.build(),
            // The items of a set are represented as a list.
            op::EMPTY_SET => self.make(Arena::list),
            op::ADDITEMS => {
                let start = self.close()?;
                self.add(false, self.stack.len() - start)
            }
            op::BINBYTES | op::SHORT_BINBYTES | op::SHORT_BINSTRING => {
                let len = self.number(code == op::BINBYTES)?;
                self.text(len as usize)
            }
            _ => Err(Problem::Refused),
        }
    }

    fn object(&mut self, made: Made, function: Id, arguments: Id, at: usize) -> Result<(), Problem> {
        let object = Object {
            made,
            function,
            arguments,
            state: Id::NONE,
            at: place(at),
            dict: false,
            first: NO_RUN,
            last: NO_RUN,
        };
        self.make(|arena, budget| arena.symbol(object, budget))
    }

    fn build(&mut self) -> Result<(), Problem> {
        let state = self.pop()?;
        let target = self.stack.last().filter(|_| self.stack.len() > self.fence).copied();
        let target = target.ok_or(Problem::NothingThere)?;
        let node = target.node().map(|node| self.arena.nodes[node]);
        let Some(Node::Object { index }) = node else { return Err(Problem::NotA("object")) };
        self.arena.objects[index as usize].state = state;
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, Problem> {
        if self.stack.len() <= self.fence {
            return Err(Problem::NothingThere);
        }
        self.stack.pop().ok_or(Problem::NothingThere)
    }

    /// Start and length of the text until the end of the line.
    fn line(&mut self) -> Result<(usize, usize), Problem> {
        let start = self.at;
        let len = self.file[start..].iter().position(|byte| *byte == b'\n').ok_or(Problem::CutOff)?;
        self.at = start + len + 1;
        Ok((start, len))
    }
}
