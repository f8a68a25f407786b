//! The handshake that begins every connection: both ends prove that they know the job's secret.
//!
//! The connecting end sends and proves first, so that a listener reveals only a random number to a
//! stranger:
//!
//! ```text
//! initiator                                   acceptor
//!   hello: version, purpose, claims, nonce  →
//!                                           ←  challenge: version, status, nonce
//!   proof: HMAC("initiator", transcript)    →
//!                                           ←  answer: status, HMAC("acceptor", transcript)
//! ```
//!
//! The transcript is hello and challenge, so a proof is bound to both nonces and to every claim: it
//! can neither be replayed nor used for another rank, channel, purpose or direction. Before
//! accepting the proof, the acceptor reads [`HELLO_BYTES`] + [`PROOF_BYTES`] bytes of fixed layout
//! at most. A refusal is one constant byte, plus the expected size if the world sizes differ.
//!
//! Between processes of one user on one host, UNIX sockets check the user's identity. The handshake
//! can then use an empty secret, and serves only to carry the claims.
//!
//! The handshake authenticates both ends when the connection is made. Later data is neither
//! encrypted nor signed: a network where packets can be changed in flight needs its own protection.
//! A secret should be 16 random bytes or more, because an impostor that listens in place of rank 0
//! could guess a weaker one from the proofs it receives.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::limit::Limit;
pub use super::refusal::Refusal;
use super::socket::{Socket, random};
use super::wire::VERSION;
use crate::error::{Error, Result};

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 72;
/// Bytes of a challenge.
pub const CHALLENGE_BYTES: usize = 48;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 40;

/// Minimum bytes of a user's secret. The bound only catches mistakes: a listener can guess any
/// secret that is not random.
const SECRET_BYTES_MIN: usize = 4;
/// Offset of the world size in a hello.
const WORLD_SIZE_AT: usize = 32;

const MAGIC: [u8; 8] = *b"RINGFOLD";

/// A secret known to the ranks of a job and to no other process. Wiped when dropped, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Creates a secret from these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Secret {
        Secret(bytes.into())
    }

    /// Checks a secret that a user passed as `what`. No error contains its value.
    #[doc(hidden)]
    pub fn given(bytes: &[u8], what: &str) -> Result<Secret> {
        Secret::new(bytes).checked(what)
    }

    /// Returns the secret, which a user passed as `what`, unless it is too short.
    pub(crate) fn checked(self, what: &str) -> Result<Secret> {
        let why = match self.0.trim_ascii().len() {
            0 => "is empty, so any process could join".to_string(),
            length if length < SECRET_BYTES_MIN => {
                format!("has less than {SECRET_BYTES_MIN} bytes, so it can be guessed")
            }
            _ => return Ok(self),
        };
        Err(Error::InvalidArgument(format!(
            "{what} {why}; use 16 random bytes or more, for example of `head -c16 /dev/urandom | \
             base64`"
        )))
    }

    /// Whether the secret is empty, so that knowing it proves nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Derives a key for `purpose` and `context`; the key reveals nothing of the secret or of other
    /// keys. A key by which ranks meet is itself a secret.
    #[doc(hidden)]
    pub fn derive(&self, purpose: &str, context: &[u8]) -> [u8; 32] {
        let mut mac = keyed(self, b"ringfold key ");
        mac.update(&(purpose.len() as u64).to_le_bytes());
        mac.update(purpose.as_bytes());
        mac.update(context);
        mac.finalize().into_bytes().into()
    }

    /// Returns the empty secret, for processes that are known to be one user's on one host.
    pub(crate) fn same_user() -> Secret {
        Secret(Vec::new())
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret::new(text)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret::new(text)
    }
}

/// Hides the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing a write that is never read.
        std::hint::black_box(&mut self.0);
    }
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A rank's control connection to rank 0.
    Control = 1,
    /// One channel of data between two ranks.
    Data = 2,
    /// Passing of shared memory.
    Memory = 3,
}

impl Purpose {
    fn from_wire(number: u8) -> Option<Purpose> {
        let mut all = [Purpose::Control, Purpose::Data, Purpose::Memory].into_iter();
        all.find(|purpose| *purpose as u8 == number)
    }
}

/// The initiator's description of the connection. On the wire, little endian:
///
/// ```text
/// 0 magic: 8   8 version: u16   10 purpose: u8   11 zero   12 channel: u32   16 communicator: u64
/// 24 from: u32   28 to: u32   32 world size: u32   36 socket: u32   40 nonce: 32
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Purpose of the connection.
    pub purpose: Purpose,
    /// Number of the channel between these ranks.
    pub channel: u32,
    /// Number of the communicator; 0 for `Control`.
    pub communicator: u64,
    /// The initiator's rank.
    pub from: u32,
    /// The acceptor's rank.
    pub to: u32,
    /// World size according to the initiator.
    pub world_size: u32,
    /// Number of the socket within the channel.
    pub socket: u32,
}

impl Claim {
    /// Returns the claim of `rank` for its connection to the job's server.
    pub fn control(rank: usize, world_size: usize) -> Claim {
        Claim {
            purpose: Purpose::Control,
            channel: 0,
            communicator: 0,
            from: rank as u32,
            to: 0,
            world_size: world_size as u32,
            socket: 0,
        }
    }
}

/// The initiator's half of the handshake, without I/O.
#[derive(Debug)]
pub struct Initiator {
    secret: Secret,
    transcript: [u8; HELLO_BYTES + CHALLENGE_BYTES],
}

impl Initiator {
    /// Starts a handshake with a fresh `nonce`.
    pub fn new(secret: &Secret, claim: Claim, nonce: [u8; 32]) -> Initiator {
        let mut transcript = [0; HELLO_BYTES + CHALLENGE_BYTES];
        transcript[..HELLO_BYTES].copy_from_slice(&hello(&claim, &nonce));
        Initiator {
            secret: secret.clone(),
            transcript,
        }
    }

    /// Returns the first message.
    pub fn hello(&self) -> &[u8] {
        &self.transcript[..HELLO_BYTES]
    }

    /// Checks the challenge and returns the proof.
    pub fn prove(
        &mut self,
        challenge: &[u8; CHALLENGE_BYTES],
    ) -> Result<[u8; PROOF_BYTES], Refusal> {
        check_greeting(challenge)?;
        if challenge[10] != 0 {
            return Err(self.refusal(challenge[10], 0));
        }
        self.transcript[HELLO_BYTES..].copy_from_slice(challenge);
        Ok(sign(&self.secret, b"initiator", &self.transcript))
    }

    /// Checks the acceptor's answer.
    pub fn finish(&self, answer: &[u8; ANSWER_BYTES]) -> Result<(), Refusal> {
        // A refusal is not signed: a forger could only end a connection that it could cut anyway.
        if answer[0] != 0 {
            return Err(self.refusal(answer[0], word(answer, 4)));
        }
        verify(&self.secret, b"acceptor", &self.transcript, &answer[8..])
    }

    fn refusal(&self, number: u8, expected: u32) -> Refusal {
        Refusal::from_wire(number, word(&self.transcript, WORLD_SIZE_AT), expected)
    }
}

/// The acceptor's half of the handshake, without I/O.
#[derive(Debug)]
pub struct Acceptor {
    secret: Secret,
    transcript: [u8; HELLO_BYTES + CHALLENGE_BYTES],
}

impl Acceptor {
    /// Creates an acceptor that waits for a hello.
    pub fn new(secret: &Secret) -> Acceptor {
        Acceptor {
            secret: secret.clone(),
            transcript: [0; HELLO_BYTES + CHALLENGE_BYTES],
        }
    }

    /// Checks the hello and returns the challenge, which must be sent even if the hello is refused:
    /// the challenge contains the refusal.
    pub fn challenge(
        &mut self,
        hello: &[u8; HELLO_BYTES],
        purpose: Purpose,
        nonce: [u8; 32],
    ) -> ([u8; CHALLENGE_BYTES], Result<Claim, Refusal>) {
        let claim = parse_hello(hello).and_then(|claim| match claim.purpose == purpose {
            true => Ok(claim),
            false => Err(Refusal::Purpose),
        });
        let mut challenge = [0; CHALLENGE_BYTES];
        challenge[..8].copy_from_slice(&MAGIC);
        challenge[8..10].copy_from_slice(&VERSION.to_le_bytes());
        match claim {
            Ok(_) => challenge[16..].copy_from_slice(&nonce),
            Err(refusal) => challenge[10] = refusal.number(),
        }
        self.transcript[..HELLO_BYTES].copy_from_slice(hello);
        self.transcript[HELLO_BYTES..].copy_from_slice(&challenge);
        (challenge, claim)
    }

    /// Checks the proof.
    pub fn check(&self, proof: &[u8; PROOF_BYTES]) -> Result<(), Refusal> {
        verify(&self.secret, b"initiator", &self.transcript, proof)
    }

    /// Returns the answer to send; `refusal` is `Secret` if the proof failed, else the reason to
    /// refuse the claim, if any.
    pub fn answer(&self, refusal: Option<Refusal>) -> [u8; ANSWER_BYTES] {
        let mut answer = [0; ANSWER_BYTES];
        match refusal {
            Some(refusal) => {
                answer[0] = refusal.number();
                if let Refusal::WorldSize { expected, .. } = refusal {
                    answer[4..8].copy_from_slice(&expected.to_le_bytes());
                }
            }
            None => answer[8..].copy_from_slice(&sign(&self.secret, b"acceptor", &self.transcript)),
        }
        answer
    }
}

/// Runs the initiator's half over `socket`.
pub fn initiate<'a>(
    socket: &Socket,
    secret: &Secret,
    claim: Claim,
    limit: impl Into<Limit<'a>>,
) -> HandshakeResult<()> {
    let limit = limit.into();
    let mut initiator = Initiator::new(secret, claim, random()?);
    socket.write_all(initiator.hello(), limit)?;
    let mut challenge = [0; CHALLENGE_BYTES];
    socket.read_exact(&mut challenge, limit)?;
    let proof = initiator.prove(&challenge)?;
    socket.write_all(&proof, limit)?;
    let mut answer = [0; ANSWER_BYTES];
    socket.read_exact(&mut answer, limit)?;
    Ok(initiator.finish(&answer)?)
}

/// Result of a handshake over a socket.
pub type HandshakeResult<T> = std::result::Result<T, HandshakeFailure>;

/// Cause of a failed handshake over a socket.
#[derive(Debug)]
pub enum HandshakeFailure {
    /// One end refused the other.
    Refused(Refusal),
    /// The connection broke, or was too slow.
    Broken(Error),
}

impl From<Refusal> for HandshakeFailure {
    fn from(refusal: Refusal) -> HandshakeFailure {
        HandshakeFailure::Refused(refusal)
    }
}

impl From<Error> for HandshakeFailure {
    fn from(error: Error) -> HandshakeFailure {
        HandshakeFailure::Broken(error)
    }
}

impl From<std::io::Error> for HandshakeFailure {
    fn from(error: std::io::Error) -> HandshakeFailure {
        HandshakeFailure::Broken(Error::system("the handshake was interrupted", error))
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeFailure::Refused(refusal) => refusal.fmt(f),
            HandshakeFailure::Broken(error) => error.fmt(f),
        }
    }
}

fn hello(claim: &Claim, nonce: &[u8; 32]) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10] = claim.purpose as u8;
    bytes[12..16].copy_from_slice(&claim.channel.to_le_bytes());
    bytes[16..24].copy_from_slice(&claim.communicator.to_le_bytes());
    bytes[24..28].copy_from_slice(&claim.from.to_le_bytes());
    bytes[28..32].copy_from_slice(&claim.to.to_le_bytes());
    bytes[WORLD_SIZE_AT..36].copy_from_slice(&claim.world_size.to_le_bytes());
    bytes[36..40].copy_from_slice(&claim.socket.to_le_bytes());
    bytes[40..].copy_from_slice(nonce);
    bytes
}

/// Parses the claims of a hello; anyone can have sent it.
pub fn parse_hello(bytes: &[u8; HELLO_BYTES]) -> Result<Claim, Refusal> {
    check_greeting(bytes)?;
    let word = |at: usize| word(bytes, at);
    let claim = Claim {
        purpose: Purpose::from_wire(bytes[10]).ok_or(Refusal::Purpose)?,
        channel: word(12),
        communicator: u64::from(word(16)) | u64::from(word(20)) << 32,
        from: word(24),
        to: word(28),
        world_size: word(WORLD_SIZE_AT),
        socket: word(36),
    };
    match bytes[11] == 0 {
        true => Ok(claim),
        false => Err(Refusal::Nonsense),
    }
}

/// Reads the number at offset `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn check_greeting(bytes: &[u8]) -> Result<(), Refusal> {
    if bytes[..8] != MAGIC {
        return Err(Refusal::Nonsense);
    }
    match u16::from_le_bytes([bytes[8], bytes[9]]) {
        VERSION => Ok(()),
        theirs => Err(Refusal::Version(theirs)),
    }
}

fn keyed(secret: &Secret, domain: &[u8]) -> Hmac<Sha256> {
    // HMAC accepts keys of any length, so the call cannot fail.
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).expect("any key length will do");
    mac.update(domain);
    mac
}

fn tag(secret: &Secret, role: &[u8], transcript: &[u8]) -> Hmac<Sha256> {
    keyed(secret, b"ringfold handshake ")
        .chain_update(role)
        .chain_update(transcript)
}

fn sign(secret: &Secret, role: &[u8], transcript: &[u8]) -> [u8; 32] {
    tag(secret, role, transcript).finalize().into_bytes().into()
}

/// Verifies a tag in constant time.
fn verify(secret: &Secret, role: &[u8], transcript: &[u8], found: &[u8]) -> Result<(), Refusal> {
    tag(secret, role, transcript)
        .verify_slice(found)
        .map_err(|_| Refusal::Secret)
}
