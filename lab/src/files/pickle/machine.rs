//! Executes the operations of a pickle on a stack.

use super::arena::{Arena, Id};
use super::budget::{Budget, Limits, OverBudget};
use super::error::{PickleError, Problem};
use super::opcode as op;

/// Reads a pickle of protocol 2 to 5.
///
/// # Errors
/// The operation that is invalid, refused or truncated, with its offset; or the limit that was reached. For any
/// input, this does not panic, recurse, or use more memory than `limits` allow.
pub fn read<'a>(file: &'a [u8], limits: &Limits, budget: &mut Budget) -> Result<Arena<'a>, PickleError> {
    let len = u64::try_from(file.len()).unwrap_or(u64::MAX);
    if len > limits.file_bytes {
        let problem = Problem::FileTooLarge { len, limit: limits.file_bytes };
        return Err(PickleError { offset: 0, opcode: None, problem });
    }
    let mut machine = Machine {
        file,
        at: 0,
        limits,
        budget,
        arena: Arena::new(file),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        fence: 0,
    };
    let mut offset = 0;
    let done = machine.start().and_then(|()| {
        loop {
            machine.recall_many();
            offset = machine.at;
            if machine.step()? {
                return Ok(());
            }
        }
    });
    let opcode = file.get(offset).copied();
    let (mut stack, mut marks, mut memo) = (machine.stack, machine.marks, machine.memo);
    let arena = machine.arena;
    budget.drop(&mut stack);
    budget.drop(&mut marks);
    budget.drop(&mut memo);
    match done {
        Ok(()) => Ok(arena),
        Err(problem) => {
            let opcode = opcode.filter(|_| !matches!(problem, Problem::NotPickle { .. }));
            Err(PickleError { offset, opcode, problem })
        }
    }
}

struct Machine<'a, 'b> {
    file: &'a [u8],
    at: usize,
    limits: &'b Limits,
    budget: &'b mut Budget,
    arena: Arena<'a>,
    stack: Vec<Id>,
    /// Start of each open container in `stack`.
    marks: Vec<usize>,
    memo: Vec<Id>,
    /// The last mark, or 0: values below it do not belong to this container.
    fence: usize,
}

impl<'a> Machine<'a, '_> {
    fn start(&mut self) -> Result<(), Problem> {
        match self.file {
            [op::PROTO, 2..=5, ..] => {
                self.at = 2;
                Ok(())
            }
            [op::PROTO, protocol, ..] => Err(Problem::Protocol(*protocol)),
            [] | [op::PROTO] => Err(Problem::CutOff),
            [b'P', b'K', ..] => {
                Err(Problem::NotPickle { hint: "; this is a zip file, as torch.save writes" })
            }
            [0x1f, 0x8b, ..] => {
                Err(Problem::NotPickle { hint: "; this is a gzip file, to be unpacked first" })
            }
            [b'{' | b'[', ..] => Err(Problem::NotPickle { hint: "; this looks like JSON" }),
            [b'<', ..] => Err(Problem::NotPickle { hint: "; this looks like HTML" }),
            _ => Err(Problem::NotPickle { hint: "" }),
        }
    }

    /// Executes consecutive valid memo references, which are two of three operations of a snapshot. All others are
    /// left to [`Self::step`], which also reports the error of an invalid one.
    #[inline]
    fn recall_many(&mut self) {
        let limit = self.stack.capacity().min(self.limits.waiting);
        let mut rest = &self.file[self.at..];
        while self.stack.len() < limit {
            let (number, after) = match rest {
                [op::BINGET, number, after @ ..] => (u32::from(*number), after),
                [op::LONG_BINGET, a, b, c, d, after @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]), after),
                _ => break,
            };
            match self.memo.get(number as usize) {
                Some(id) if *id != Id::FORGOTTEN => self.stack.push(*id),
                _ => break,
            }
            rest = after;
        }
        self.at = self.file.len() - rest.len();
    }

    /// Executes one operation; true at the end of the pickle.
    #[inline]
    fn step(&mut self) -> Result<bool, Problem> {
        let [code] = self.take()?;
        match code {
            op::BINGET | op::LONG_BINGET => {
                let number = self.number(code == op::LONG_BINGET)?;
                self.recall(number)?;
            }
            op::MEMOIZE => {
                let top = self.top()?;
                if self.memo.len() >= self.limits.remembered {
                    return Err(Problem::Limit { what: "values remembered", limit: self.limits.remembered });
                }
                self.budget.push(&mut self.memo, top)?;
            }
            op::BINPUT | op::LONG_BINPUT => {
                let number = self.number(code == op::LONG_BINPUT)?;
                self.remember(number)?;
            }
            op::MARK => {
                if self.marks.len() >= self.limits.open {
                    return Err(Problem::Limit { what: "containers open at once", limit: self.limits.open });
                }
                self.fence = self.stack.len();
                self.budget.push(&mut self.marks, self.fence)?;
            }
            op::NONE => self.push(Id::NONE)?,
            op::NEWTRUE => self.push(Id::TRUE)?,
            op::NEWFALSE => self.push(Id::FALSE)?,
            op::BININT1 => {
                let [value] = self.take()?;
                self.push(Id::small(u16::from(value)))?;
            }
            op::BININT2 => {
                let value = u16::from_le_bytes(self.take()?);
                self.push(Id::small(value))?;
            }
            op::BININT => {
                let value = i32::from_le_bytes(self.take()?);
                self.make(|arena, budget| arena.int(i64::from(value), budget))?;
            }
            op::LONG1 => self.long()?,
            op::BINFLOAT => {
                let value = f64::from_be_bytes(self.take()?);
                self.make(|arena, budget| arena.float(value, budget))?;
            }
            op::SHORT_BINUNICODE | op::BINUNICODE => {
                let len = self.number(code == op::BINUNICODE)?;
                self.text(len as usize)?;
            }
            op::BINUNICODE8 => {
                let len = u64::from_le_bytes(self.take()?);
                self.text(usize::try_from(len).map_err(|_| Problem::CutOff)?)?;
            }
            op::EMPTY_LIST => self.make(Arena::list)?,
            op::EMPTY_DICT => self.make(Arena::dict)?,
            op::EMPTY_TUPLE => self.make(|arena, budget| arena.tuple(&[], budget))?,
            op::TUPLE1 => self.tuple(1)?,
            op::TUPLE2 => self.tuple(2)?,
            op::TUPLE3 => self.tuple(3)?,
            op::TUPLE => {
                let start = self.close()?;
                self.tuple(self.stack.len() - start)?;
            }
            op::APPEND => self.add(false, 1)?,
            op::SETITEM => self.add(true, 2)?,
            op::APPENDS => {
                let start = self.close()?;
                self.add(false, self.stack.len() - start)?;
            }
            op::SETITEMS => {
                let start = self.close()?;
                self.add(true, self.stack.len() - start)?;
            }
            op::FRAME => {
                let len = u64::from_le_bytes(self.take()?);
                if len > u64::try_from(self.file.len() - self.at).unwrap_or(u64::MAX) {
                    return Err(Problem::CutOff);
                }
            }
            op::STOP => {
                self.arena.root = self.top()?;
                return Ok(true);
            }
            code if op::name(code).is_some() => return Err(Problem::Refused),
            _ => return Err(Problem::Unknown),
        }
        Ok(false)
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let bytes = self.file[self.at..].first_chunk().ok_or(Problem::CutOff)?;
        self.at += N;
        Ok(*bytes)
    }

    /// A number of one byte, or of four.
    #[inline]
    fn number(&mut self, is_long: bool) -> Result<u32, Problem> {
        if is_long {
            return Ok(u32::from_le_bytes(self.take()?));
        }
        let [number] = self.take()?;
        Ok(u32::from(number))
    }

    #[inline]
    fn push(&mut self, id: Id) -> Result<(), Problem> {
        if self.stack.len() >= self.limits.waiting {
            return Err(Problem::Limit { what: "values without a container", limit: self.limits.waiting });
        }
        Ok(self.budget.push(&mut self.stack, id)?)
    }

    fn make(
        &mut self,
        build: impl FnOnce(&mut Arena<'a>, &mut Budget) -> Result<Id, OverBudget>,
    ) -> Result<(), Problem> {
        let id = build(&mut self.arena, self.budget)?;
        self.push(id)
    }

    fn top(&self) -> Result<Id, Problem> {
        let top = self.stack.last().filter(|_| self.stack.len() > self.fence);
        top.copied().ok_or(Problem::NothingThere)
    }

    #[inline]
    fn recall(&mut self, number: u32) -> Result<(), Problem> {
        let id = self.memo.get(number as usize).copied().filter(|id| *id != Id::FORGOTTEN);
        self.push(id.ok_or(Problem::Forgotten(number))?)
    }

    fn remember(&mut self, number: u32) -> Result<(), Problem> {
        let (top, slot) = (self.top()?, number as usize);
        if slot >= self.memo.len() {
            // Picklers number memo entries from 0, and each value takes at least a byte.
            if slot >= self.at || slot >= self.limits.remembered {
                return Err(Problem::MemoAhead(number));
            }
            let more = slot + 1 - self.memo.len();
            self.budget.reserve(&mut self.memo, more)?;
            self.memo.resize(slot + 1, Id::FORGOTTEN);
        }
        self.memo[slot] = top;
        Ok(())
    }

    fn close(&mut self) -> Result<usize, Problem> {
        let start = self.marks.pop().ok_or(Problem::NoMark)?;
        self.fence = self.marks.last().copied().unwrap_or(0);
        Ok(start)
    }

    fn tuple(&mut self, len: usize) -> Result<(), Problem> {
        let start = self.stack.len().checked_sub(len).filter(|start| *start >= self.fence);
        let start = start.ok_or(Problem::NothingThere)?;
        let id = self.arena.tuple(&self.stack[start..], self.budget)?;
        self.stack.truncate(start);
        self.push(id)
    }

    /// Adds the last `len` values to the container below them.
    fn add(&mut self, dict: bool, len: usize) -> Result<(), Problem> {
        let start = self.stack.len().checked_sub(len).filter(|start| *start > self.fence);
        let start = start.ok_or(Problem::NothingThere)?;
        if dict && !len.is_multiple_of(2) {
            return Err(Problem::OddItems);
        }
        let added = self.arena.extend(self.stack[start - 1], dict, &self.stack[start..], self.budget)?;
        if !added {
            return Err(Problem::NotA(if dict { "dictionary" } else { "list" }));
        }
        self.stack.truncate(start);
        Ok(())
    }

    fn text(&mut self, len: usize) -> Result<(), Problem> {
        let start = self.at;
        let end = start.checked_add(len).filter(|end| *end <= self.file.len()).ok_or(Problem::CutOff)?;
        self.at = end;
        self.make(|arena, budget| arena.text(start, len, budget))
    }

    /// A little-endian integer in two's complement. An unsigned 64-bit one has a ninth byte for its sign.
    fn long(&mut self) -> Result<(), Problem> {
        let [len] = self.take()?;
        let end = self.at + usize::from(len);
        let bytes = self.file.get(self.at..end).ok_or(Problem::CutOff)?;
        self.at = end;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if negative { 0xff } else { 0 };
        if bytes.iter().skip(9).any(|byte| *byte != fill) {
            return Err(Problem::LongInteger);
        }
        let mut wide = [fill; 16];
        wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let value = i128::from_le_bytes(wide);
        if let Ok(value) = i64::try_from(value) {
            return self.make(|arena, budget| arena.int(value, budget));
        }
        let value = u64::try_from(value).map_err(|_| Problem::LongInteger)?;
        self.make(|arena, budget| arena.unsigned(value, budget))
    }
}
