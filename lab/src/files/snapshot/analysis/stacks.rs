//! Memory by stack.

use crate::files::snapshot::{BlockState, Frame, Snapshot, StackId, Stacks};
use memwarden::model::printable::escaped;
use memwarden::model::units::Bytes;

/// A call stack, formatted for display.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StackReport {
    /// The frames, innermost first, as `function (file:line)`; empty where the stack was not recorded. At most 32.
    pub frames: Vec<String>,
    /// Number of frames.
    pub depth: usize,
    /// A summary in one line: the innermost calls, then the next one of the program itself.
    #[serde(skip)]
    pub short: String,
}

impl StackReport {
    const FRAMES: usize = 32;

    pub(super) fn new(stacks: &Stacks<'_>, stack: StackId) -> Self {
        let all = stacks.frames(stack);
        let depth = all.len();
        let frames = stacks.frames(stack).take(Self::FRAMES).map(Frame::to_string).collect();
        Self { frames, depth, short: short(stacks, stack) }
    }
}

/// Number of innermost calls that are always shown: a line of a library is often called from several places.
const INNER: usize = 3;
/// Number of calls of the program itself that follow them.
const OWN: usize = 2;

fn short(stacks: &Stacks<'_>, stack: StackId) -> String {
    let telling = || stacks.frames(stack).filter(|frame| !is_plumbing(frame));
    let Some(innermost) = telling().next().or_else(|| stacks.frames(stack).next()) else {
        return "no stack recorded".to_owned();
    };
    let mut parts = vec![brief(innermost)];
    parts.extend(telling().skip(1).take(INNER - 1).map(brief));
    let owns = telling().skip(INNER).filter(|frame| frame.is_python() && !frame.is_library());
    parts.extend(owns.take(OWN).map(brief));
    parts.join(" < ")
}

/// Whether a frame belongs to the recording, the allocator or the operator dispatch, which every stack has.
fn is_plumbing(frame: &Frame<'_>) -> bool {
    const PLUMBING: [&[u8]; 9] = [
        b"torch::unwind",
        b"torch::CapturedTraceback",
        b"torch::cuda::",
        b"c10::",
        b"at::detail::",
        b"at::TensorBase at::detail::",
        b"_PyEval",
        b"_call_impl",
        b"_wrapped_call_impl",
    ];
    PLUMBING.iter().any(|start| frame.name.starts_with(start))
}

/// Characters of a function's name that are shown.
const LONGEST: usize = 60;

/// A frame with the last part of its path, and a name without C++ arguments.
fn brief(frame: &Frame<'_>) -> String {
    let name = String::from_utf8_lossy(frame.name).replace("(anonymous namespace)::", "");
    let name = name.split(['(', '[']).next().unwrap_or_default();
    let name = match name.char_indices().nth(LONGEST) {
        Some((end, _)) => escaped(&name[..end]) + "...",
        None => escaped(name),
    };
    let file = String::from_utf8_lossy(frame.file);
    let file = escaped(file.rsplit('/').next().unwrap_or_default());
    match frame.line {
        Some(line) => format!("{name} {file}:{line}"),
        None => name.into_owned(),
    }
}

/// A stack and its live memory.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Holder {
    /// Live memory that it allocated, as requested.
    pub live_bytes: Bytes,
    /// Number of live blocks.
    pub blocks: u64,
    /// Its share of all live memory.
    pub share_ratio: Option<f64>,
    pub stack: StackReport,
}

/// Bytes and blocks by stack.
#[derive(Debug)]
pub(super) struct Tally(Vec<(u64, u64)>);

impl Tally {
    pub(super) fn new(stacks: &Stacks<'_>) -> Self {
        Self(vec![(0, 0); stacks.count()])
    }

    /// The live memory of a snapshot.
    pub(super) fn live(snapshot: &Snapshot<'_>) -> Self {
        let mut tally = Self::new(&snapshot.stacks);
        for block in snapshot.blocks.iter().filter(|block| block.state != BlockState::Free) {
            tally.add(block.stack, block.requested);
        }
        tally
    }

    pub(super) fn add(&mut self, stack: StackId, bytes: u64) {
        let (sum, count) = &mut self.0[stack.index()];
        *sum = sum.saturating_add(bytes);
        *count += 1;
    }

    /// The stacks with the most memory, largest first; equal ones in the order of the file.
    pub(super) fn largest(&self, top: usize) -> Vec<StackId> {
        let mut all: Vec<_> = self.held().collect();
        all.sort_by_key(|(stack, bytes, _)| (std::cmp::Reverse(*bytes), *stack));
        all.into_iter().take(top).map(|(stack, ..)| stack).collect()
    }

    /// The stacks that hold memory, with bytes and blocks.
    pub(super) fn held(&self) -> impl Iterator<Item = (StackId, u64, u64)> {
        let all =
            (0..).map(StackId::at).zip(&self.0).map(|(stack, (bytes, blocks))| (stack, *bytes, *blocks));
        all.filter(|(.., blocks)| *blocks > 0)
    }

    /// Reports of the stacks with the most memory, largest first; equal ones in the order of the file.
    pub(super) fn top(&self, stacks: &Stacks<'_>, top: usize) -> Vec<Holder> {
        let whole = Bytes::new(self.0.iter().fold(0, |sum: u64, (bytes, _)| sum.saturating_add(*bytes)));
        let holder = |stack: StackId| {
            let (bytes, blocks) = self.0[stack.index()];
            let live_bytes = Bytes::new(bytes);
            Holder {
                live_bytes,
                blocks,
                share_ratio: live_bytes.share_of(whole).map(|share| share.get()),
                stack: StackReport::new(stacks, stack),
            }
        };
        self.largest(top).into_iter().map(holder).collect()
    }
}
