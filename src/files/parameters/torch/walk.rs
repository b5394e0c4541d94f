//! Finds the tensors of a pickle from its root, without recursion.

use super::rebuild::{Rebuilt, rebuild};
use super::{Part, Storages};
use crate::files::parameters::Tensor;
use crate::files::parameters::bytes::ReadAt;
use crate::files::parameters::error::ParameterError;
use crate::files::pickle::{Arena, Budget, Id, Items, Pairs, Value};
use crate::model::format;

/// Maximum depth: optimizer state in a trainer's dictionary is at 6, a completely saved module at 30.
const DEEP: usize = 100;
/// Maximum length of a name, in bytes.
const NAME: usize = 1_000;

/// A container on the current path.
struct Frame<'r> {
    /// The length of the path before this container's keys.
    path: usize,
    items: std::iter::Enumerate<Items<'r>>,
    pairs: Pairs<'r>,
    /// State and arguments of an object, which do not extend the path.
    more: [Option<Id>; 2],
}

/// Finds the tensors, each named by the first path to it.
pub(super) fn tensors(
    arena: &Arena<'_>,
    budget: &mut Budget,
    storages: &mut Storages<'_, impl ReadAt + ?Sized>,
    part: &mut Part,
) -> Result<(), ParameterError> {
    let mut visited = Vec::new();
    budget.reserve(&mut visited, arena.nodes())?;
    visited.resize(arena.nodes(), false);
    let (mut path, mut not_read, mut too_deep, mut scores) = (String::new(), 0u64, 0u64, 0u64);
    let of_lightning = is_of_lightning(arena);
    let mut frames: Vec<Frame<'_>> = Vec::new();
    let mut next = Some(arena.root());
    loop {
        if let Some(id) = next.take() {
            let new = id.node().is_some_and(|node| !std::mem::replace(&mut visited[node], true));
            if new && let Some(frame) = open(arena, id, path.len()) {
                let name = if path.is_empty() { "(root)" } else { &path };
                match rebuild(arena, id, name, storages)? {
                    Rebuilt::Tensor(tensor) if of_lightning && is_score(&tensor) => scores += 1,
                    Rebuilt::Tensor(tensor) => part.push(tensor, budget)?,
                    Rebuilt::NotRead => not_read += 1,
                    Rebuilt::Other if frames.len() < DEEP => frames.push(frame),
                    Rebuilt::Other => too_deep += 1,
                }
            }
        }
        let Some(frame) = frames.last_mut() else { break };
        path.truncate(frame.path);
        if let Some((number, id)) = frame.items.next() {
            join(&mut path, &number.to_string());
            next = Some(id);
        } else if let Some((key, value)) = frame.pairs.next() {
            match arena.value(key) {
                // A completely saved module has its tensors in these attributes.
                Value::Text(b"_parameters" | b"_buffers" | b"_modules") => {}
                Value::Text(text) => join(&mut path, &String::from_utf8_lossy(text)),
                Value::Int(number) => join(&mut path, &number.to_string()),
                _ => join(&mut path, "?"),
            }
            next = Some(value);
        } else if let Some(id) = frame.more.iter_mut().find_map(Option::take) {
            next = Some(id);
        } else {
            frames.pop();
        }
    }
    budget.drop(&mut visited);
    if not_read > 0 {
        part.notes.push(format!(
            "{not_read} tensors of unsupported kinds were skipped (sparse, quantized, nested or others)"
        ));
    }
    if scores > 0 {
        part.notes.push(format!(
            "not parameters, and left out: {} of Lightning's callbacks and loops, such as scores",
            format::counted(scores, "value")
        ));
    }
    if too_deep > 0 {
        part.notes.push(format!("{too_deep} containers are more than {DEEP} levels deep and were left out"));
    }
    Ok(())
}

/// Whether a pickle is a checkpoint of Lightning (trainer/connectors/checkpoint_connector.py of 2.6).
fn is_of_lightning(arena: &Arena<'_>) -> bool {
    let mut pairs = arena.pairs(arena.root());
    pairs.any(|(key, _)| arena.value(key) == Value::Text(b"pytorch-lightning_version"))
}

/// Whether a tensor of such a checkpoint is a value that a callback or loop compares, such as `kth_value` of
/// `ModelCheckpoint`, which is infinite until it has been set.
fn is_score(tensor: &Tensor) -> bool {
    let states = ["callbacks.", "loops.", "lr_schedulers."];
    tensor.elements == 1 && states.iter().any(|state| tensor.name.starts_with(state))
}

fn open<'r>(arena: &'r Arena<'_>, id: Id, path: usize) -> Option<Frame<'r>> {
    let more = match arena.value(id) {
        Value::List | Value::Tuple | Value::Dict => [None; 2],
        Value::Object => {
            let object = arena.object(id)?;
            [Some(object.state), Some(object.arguments)]
        }
        _ => return None,
    };
    Some(Frame { path, items: arena.items(id).enumerate(), pairs: arena.pairs(id), more })
}

fn join(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
    if path.len() > NAME {
        let end = (0..=NAME).rev().find(|end| path.is_char_boundary(*end)).unwrap_or(0);
        path.truncate(end);
    }
}
