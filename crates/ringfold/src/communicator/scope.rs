//! Calls that are under way beside each other, on borrowed slices, without `unsafe`.
//!
//! As with [`std::thread::scope`], the scope waits for its calls before it returns, so a slice that
//! is borrowed for the scope outlives its call, even if the call's handle is leaked.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use super::membership::forked;
use super::request::{CallOptions, Request, Target};
use super::typed::{Calls, block, collectives, in_place, receive, request};
use super::{Communicator, Work};
use crate::element::Element;
use crate::error::Result;
use crate::sync::lock;
use crate::types::{Collective, Op};

/// The calls of a scope: see [`Communicator::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    calls: Calls<'env>,
    /// The works that are still under way, or have failed.
    works: Mutex<VecDeque<Arc<Work>>>,
    // Invariant, as in `std::thread::Scope`: a shorter borrow would end before the scope.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The handle of a call of a [`Scope`]: a [`Work`] whose buffers are borrowed until the scope ends.
/// Dropping the handle does not wait.
#[derive(Debug)]
pub struct ScopedWork<'scope> {
    work: Arc<Work>,
    scope: PhantomData<&'scope mut &'scope ()>,
}

impl Deref for ScopedWork<'_> {
    type Target = Work;

    fn deref(&self) -> &Work {
        &self.work
    }
}

impl Communicator {
    /// Calls `body`, whose calls by the [`Scope`] are started and return at once, and waits until
    /// all of them are done on this rank. The communicator's own thread executes them in order.
    ///
    /// ```
    /// use ringfold::{Communicator, Op};
    ///
    /// let comm = Communicator::init()?;
    /// let (mut first, mut second) = (vec![1f32; 1000], vec![2f32; 1000]);
    /// comm.scope(|scope| {
    ///     let work = scope.all_reduce(&mut first, Op::Sum)?;
    ///     scope.all_reduce(&mut second, Op::Sum)?;
    ///     // Computes while both are under way, and needs the first result.
    ///     work.wait()
    /// })?;
    /// assert_eq!(first[0], comm.world_size() as f32);
    /// # Ok::<(), ringfold::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `body`, otherwise the first error of its calls, in the order of their start; a
    /// fatal error comes before one that is not. Either is returned when all calls have ended, at
    /// the latest at their deadlines. `Unsupported` in a child that was forked within the scope.
    pub fn scope<'env, R>(
        &'env self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
    ) -> Result<R> {
        self.with(CallOptions::default()).scope(body)
    }
}

impl<'env> Calls<'env> {
    /// As [`Communicator::scope`], with these options for each of its calls.
    pub fn scope<R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
    ) -> Result<R> {
        let scope = Scope {
            calls: *self,
            works: Mutex::default(),
            scope: PhantomData,
            env: PhantomData,
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        let waited = scope.wait();
        let result = outcome.unwrap_or_else(|panic| resume_unwind(panic));
        match (result, waited) {
            // The communicator has ended, whatever the body made of it.
            (Err(own), Err(error)) if error.is_fatal() && !own.is_fatal() => Err(error),
            (result, waited) => result.and_then(|value| waited.map(|()| value)),
        }
    }
}

/// Collectives and messages on slices. Each is started, and returns at once; the slices are
/// borrowed until the scope ends.
impl<'scope> Scope<'scope, '_> {
    collectives!(ScopedWork<'scope>, 'scope);

    /// Fills `output` with the oldest message of any rank that has this `tag`; as
    /// [`Communicator::recv_any`]. [`Work::source`](super::Work::source) is the sender.
    pub fn recv_any<T: Element>(
        &self,
        output: &'scope mut [T],
        tag: u32,
    ) -> Result<ScopedWork<'scope>> {
        self.call(receive(output, Target::AnySource, tag))
    }
}

impl<'scope> Scope<'scope, '_> {
    fn ranks(&self) -> usize {
        self.calls.communicator.world_size()
    }

    /// Starts a call on slices that are borrowed for the scope.
    fn call(&self, request: Request) -> Result<ScopedWork<'scope>> {
        let options = self.calls.options;
        let request = Request { options, ..request };
        // SAFETY: the slices are borrowed for the scope, the output exclusively, and the scope ends
        // after the call. Works of the scope are leaked only if `wait` is not reached.
        let work = Arc::new(unsafe { self.calls.communicator.start(request) }?);
        let mut works = lock(&self.works);
        while works.front().is_some_and(|work| work.has_succeeded()) {
            works.pop_front();
        }
        works.push_back(work.clone());
        let scope = PhantomData;
        Ok(ScopedWork { work, scope })
    }

    /// Waits until all calls are done; returns the first error.
    fn wait(&self) -> Result<()> {
        // In a forked child, no call is under way, and another thread may have held the lock.
        if self.calls.communicator.is_forked() {
            return Err(forked());
        }
        let works = std::mem::take(&mut *lock(&self.works));
        // Every call is waited for, also after an error.
        let results = works.iter().map(|work| work.wait());
        results.fold(Ok(()), Result::and)
    }
}

/// Programs that borrow wrongly, which the compiler refuses.
///
/// A slice of the body:
/// ```compile_fail,E0597
/// # let comm = ringfold::Communicator::init().unwrap();
/// comm.scope(|scope| {
///     let mut own = [1f32];
///     scope.all_reduce(&mut own, ringfold::Op::Sum).map(drop)
/// });
/// ```
///
/// A slice in two calls:
/// ```compile_fail,E0499
/// # let comm = ringfold::Communicator::init().unwrap();
/// let mut twice = [1f32];
/// comm.scope(|scope| {
///     scope.all_reduce(&mut twice, ringfold::Op::Sum)?;
///     scope.all_reduce(&mut twice, ringfold::Op::Sum).map(drop)
/// });
/// ```
///
/// A handle that leaves:
/// ```compile_fail
/// # let comm = ringfold::Communicator::init().unwrap();
/// let mut data = [1f32];
/// let work = comm.scope(|scope| scope.all_reduce(&mut data, ringfold::Op::Sum));
/// ```
#[cfg(doctest)]
struct WrongBorrows;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Error;

    fn on_threads(ranks: usize, body: impl Fn(Communicator) + Sync) {
        std::thread::scope(|threads| {
            for communicator in Communicator::threads(ranks) {
                threads.spawn(|| body(communicator));
            }
        });
    }

    #[test]
    fn calls_of_a_scope_are_done_when_it_ends() {
        on_threads(3, |communicator| {
            let mut vectors = vec![vec![communicator.rank() as u64; 1000]; 50];
            let tag = 7;
            let (mut received, sent) = ([0u32; 3], [communicator.rank() as u32; 3]);
            let source = communicator.scope(|scope| {
                for vector in &mut vectors {
                    scope.all_reduce(vector, Op::Sum)?;
                }
                scope.send(&sent, (communicator.rank() + 1) % 3, tag)?;
                let work = scope.recv_any(&mut received, tag)?;
                work.wait()?;
                Ok(work.source())
            });
            let before = (communicator.rank() + 2) % 3;
            assert_eq!(source.expect("calls"), Some(before));
            assert_eq!(received, [before as u32; 3]);
            assert!(vectors.iter().all(|vector| *vector == vec![3; 1000]));
        });
    }

    #[test]
    fn a_scope_waits_for_its_calls_whatever_its_body_does() {
        on_threads(2, |communicator| {
            let mut vector = vec![1f32; 1 << 16];
            let caught = catch_unwind(AssertUnwindSafe(|| {
                communicator.scope(|scope| -> Result<()> {
                    std::mem::forget(scope.all_reduce(&mut vector, Op::Sum)?);
                    panic!("of this test");
                })
            }));
            assert!(caught.is_err());
            assert_eq!(vector, vec![2f32; 1 << 16]);
            let refused = communicator.scope(|scope| {
                scope.all_reduce(&mut vector, Op::Sum)?;
                Err::<(), _>(Error::InvalidArgument("of this test".into()))
            });
            assert!(matches!(refused, Err(Error::InvalidArgument(_))));
            assert_eq!(vector, vec![4f32; 1 << 16]);
        });
    }

    #[test]
    fn options_hold_for_each_call_of_a_scope() {
        on_threads(2, |communicator| {
            if communicator.rank() == 1 {
                // Rank 0 ends the communicator at its deadline.
                return drop(communicator.recv::<u8>(&mut [0], 0, 0));
            }
            let options = CallOptions {
                timeout: Some(Duration::from_millis(50)),
                ..CallOptions::default()
            };
            let late = communicator.with(options).scope(|scope| {
                let mut works = Vec::new();
                for _ in 0..3 {
                    works.push(scope.barrier()?);
                }
                Ok(works.len())
            });
            assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        });
    }
}
