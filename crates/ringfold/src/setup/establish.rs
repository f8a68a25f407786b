//! The whole set-up of a communicator from a group of ranks, stage by stage.

use super::attempt::Attempt;
use super::discover::Discovered;
use crate::communicator::Communicator;
use crate::communicator::group::RankGroup;
use crate::control::Cancel;
use crate::control::limit::Cancelled;
use crate::error::Result;

/// Creates the communicator of a group; all of its ranks call the function at the same time.
/// `cancel`, or an error from `is_pointless`, ends the set-up on all of them.
pub(super) fn establish(
    group: RankGroup,
    cancel: Option<&Cancel>,
    is_pointless: Cancelled<'_>,
) -> Result<Communicator> {
    let attempt = Attempt::open(group, is_pointless)?;
    let _cancelling = cancel.map(|cancel| attempt.end_on(cancel));
    let made = Discovered::new(&attempt)
        .and_then(Discovered::link)
        .and_then(|linked| linked.agree())
        .and_then(|agreed| agreed.warm_up());
    match made {
        Ok(communicator) => {
            attempt.keep();
            Ok(communicator)
        }
        Err(error) => Err(attempt.fail(error)),
    }
}
