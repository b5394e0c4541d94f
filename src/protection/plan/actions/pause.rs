//! Pausing a group while the hook tries, and letting it go on.

use crate::protection::plan::{Action, Plan, Trip};
use crate::protection::words::step::Work;

/// Freezes the target's group, where it has one for itself.
pub(super) struct Pause;

impl Action for Pause {
    fn plan(&self, trip: &Trip<'_>, out: &mut Plan) {
        if let Some(group) = trip.roster.group.clone().filter(|_| trip.target.freeze) {
            out.push(trip, Work::Freeze { group });
        }
    }
}

/// Lets it go on; a group that is not frozen does not notice.
pub(super) struct Resume;

impl Action for Resume {
    fn plan(&self, trip: &Trip<'_>, out: &mut Plan) {
        if let Some(group) = trip.roster.group.clone().filter(|_| trip.target.freeze) {
            out.push(trip, Work::Thaw { group });
        }
    }
}
