//! Further communicators of some ranks of a job, created by these ranks alone. They use the job's
//! control plane without connections of their own.

use super::establish::establish;
use super::{check_late_rank, check_reproducible};
use crate::communicator::Communicator;
use crate::communicator::group::{Inherited, RankGroup};
use crate::communicator::settings::Settings;
use crate::config::Config;
use crate::env::Environment;
use crate::error::{Error, Result};

impl Communicator {
    /// Returns the numbers of the job and of this rank in it, while communicators can be created
    /// [beside](Communicator::connect_beside) this one. `None` if this process is alone in the job,
    /// or forked, or if the communicator is closed or has failed, or rank 0 has left.
    #[doc(hidden)]
    pub fn place_in_job(&self) -> Option<(u64, usize)> {
        let session = &self.membership.group()?.session;
        let is_usable = self.check_open().is_ok() && self.fault().is_none();
        (is_usable && session.is_open()).then(|| (session.job(), session.rank()))
    }

    /// Creates a communicator of these ranks of the [job](Communicator::place_in_job), in this
    /// order. Only these ranks call the function, at the same time, each on any communicator of the
    /// job. The new communicator is independent of that one, and set up from `config` as by
    /// [`connect`](Communicator::connect), except for the ranks and their addresses. `number` is
    /// the same on all its ranks, and used once in the job.
    ///
    /// # Errors
    /// The errors of `connect`, and `InvalidArgument` if this rank is not among `ranks`.
    #[doc(hidden)]
    pub fn connect_beside(
        &self,
        ranks: &[usize],
        number: u64,
        config: &Config,
    ) -> Result<Communicator> {
        self.check_open()?;
        let Some(group) = self.membership.group() else {
            return Err(Error::Unsupported(
                "a communicator beside one whose ranks are threads".into(),
            ));
        };
        let session = group.session.clone();
        let Some(rank) = ranks.iter().position(|rank| *rank == session.rank()) else {
            return Err(Error::InvalidArgument(format!(
                "rank {} of the job is not among the ranks {ranks:?} of the new communicator",
                session.rank()
            )));
        };
        let mut settings = Settings::new(config, &Environment::read()?)?;
        check_late_rank(&settings, ranks.len())?;
        check_reproducible(&settings)?;
        if config.weights.is_none() {
            settings.ignore_misfitting_weights(ranks.len());
        }
        // Policies identify ranks by their numbers in the job.
        settings.late_rank = settings.late_rank.map(|late| ranks[late]);
        // Results of a probe mean little for other ranks.
        let sorted = |ranks: &[usize]| {
            let mut ranks = ranks.to_vec();
            ranks.sort_unstable();
            ranks
        };
        let has_same_ranks = sorted(ranks) == sorted(&group.world_ranks);
        let tuning = &self.policy.tuning;
        let part = RankGroup {
            session,
            settings,
            // 0 is the job's own communicator.
            id: number | 1,
            world_ranks: ranks.to_vec(),
            rank,
            inherited: Inherited {
                rules: None,
                measured: has_same_ranks.then(|| (tuning.constants.clone(), tuning.limits)),
                reads: has_same_ranks.then_some(self.policy.read_bytes_min.is_some()),
            },
        };
        establish(part, config.cancel.as_ref(), &|| None)
    }
}
