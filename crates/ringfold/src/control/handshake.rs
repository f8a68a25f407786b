//! Listeners, and their strangers: connections whose other end has not proved yet who it is.
//!
//! Nothing here blocks: the owner of a [`HandshakeListener`] polls its descriptors along with its
//! own. The number of strangers is bounded, and each has a deadline. A stranger that is slow, sends
//! nonsense or does not know the secret is counted, logged once and dropped, and delays no other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::auth::{
    ANSWER_BYTES, Acceptor, CHALLENGE_BYTES, Claim, HELLO_BYTES, PROOF_BYTES, Purpose, Refusal,
    Secret,
};
use super::limit::Limit;
use super::poll::{EventFd, is_transient, ready, wait_for};
use super::socket::{Listener, Socket, random};
use crate::error::{Error, Refused, Result};

/// Time limit of a stranger's handshake. A process of this user on this host may take longer while
/// there is room: with far more processes than cores, seconds pass before each of them has run.
pub const HANDSHAKE: Duration = Duration::from_secs(2);
/// Maximum number of handshakes at once; more connections wait in the listeners' queues.
const STRANGERS_MAX: usize = 256;
/// Pause in accepting when there is no descriptor for a connection, and (`WANT`) the time after
/// which the shortage counts as lasting.
const REST: Duration = Duration::from_millis(50);
const WANT: Duration = Duration::from_secs(1);

/// Number of connections that this process has turned away. Anybody can connect, so only each
/// doubling of the number causes a warning.
static TURNED_AWAY: AtomicU64 = AtomicU64::new(0);

/// Returns the initiator's time limit for a handshake over `socket`.
pub fn patience<'a>(socket: &Socket, limit: Limit<'a>) -> Limit<'a> {
    match socket.is_unix() {
        true => limit,
        // Longer than the listener's, so that its answer arrives.
        false => limit.within(HANDSHAKE * 2),
    }
}

/// Callback that accepts or refuses the claim of a stranger that knows the secret.
pub type Admit<'a> = &'a mut dyn FnMut(&Claim) -> Result<(), Refusal>;

/// Listeners for one purpose, and their strangers.
pub struct HandshakeListener {
    listeners: Vec<Listener>,
    strangers: Vec<PendingHandshake>,
    secret: Secret,
    purpose: Purpose,
    /// Whether a connection was opened and closed without a byte.
    was_probed: bool,
    /// The connection that was refused last, and the reason: the ranks may be waiting for it.
    refused: Option<String>,
    want: Want,
}

/// State of a shortage of descriptors.
struct Want {
    /// Spare descriptor, released to accept one connection and to refuse it with the reason.
    spare: Option<EventFd>,
    /// End of the pause in accepting connections.
    rests_until: Option<Instant>,
    /// Time of the first failed accept, and its OS error.
    since: Option<(Instant, String)>,
    /// Whether a stranger that knows the secret had to be refused for want of a descriptor.
    is_serious: bool,
}

/// A connection in its handshake.
struct PendingHandshake {
    socket: Socket,
    name: String,
    deadline: Instant,
    acceptor: Acceptor,
    /// Bytes of the message being received: the hello, or the proof if there is a claim.
    received: Vec<u8>,
    claim: Option<Claim>,
    /// Whether the stranger uses the spare descriptor, and is only told why it is refused.
    is_surplus: bool,
}

/// Outcome of an attempt to advance a handshake.
enum HandshakeProgress {
    Waiting,
    Admitted(Claim),
    TurnedAway(String),
    /// The stranger was refused, but speaks this protocol, perhaps in another version, and may be
    /// an awaited rank: the rank that it claims, if readable, and the reason.
    Refused(Option<u32>, Refusal),
    /// The stranger belongs here, but there is no descriptor for it.
    Unseated,
    /// The stranger left without a byte: a check whether a process listens.
    Probed,
}

impl HandshakeListener {
    /// Creates a listener that admits connections for `purpose` whose other end knows `secret`.
    pub fn new(listeners: Vec<Listener>, secret: &Secret, purpose: Purpose) -> HandshakeListener {
        HandshakeListener {
            listeners,
            strangers: Vec::new(),
            secret: secret.clone(),
            purpose,
            was_probed: false,
            refused: None,
            want: Want {
                spare: EventFd::new().ok(),
                rests_until: None,
                since: None,
                is_serious: false,
            },
        }
    }

    /// Returns the error if ranks cannot be admitted for want of descriptors.
    pub fn want(&self) -> Option<&str> {
        let (since, text) = self.want.since.as_ref()?;
        let is_lasting = self.want.rests_until.is_some() && since.elapsed() > WANT;
        (self.want.is_serious || is_lasting).then_some(text)
    }

    /// Returns which connection was refused last and why, if any since the previous call.
    pub fn take_refused(&mut self) -> Option<String> {
        self.refused.take()
    }

    /// Whether a connection was opened and closed without a byte.
    pub fn was_probed(&self) -> bool {
        self.was_probed
    }

    /// Whether more connections may be accepted.
    fn is_open(&self) -> bool {
        let has_surplus = self.strangers.iter().any(|stranger| stranger.is_surplus);
        self.strangers.len() < STRANGERS_MAX && !has_surplus && self.want.rests_until.is_none()
    }

    /// Waits for a ready descriptor, a signal on `wake` or `until`, then [serves](Self::serve).
    pub fn wait(
        &mut self,
        wake: Option<&EventFd>,
        until: Instant,
        admit: Admit<'_>,
    ) -> Result<Vec<(Claim, Socket)>> {
        let mut fds = Vec::new();
        self.add_descriptors(&mut fds);
        // After the descriptors that `serve` handles.
        fds.extend(wake.map(|wake| PollFd::new(wake, PollFlags::IN)));
        let until = self.next_deadline().map_or(until, |next| next.min(until));
        wait_for(&mut fds, Some(until)).map_err(|error| Error::system("cannot poll", error))?;
        let is_ready = ready(&fds);
        Ok(self.serve(&is_ready, admit))
    }

    /// Appends the descriptors to poll.
    pub fn add_descriptors<'a>(&'a self, entries: &mut Vec<PollFd<'a>>) {
        // At the limit no connection is accepted; the entries remain, so that their number does not
        // change.
        let listening = match self.is_open() {
            true => PollFlags::IN,
            false => PollFlags::empty(),
        };
        let listeners = self.listeners.iter();
        entries.extend(listeners.map(|listener| PollFd::new(listener, listening)));
        let strangers = self.strangers.iter();
        entries.extend(strangers.map(|stranger| PollFd::new(&stranger.socket, PollFlags::IN)));
    }

    /// Returns the earliest deadline of a stranger, or the end of a pause in accepting.
    pub fn next_deadline(&self) -> Option<Instant> {
        let is_full = self.is_full();
        let impatient = self.strangers.iter().filter(|one| one.is_bound(is_full));
        let deadlines = impatient.map(|stranger| stranger.deadline);
        deadlines.chain(self.want.rests_until).min()
    }

    fn is_full(&self) -> bool {
        self.strangers.len() >= STRANGERS_MAX
    }

    /// Serves the listeners and strangers that are ready, in the order of
    /// [`HandshakeListener::add_descriptors`]; returns the admitted connections.
    pub fn serve(&mut self, is_ready: &[bool], admit: Admit<'_>) -> Vec<(Claim, Socket)> {
        let (listeners, strangers) = is_ready.split_at(self.listeners.len().min(is_ready.len()));
        let mut admitted = Vec::new();
        // Backwards, because finished strangers are removed.
        for index in (0..strangers.len().min(self.strangers.len())).rev() {
            let progress = match strangers[index] {
                true => self.strangers[index].advance(self.purpose, admit),
                false => HandshakeProgress::Waiting,
            };
            if let HandshakeProgress::Waiting = progress {
                continue;
            }
            let PendingHandshake { name, socket, .. } = self.strangers.swap_remove(index);
            match progress {
                HandshakeProgress::Waiting => {}
                HandshakeProgress::Admitted(claim) => {
                    log::debug!(
                        target: "ringfold::control",
                        "rank {} connected from {name} for {:?}", claim.from, claim.purpose
                    );
                    admitted.push((claim, socket));
                }
                HandshakeProgress::TurnedAway(why) => self.turn_away(&name, &why),
                HandshakeProgress::Refused(rank, refusal) => {
                    let claim = rank.map_or(String::new(), |rank| format!(" claiming rank {rank}"));
                    let name = format!("{name}{claim}");
                    self.turn_away(&name, &refusal.to_string());
                    self.refused = Some(format!("{name}: {refusal}"));
                }
                HandshakeProgress::Unseated => {
                    self.want.is_serious = true;
                    self.turn_away(&name, "no file descriptor is left for it");
                }
                HandshakeProgress::Probed => self.was_probed = true,
            }
        }
        let now = Instant::now();
        self.turn_away_slow(now);
        self.recover(now);
        for (index, _) in listeners.iter().enumerate().filter(|(_, ready)| **ready) {
            self.accept(index);
        }
        admitted
    }

    fn accept(&mut self, index: usize) {
        match self.listeners[index].accept() {
            Ok((name, socket)) => {
                self.want.since = None;
                self.let_near(name, socket, false);
            }
            Err(error) if is_transient(&error) => {}
            Err(error) if Refused(&error).is_lasting() => self.lack(index, &error),
            Err(error) => self.turn_away("a connection", &error.to_string()),
        }
    }

    fn let_near(&mut self, name: String, socket: Socket, is_surplus: bool) {
        self.strangers.push(PendingHandshake {
            socket,
            name,
            deadline: Instant::now() + HANDSHAKE,
            acceptor: Acceptor::new(&self.secret),
            received: Vec::with_capacity(HELLO_BYTES),
            claim: None,
            is_surplus,
        });
    }

    /// Handles a lack of descriptors: accepts one connection at a time with the spare descriptor,
    /// and refuses it with the reason. Without a spare, pauses accepting, because the listeners
    /// would be ready again at once.
    fn lack(&mut self, index: usize, error: &std::io::Error) {
        let since = (Instant::now(), Refused(error).to_string());
        self.want.since.get_or_insert(since);
        if self.want.spare.take().is_some()
            && let Ok((name, socket)) = self.listeners[index].accept()
        {
            return self.let_near(name, socket, true);
        }
        self.want.rests_until = Some(Instant::now() + REST);
    }

    /// Opens a spare descriptor again, and ends a pause that is over.
    fn recover(&mut self, now: Instant) {
        if self.want.rests_until.is_some_and(|until| now >= until) {
            self.want.rests_until = None;
        }
        let has_surplus = self.strangers.iter().any(|stranger| stranger.is_surplus);
        if self.want.spare.is_none() && !has_surplus {
            self.want.spare = EventFd::new().ok();
        }
    }

    fn turn_away_slow(&mut self, now: Instant) {
        let is_full = self.is_full();
        let slow = self
            .strangers
            .extract_if(.., |one| one.is_bound(is_full) && now >= one.deadline);
        let slow: Vec<PendingHandshake> = slow.collect();
        for stranger in slow {
            self.turn_away(&stranger.name, "it was too slow");
        }
    }

    /// Counts and logs a stranger that was not admitted.
    fn turn_away(&mut self, name: &str, why: &str) {
        // A counter: nothing is published with it.
        let count = TURNED_AWAY.fetch_add(1, Ordering::Relaxed) + 1;
        match count.is_power_of_two() {
            true => log::warn!(
                target: "ringfold::control",
                "turned away {name}: {why} ({count} connections so far in this process)"
            ),
            false => log::debug!(target: "ringfold::control", "turned away {name}: {why}"),
        }
    }
}

impl PendingHandshake {
    /// Whether the deadline applies: this user's processes have none while there is room.
    fn is_bound(&self, is_full: bool) -> bool {
        is_full || self.is_surplus || !self.socket.is_unix()
    }

    /// Advances the handshake as far as the received bytes allow.
    fn advance(&mut self, purpose: Purpose, admit: Admit<'_>) -> HandshakeProgress {
        loop {
            let wanted = match self.claim {
                None => HELLO_BYTES,
                Some(_) => PROOF_BYTES,
            };
            let mut buffer = [0; HELLO_BYTES];
            let room = &mut buffer[..wanted - self.received.len()];
            match self.socket.read(room) {
                Ok(0) if self.claim.is_none() && self.received.is_empty() => {
                    return HandshakeProgress::Probed;
                }
                Ok(0) => {
                    let why = "it left in the middle of the handshake";
                    return HandshakeProgress::TurnedAway(why.into());
                }
                Ok(count) => self.received.extend_from_slice(&room[..count]),
                Err(error) if is_transient(&error) => return HandshakeProgress::Waiting,
                Err(error) => return HandshakeProgress::TurnedAway(error.to_string()),
            }
            if self.received.len() < wanted {
                continue;
            }
            let message = std::mem::take(&mut self.received);
            match self.claim {
                Some(claim) => return self.judge(&message, claim, admit),
                None => match self.challenge(&message, purpose) {
                    Ok(claim) => self.claim = Some(claim),
                    Err(end) => return end,
                },
            }
        }
    }

    /// Answers the hello; the error is the outcome of a handshake that ends here.
    fn challenge(&mut self, message: &[u8], purpose: Purpose) -> Result<Claim, HandshakeProgress> {
        let turn_away = |why: &dyn ToString| HandshakeProgress::TurnedAway(why.to_string());
        let short = |_| turn_away(&"a short hello");
        let hello = message.try_into().map_err(short)?;
        let nonce = random().map_err(|error| turn_away(&error))?;
        let (challenge, claim) = self.acceptor.challenge(hello, purpose, nonce);
        // A fresh socket's buffer has room for this.
        let sent = self.socket.write(&challenge);
        match claim {
            Ok(claim) if sent.is_ok_and(|count| count == CHALLENGE_BYTES) => Ok(claim),
            Ok(_) => Err(turn_away(&"it does not read")),
            Err(refusal @ Refusal::Version(_)) => Err(HandshakeProgress::Refused(None, refusal)),
            Err(refusal) => Err(turn_away(&refusal)),
        }
    }

    fn judge(&mut self, message: &[u8], claim: Claim, admit: Admit<'_>) -> HandshakeProgress {
        let Ok(proof) = message.try_into() else {
            return HandshakeProgress::TurnedAway("a short proof".into());
        };
        let judged = match (self.acceptor.check(proof), self.is_surplus) {
            (Ok(()), true) => Err(Refusal::Descriptors),
            (Ok(()), false) => admit(&claim),
            (refused, _) => refused,
        };
        let refusal = judged.err();
        let sent = self.socket.write(&self.acceptor.answer(refusal));
        match refusal {
            Some(Refusal::Descriptors) => HandshakeProgress::Unseated,
            Some(refusal) => HandshakeProgress::Refused(Some(claim.from), refusal),
            None if sent.is_ok_and(|count| count == ANSWER_BYTES) => {
                HandshakeProgress::Admitted(claim)
            }
            None => HandshakeProgress::TurnedAway("it does not read".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::RendezvousAddress;
    use super::*;

    /// Returns a listener with one stranger of this host that has sent nothing for too long.
    fn listener(name: &str) -> (HandshakeListener, Socket) {
        let name = format!("ringfold-test-handshake-{name}-{}", std::process::id());
        let address = RendezvousAddress::Unix { name };
        let listeners = Listener::bind(&address, Instant::now()).unwrap();
        let secret = Secret::new(*b"sixteen bytes ok");
        let mut handshakes = HandshakeListener::new(listeners, &secret, Purpose::Memory);
        let far = Instant::now() + Duration::from_secs(20);
        let stranger = Socket::connect(&address, far).unwrap();
        handshakes.serve(&[true], &mut |_| Ok(()));
        handshakes.strangers[0].deadline = Instant::now();
        (handshakes, stranger)
    }

    #[test]
    fn a_slow_process_of_this_user_is_waited_for_while_there_is_room() {
        let (mut handshakes, stranger) = listener("slow");
        handshakes.serve(&[false, false], &mut |_| Ok(()));
        assert_eq!(
            (handshakes.strangers.len(), handshakes.next_deadline()),
            (1, None)
        );
        // If there is no room, the slow process is dropped.
        while handshakes.strangers.len() < STRANGERS_MAX {
            let (socket, _) = Socket::pair().unwrap();
            handshakes.let_near("another".into(), socket, false);
        }
        handshakes.serve(&[false], &mut |_| Ok(()));
        assert_eq!(handshakes.strangers.len(), STRANGERS_MAX - 1);
        let mut byte = [0];
        assert_eq!(stranger.read(&mut byte).unwrap(), 0);
    }

    #[test]
    fn without_descriptors_no_connection_is_accepted_for_a_moment() {
        let (mut handshakes, _stranger) = listener("want");
        handshakes.want.spare = None;
        handshakes.lack(0, &std::io::Error::from_raw_os_error(24));
        assert!(!handshakes.is_open() && handshakes.next_deadline().is_some());
        assert_eq!(handshakes.want(), None, "it may pass");
        let (since, text) = handshakes.want.since.as_mut().unwrap();
        *since -= 2 * WANT;
        assert!(text.contains("ulimit -n"), "{text}");
        assert!(handshakes.want().is_some());
        handshakes.recover(Instant::now() + REST);
        assert!(handshakes.is_open() && handshakes.want.spare.is_some());
    }
}
