//! One problem, and where more is shown about something.

use serde::{Deserialize, Serialize};

use super::owner::Owner;
use super::problems::VISIBILITY;
use crate::model::acknowledged::{Acknowledgement, ProblemId};
use crate::model::fair;
use crate::model::health::Health;

/// Where more is shown about something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// The node itself.
    #[default]
    Node,
    Gpu(String),
    /// A workload, by its name.
    Workload(String),
    /// A rank, by its workload and its number.
    Rank(String, String),
    /// A problem, by its place in the list.
    Problem(usize),
    /// A target of protection, by its name and its workload.
    Target(String, String),
    Protection,
    /// An incident, by its id.
    Incident(String),
    /// A node of a cluster, by the labels `job` and `instance` of its target.
    ClusterNode(String, String),
    /// A run of a cluster, by the label `job` of its targets and its name.
    Run(String, String),
    /// A firing alert of a cluster, by its place in the list.
    Alert(usize),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    pub health: Health,
    /// What is wrong, without a final period: `GPU 0 runs out in 4 min (3 to 7)`.
    pub what: String,
    /// The cause, without a final period: `leaking since 14:02 UTC`; empty where it is not known. Also who has acknowledged it.
    pub because: String,
    /// Whose it is; absent where it is not known.
    pub owner: Option<Owner>,
    /// Whether the owner is the last that was seen, because now nothing is.
    pub owner_is_last_known: bool,
    /// What can be done; empty where no action is known.
    pub advice: String,
    /// When it began, in seconds since 1970.
    pub since: Option<f64>,
    /// The median of the time left in seconds; absent while no exhaustion is predicted.
    pub seconds_left: Option<f64>,
    /// The GPU that it is about, by its index.
    pub gpu: Option<String>,
    pub workload: Option<String>,
    /// Where more is shown.
    pub link: Link,
    /// Whether it is a fault of the node, as opposed to one of a job that runs there.
    #[serde(default)]
    pub is_of_node: bool,
    /// Name by which it can be acknowledged.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub id: ProblemId,
    /// Who has acknowledged it, and when; absent where nobody has.
    pub acknowledged: Option<Acknowledgement>,
}

impl Problem {
    /// Leaves at most `most` problems in a list: those of the node, then an equal share for those of each user, of each the
    /// first. Returns how many were left out.
    pub fn cut(all: &mut Vec<Self>, most: usize) -> usize {
        let before = all.len();
        let of_node = all.iter().filter(|problem| problem.is_of_node).count().min(most);
        let others: Vec<Option<&str>> = all
            .iter()
            .filter(|problem| !problem.is_of_node)
            .map(|problem| problem.owner.as_ref().map(|owner| owner.user.as_str()))
            .collect();
        let mut shares = fair::divide(&others, most - of_node).into_iter();
        let mut left = of_node;
        all.retain(|problem| {
            if !problem.is_of_node {
                return shares.next() == Some(true);
            }
            let is_kept = left > 0;
            left = left.saturating_sub(1);
            is_kept
        });
        before - all.len()
    }

    /// How bad it is for the health of the node: ok once it is acknowledged.
    pub const fn counted(&self) -> Health {
        if self.acknowledged.is_some() { Health::Ok } else { self.health }
    }

    /// Whether it states that something is not measured, so that the health of that is unknown.
    pub fn is_unmeasured(&self) -> bool {
        self.health == Health::Unknown || self.id.kind.as_str() == VISIBILITY
    }

    /// The command that acknowledges it; absent where it is.
    pub fn acknowledging(&self) -> Option<String> {
        let can_be = self.acknowledged.is_none() && !self.name.is_empty();
        can_be.then(|| format!("memwarden acknowledge {}", self.name))
    }

    pub fn sentence(&self) -> String {
        let Self { what, because, owner, .. } = self;
        let last = if self.owner_is_last_known { "last used by " } else { "" };
        let owner = owner.as_ref().map_or_else(String::new, |owner| format!("{last}{owner}"));
        let details: Vec<&str> =
            [because.as_str(), owner.as_str()].into_iter().filter(|text| !text.is_empty()).collect();
        if details.is_empty() { format!("{what}.") } else { format!("{what}: {}.", details.join(", ")) }
    }
}
