//! The public API: a communicator and its ranks' calls.
//!
//! A call passes through four stages: a [`Request`] is checked and becomes a job,
//! [`tune::choose`](crate::tune::choose) chooses the way, the [engine](crate::engine) runs the job,
//! and the driver of this module waits. Typed methods on slices are in `typed`, those that start
//! calls beside each other in `scope`; bindings use [`Communicator::run`] and
//! [`Communicator::start`] with raw regions.
//!
//! `begun` divides blocking calls, `choices` caches ways, `driver` waits, `work` is an asynchronous
//! call, `notifier` runs callbacks, `register` maps peers' memory, `weigh` measures slow ranks,
//! `watch` translates world ranks into the communicator's.

mod agreed;
mod begun;
mod check;
mod choice;
mod choices;
mod completion;
mod driver;
mod fold;
pub(crate) mod group;
mod handle;
mod lifecycle;
pub(crate) mod membership;
pub(crate) mod notifier;
pub(crate) mod probe;
mod register;
mod registration;
mod request;
mod scope;
pub(crate) mod settings;
mod typed;
mod waiting;
pub(crate) mod watch;
mod weigh;
mod work;

pub use begun::{Begun, BegunCall};
pub(crate) use driver::EngineDriver;
pub use fold::{fold, fold_regions};
pub use handle::Communicator;
pub(crate) use handle::{ChoicePolicy, RankPosition};
pub use registration::{RegisteredMut, Registration};
pub use request::{CallOptions, Counts, Request, Target};
pub use scope::{Scope, ScopedWork};
pub use typed::Calls;
pub use work::Work;

#[cfg(test)]
mod tests;
