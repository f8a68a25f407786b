//! The choice of a call's way by a communicator: the tuner's question, its answer, and the log of
//! both.

#![forbid(unsafe_code)]

use super::choices::ChoiceKey;
use super::{Communicator, Counts, Request};
use crate::call::Way;
use crate::env;
use crate::error::Result;
use crate::memory::Region;
use crate::schedule::Schedule;
use crate::tune::choose;
use crate::tune::{Explanation, OrderDemand, Question, Reason};
use crate::types::{Access, Collective, DType, Method};

/// The log target of choices.
pub(super) const TUNING_LOG: &str = "ringfold::tuning";

/// The sizes for which the model's costs are logged.
const LOGGED_SIZES: [u64; 5] = [8, 1 << 10, 32 << 10, 1 << 20, 32 << 20];

impl Communicator {
    /// Returns the possible ways of this request, the chosen one, and the reason. If this
    /// communicator has registered memory, the answer is for a request in such memory.
    ///
    /// Changes nothing, contacts no peer, and waits for no call.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the request cannot be carried out, or not as the request or the operator's
    /// variables demand.
    pub fn explain(&self, request: &Request) -> Result<Explanation> {
        let bytes = request.bytes(self.place.world_size);
        let question = Question {
            is_registered: self.place.hosts == 1 && self.has_registered(),
            ..self.question(request, bytes, self.weights.weights().is_some())
        };
        choose::explain(&question, &self.policy.tuning)
    }

    /// Returns the request's method, or the communicator's if the collective has it.
    fn requested(&self, request: &Request) -> Option<Method> {
        let serves = |method: &Method| {
            Access::ALL
                .iter()
                .any(|access| Schedule::exists(request.collective, *method, *access))
        };
        request
            .options
            .algorithm
            .or(self.policy.algorithm.filter(serves))
    }

    /// Returns the demand of the request on the order of its reduction.
    #[inline(always)]
    fn order(&self, request: &Request) -> OrderDemand {
        match self.policy.is_reproducible || request.options.reproducible {
            true => OrderDemand::reproducible(request.op, request.dtype),
            false => OrderDemand::Any,
        }
    }

    /// Returns the way of the request: that of the last request of its kind, if remembered.
    #[inline(always)]
    pub(super) fn choose(&self, request: &Request) -> Result<Way> {
        let bytes = request.bytes(self.place.world_size);
        let is_weighted = self.weights.are_there();
        let kind = ChoiceKey::of(request, bytes, self.order(request), is_weighted);
        match kind.and_then(|kind| self.choices.get(kind)) {
            Some(way) => Ok(way),
            None => self.choose_anew(request, bytes, is_weighted),
        }
    }

    #[cold]
    pub(super) fn choose_anew(
        &self,
        request: &Request,
        bytes: u64,
        is_weighted: bool,
    ) -> Result<Way> {
        let question = self.question(request, bytes, is_weighted);
        let way = choose::choose(&question, &self.policy.tuning)?;
        if let Some(kind) = ChoiceKey::of(request, bytes, question.order, is_weighted) {
            self.choices.put(kind, &way);
            if !self.policy.is_silent
                && log::log_enabled!(target: TUNING_LOG, env::level_for_all(self.rank()))
                && self.choices.is_unlogged(kind)
            {
                self.log_choice(&question, &way);
            }
        }
        Ok(way)
    }

    /// Logs a new choice, and at debug level the slicing and the costs of all ways.
    fn log_choice(&self, question: &Question, way: &Way) {
        let question = Question {
            is_registered: way.access == Access::Registered,
            ..*question
        };
        let Ok(explanation) = choose::explain(&question, &self.policy.tuning) else {
            return;
        };
        let channels = match way.channels {
            1 => String::new(),
            channels => format!(", channels: {channels}"),
        };
        let reason = match &explanation.reason {
            Reason::Model => String::new(),
            reason => format!(", {reason}"),
        };
        let registered = match way.tried() {
            Some(tried) => format!("; registered: {}", tried.method()),
            None if way.reads => "; read from the senders' memory".into(),
            None if question.lends => "; registered: large messages are lent".into(),
            None => String::new(),
        };
        log::log!(
            target: TUNING_LOG,
            env::level_for_all(self.rank()),
            "choice: {} of {} bytes, {} ranks: {} over {}{channels}{reason}{registered}",
            question.collective,
            question.bytes,
            question.world_size,
            explanation.way.method(),
            explanation.way.access.medium(),
        );
        log::debug!(
            target: TUNING_LOG,
            "costs: {} of {} bytes: {explanation}",
            question.collective,
            question.bytes,
        );
    }

    /// Logs the model's costs of all-reduces of some sizes, on rank 0 at debug level. Costs nothing
    /// if that level is off.
    pub(crate) fn log_model(&self) {
        if self.rank() != 0 || !log::log_enabled!(target: TUNING_LOG, log::Level::Debug) {
            return;
        }
        let counts = Counts::Even(0);
        let (collective, nothing) = (Collective::AllReduce, Region::EMPTY);
        let request = Request::new(collective, DType::U8, counts, nothing, nothing);
        for bytes in LOGGED_SIZES {
            let question = self.question(&request, bytes, self.weights.are_there());
            if let Ok(explanation) = choose::explain(&question, &self.policy.tuning) {
                log::debug!(
                    target: TUNING_LOG,
                    "model: all_reduce of {bytes} bytes: {explanation}"
                );
            }
        }
    }

    /// Whether there has ever been registered memory: the same on all ranks at the same call.
    fn has_registered(&self) -> bool {
        self.driver
            .with_engine(|engine| engine.registry().is_used())
    }

    pub(super) fn question(&self, request: &Request, bytes: u64, is_weighted: bool) -> Question {
        let policy = &self.policy;
        let question = Question {
            hosts: self.place.hosts,
            runs: self.place.runs,
            domains: policy.domains,
            slot_bytes: policy.slot_bytes,
            // The call itself finds out whether its buffers are registered.
            is_registered: self.place.hosts == 1,
            lends: self.place.hosts > 1 && self.has_registered(),
            read_bytes_min: policy.read_bytes_min,
            is_uneven: request.is_uneven(),
            is_pairwise: matches!(request.counts, Counts::Pairwise { .. }),
            group: request.group,
            algorithm: self.requested(request),
            protocol: request.options.protocol,
            order: self.order(request),
            are_blocks: self.place.are_blocks,
            ..Question::new(request.collective, bytes, self.place.world_size)
        };
        question.with_policies(
            is_weighted,
            policy.bypasses_stragglers,
            &policy.tuning.limits,
        )
    }
}
