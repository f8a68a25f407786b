//! The fuzz targets: all code that reads bytes from a peer. Each target takes any bytes, must not
//! panic, and checks the invariants of accepted values. `cargo fuzz` and the test `fuzz_smoke` run
//! the same functions.

use std::time::{Duration, Instant};

use ringfold::internals::control::Hub;
use ringfold::internals::control::Standing;
use ringfold::internals::control::wire::{decode, encode};
use ringfold::internals::control::{
    ANSWER_BYTES, Acceptor, CHALLENGE_BYTES, Claim, HELLO_BYTES, Initiator, PROOF_BYTES, Purpose,
    Secret, parse_hello,
};
use ringfold::internals::control::{Frame, Presence, RANK_FRAME_BYTES_MAX, Splitter};
use ringfold::internals::setup::{CoreList, Endpoint, PeerInfo};
use ringfold::internals::setup::{Leading, Proposal};
use ringfold::internals::topology::HOST_ID_BYTES;
use ringfold::internals::topology::link::Link;
use ringfold::internals::topology::{HostId, Machine};
use ringfold::internals::transport::{HEADER_BYTES, Header, rdma::fuzz};
use ringfold::internals::tune::{Constants, Limits};

/// A function that takes bytes from a stranger.
pub type Target = fn(&[u8]);

/// Every target with its name.
pub const TARGETS: [(&str, Target); 6] = [
    ("control_frame", control_frame),
    ("hub", hub),
    ("handshake", handshake),
    ("message_header", message_header),
    ("setup_records", setup_records),
    ("rdma_packets", rdma_packets),
];

/// Reads a stream of control frames, cut at random. An accepted frame encodes to bytes that are
/// accepted as the same frame. The encoded bytes may differ from the received ones: texts from
/// peers are cleaned.
pub fn control_frame(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else {
        return;
    };
    let mut splitter = Splitter::new(RANK_FRAME_BYTES_MAX);
    for piece in bytes.chunks(usize::from(*cut) + 1) {
        splitter.push(piece);
        loop {
            match splitter.next_frame() {
                Ok(Some(frame)) => {
                    let encoded = frame.encode();
                    let mut again = Splitter::new(RANK_FRAME_BYTES_MAX);
                    again.push(&encoded);
                    let decoded = again.next_frame().ok().flatten();
                    assert_eq!(
                        decoded.map(|frame| frame.encode()),
                        Some(encoded),
                        "{frame:?}"
                    );
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Feeds the server frames from authenticated ranks that lie: the server stays consistent and
/// writes to real ranks only.
pub fn hub(data: &[u8]) {
    const RANKS: u32 = 3;
    let start = Instant::now();
    let mut hub = Hub::new(1, [0; 32], RANKS, start + Duration::from_secs(1));
    for rank in 0..RANKS {
        let presence = Presence {
            host: HostId::from_bytes([0; HOST_ID_BYTES]),
            pid: rank + 1,
        };
        assert_eq!(hub.receive(rank, Frame::Join { presence }, start), Ok(()));
    }
    let mut splitter = Splitter::new(RANK_FRAME_BYTES_MAX);
    let mut now = start;
    for step in data.chunks(48) {
        let (rank, action) = (u32::from(step[0]) % RANKS, step[0] >> 4);
        match action {
            0 => hub.lose(rank, "fuzz"),
            1 => {
                now += Duration::from_millis(u64::from(step[0]) * 4);
                hub.tick(now);
            }
            2 => hub.shut(),
            _ => {
                splitter.push(&step[1..]);
                match splitter.next_frame() {
                    Ok(Some(frame)) => {
                        if hub.receive(rank, frame, now).is_err() {
                            hub.lose(rank, "misconduct");
                        }
                    }
                    Ok(None) => {}
                    Err(_) => splitter = Splitter::new(RANK_FRAME_BYTES_MAX),
                }
            }
        }
        assert!(hub.take_output().iter().all(|(to, _)| *to < RANKS));
    }
}

/// The claim of an honest rank.
const CLAIM: Claim = Claim {
    purpose: Purpose::Control,
    channel: 0,
    communicator: 0,
    from: 1,
    to: 0,
    world_size: 2,
    socket: 0,
};

/// Runs both halves of the handshake against a peer that does not know the secret; the peer is
/// never accepted.
pub fn handshake(data: &[u8]) {
    let secret = Secret::new(*b"a secret of this test");
    let mut bytes = [0; HELLO_BYTES + CHALLENGE_BYTES + PROOF_BYTES + ANSWER_BYTES];
    let length = data.len().min(bytes.len());
    bytes[..length].copy_from_slice(&data[..length]);
    let (hello, rest) = bytes.split_at(HELLO_BYTES);
    let (challenge, rest) = rest.split_at(CHALLENGE_BYTES);
    let (proof, answer) = rest.split_at(PROOF_BYTES);
    let hello: [u8; HELLO_BYTES] = hello.try_into().expect("split there");
    let proof: [u8; PROOF_BYTES] = proof.try_into().expect("split there");
    let mut acceptor = Acceptor::new(&secret);
    let (_, claim) = acceptor.challenge(&hello, Purpose::Control, [7; 32]);
    if let Ok(claim) = claim {
        // Parsing loses nothing: the same claim makes the same hello.
        let nonce = hello[40..].try_into().expect("32 bytes");
        assert_eq!(Initiator::new(&secret, claim, nonce).hello(), hello);
        assert_eq!(parse_hello(&hello), Ok(claim));
    }
    assert!(acceptor.check(&proof).is_err());
    let mut initiator = Initiator::new(&secret, CLAIM, [9; 32]);
    if initiator
        .prove(challenge.try_into().expect("split there"))
        .is_ok()
    {
        assert!(
            initiator
                .finish(answer.try_into().expect("split there"))
                .is_err()
        );
    }
}

/// Checks a data message's header against the expected one: no other header is accepted.
pub fn message_header(data: &[u8]) {
    let Some((due, rest)) = data.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let Some(call) =
        ringfold::internals::call::Call::decode(due[..24].try_into().expect("24 bytes"))
    else {
        return;
    };
    let word = |at: usize| u32::from_le_bytes(due[at..at + 4].try_into().expect("four bytes"));
    let header = Header {
        call,
        slice: word(24),
        index: word(28),
        bytes: word(32),
    };
    assert_eq!(header.expect(&header.encode(5), 1, 0).ok(), Some(5));
    assert_eq!(Header::claimed(&header.encode(5), 1).ok(), Some(header));
    if let Some(received) = rest.first_chunk::<HEADER_BYTES>() {
        let is_due = received[..36] == header.encode(0)[..36];
        assert_eq!(header.expect(received, 1, 0).is_ok(), is_due);
        if let Ok(claimed) = Header::claimed(received, 1) {
            assert_eq!(claimed.encode(0)[..36], received[..36]);
        }
    }
}

/// Reads the records of joining: an accepted record can be encoded and read again.
pub fn setup_records(data: &[u8]) {
    if let Some(info) = decode::<PeerInfo>(data) {
        assert_eq!(decode(&encode(&info)), Some(info));
    }
    if let Some(proposal) = decode::<Proposal>(data) {
        assert!(decode::<Proposal>(&encode(&proposal)).is_some());
    }
}

/// Feeds a peer's packets and writes over RDMA between this rank's posts: memory stays bounded, and
/// no more is written than was granted.
pub fn rdma_packets(data: &[u8]) {
    fuzz::take(data);
}

/// Returns frames as an honest rank sends them.
fn frames() -> Vec<Frame> {
    let standing = Standing {
        finished: 2,
        begun: 3,
        call: "#3 barrier".into(),
    };
    vec![
        Frame::Open {
            communicator: 7,
            members: vec![0, 1, 2],
        },
        Frame::Exchange {
            token: 1,
            timeout_ms: 50,
            key: "peer info".into(),
            members: vec![0, 2],
            blob: vec![1, 2, 3],
        },
        Frame::Close { communicator: 7 },
        Frame::Suspect { rank: 1 },
        Frame::Answer {
            communicator: 7,
            inquiry: 1,
            standing: standing.clone(),
        },
        Frame::Ask {
            communicator: 7,
            token: 2,
            timeout_ms: 50,
        },
        Frame::Standings {
            token: 2,
            standings: vec![Some(standing), None],
        },
        Frame::Goodbye,
    ]
}

/// Returns honest inputs for the targets, to be damaged.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = frames().iter().map(Frame::encode).collect();
    seeds.push(seeds.concat());
    let info = PeerInfo {
        endpoints: vec![Endpoint {
            address: "10.1.2.3:4".parse().expect("an address"),
            prefix: 24,
            interface: 1,
            link: Link {
                rate_mbps: Some(100_000),
                sockets: 8,
            },
            is_rail: true,
        }],
        sockets: Some(2),
        memory: Some([7; 16]),
        affinity: CoreList(vec![0, 1, 7]),
        straggler: "off".into(),
        ..PeerInfo::default()
    };
    seeds.push(encode(&info));
    let proposal = Proposal {
        limits: Limits::derive(&Machine::here(), 2),
        domain: Some(0),
        plugin: Some("plugin".into()),
        is_reproducible: false,
        leading: Some(Leading {
            constants: Constants::default(),
            is_probed: true,
            rules_bytes: 0,
        }),
    };
    seeds.push(encode(&proposal));
    let initiator = Initiator::new(&Secret::new(*b"another"), CLAIM, [3; 32]);
    seeds.push(initiator.hello().to_vec());
    let mut headers = vec![0; 2 * HEADER_BYTES];
    headers[8] = 4;
    headers[HEADER_BYTES + 8] = 4;
    seeds.push(headers);
    seeds
}
