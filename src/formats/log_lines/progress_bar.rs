//! The bars of tqdm: `12%|█▏        | 120/1000 [01:32<11:20,  1.29it/s, loss=0.4]`.

use super::scan::{self, Number, front};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bar<'a> {
    /// The text before the percentage, without its colon.
    pub(super) about: &'a str,
    pub(super) done: u64,
    pub(super) all: Option<u64>,
    /// Seconds per item, if the unit is `it`.
    pub(super) seconds: Option<f64>,
    /// `loss=0.4, v_num=0`, without the rate.
    pub(super) extra: &'a str,
}

pub(super) fn find(line: &str) -> Option<Bar<'_>> {
    let open = line.find(" [")?;
    let (before, inside) = (&line[..open], &line[open + 2..]);
    let inside = &inside[..inside.find(']').unwrap_or(inside.len())];
    // A bar of unknown length has neither percentage nor bar: `Epoch 1: : 1it [00:04, 4.36s/it]`.
    let (about, counts, all) = match before.rsplit_once('|') {
        Some((bar, counts)) => {
            let about = bar.split_once('%')?.0.trim_end_matches(|letter: char| letter.is_ascii_digit());
            let (done, all) = scan::of(counts)?;
            (about, done, Some(all))
        }
        None => {
            let (about, count) = before.trim_end().rsplit_once(' ')?;
            (about, scan::whole(count.strip_suffix("it")?)?, None)
        }
    };
    let mut parts = inside.splitn(2, ',');
    let clock = parts.next()?;
    if !clock.contains(':') {
        return None;
    }
    let rest = parts.next().unwrap_or_default();
    let (rate, extra) = match rest.split_once(',') {
        Some((rate, extra)) if seconds(rate).is_some() => (rate, extra),
        _ if seconds(rest).is_some() => (rest, ""),
        _ => ("", rest),
    };
    let about = about.trim_matches([' ', ':']);
    Some(Bar { about, done: counts, all, seconds: seconds(rate), extra })
}

fn seconds(rate: &str) -> Option<f64> {
    let (Number::Finite(number), unit) = front(rate)? else { return None };
    match unit.trim() {
        "it/s" => (number > 0.0).then(|| number.recip()),
        "s/it" => Some(number),
        _ => None,
    }
}
