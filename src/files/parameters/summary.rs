//! Summary of tensors: by type, by part of the model, the largest, those with NaN, Inf or only zeros, and the
//! trainable share.

use std::collections::{BTreeMap, HashSet};

use super::scan::ScanResult;
use super::{Dtype, Group, StoredAt, Tensor, group_of};
use crate::model::units::{Bytes, Ratio};

/// One tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    pub file: usize,
    pub tensor: &'a Tensor,
    /// The scan of its values; absent where they were not read.
    pub found: Option<ScanResult>,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The length of each list.
    pub top: usize,
    /// Whether the tensors are an adapter, which is trained while its base model is not.
    pub adapter: bool,
    /// Number of elements of the adapter's base model, where its files were given.
    pub base_elements: Option<u64>,
}

/// The summary of tensors. Tensors at the same location in a file are counted once.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Summary<'a> {
    pub tensors: usize,
    /// Number of tensors that share the elements of another (tied weights).
    pub tied_tensors: usize,
    pub elements: u64,
    /// Total bytes.
    pub bytes: Bytes,
    /// By type of element, the most bytes first.
    pub by_dtype: Vec<Share>,
    /// By part of the model, the most bytes first.
    pub by_group: Vec<Share>,
    pub largest: Vec<Row<'a>>,
    /// NaN, Inf and zero values; absent where no values were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Values<'a>>,
    pub trainable: Trainable,
}

/// The share of one type or group.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Share {
    pub name: &'static str,
    pub tensors: usize,
    pub elements: u64,
    pub bytes: Bytes,
    /// Its share of all bytes; absent where there are none.
    pub ratio: Option<Ratio>,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Row<'a> {
    pub name: &'a str,
    pub file: usize,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The length of each dimension.
    pub shape: &'a [u64],
    pub bytes: Bytes,
    /// The part of the model.
    pub group: Group,
    /// Elements that are NaN, where values were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nan: Option<u64>,
    /// Elements that are infinite, where values were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inf: Option<u64>,
}

/// Results of scanning the values.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Values<'a> {
    /// Number of tensors whose values were read.
    pub scanned_tensors: usize,
    /// Number of tensors whose values were not read, by reason.
    pub not_scanned: BTreeMap<&'static str, usize>,
    pub nan_elements: u64,
    /// Total number of infinite elements.
    pub inf_elements: u64,
    /// Number of tensors with NaN or Inf.
    pub bad_tensors: usize,
    /// The tensors with the most NaN and Inf.
    pub bad: Vec<Row<'a>>,
    /// Number of tensors in which every element is zero.
    pub zero_tensors: usize,
    /// The largest tensors in which every element is zero.
    pub zero: Vec<Row<'a>>,
}

/// The trainable part of the parameters, as far as it is known from the files.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Trainable {
    /// From `requires_grad` of the tensors of a `.pt` file: exact.
    RequiresGrad {
        elements: u64,
        /// Total number of elements, without optimizer state.
        of_elements: u64,
        /// The trainable share.
        ratio: Option<Ratio>,
    },
    /// An adapter and its base model: exact if nothing else is trained.
    Adapter {
        /// Number of elements of the adapter.
        elements: u64,
        /// Number of elements of adapter and base model; absent where the base model was not given.
        of_elements: Option<u64>,
        /// The trainable share.
        ratio: Option<Ratio>,
    },
    /// Unknown: the format does not store it, or a state dict was saved, which does not include it.
    NotTold,
}

pub fn summarize<'a>(items: &[Item<'a>], options: &Options) -> Summary<'a> {
    let mut places = HashSet::new();
    let (once, tied): (Vec<&Item<'a>>, Vec<&Item<'a>>) = items.iter().partition(|item| {
        item.tensor.bytes == 0
            || matches!(item.tensor.place, StoredAt::Elsewhere { .. })
            || places.insert((item.file, item.tensor.place, item.tensor.bytes))
    });
    let bytes: Bytes = once.iter().map(|item| Bytes::new(item.tensor.bytes)).sum();
    let elements = count(&once, |_| true);
    let mut largest: Vec<&Item<'a>> = once.clone();
    largest
        .sort_by(|a, b| b.tensor.bytes.cmp(&a.tensor.bytes).then_with(|| a.tensor.name.cmp(&b.tensor.name)));
    Summary {
        tensors: items.len(),
        tied_tensors: tied.len(),
        elements,
        bytes,
        by_dtype: shares(&once, bytes, |tensor| tensor.dtype.name()),
        by_group: shares(&once, bytes, |tensor| group_of(&tensor.name).label()),
        largest: largest.iter().take(options.top).map(|item| row(item)).collect(),
        values: values(&once, options.top),
        trainable: trainable(&once, options),
    }
}

fn count(items: &[&Item<'_>], which: impl Fn(&Tensor) -> bool) -> u64 {
    let counted = items.iter().filter(|item| which(item.tensor)).map(|item| item.tensor.elements);
    counted.fold(0, u64::saturating_add)
}

/// Converts a tensor to a row of a list.
pub fn row<'a>(item: &Item<'a>) -> Row<'a> {
    Row {
        name: &item.tensor.name,
        file: item.file,
        dtype: item.tensor.dtype,
        shape: &item.tensor.shape,
        bytes: Bytes::new(item.tensor.bytes),
        group: group_of(&item.tensor.name),
        nan: item.found.map(|found| found.nan),
        inf: item.found.map(|found| found.inf),
    }
}

fn shares(items: &[&Item<'_>], whole: Bytes, name: impl Fn(&Tensor) -> &'static str) -> Vec<Share> {
    let mut sums: BTreeMap<&'static str, (usize, u64, Bytes)> = BTreeMap::new();
    for Item { tensor, .. } in items {
        let sum = sums.entry(name(tensor)).or_default();
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(tensor.elements);
        sum.2 = sum.2.saturating_add(Bytes::new(tensor.bytes));
    }
    let share = |(name, (tensors, elements, bytes)): (_, (_, _, Bytes))| Share {
        name,
        tensors,
        elements,
        bytes,
        ratio: bytes.share_of(whole),
    };
    let mut shares: Vec<Share> = sums.into_iter().map(share).collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

fn values<'a>(items: &[&Item<'a>], top: usize) -> Option<Values<'a>> {
    let scanned: Vec<(&Item<'a>, ScanResult)> =
        items.iter().filter_map(|item| Some((*item, item.found?))).collect();
    let mut not_scanned = BTreeMap::new();
    for item in items.iter().filter(|item| item.found.is_none()) {
        let StoredAt::Elsewhere { why } = item.tensor.place else { return None };
        *not_scanned.entry(why).or_insert(0) += 1;
    }
    let mut bad: Vec<&(&Item<'a>, ScanResult)> =
        scanned.iter().filter(|(_, found)| found.nan > 0 || found.inf > 0).collect();
    bad.sort_by_key(|(_, found)| std::cmp::Reverse(found.nan.saturating_add(found.inf)));
    let mut zero: Vec<&Item<'a>> = scanned
        .iter()
        .filter(|(item, found)| !found.nonzero && item.tensor.elements > 0)
        .map(|(item, _)| *item)
        .collect();
    zero.sort_by_key(|item| std::cmp::Reverse(item.tensor.bytes));
    let sum =
        |of: fn(&ScanResult) -> u64| scanned.iter().map(|(_, found)| of(found)).fold(0, u64::saturating_add);
    Some(Values {
        scanned_tensors: scanned.len(),
        not_scanned,
        nan_elements: sum(|found| found.nan),
        inf_elements: sum(|found| found.inf),
        bad_tensors: bad.len(),
        bad: bad.iter().take(top).map(|(item, _)| row(item)).collect(),
        zero_tensors: zero.len(),
        zero: zero.iter().take(top).map(|item| row(item)).collect(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a share of counts far below 2^53")]
fn ratio(part: u64, whole: u64) -> Option<Ratio> {
    if whole == 0 { None } else { Ratio::new(part as f64 / whole as f64) }
}

fn trainable(items: &[&Item<'_>], options: &Options) -> Trainable {
    let model = |tensor: &Tensor| group_of(&tensor.name) != Group::Optimizer;
    if options.adapter {
        let elements = count(items, model);
        let of_elements = options.base_elements.and_then(|base| base.checked_add(elements));
        let ratio = of_elements.and_then(|all| ratio(elements, all));
        return Trainable::Adapter { elements, of_elements, ratio };
    }
    let is_trainable = |tensor: &Tensor| tensor.requires_grad == Some(true) || tensor.parameter == Some(true);
    if !items.iter().any(|item| model(item.tensor) && is_trainable(item.tensor)) {
        return Trainable::NotTold;
    }
    let elements = count(items, |tensor| model(tensor) && tensor.requires_grad == Some(true));
    let of_elements = count(items, model);
    Trainable::RequiresGrad { elements, of_elements, ratio: ratio(elements, of_elements) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn tensor(name: &str, len: u64, offset: u64, requires_grad: Option<bool>) -> Tensor {
        Tensor {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape: vec![len],
            elements: len,
            bytes: len * 4,
            place: StoredAt::Dense { offset },
            row_major: true,
            parameter: None,
            requires_grad,
        }
    }

    const OPTIONS: Options = Options { top: 2, adapter: false, base_elements: None };

    #[test]
    fn tied_tensors_are_counted_once() {
        let tensors = [
            tensor("model.embed_tokens.weight", 10, 0, None),
            tensor("lm_head.weight", 10, 0, None),
            tensor("model.layers.0.mlp.up_proj.weight", 30, 40, None),
        ];
        let bad = ScanResult { nan: 2, inf: 0, nonzero: true };
        let items: Vec<Item<'_>> =
            tensors.iter().map(|tensor| Item { file: 0, tensor, found: Some(bad) }).collect();
        let summary = summarize(&items, &OPTIONS);
        let counts = (summary.tensors, summary.tied_tensors, summary.elements, summary.bytes.get());
        assert_eq!(counts, (3, 1, 40, 160));
        assert_eq!(summary.values.as_ref().unwrap().nan_elements, 4);
        assert_eq!(summary.trainable, Trainable::NotTold);
        expect![[r#"{"tensors":3,"tied_tensors":1,"elements":40,"bytes":160,"by_dtype":[{"name":"F32","tensors":2,"elements":40,"bytes":160,"ratio":1.0}],"by_group":[{"name":"mlp","tensors":1,"elements":30,"bytes":120,"ratio":0.75},{"name":"embedding","tensors":1,"elements":10,"bytes":40,"ratio":0.25}],"largest":[{"name":"model.layers.0.mlp.up_proj.weight","file":0,"dtype":"F32","shape":[30],"bytes":120,"group":"mlp","nan":2,"inf":0},{"name":"model.embed_tokens.weight","file":0,"dtype":"F32","shape":[10],"bytes":40,"group":"embedding","nan":2,"inf":0}],"values":{"scanned_tensors":2,"not_scanned":{},"nan_elements":4,"inf_elements":0,"bad_tensors":2,"bad":[{"name":"model.embed_tokens.weight","file":0,"dtype":"F32","shape":[10],"bytes":40,"group":"embedding","nan":2,"inf":0},{"name":"model.layers.0.mlp.up_proj.weight","file":0,"dtype":"F32","shape":[30],"bytes":120,"group":"mlp","nan":2,"inf":0}],"zero_tensors":0,"zero":[]},"trainable":{"from":"not_told"}}"#]].assert_eq(&serde_json::to_string(&summary).unwrap());
    }

    #[test]
    fn values_that_were_not_scanned_are_absent() {
        let tensors = [tensor("a", 1, 0, None)];
        let items: Vec<Item<'_>> =
            tensors.iter().map(|tensor| Item { file: 0, tensor, found: None }).collect();
        assert!(summarize(&items, &OPTIONS).values.is_none());
        let zero = [Item { file: 0, tensor: &tensors[0], found: Some(ScanResult::default()) }];
        assert_eq!(summarize(&zero, &OPTIONS).values.unwrap().zero_tensors, 1);
    }

    #[test]
    fn the_trainable_share_is_stated_where_it_is_known() {
        let tensors = [
            tensor("w", 30, 0, Some(true)),
            tensor("b", 70, 120, Some(false)),
            tensor("optimizer.state.0.exp_avg", 500, 400, Some(false)),
        ];
        let items: Vec<Item<'_>> =
            tensors.iter().map(|tensor| Item { file: 0, tensor, found: None }).collect();
        let expected = Trainable::RequiresGrad { elements: 30, of_elements: 100, ratio: Ratio::new(0.3) };
        assert_eq!(summarize(&items, &OPTIONS).trainable, expected);
        let adapter = |base_elements| {
            summarize(&items[..1], &Options { adapter: true, base_elements, ..OPTIONS }).trainable
        };
        let unknown = Trainable::Adapter { elements: 30, of_elements: None, ratio: None };
        assert_eq!(adapter(None), unknown);
        let known = Trainable::Adapter { elements: 30, of_elements: Some(120), ratio: Ratio::new(0.25) };
        assert_eq!(adapter(Some(90)), known);
    }
}
