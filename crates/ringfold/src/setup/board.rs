//! Attaching a communicator's board once the communicator is ready; failures are only logged.

use std::path::Path;

use crate::board::{Board, Identity, program};
use crate::communicator::Communicator;
use crate::communicator::settings::Showing;

/// Log target of failures.
const LOG: &str = "ringfold::init";

/// Attaches a board that shows the calls of `communicator` to other processes, if configured. Ranks
/// that are threads have none.
pub(super) fn attach(communicator: &Communicator) {
    let Some(group) = communicator.membership.group() else {
        return;
    };
    let identity = Identity {
        job: group.session.job(),
        communicator: group.id,
        rank: group.rank,
        world_size: group.world_ranks.len(),
        transport: communicator.transport(),
        program: program(),
    };
    if let Some(board) = make(&identity, &group.settings.showing) {
        communicator.driver.attach(board);
    }
}

fn make(identity: &Identity, showing: &Showing) -> Option<Board> {
    if let Some(folder) = &showing.records_in {
        match Board::recording(identity, showing.records, Path::new(folder)) {
            Ok(board) => return Some(board),
            Err(error) => log::warn!(
                target: LOG,
                "calls are not recorded: cannot make a file in RINGFOLD_TRACE=`{}`: {error}",
                folder.display()
            ),
        }
    }
    if !showing.is_on {
        return None;
    }
    let board = Board::new(identity);
    board
        .inspect_err(|error| {
            log::debug!(target: LOG, "`ringfold top` will not see this process: {error}");
        })
        .ok()
}
