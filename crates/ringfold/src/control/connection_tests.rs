//! Tests of connections between ranks: the handshake, the mesh, and the passing of memory.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use super::address::RendezvousAddress;
use super::auth::{
    ANSWER_BYTES, Acceptor, CHALLENGE_BYTES, Claim, HELLO_BYTES, Initiator, Purpose, Refusal,
    Secret, initiate, parse_hello,
};
use super::fd::{FdListener, Handover, HandoverFailure};
use super::handshake::HandshakeListener;
use super::limit::Limit;
use super::mesh::{Mesh, MeshListener, MeshPeer};
use super::socket::{Listener, Socket};
use super::tests::{ample, secret, watched};
use super::wire::VERSION;
use crate::congestion::CongestionAlgorithms;
use crate::error::Error;
use crate::transport::bell::Bells;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Number of sockets of each channel.
const SOCKETS: usize = 2;

fn claim() -> Claim {
    Claim {
        purpose: Purpose::Data,
        channel: 1,
        communicator: 7,
        from: 2,
        to: 0,
        world_size: 3,
        socket: 0,
    }
}

/// Runs a handshake without I/O; returns the results of the initiator and of the acceptor.
fn shake(
    mine: &Secret,
    theirs: &Secret,
    purpose: Purpose,
) -> (Result<(), Refusal>, Result<Claim, Refusal>) {
    let mut initiator = Initiator::new(mine, claim(), [1; 32]);
    let mut acceptor = Acceptor::new(theirs);
    let hello: [u8; HELLO_BYTES] = initiator.hello().try_into().unwrap();
    let (challenge, admitted) = acceptor.challenge(&hello, purpose, [2; 32]);
    let proof = match initiator.prove(&challenge) {
        Ok(proof) => proof,
        Err(refusal) => return (Err(refusal), admitted),
    };
    let refusal = acceptor.check(&proof).err();
    let outcome = initiator.finish(&acceptor.answer(refusal));
    (outcome, refusal.map_or(admitted, Err))
}

#[test]
fn both_ends_agree_when_the_secret_is_the_same() {
    let (initiator, acceptor) = shake(&secret(), &secret(), Purpose::Data);
    assert_eq!((initiator, acceptor), (Ok(()), Ok(claim())));
}

#[test]
fn refusals_are_told_apart() {
    let other = Secret::new(*b"another");
    let (initiator, acceptor) = shake(&secret(), &other, Purpose::Data);
    assert_eq!(initiator, Err(Refusal::Secret));
    assert_eq!(acceptor, Err(Refusal::Secret));
    let (initiator, acceptor) = shake(&secret(), &secret(), Purpose::Memory);
    assert_eq!(initiator, Err(Refusal::Purpose));
    assert_eq!(acceptor, Err(Refusal::Purpose));
}

#[test]
fn another_version_is_named_as_such() {
    let mut initiator = Initiator::new(&secret(), claim(), [1; 32]);
    let mut hello: [u8; HELLO_BYTES] = initiator.hello().try_into().unwrap();
    let theirs = VERSION + 1;
    hello[8..10].copy_from_slice(&theirs.to_le_bytes());
    let (mut challenge, claim) = Acceptor::new(&secret()).challenge(&hello, Purpose::Data, [2; 32]);
    assert_eq!(claim, Err(Refusal::Version(theirs)));
    // An acceptor of this version cannot refuse because of the version.
    assert_eq!(initiator.prove(&challenge), Err(Refusal::Nonsense));
    challenge[8..10].copy_from_slice(&theirs.to_le_bytes());
    assert_eq!(initiator.prove(&challenge), Err(Refusal::Version(theirs)));
}

#[test]
fn a_proof_serves_one_nonce_and_one_claim() {
    let mut initiator = Initiator::new(&secret(), claim(), [1; 32]);
    let hello: [u8; HELLO_BYTES] = initiator.hello().try_into().unwrap();
    let mut acceptor = Acceptor::new(&secret());
    let (challenge, _) = acceptor.challenge(&hello, Purpose::Data, [2; 32]);
    let proof = initiator.prove(&challenge).unwrap();
    assert_eq!(acceptor.check(&proof), Ok(()));
    // The proof is replayed to another nonce.
    acceptor
        .challenge(&hello, Purpose::Data, [3; 32])
        .1
        .unwrap();
    assert_eq!(acceptor.check(&proof), Err(Refusal::Secret));
    // The proof is used for another rank, channel or communicator.
    for byte in [12, 16, 24, 28, 32, 40] {
        let mut forged = hello;
        forged[byte] ^= 1;
        acceptor
            .challenge(&forged, Purpose::Data, [2; 32])
            .1
            .unwrap();
        assert_eq!(acceptor.check(&proof), Err(Refusal::Secret), "byte {byte}");
    }
    // The proof is sent back to its sender: an acceptor's tag is not an initiator's.
    acceptor
        .challenge(&hello, Purpose::Data, [2; 32])
        .1
        .unwrap();
    let mut reflected = [0; ANSWER_BYTES];
    reflected[8..].copy_from_slice(&proof);
    assert_eq!(initiator.finish(&reflected), Err(Refusal::Secret));
}

#[test]
fn a_refusal_signs_nothing() {
    let acceptor = Acceptor::new(&secret());
    for refusal in [Refusal::Secret, Refusal::Duplicate] {
        assert_eq!(acceptor.answer(Some(refusal))[1..], [0; ANSWER_BYTES - 1]);
    }
}

#[test]
fn a_hello_with_anything_in_its_gaps_is_nonsense() {
    let initiator = Initiator::new(&secret(), claim(), [1; 32]);
    let hello: [u8; HELLO_BYTES] = initiator.hello().try_into().unwrap();
    assert_eq!(parse_hello(&hello), Ok(claim()));
    for (byte, refusal) in [
        (0, Refusal::Nonsense),
        (11, Refusal::Nonsense),
        (10, Refusal::Purpose),
    ] {
        let mut damaged = hello;
        damaged[byte] ^= 0x40;
        assert_eq!(parse_hello(&damaged), Err(refusal), "byte {byte}");
    }
}

#[test]
fn a_handshake_that_is_cut_off_ends_at_once_and_a_silent_one_at_its_deadline() {
    watched(|| {
        let name = format!("ringfold-test-cut-off-{}", std::process::id());
        let listeners = vec![Listener::bind_name(&name).unwrap()];
        let address = RendezvousAddress::Unix { name };
        let mut handshakes = HandshakeListener::new(listeners, &secret(), Purpose::Data);
        for length in [0, 1, HELLO_BYTES - 1, HELLO_BYTES, HELLO_BYTES + 5] {
            let a = Socket::connect(&address, ample()).unwrap();
            let initiator = Initiator::new(&secret(), claim(), [1; 32]);
            let mut bytes = initiator.hello().to_vec();
            bytes.resize(length, 0);
            a.write_all(&bytes, ample()).unwrap();
            drop(a);
            // The first wait accepts the connection, the others find its end.
            for _ in 0..3 {
                let soon = Instant::now() + Duration::from_millis(5);
                let admitted = handshakes.wait(None, soon, &mut |_| Ok(())).unwrap();
                assert!(admitted.is_empty(), "{length} bytes");
            }
        }
        assert!(handshakes.was_probed());
        let (a, silent) = Socket::pair().unwrap();
        silent
            .write_all(&[0; CHALLENGE_BYTES - 1], ample())
            .unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(initiate(&a, &secret(), claim(), soon).is_err());
    });
}

fn peers(addresses: &[Vec<SocketAddr>], me: usize) -> Vec<MeshPeer> {
    let all = addresses.iter().enumerate();
    all.filter(|(rank, _)| *rank != me)
        .map(|(rank, addresses)| MeshPeer {
            rank,
            addresses: addresses.clone(),
            shares_loopback: true,
            sockets: SOCKETS,
            rails: Vec::new(),
        })
        .collect()
}

fn listener() -> MeshListener {
    MeshListener::bind(&[LOOPBACK], &secret(), CongestionAlgorithms::default()).unwrap()
}

#[test]
fn a_mesh_joins_the_same_socket_of_the_same_channel_of_each_pair() {
    watched(|| {
        const RANKS: usize = 5;
        const CHANNELS: usize = 3;
        let listeners: Vec<MeshListener> = (0..RANKS).map(|_| listener()).collect();
        let addresses: Vec<_> = listeners.iter().map(|l| l.addresses().to_vec()).collect();
        // Strangers that connect everywhere do not disturb the mesh.
        let strangers: Vec<TcpStream> = addresses
            .iter()
            .map(|all| {
                let mut stranger = TcpStream::connect(all[0]).unwrap();
                stranger.write_all(b"GET / HTTP/1.1\r\n").unwrap();
                stranger
            })
            .collect();
        thread::scope(|scope| {
            for (rank, listener) in listeners.into_iter().enumerate() {
                let addresses = &addresses;
                scope.spawn(move || {
                    let mesh = Mesh {
                        communicator: 7,
                        rank,
                        world_size: RANKS,
                        channels: CHANNELS,
                        secret: &secret(),
                        peers: &peers(addresses, rank),
                    };
                    let streams = mesh.connect(listener, ample().into()).unwrap();
                    assert!(streams[rank].is_empty());
                    for (peer, channels) in streams.iter().enumerate().filter(|(p, _)| *p != rank) {
                        assert_eq!(channels.len(), CHANNELS);
                        let sockets = channels.iter().enumerate().flat_map(|(channel, sockets)| {
                            assert_eq!(sockets.len(), SOCKETS);
                            let numbered = sockets.iter().enumerate();
                            numbered.map(move |(index, socket)| ([channel, index], socket))
                        });
                        for (place, socket) in sockets {
                            let socket = socket.as_fd().try_clone_to_owned().unwrap();
                            let mut stream = TcpStream::from(socket);
                            let [channel, index] = place.map(|number| number as u8);
                            stream.write_all(&[rank as u8, channel, index]).unwrap();
                            stream.set_nonblocking(false).unwrap();
                            let mut theirs = [0; 3];
                            stream.read_exact(&mut theirs).unwrap();
                            assert_eq!(theirs, [peer as u8, channel, index]);
                        }
                    }
                });
            }
        });
        drop(strangers);
    });
}

fn two_ranks(
    rank: usize,
    addresses: &[Vec<SocketAddr>],
    deadline: Instant,
    cancelled: bool,
) -> Error {
    let mesh = Mesh {
        communicator: 7,
        rank,
        world_size: 2,
        channels: 1,
        secret: &secret(),
        peers: &peers(addresses, rank),
    };
    let reason = || cancelled.then_some(Error::Closed);
    mesh.connect(listener(), Limit::new(deadline, &reason))
        .unwrap_err()
}

#[test]
fn a_peer_that_cannot_be_reached_is_named_with_every_address() {
    watched(|| {
        let gone = |listener: MeshListener| listener.addresses()[0];
        let addresses = vec![gone(listener()), gone(listener())];
        let error = two_ranks(1, &[addresses.clone(), vec![]], ample(), false).to_string();
        assert!(
            addresses.iter().all(|a| error.contains(&a.to_string())),
            "{error}"
        );
        assert!(error.contains("rank 0"), "{error}");
    });
}

#[test]
fn a_peer_that_does_not_come_is_named_at_the_deadline_and_a_verdict_ends_the_wait() {
    watched(|| {
        let soon = Instant::now() + Duration::from_millis(30);
        let error = two_ranks(0, &[vec![], vec![]], soon, false).to_string();
        assert!(error.contains("ranks [1]"), "{error}");
        let error = two_ranks(0, &[vec![], vec![]], ample(), true);
        assert!(matches!(error, Error::Closed), "{error}");
    });
}

#[test]
fn loopback_addresses_of_another_host_are_not_tried() {
    watched(|| {
        let here = listener();
        let peer = MeshPeer {
            rank: 0,
            addresses: here.addresses().to_vec(),
            shares_loopback: false,
            sockets: SOCKETS,
            rails: Vec::new(),
        };
        let mesh = Mesh {
            communicator: 7,
            rank: 1,
            world_size: 2,
            channels: 1,
            secret: &secret(),
            peers: &[peer],
        };
        let error = mesh.connect(listener(), ample().into()).unwrap_err();
        assert!(error.to_string().contains("no address"), "{error}");
    });
}

#[test]
fn nothing_listens_for_data_without_a_secret() {
    assert!(
        MeshListener::bind(
            &[LOOPBACK],
            &Secret::same_user(),
            CongestionAlgorithms::default()
        )
        .is_err()
    );
}

#[test]
fn memory_goes_to_each_member_and_to_no_other_rank() {
    watched(|| {
        let name = "ringfold-test";
        let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(file);
        file.write_all(b"shared").unwrap();
        let listener = FdListener::bind().unwrap();
        let name = listener.name();
        let secret = secret();
        let handover = Handover {
            communicator: 7,
            world_size: 4,
            leader: 0,
            secret: &secret,
        };
        let bells = Bells::new(4).unwrap();
        let fds: Vec<_> = std::iter::once(file.as_fd())
            .chain(bells.as_fds())
            .collect();
        thread::scope(|scope| {
            let leader = scope.spawn(|| handover.serve(&listener, &fds, &[1, 3], ample().into()));
            // Rank 2 is not a member, and a process with another secret is not a rank.
            assert!(handover.fetch(&name, 2, ample().into()).is_err());
            let other = Secret::new(*b"another");
            let intruder = Handover {
                secret: &other,
                ..handover
            };
            assert!(intruder.fetch(&name, 1, ample().into()).is_err());
            for member in [1, 3] {
                let handed = handover.fetch(&name, member, ample().into()).unwrap();
                let number = std::os::fd::AsRawFd::as_raw_fd(&handed.memory);
                let path = format!("/proc/self/fd/{number}");
                assert_eq!(std::fs::read(path).unwrap(), b"shared");
                assert_eq!(handed.bells.len(), 4);
            }
            leader.join().unwrap().unwrap();
        });
        drop(listener);
        // The name is gone.
        assert!(handover.fetch(&name, 1, ample().into()).is_err());
    });
}

#[test]
fn a_member_that_was_turned_away_because_it_stood_still_comes_again() {
    watched(|| {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("ringfold-test", flags).unwrap();
        let listener = FdListener::bind().unwrap();
        let name = listener.name();
        let secret = secret();
        let handover = Handover {
            communicator: 7,
            world_size: 2,
            leader: 0,
            secret: &secret,
        };
        thread::scope(|scope| {
            let member = scope.spawn(|| handover.fetch(&name, 1, ample().into()));
            listener.turn_one_away();
            handover
                .serve(&listener, &[file.as_fd()], &[1], ample().into())
                .unwrap();
            assert!(member.join().unwrap().is_ok());
        });
        // A verdict ends the wait for a leader that is stopped.
        let verdict = || Some(Error::Closed);
        let ended = handover.fetch(&name, 1, Limit::new(ample(), &verdict));
        assert!(matches!(
            ended,
            Err(HandoverFailure::Cancelled(Error::Closed))
        ));
    });
}
