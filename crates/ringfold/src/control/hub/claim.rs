//! Comparison of the calls in which the members of a communicator wait.

use super::state::Hub;
use crate::call::CallPosition;
use crate::control::fault::Fault;

impl Hub {
    /// Records that `rank` waits at `position`. Ends the communicator if another member waits in a
    /// different call instead.
    pub(super) fn claim(&mut self, rank: u32, communicator: u64, position: CallPosition) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        if group.verdict.is_some() || !group.opened.contains(&rank) {
            return;
        }
        let Ok(me) = group.members.binary_search(&rank) else {
            return;
        };
        // Errors name ranks by their position among the members.
        let Some(error) = group.claims.compare(me as u32, position) else {
            return;
        };
        let fault = Fault::from_error(&error, &group.members, me);
        self.pronounce(communicator, fault);
    }
}
