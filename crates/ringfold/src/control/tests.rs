//! The control plane as a whole: real sockets, several ranks in one process.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::auth::{self, Claim, Failure, Purpose, Refusal, Secret};
use super::fault::Fault;
use super::frame::{Frame, Presence, SERVER_FRAME_BYTES_MAX, Splitter};
use super::health::Health;
use super::launch::Launch;
use super::session::Session;
use super::socket::{Address, Socket, random};
use crate::error::{Error, Result};
use crate::topology::HostId;

/// What no test may exceed.
const WATCHDOG: Duration = Duration::from_secs(60);
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

fn unix_address() -> Address {
    let suffix = u64::from_le_bytes(random().unwrap());
    format!("unix:@ringfold-test-{suffix:x}").parse().unwrap()
}

fn tcp_address() -> Address {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    probe.local_addr().unwrap().to_string().parse().unwrap()
}

fn launch(rank: usize, world_size: usize, address: &Address) -> Launch {
    Launch {
        rank,
        world_size,
        local_rank: None,
        local_world_size: None,
        address: Some(address.clone()),
        origin: "test",
    }
}

pub(super) fn secret() -> Secret {
    Secret::new(*b"sixteen bytes ok")
}

/// Joins `world_size` ranks and gives each to `body` in a thread of its own; what they returned, by rank.
fn job<T: Send + 'static>(
    world_size: usize,
    address: Address,
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

/// Waits until the communicator is faulty; its verdict.
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
        address: &Address,
        secret: &Secret,
    ) -> auth::Outcome<Puppet> {
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
        };
        auth::initiate(&socket, secret, claim, ample())?;
        Ok(Puppet {
            socket,
            splitter: Splitter::new(SERVER_FRAME_BYTES_MAX),
        })
    }

    fn join(rank: u32, world_size: u32, address: &Address) -> Puppet {
        let mut puppet = Puppet::connect(rank, world_size, address, &secret()).unwrap();
        puppet.say(&Frame::Join(Presence {
            host: HostId::here().unwrap(),
            pid: std::process::id(),
        }));
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
    alone.address = None;
    let session = Session::join(&alone, None, ample()).unwrap();
    assert_eq!(
        session.exchange("card", &[0], b"me", ample()).unwrap(),
        [b"me"]
    );
    let health = session.open(1, &[0], quiet()).unwrap();
    health.abort("enough");
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
            // Nobody leaves before all have their outcome.
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
fn a_verdict_ends_the_exchange_for_its_communicator() {
    watched(|| {
        let outcomes = job(3, unix_address(), |session| {
            let health = session.open(7, &[0, 1, 2], quiet()).unwrap();
            session
                .exchange("opened", &[0, 1, 2], b"", ample())
                .unwrap();
            let outcome = match session.rank() {
                1 => {
                    health.abort("no memory left");
                    Ok(vec![])
                }
                _ => session.exchange_unless("card", &[0, 1, 2], b"", ample(), &|| health.fault()),
            };
            session.exchange("end", &[0, 1, 2], b"", ample()).unwrap();
            outcome
        });
        for rank in [0, 2] {
            let error = outcomes[rank].as_ref().unwrap_err();
            assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error}");
        }
    });
}

#[test]
fn an_abort_reaches_every_member_and_nobody_else() {
    watched(|| {
        job(4, unix_address(), |session| {
            let mine = session.open(7, &[0, 1, 2, 3], quiet()).unwrap();
            let other = session.open(8, &[0, 1, 2, 3], quiet()).unwrap();
            session
                .exchange("opened", &[0, 1, 2, 3], b"", ample())
                .unwrap();
            if session.rank() == 2 {
                mine.abort("enough");
            }
            let error = verdict(&mine);
            assert!(
                matches!(&error, Error::Aborted { rank: 2, reason } if reason == "enough"),
                "{error}"
            );
            session
                .exchange("seen", &[0, 1, 2, 3], b"", ample())
                .unwrap();
            assert!(!other.is_faulty());
        });
    });
}

#[test]
fn the_first_of_many_reports_is_everybodys_verdict() {
    watched(|| {
        let classes = job(4, unix_address(), |session| {
            let health = session.open(7, &[0, 1, 2, 3], quiet()).unwrap();
            session
                .exchange("opened", &[0, 1, 2, 3], b"", ample())
                .unwrap();
            let suspicion = match session.rank() {
                0 => Error::Aborted {
                    rank: 0,
                    reason: "mine".into(),
                },
                rank => Error::Corrupt {
                    peer: (rank + 1) % 4,
                    what: "bits".into(),
                    site: None,
                },
            };
            let settled = health.settle(suspicion, AMPLE).to_string();
            session
                .exchange("settled", &[0, 1, 2, 3], b"", ample())
                .unwrap();
            settled
        });
        assert!(
            classes.iter().all(|class| *class == classes[0]),
            "{classes:?}"
        );
    });
}

#[test]
fn a_lost_connection_is_a_failed_peer_and_ends_exchanges() {
    watched(|| {
        for address in [unix_address(), tcp_address()] {
            let first = address.clone();
            let puppet = thread::spawn(move || {
                let mut puppet = Puppet::join(2, 3, &first);
                puppet.say(&Frame::Open {
                    communicator: 7,
                    members: vec![0, 1, 2],
                });
            });
            let ranks: Vec<_> = (0..2)
                .map(|rank| {
                    let launch = launch(rank, 3, &address);
                    thread::spawn(move || {
                        let session = Session::join(&launch, Some(secret()), ample()).unwrap();
                        let health = session.open(7, &[0, 1, 2], quiet()).unwrap();
                        let outcome = session.exchange("never", &[0, 1, 2], b"", ample());
                        let lost =
                            |error: &Error| matches!(error, Error::PeerFailed { rank: 2, .. });
                        assert!(lost(&outcome.unwrap_err()));
                        assert!(lost(&verdict(&health)));
                        session.exchange("both", &[0, 1], b"", ample()).unwrap();
                    })
                })
                .collect();
            puppet.join().unwrap();
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        }
    });
}

#[test]
fn leaving_in_good_order_is_no_fault() {
    watched(|| {
        job(3, unix_address(), |session| {
            let health = session.open(7, &[0, 1, 2], quiet()).unwrap();
            session
                .exchange("opened", &[0, 1, 2], b"", ample())
                .unwrap();
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
fn rank_0_may_leave_first() {
    watched(|| {
        job(3, unix_address(), |session| {
            let health = session.open(7, &[0, 1, 2], quiet()).unwrap();
            session
                .exchange("opened", &[0, 1, 2], b"", ample())
                .unwrap();
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

/// Rank 0 and 1 are real, rank 2 is a puppet that `answers` inquiries with this sequence or not at all.
fn blamed_for_a_timeout(reported: Vec<usize>, answers: Option<u64>) -> Vec<usize> {
    let address = unix_address();
    let first = address.clone();
    let puppet = thread::spawn(move || {
        let mut puppet = Puppet::join(2, 3, &first);
        puppet.say(&Frame::Open {
            communicator: 7,
            members: vec![0, 1, 2],
        });
        let asked = puppet.hear(|frame| matches!(frame, Frame::Inquiry { .. }));
        if let (
            Frame::Inquiry {
                communicator,
                inquiry,
            },
            Some(sequence),
        ) = (asked, answers)
        {
            puppet.say(&Frame::Answer {
                communicator,
                inquiry,
                sequence,
            });
        }
        puppet.hear(|frame| matches!(frame, Frame::Verdict { .. }));
        puppet.say(&Frame::Goodbye);
        puppet.hear(|frame| matches!(frame, Frame::Departed { rank: 2 }));
    });
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let launch = launch(rank, 3, &address);
            let reported = reported.clone();
            thread::spawn(move || {
                let session = Session::join(&launch, Some(secret()), ample()).unwrap();
                let health = session.open(7, &[0, 1, 2], quiet()).unwrap();
                health.progress(5);
                session.exchange("opened", &[0, 1], b"", ample()).unwrap();
                if rank == 1 {
                    health.report(&Error::Timeout {
                        waiting_for: reported,
                        after_ms: 9,
                        site: None,
                    });
                }
                let error = verdict(&health);
                session.exchange("seen", &[0, 1], b"", ample()).unwrap();
                error
            })
        })
        .collect();
    let errors: Vec<Error> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    puppet.join().unwrap();
    assert_eq!(errors[0].to_string(), errors[1].to_string());
    match &errors[0] {
        Error::Timeout {
            waiting_for,
            after_ms: 9,
            ..
        } => waiting_for.clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_timeout_is_blamed_on_the_silent_rank() {
    watched(|| assert_eq!(blamed_for_a_timeout(vec![0], None), [2]));
}

#[test]
fn a_timeout_is_blamed_on_the_rank_that_is_behind() {
    watched(|| assert_eq!(blamed_for_a_timeout(vec![0], Some(4)), [2]));
}

#[test]
fn a_timeout_without_better_knowledge_is_blamed_as_reported() {
    watched(|| assert_eq!(blamed_for_a_timeout(vec![0, 2], Some(5)), [0, 2]));
}

#[test]
fn a_wrong_secret_is_a_clear_error_and_does_not_disturb_the_others() {
    watched(|| {
        for address in [unix_address(), tcp_address()] {
            let intruder = address.clone();
            let wrong = thread::spawn(move || {
                let launch = launch(1, 2, &intruder);
                Session::join(&launch, Some(Secret::new(*b"another")), ample()).unwrap_err()
            });
            let zero = {
                let launch = launch(0, 2, &address);
                thread::spawn(move || Session::join(&launch, Some(secret()), ample()).unwrap())
            };
            let error = wrong.join().unwrap().to_string();
            assert!(error.contains("the secrets differ"), "{error}");
            let one = Session::join(&launch(1, 2, &address), Some(secret()), ample()).unwrap();
            drop((one, zero.join().unwrap()));
        }
    });
}

fn refusal(outcome: auth::Outcome<Puppet>) -> Refusal {
    match outcome {
        Err(Failure::Refused(refusal)) => refusal,
        Err(Failure::Broken(error)) => panic!("{error}"),
        Ok(_) => panic!("admitted"),
    }
}

#[test]
fn impossible_claims_are_refused_by_name() {
    watched(|| {
        let address = unix_address();
        let zero = {
            let launch = launch(0, 3, &address);
            thread::spawn(move || Session::join(&launch, Some(secret()), ample()).unwrap())
        };
        let one = Puppet::connect(1, 3, &address, &secret()).unwrap();
        let claim = |rank, size| refusal(Puppet::connect(rank, size, &address, &secret()));
        assert_eq!(claim(1, 3), Refusal::Duplicate);
        assert_eq!(claim(0, 3), Refusal::Rank);
        assert_eq!(claim(3, 3), Refusal::Rank);
        assert_eq!(claim(2, 4), Refusal::WorldSize);
        // The rejected ones have not disturbed those that belong here.
        let mut one = one;
        one.say(&Frame::Join(Presence {
            host: HostId::here().unwrap(),
            pid: std::process::id(),
        }));
        let _two = Puppet::join(2, 3, &address);
        one.hear(|frame| matches!(frame, Frame::Welcome { .. }));
        zero.join().unwrap();
    });
}

#[test]
fn garbage_and_silence_at_the_door_delay_nobody() {
    watched(|| {
        let address = tcp_address();
        let zero = {
            let launch = launch(0, 2, &address);
            thread::spawn(move || Session::join(&launch, Some(secret()), ample()).unwrap())
        };
        let connect = || loop {
            if let Ok(socket) = Socket::connect(&address, ample()) {
                return socket;
            }
            thread::yield_now();
        };
        let silent: Vec<Socket> = (0..20).map(|_| connect()).collect();
        for length in [1, 71, 72, 73, 4000] {
            let socket = connect();
            // The server may end the connection in the middle of it.
            let _ = socket.write_all(&vec![0x5a; length], ample());
        }
        let one = Session::join(&launch(1, 2, &address), Some(secret()), ample()).unwrap();
        drop((one, zero.join().unwrap(), silent));
    });
}

#[test]
fn a_job_that_does_not_come_together_names_the_missing() {
    watched(|| {
        let address = unix_address();
        let join = |rank| {
            let launch = launch(rank, 3, &address);
            thread::spawn(move || {
                Session::join(&launch, None, soon(300))
                    .unwrap_err()
                    .to_string()
            })
        };
        for error in [join(0), join(1)].map(|rank| rank.join().unwrap()) {
            assert!(error.contains("missing ranks: [2]"), "{error}");
        }
    });
}

#[test]
fn without_a_secret_nothing_listens_on_tcp() {
    let address = tcp_address();
    let error = Session::join(&launch(0, 2, &address), None, ample()).unwrap_err();
    assert!(error.to_string().contains("RINGFOLD_SECRET"), "{error}");
}

#[test]
fn errors_keep_class_and_ranks_on_the_wire() {
    let members = [3, 5, 9];
    let errors = [
        Error::PeerFailed {
            rank: 2,
            reason: "gone".into(),
            site: None,
        },
        Error::Timeout {
            waiting_for: vec![0, 2],
            after_ms: 8,
            site: None,
        },
        Error::Mismatch {
            ranks: [2, 1],
            calls: ["this".into(), "that".into()],
            site: None,
        },
        Error::Corrupt {
            peer: 0,
            what: "bits".into(),
            site: None,
        },
        Error::Aborted {
            rank: 1,
            reason: "enough".into(),
        },
    ];
    for error in errors {
        let fault = Fault::from_error(&error, &members, 0);
        let frame = Frame::Verdict {
            communicator: 1,
            fault,
        };
        let mut splitter = Splitter::new(1000);
        splitter.push(&frame.encode());
        let Ok(Some(Frame::Verdict { fault, .. })) = splitter.next_frame() else {
            panic!("not a verdict");
        };
        assert_eq!(fault.to_error(&members).to_string(), error.to_string());
        assert_eq!(fault.to_error(&members).class(), error.class());
    }
}

#[test]
fn a_job_leaves_no_descriptor_and_no_thread() -> Result<()> {
    // Other tests of this process open and close descriptors meanwhile, so this looks at the job's own name.
    let address = unix_address();
    let Address::Unix { name } = address.clone() else {
        unreachable!()
    };
    let is_listed = || {
        std::fs::read_to_string("/proc/net/unix")
            .unwrap()
            .contains(&name)
    };
    let zero = {
        let launch = launch(0, 2, &address);
        thread::spawn(move || Session::join(&launch, None, ample()))
    };
    let one = Session::join(&launch(1, 2, &address), None, ample())?;
    let zero = zero.join().unwrap()?;
    zero.exchange("x", &[0], b"", ample())?;
    drop((one, zero));
    assert!(!is_listed());
    Ok(())
}
