//! The verdict: how the node is, in one sentence.

use serde::{Deserialize, Serialize};

use super::forecast::Forecasts;
use super::{NodeView, Situation};
use crate::model::format;
use crate::model::health::Health;
use crate::model::outlook;

/// What is said of a node for which nothing is forecast.
pub const NO_FORECAST: &str = "No forecast is made: the analyzer `exhaustion` is disabled.";

/// What is said of a node that has been observed for too short a time.
pub const TOO_FEW: &str = "There are too few samples for a forecast; it takes about a minute.";

/// How the node is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// How it is, in a word.
    pub health: Health,
    /// The same in one sentence: what is wrong, since when, and whose it is.
    pub sentence: String,
    /// How many more problems there are.
    pub more: usize,
}

impl Verdict {
    /// A verdict about a node of which too little is known.
    pub(super) fn unknown(sentence: &str) -> Self {
        Self { health: Health::Unknown, sentence: sentence.to_owned(), more: 0 }
    }
}

pub(super) fn verdict(view: &NodeView, forecasts: &Forecasts<'_>, situation: &Situation<'_>) -> Verdict {
    if view.is_stalled {
        return Verdict {
            health: Health::Unknown,
            sentence: format!(
                "Sampling has stalled: the newest sample is {} old, and nothing after it is known.",
                format::duration(situation.age_seconds)
            ),
            more: view.problems.len() + view.problems_left_out,
        };
    }
    let counted = view.problems.partition_point(|problem| problem.counted() > Health::Ok);
    if let Some((worst, others)) = view.problems[..counted].split_first() {
        return Verdict {
            health: worst.health,
            sentence: worst.sentence(),
            more: others.len() + view.problems_left_out,
        };
    }
    if !view.analyzed.forecasts {
        return Verdict::unknown(NO_FORECAST);
    }
    if outlook::overall(forecasts.all()) == Health::Unknown {
        return Verdict::unknown(TOO_FEW);
    }
    if let Some((worst, others)) = view.problems.split_first() {
        let sentence = format!("Every known problem is acknowledged. {}", worst.sentence());
        return Verdict { health: Health::Ok, sentence, more: others.len() };
    }
    let fullest = view
        .gpus
        .iter()
        .filter_map(|gpu| Some((gpu.share()?, &gpu.index)))
        .max_by(|(one, _), (next, _)| one.total_cmp(next));
    let gpus = match (fullest, view.gpus.len()) {
        (Some((share, _)), 1) => format!(", GPU memory {} used", format::percent(share)),
        (Some((share, index)), _) => format!(", fullest GPU {index} {} used", format::percent(share)),
        (None, _) => String::new(),
    };
    let host = view.host.share().map_or_else(|| "unknown".to_owned(), format::percent);
    Verdict {
        health: Health::Ok,
        sentence: format!("No memory is predicted to run out: host memory {host} used{gpus}."),
        more: 0,
    }
}
