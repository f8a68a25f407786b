//! Tests of events during a wait: callbacks that use the communicator, visitors, interruptions,
//! panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::*;
use crate::communicator::Communicator;
use crate::communicator::watch::{ThreadWatch, Watch};
use crate::engine::Engine;
use crate::memory::{Pool, Region};
use crate::schedule::Access;
use crate::transport::Transport;
use crate::transport::local::local;
use crate::transport::suite::altered::Altered;
use crate::types::{Collective, DType, Op};
use crate::wait::Patience;
use crate::{Begun, Counts, Request, Target};

/// Time limit of a test, longer than any test needs on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Runs `test`, and panics unless it ends within [`WATCHDOG`].
fn watched<R: Send + 'static>(test: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(test()));
    receiver
        .recv_timeout(WATCHDOG)
        .expect("an end, and no panic")
}

fn pair() -> [Communicator; 2] {
    let pair: Vec<Communicator> = Communicator::threads(2);
    pair.try_into().expect("two ranks")
}

/// Runs rank 0's part of a call, whether or not rank 1 makes the call.
fn wait_in(
    communicator: &Communicator,
    (collective, count): (Collective, usize),
    on_wait: OnWait<'_>,
) -> Result<()> {
    let mut memory = vec![1f32; count];
    // SAFETY: the vector outlives the blocking call, and nothing else touches it meanwhile.
    let region = unsafe { Region::new(memory.as_mut_ptr().cast(), 4 * count) };
    let counts = Counts::Even(count as u64);
    let mut request = Request::new(collective, DType::F32, counts, region, region);
    request.target = Target::of(collective, 1);
    // SAFETY: as above.
    unsafe { communicator.run(&request, on_wait) }.map(|_| ())
}

/// A tiny call, a larger one, and a message.
const WAITS: [(Collective, usize); 3] = [
    (Collective::AllReduce, 4),
    (Collective::AllReduce, 100_000),
    (Collective::Recv, 4),
];

#[test]
fn a_callback_reads_figures_and_makes_calls_while_its_call_waits() {
    watched(|| {
        for call in WAITS {
            let [zero, one] = pair();
            let other = thread::spawn(move || {
                let mut token = [0f32];
                // The callback sends the message, so rank 0 is waiting by then.
                one.recv(&mut token, 0, 7).expect("a message");
                let mut ones = vec![1f32; call.1];
                match call.0 {
                    Collective::AllReduce => one.all_reduce(&mut ones, Op::Sum),
                    _ => one.send(&ones, 0, 0),
                }
                .expect("the call that rank 0 is in");
                one.barrier().expect("the barrier of the callback");
            });
            let mut calls = 0;
            let ending = wait_in(&zero, call, &mut || {
                calls += 1;
                if calls > 1 {
                    return Ok(());
                }
                let _ = zero.stats();
                zero.reset_stats();
                zero.way(&Request::new(
                    Collective::AllReduce,
                    DType::F32,
                    Counts::Even(4),
                    Region::EMPTY,
                    Region::EMPTY,
                ))?;
                zero.send(&[1f32], 1, 7)?;
                zero.barrier()
            });
            ending.unwrap_or_else(|error| panic!("{call:?}: {error}"));
            assert!(calls > 0, "{call:?}: it never waited");
            other.join().expect("rank 1");
            assert!(zero.stats().calls <= 2);
        }
    });
}

/// The message of the callback is not mistaken for the waiting tiny call, even if both end in one
/// attempt.
#[test]
fn a_call_of_a_callback_does_not_swallow_the_end_of_the_one_that_waits() {
    watched(|| {
        let [zero, one] = pair();
        let (sender, receiver) = channel();
        let other = thread::spawn(move || {
            receiver.recv().expect("a callback");
            let mut ones = vec![1f32; WAITS[0].1];
            one.all_reduce(&mut ones, Op::Sum)
                .expect("the call that rank 0 is in");
            let mut token = [0f32];
            one.recv(&mut token, 0, 7).expect("a message");
        });
        let mut sender = Some(sender);
        let ending = wait_in(&zero, WAITS[0], &mut || {
            if let Some(sender) = sender.take() {
                sender.send(()).expect("rank 1");
                // Long enough for rank 1 to publish, so that the waiting call ends while this call
                // runs.
                thread::sleep(Duration::from_millis(50));
                zero.send(&[1f32], 1, 7)?;
            }
            Ok(())
        });
        ending.expect("both ranks were in it");
        other.join().expect("rank 1");
        assert_eq!(zero.stats().calls, 1);
    });
}

#[test]
fn a_callback_ends_the_call_that_waits() {
    watched(|| {
        for call in WAITS {
            for aborts in [true, false] {
                let [zero, one] = pair();
                let ending = wait_in(&zero, call, &mut || {
                    if aborts {
                        zero.abort("enough");
                    } else {
                        zero.close()?;
                    }
                    Ok(())
                });
                let due = if aborts { "Aborted" } else { "Closed" };
                assert_eq!(ending.expect_err("ended").class(), due, "{call:?}");
                drop(one);
            }
        }
    });
}

#[test]
fn a_callback_that_fails_or_panics_ends_the_call_for_all() {
    watched(|| {
        for panics in [false, true] {
            let [zero, one] = pair();
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
                wait_in(&zero, WAITS[0], &mut || match panics {
                    true => panic!("what this test is about"),
                    false => Err(Error::InvalidArgument("enough".into())),
                })
            }));
            match outcome {
                Ok(ending) => assert!(matches!(ending, Err(Error::InvalidArgument(_)))),
                Err(_) => assert!(panics),
            }
            for rank in [&zero, &one] {
                let error = rank.barrier().expect_err("the end");
                assert!(matches!(error, Error::Aborted { rank: 0, .. }), "{error}");
            }
        }
    });
}

/// A call that another thread drives is over, and its memory free, when an interrupted wait
/// returns.
#[test]
fn an_interrupted_wait_returns_after_the_driving_thread_has_let_go() {
    watched(|| {
        for _ in 0..20 {
            let [zero, _one] = pair();
            let mut memory = [0f32; 4];
            // SAFETY: the array outlives the work below.
            let region = unsafe { Region::new(memory.as_mut_ptr().cast(), size_of_val(&memory)) };
            let mut request = Request::new(
                Collective::Recv,
                DType::F32,
                Counts::Even(4),
                Region::EMPTY,
                region,
            );
            request.target = Target::Peer(1);
            // SAFETY: as above, and nothing else touches it.
            let started = unsafe { zero.start(request) }.expect("a started call");
            // The worker drives from now on.
            while zero.driver.state.try_lock().is_ok() {
                thread::yield_now();
            }
            let refuse = || Err(Error::InvalidArgument("enough".into()));
            let ending = wait_in(&zero, WAITS[0], &mut { refuse });
            assert!(matches!(ending, Err(Error::InvalidArgument(_))));
            assert!(
                zero.driver
                    .try_state()
                    .is_none_or(|state| state.error.is_some())
            );
            assert!(
                started.is_done(),
                "a call still uses memory that was returned to its caller"
            );
        }
    });
}

#[test]
fn visitors_do_not_wait_for_the_call_of_another_thread() {
    watched(|| {
        let [zero, one] = pair();
        let zero = Arc::new(zero);
        let (sender, receiver) = channel();
        let waiting = zero.clone();
        let other = thread::spawn(move || {
            wait_in(&waiting, WAITS[2], &mut || {
                let _ = sender.send(());
                Ok(())
            })
        });
        receiver.recv().expect("a rank that waits");
        for _ in 0..1000 {
            assert_eq!(zero.stats().calls, 0);
        }
        zero.reset_stats();
        let mut looks = 0;
        let closing = zero.close_with(&mut || {
            looks += 1;
            Err(Error::InvalidArgument("enough".into()))
        });
        assert!(matches!(closing, Err(Error::InvalidArgument(_))) && looks == 1);
        assert!(other.join().expect("a thread").is_err());
        drop(one);
    });
}

/// The message of the engine's panic in the test below.
const PANIC: &str = "what this test is about";

#[test]
fn a_panic_is_one_error_for_all_calls_and_all_ranks() {
    watched(|| {
        for starts in [false, true] {
            let mut transports = local(2);
            let transport = transports.swap_remove(0);
            let waker = transport.waker();
            let panicking = Altered::new(transport).before_poll(|| panic!("{PANIC}"));
            let watch = Arc::<ThreadWatch>::default();
            let peer = watch.register(Arc::new(|| {}));
            let watch = Box::new(watch.register(waker));
            let engine = Engine::new(Box::new(panicking), 0, 2, Pool::default());
            let driver = Arc::new(EngineDriver::new(engine, 0, watch, Patience::new(2, 2)));
            let mut memory = [0f32; 4];
            // SAFETY: the array outlives the driver's calls.
            let region = unsafe { Region::new(memory.as_mut_ptr().cast(), size_of_val(&memory)) };
            let choice = crate::call::Way {
                algorithm: crate::Algorithm::Ring,
                access: Access::Messages,
                assignment: crate::Assignment::Owner,
                is_inline: false,
                slice_bytes: 1 << 10,
                channels: 1,
                registered: None,
                reads: false,
                non_temporal_stores: false,
                is_weighted: false,
                is_reproducible: false,
            };
            let request = Request::new(
                Collective::AllReduce,
                DType::F32,
                Counts::Even(4),
                region,
                region,
            );
            let job = || request.check(0, 2, &choice, WATCHDOG).expect("a job");
            let expect_panic = |ending: Result<()>| {
                let error = ending.expect_err("a panic");
                assert!(matches!(error, Error::Aborted { rank: 0, .. }), "{error}");
                assert!(error.to_string().contains(PANIC), "{error}");
            };
            if starts {
                let started = driver.start(vec![job(), job()]).expect("a worker");
                for completion in started {
                    let ending = driver.wait(&completion, None, &mut || Ok(()));
                    expect_panic(ending.map(|_| ()));
                }
            }
            for _ in 0..2 {
                expect_panic(driver.run(job(), &mut || Ok(())).map(|_| ()));
            }
            expect_panic(peer.fault().map_or(Ok(()), Err));
            driver
                .finish(&mut || Ok(()))
                .expect("nothing left to wait for");
            assert_eq!(
                driver.with_engine(|engine| engine.stats()).waited,
                Duration::ZERO
            );
            driver.dissolve();
        }
    });
}

/// The program has counted a call of which it has a handle: the ranks' later calls would not match.
#[test]
fn a_started_call_that_the_engine_refuses_ends_the_communicator() {
    watched(|| {
        let [zero, one] = pair();
        let mut memory = vec![1f32; 4 << 20];
        let bytes = size_of_val(&memory[..]);
        // SAFETY: the vector outlives the work, and nothing else touches it meanwhile.
        let region = unsafe { Region::new(memory.as_mut_ptr().cast(), bytes) };
        let counts = Counts::Even(memory.len() as u64);
        let request = Request::new(Collective::AllReduce, DType::F32, counts, region, region);
        let mut job = zero.job(&request).expect("a job");
        // As if the chooser took slots for larger than they are.
        (job.way.access, job.way.registered) = (Access::Staged, None);
        job.way.slice_bytes = bytes;
        let refused = zero.works(vec![job]).expect("a handle").remove(0);
        let error = refused.wait().expect_err("a slot has no room");
        assert!(!error.is_fatal(), "{error}");
        for rank in [zero, one] {
            let error = rank.barrier().expect_err("the ranks are out of step");
            assert!(error.is_fatal(), "{error}");
        }
    });
}

/// A call in two parts does not wait for its peer in the first, and is the same call for that peer.
#[test]
fn a_call_that_has_begun_returns_to_its_caller_before_its_peer_has_called() {
    watched(|| {
        for (collective, count) in [WAITS[0], WAITS[1]] {
            let [zero, one] = pair();
            let mut memory = vec![1f32; count];
            // SAFETY: the vector outlives both parts of the call, and nothing else touches it.
            let region = unsafe { Region::new(memory.as_mut_ptr().cast(), 4 * count) };
            let counts = Counts::Even(count as u64);
            let request = Request::new(collective, DType::F32, counts, region, region);
            // SAFETY: as above; the rest of the call ends below.
            let begun = unsafe { zero.begin(&request) }.expect("a call that may begin");
            let Begun::UnderWay(rest) = begun else {
                panic!("rank 1 has not called");
            };
            let other = thread::spawn(move || {
                let mut ones = vec![1f32; count];
                one.all_reduce(&mut ones, Op::Sum).expect("rank 1's part");
            });
            zero.see_through(rest, &mut || Ok(())).expect("the rest");
            other.join().expect("rank 1");
            assert!(memory.iter().all(|&sum| sum == 2.0), "{count}");
        }
    });
}
