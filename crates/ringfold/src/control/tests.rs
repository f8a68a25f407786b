//! Tests of the control plane as a whole: real sockets, several ranks in one process. This file has
//! exchanges, clean exits, and the helpers of all these tests.

mod joining;
mod verdicts;

use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use super::address::RendezvousAddress;
use super::auth::{self, Claim, HandshakeFailure, Purpose, Refusal, Secret};
use super::fault::Fault;
use super::frame::{Frame, Presence, SERVER_FRAME_BYTES_MAX, Splitter};
use super::health::Health;
use super::launch::Launch;
use super::session::Session;
use super::socket::{Socket, random};
use crate::error::{Error, Result};
use crate::topology::HostId;

/// Time limit of a test.
const WATCHDOG: Duration = Duration::from_secs(120);
/// A deadline that a healthy test does not reach.
const AMPLE: Duration = Duration::from_secs(20);

fn soon(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

pub(super) fn ample() -> Instant {
    Instant::now() + AMPLE
}

/// Runs `test` in a thread and fails when it does not end.
pub(super) fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, end) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        // The receiver is gone only when the watchdog has fired.
        let _ = done.send(());
    });
    match end.recv_timeout(WATCHDOG) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
        _ => thread.join().unwrap(),
    }
}

fn unix_address() -> RendezvousAddress {
    let suffix = u64::from_le_bytes(random().unwrap());
    format!("unix:@ringfold-test-{suffix:x}").parse().unwrap()
}

fn tcp_address() -> RendezvousAddress {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    probe.local_addr().unwrap().to_string().parse().unwrap()
}

fn launch(rank: usize, world_size: usize, address: &RendezvousAddress) -> Launch {
    Launch {
        rank,
        world_size,
        local_rank: None,
        local_world_size: None,
        addresses: vec![address.clone()],
        public_name: None,
        socket_ifname: None,
        silence: Default::default(),
        origin: "test",
        remark: None,
    }
}

pub(super) fn secret() -> Secret {
    Secret::new(*b"sixteen bytes ok")
}

/// Joins `world_size` ranks and runs `body` for each in a thread of its own; returns the results by
/// rank.
fn job<T: Send + 'static>(
    world_size: usize,
    address: RendezvousAddress,
    body: impl Fn(Session) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let body = Arc::new(body);
    let ranks: Vec<_> = (0..world_size)
        .map(|rank| {
            let launch = launch(rank, world_size, &address);
            let body = body.clone();
            thread::spawn(move || body(Session::join(&launch, Some(secret()), ample()).unwrap()))
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn quiet() -> crate::transport::Waker {
    Arc::new(|| {})
}

/// Opens communicator 7, and waits until all members have.
fn opened(session: &Session, members: &[usize]) -> Arc<Health> {
    let health = session.open(7, members, quiet()).unwrap();
    session.exchange("opened", members, b"", ample()).unwrap();
    health
}

/// Waits until the communicator is faulty; returns its verdict.
fn verdict(health: &Health) -> Error {
    let end = ample();
    while !health.is_faulty() {
        assert!(Instant::now() < end, "no verdict");
        thread::yield_now();
    }
    health.fault().unwrap()
}

/// An authenticated rank without a monitor: it answers nothing unless told to.
struct Puppet {
    socket: Socket,
    splitter: Splitter,
}

impl Puppet {
    fn connect(
        rank: u32,
        world_size: u32,
        address: &RendezvousAddress,
        secret: &Secret,
    ) -> auth::HandshakeResult<Puppet> {
        let socket = loop {
            match Socket::connect(address, ample()) {
                Ok(socket) => break socket,
                Err(_) => thread::yield_now(),
            }
        };
        let claim = Claim {
            purpose: Purpose::Control,
            channel: 0,
            communicator: 0,
            from: rank,
            to: 0,
            world_size,
            socket: 0,
        };
        auth::initiate(&socket, secret, claim, ample())?;
        Ok(Puppet {
            socket,
            splitter: Splitter::new(SERVER_FRAME_BYTES_MAX),
        })
    }

    fn join(rank: u32, world_size: u32, address: &RendezvousAddress) -> Puppet {
        let mut puppet = Puppet::connect(rank, world_size, address, &secret()).unwrap();
        let presence = Presence {
            host: HostId::here().unwrap(),
            pid: std::process::id(),
        };
        puppet.say(&Frame::Join { presence });
        puppet.hear(|frame| matches!(frame, Frame::Welcome { .. }));
        puppet
    }

    fn say(&mut self, frame: &Frame) {
        self.socket.write_all(&frame.encode(), ample()).unwrap();
    }

    fn hear(&mut self, is_wanted: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            while let Some(frame) = self.splitter.next_frame().unwrap() {
                if is_wanted(&frame) {
                    return frame;
                }
            }
            let mut byte = [0; 1];
            self.socket.read_exact(&mut byte, ample()).unwrap();
            self.splitter.push(&byte);
        }
    }
}

#[test]
fn one_rank_needs_no_socket() {
    let mut alone = launch(0, 1, &unix_address());
    alone.addresses.clear();
    let session = Session::join(&alone, None, ample()).unwrap();
    assert_eq!(
        session.exchange("card", &[0], b"me", ample()).unwrap(),
        [b"me"]
    );
    let health = session.open(1, &[0], quiet()).unwrap();
    health.give_up("enough");
    assert_eq!(health.fault().unwrap().class(), "Aborted");
}

#[test]
fn eight_ranks_exchange_in_the_order_of_the_members() {
    watched(|| {
        for address in [unix_address(), tcp_address()] {
            let jobs = job(8, address, |session| {
                let all: Vec<usize> = (0..8).collect();
                let me = session.rank();
                let blobs = session.exchange("all", &all, &[me as u8], ample()).unwrap();
                assert_eq!(blobs, (0..8).map(|r| vec![r as u8]).collect::<Vec<_>>());
                let half: Vec<usize> = all.into_iter().filter(|r| r % 2 == me % 2).collect();
                let blobs = session
                    .exchange("half", &half, &[me as u8], ample())
                    .unwrap();
                assert_eq!(
                    blobs,
                    half.iter().map(|r| vec![*r as u8]).collect::<Vec<_>>()
                );
                session.job()
            });
            assert!(jobs.iter().all(|job| *job == jobs[0]));
        }
    });
}

#[test]
fn an_exchange_names_who_did_not_come() {
    watched(|| {
        let outcomes = job(3, unix_address(), |session| {
            let outcome = match session.rank() {
                1 => Ok(vec![]),
                _ => session.exchange("card", &[0, 1, 2], b"x", soon(100)),
            };
            // No rank leaves before all have their outcome.
            session.exchange("end", &[0, 1, 2], b"", ample()).unwrap();
            outcome
        });
        for rank in [0, 2] {
            let error = outcomes[rank].as_ref().unwrap_err();
            assert!(
                matches!(error, Error::Timeout { waiting_for, .. } if *waiting_for == [1]),
                "{error}"
            );
        }
    });
}

#[test]
fn leaving_in_good_order_is_no_fault() {
    watched(|| {
        job(3, unix_address(), |session| {
            let health = opened(&session, &[0, 1, 2]);
            match session.rank() {
                // Leaves the communicator only.
                1 => session.close(7),
                // Leaves the job.
                2 => return,
                _ => {}
            }
            if session.rank() == 0 {
                while !(health.has_left(1) && health.has_left(2)) {
                    thread::yield_now();
                }
            }
            session.exchange("left", &[0, 1], b"", ample()).unwrap();
            assert!(!health.is_faulty());
        });
    });
}

#[test]
fn a_rank_without_an_open_communicator_has_left_while_its_session_lives() {
    watched(|| {
        let after = Barrier::new(3);
        job(3, unix_address(), move |session| {
            let exchange = |what| session.exchange(what, &[0, 1, 2], b"", ample());
            session.open(7, &[0, 1, 2], quiet()).unwrap();
            session.leave_if_unused();
            exchange("opened").unwrap();
            if session.rank() == 2 {
                session.close(7);
                session.leave_if_unused();
            }
            let error = exchange("late").unwrap_err();
            match session.rank() {
                2 => assert!(matches!(error, Error::Closed), "{error}"),
                _ => assert!(
                    matches!(error, Error::PeerFailed { rank: 2, .. }),
                    "{error}"
                ),
            }
            after.wait();
        });
    });
}

#[test]
fn rank_0_may_leave_first() {
    watched(|| {
        job(3, unix_address(), |session| {
            let health = opened(&session, &[0, 1, 2]);
            if session.rank() == 0 {
                return;
            }
            while !health.has_left(0) {
                thread::yield_now();
            }
            let error = session
                .exchange("late", &[0, 1, 2], b"", ample())
                .unwrap_err();
            assert!(
                matches!(error, Error::PeerFailed { rank: 0, .. }),
                "{error}"
            );
            assert!(!health.is_faulty());
        });
    });
}
