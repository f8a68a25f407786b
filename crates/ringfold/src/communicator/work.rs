//! The handle of a call that is under way.

use std::sync::Arc;
use std::time::Duration;

use super::completion::Completion;
use super::driver::{EngineDriver, OnWait};
use super::membership::forked;
use super::notifier::PendingCallback;
use crate::error::Result;
use crate::memory::{ForkGuard, GuardStage};

/// The handle of a call that is under way. Dropping it waits for the call, because the call uses
/// the caller's buffers.
///
/// Created by [`Communicator::start`](super::Communicator::start); may be used from any thread.
pub struct Work {
    driver: Arc<EngineDriver>,
    completion: Arc<Completion>,
    fork_guard: Arc<ForkGuard>,
}

impl Work {
    pub(super) fn new(
        driver: Arc<EngineDriver>,
        completion: Arc<Completion>,
        fork_guard: Arc<ForkGuard>,
    ) -> Work {
        Work {
            driver,
            completion,
            fork_guard,
        }
    }

    /// Waits until the call is done on this rank; returns its error if it failed.
    pub fn wait(&self) -> Result<()> {
        self.wait_with(&mut || Ok(()))
    }

    /// Like `wait`, and calls `on_wait` every 20 to 40 ms; an error of `on_wait` aborts the
    /// communicator and is returned.
    pub fn wait_with(&self, on_wait: OnWait<'_>) -> Result<()> {
        self.check_process()?;
        self.driver
            .wait(&self.completion, None, on_wait)
            .map(|_| ())
    }

    /// Waits at most `timeout`; returns whether the call is done. Otherwise the call continues.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait_timeout_with(timeout, &mut || Ok(()))
    }

    /// Like `wait_timeout`, and calls `on_wait` as [`wait_with`](Work::wait_with) does.
    pub fn wait_timeout_with(&self, timeout: Duration, on_wait: OnWait<'_>) -> Result<bool> {
        self.check_process()?;
        self.driver.wait(&self.completion, Some(timeout), on_wait)
    }

    /// Whether the call has ended, with success or an error; `wait` then returns at once.
    pub fn is_done(&self) -> bool {
        self.completion.result().is_some()
    }

    /// Whether the call has ended with success.
    pub(super) fn has_succeeded(&self) -> bool {
        matches!(self.completion.result(), Some(Ok(())))
    }

    /// Returns the source of a receive that has succeeded; `None` before, and for other calls.
    pub fn source(&self) -> Option<usize> {
        self.completion.source()
    }

    /// Runs `call` once after the work has ended, with success or an error; [`wait`](Work::wait)
    /// then returns at once.
    ///
    /// If the work has ended already, `call` runs before `when_done` returns. Otherwise a thread
    /// named `ringfold-done` runs `call`; the thread starts when first needed, and ends with the
    /// last communicator that needed it. The thread holds no lock of this library, so `call` may
    /// use communicators. Callbacks run one at a time, in the order in which their calls ended.
    /// Other callbacks run only beside a callback that waits: those registered within it at once,
    /// others after 20 ms. A panic of `call` is printed and has no other effect.
    ///
    /// # Errors
    /// `Unsupported` in a forked child, `System` if no thread can be started; `call` is then
    /// dropped without being called.
    pub fn when_done(&self, call: impl FnOnce() + Send + 'static) -> Result<()> {
        self.check_process()?;
        if self.is_done() {
            call();
            return Ok(());
        }
        let notifier = self.driver.notifier()?;
        let callback = PendingCallback::new(notifier, Box::new(call));
        if let Some(call) = self.completion.when_done(callback) {
            call();
        }
        Ok(())
    }

    /// Whether this process was forked from the one that made the call, which is not under way
    /// here.
    pub fn is_forked(&self) -> bool {
        self.fork_guard.stage() == GuardStage::Forked
    }

    fn check_process(&self) -> Result<()> {
        match self.is_forked() {
            true => Err(forked()),
            false => Ok(()),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(self.driver.clone());
            return;
        }
        // The error is for threads that wait; the buffers are free either way.
        let _ = self.driver.wait(&self.completion, None, &mut || Ok(()));
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("is_done", &self.is_done())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;
    use crate::communicator::notifier::{self, Notifier};
    use crate::memory::Region;
    use crate::sync::lock;
    use crate::{Collective, Communicator, Counts, DType, Error, Op, Request, Target};

    /// Time limit of a wait, longer than any of these tests needs on a busy machine.
    const WATCHDOG: Duration = Duration::from_secs(120);

    /// A started `collective` on its own memory.
    struct Started {
        // Declared first, so dropped first: the drop waits for the call.
        work: Work,
        _memory: Box<[f32; 4]>,
    }

    fn start(communicator: &Communicator, collective: Collective) -> Started {
        let mut memory = Box::new([1f32; 4]);
        // SAFETY: boxed memory does not move, and is freed after the work.
        let region = unsafe { Region::new(memory.as_mut_ptr().cast(), size_of_val(&*memory)) };
        let mut request = Request::new(collective, DType::F32, Counts::Even(4), region, region);
        request.target = Target::of(collective, 1 - communicator.rank());
        // SAFETY: as above, and no other code uses it.
        let work = unsafe { communicator.start(request) }.expect("a started call");
        Started {
            work,
            _memory: memory,
        }
    }

    fn pair() -> (Communicator, Communicator) {
        let mut ranks = Communicator::threads(2).into_iter();
        let mut next = || ranks.next().expect("two ranks");
        (next(), next())
    }

    fn received<T>(receiver: &Receiver<T>) -> T {
        receiver.recv_timeout(WATCHDOG).expect("a callback")
    }

    #[test]
    fn a_callback_runs_once() {
        let (zero, one) = pair();
        let (sender, receiver) = channel();
        let calls: Vec<Started> = (0..20)
            .map(|index| {
                let started = start(&zero, Collective::AllReduce);
                let sender = sender.clone();
                let call = move || {
                    let thread = thread::current().name().map(str::to_owned);
                    sender.send((index, thread)).expect("a listener");
                };
                started.work.when_done(call).expect("a promise");
                started
            })
            .collect();
        drop(sender);
        assert!(receiver.try_recv().is_err(), "called before the end");
        for _ in 0..20 {
            one.all_reduce(&mut [1f32; 4], Op::Sum)
                .expect("an all-reduce");
        }
        let (mut indices, threads): (Vec<i32>, Vec<_>) =
            (0..20).map(|_| received(&receiver)).unzip();
        indices.sort();
        assert_eq!(indices, (0..20).collect::<Vec<_>>());
        let is_ours = |name: &Option<String>| name.as_deref() == Some("ringfold-done");
        assert!(threads.iter().all(is_ours), "{threads:?}");
        assert!(calls.iter().all(|started| started.work.is_done()));
        // All senders were dropped.
        assert!(receiver.recv_timeout(WATCHDOG).is_err());
    }

    #[test]
    fn whoever_sees_the_end_finds_the_callback_due() {
        const ROUNDS: usize = 5000;
        let notifier = Notifier::shared().expect("threads");
        for _ in 0..ROUNDS {
            let completion = Completion::default();
            let callback = PendingCallback::new(notifier.clone(), Box::new(|| ()));
            assert!(completion.when_done(callback).is_none());
            let before = notifier::due();
            thread::scope(|scope| {
                scope.spawn(|| completion.complete(Ok(())));
                while completion.result().is_none() {
                    std::hint::spin_loop();
                }
                assert!(notifier::due() > before, "the end came before");
            });
        }
    }

    #[test]
    fn a_callback_runs_after_an_error_too() {
        let (zero, one) = pair();
        let started = start(&zero, Collective::Recv);
        let (sender, receiver) = channel();
        let call = move || sender.send(()).expect("a listener");
        started.work.when_done(call).expect("a promise");
        one.abort("the other rank gives up");
        received(&receiver);
        let ended = started.work.wait();
        assert!(matches!(ended, Err(Error::Aborted { .. })), "{ended:?}");
    }

    #[test]
    fn a_panic_in_a_callback_stops_no_other() {
        let (zero, one) = pair();
        let (first, second) = (
            start(&zero, Collective::Recv),
            start(&zero, Collective::Recv),
        );
        let (sender, receiver) = channel();
        let call = || panic!("what this test is about");
        first.work.when_done(call).expect("a promise");
        let call = move || sender.send(()).expect("a listener");
        second.work.when_done(call).expect("a promise");
        one.send(&[1f32; 4], 0, 0).expect("a message");
        one.send(&[1f32; 4], 0, 0).expect("a message");
        received(&receiver);
    }

    #[test]
    fn a_callback_may_wait_for_another() {
        const DEPTH: usize = 4;
        let (zero, one) = pair();
        let (zero, sibling) = (Arc::new(zero), Arc::new(Mutex::new(None)));
        let (sender, receiver) = channel();
        let started = start(&zero, Collective::AllReduce);
        let call = {
            let (zero, sibling) = (zero.clone(), sibling.clone());
            move || {
                let waited =
                    (lock(&sibling).take()).map(|receiver: Receiver<()>| received(&receiver));
                nest(&zero, DEPTH);
                sender.send(waited).expect("a listener");
            }
        };
        started.work.when_done(call).expect("a promise");
        // Queued behind the first callback, which waits for this one.
        let (sender, later) = channel();
        *lock(&sibling) = Some(later);
        let behind = start(&zero, Collective::AllReduce);
        let call = move || sender.send(()).expect("a listener");
        behind.work.when_done(call).expect("a promise");
        for _ in 0..DEPTH + 2 {
            one.all_reduce(&mut [1f32; 4], Op::Sum)
                .expect("an all-reduce");
        }
        assert_eq!(received(&receiver), Some(()));
    }

    /// Makes a call, and waits until its callback has done the same, `depth` times over.
    fn nest(communicator: &Arc<Communicator>, depth: usize) {
        if depth == 0 {
            return;
        }
        let started = start(communicator, Collective::AllReduce);
        let (sender, receiver) = channel();
        let inner = communicator.clone();
        let call = move || {
            nest(&inner, depth - 1);
            sender.send(()).expect("a listener");
        };
        started.work.when_done(call).expect("a promise");
        received(&receiver);
    }
}
