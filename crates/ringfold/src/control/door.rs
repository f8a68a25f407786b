//! Listeners, and the strangers that stand before them until they have proved who they are.
//!
//! Nothing here blocks: whoever owns a [`Door`] polls its descriptors among its own. The number of strangers is bounded,
//! each has a deadline, and one that is slow, talks nonsense or does not know the secret is counted, logged once and
//! dropped, and delays nobody.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::auth::{
    ANSWER_BYTES, Acceptor, CHALLENGE_BYTES, Claim, HELLO_BYTES, PROOF_BYTES, Purpose, Refusal,
    Secret,
};
use super::socket::{Listener, Socket, is_transient, random};

/// How long a stranger has for its handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(2);
/// Strangers in their handshake at once; more wait in the listeners' queues.
const STRANGERS_MAX: usize = 256;

/// Decides about the claim of somebody who knows the secret; whom it lets in, is in.
pub type Admit<'a> = &'a mut dyn FnMut(&Claim) -> Result<(), Refusal>;

/// Listeners for one purpose.
pub struct Door {
    listeners: Vec<Listener>,
    strangers: Vec<Stranger>,
    secret: Secret,
    purpose: Purpose,
    turned_away: u64,
}

/// A connection in its handshake.
struct Stranger {
    socket: Socket,
    name: String,
    deadline: Instant,
    acceptor: Acceptor,
    /// The message that is being received: hello, or proof when there is a claim.
    received: Vec<u8>,
    claim: Option<Claim>,
}

/// What became of a stranger.
enum Progress {
    Waiting,
    Admitted(Claim),
    TurnedAway(String),
}

impl Door {
    /// A door that lets in who knows `secret` and comes for `purpose`.
    pub fn new(listeners: Vec<Listener>, secret: &Secret, purpose: Purpose) -> Door {
        Door {
            listeners,
            strangers: Vec::new(),
            secret: secret.clone(),
            purpose,
            turned_away: 0,
        }
    }

    /// Appends the descriptors to poll.
    pub fn add_descriptors<'a>(&'a self, entries: &mut Vec<PollFd<'a>>) {
        // At the limit nobody new is let near; the entries stay, so that their number does not change.
        let listening = match self.strangers.len() < STRANGERS_MAX {
            true => PollFlags::IN,
            false => PollFlags::empty(),
        };
        let listeners = self
            .listeners
            .iter()
            .map(|listener| (listener.as_fd(), listening));
        let strangers = self.strangers.iter();
        let strangers = strangers.map(|stranger| (stranger.socket.as_fd(), PollFlags::IN));
        entries.extend(
            listeners
                .chain(strangers)
                .map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)),
        );
    }

    /// When the most impatient stranger's time is over.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.strangers
            .iter()
            .map(|stranger| stranger.deadline)
            .min()
    }

    /// Serves whom `is_ready`, in the order of [`Door::add_descriptors`]; those who are in now.
    pub fn serve(&mut self, is_ready: &[bool], admit: Admit<'_>) -> Vec<(Claim, Socket)> {
        let (listeners, strangers) = is_ready.split_at(self.listeners.len().min(is_ready.len()));
        let mut admitted = Vec::new();
        // The last one first, because those that are through are taken out.
        for index in (0..strangers.len().min(self.strangers.len())).rev() {
            if !strangers[index] {
                continue;
            }
            match self.strangers[index].advance(self.purpose, admit) {
                Progress::Waiting => {}
                Progress::Admitted(claim) => {
                    let stranger = self.strangers.swap_remove(index);
                    log::debug!(
                        target: "ringfold::control",
                        "rank {} came from {} for {:?}", claim.from, stranger.name, claim.purpose
                    );
                    admitted.push((claim, stranger.socket));
                }
                Progress::TurnedAway(why) => {
                    let stranger = self.strangers.swap_remove(index);
                    self.turn_away(&stranger.name, &why);
                }
            }
        }
        self.turn_away_slow(Instant::now());
        for (index, _) in listeners.iter().enumerate().filter(|(_, ready)| **ready) {
            self.accept(index);
        }
        admitted
    }

    fn accept(&mut self, index: usize) {
        match self.listeners[index].accept() {
            Ok((name, socket)) => self.strangers.push(Stranger {
                socket,
                name,
                deadline: Instant::now() + HANDSHAKE,
                acceptor: Acceptor::new(&self.secret),
                received: Vec::with_capacity(HELLO_BYTES),
                claim: None,
            }),
            Err(error) if is_transient(&error) => {}
            Err(error) => self.turn_away("a connection", &error.to_string()),
        }
    }

    fn turn_away_slow(&mut self, now: Instant) {
        let slow = self
            .strangers
            .extract_if(.., |stranger| now >= stranger.deadline);
        let slow: Vec<Stranger> = slow.collect();
        for stranger in slow {
            self.turn_away(&stranger.name, "it was too slow");
        }
    }

    /// Counts a stranger that did not get in; only the first is worth a warning.
    fn turn_away(&mut self, name: &str, why: &str) {
        self.turned_away += 1;
        let level = match self.turned_away {
            1 => log::Level::Warn,
            _ => log::Level::Debug,
        };
        log::log!(target: "ringfold::control", level, "turned away {name}: {why}");
    }
}

impl Stranger {
    /// Goes on with the handshake as far as the bytes that are there allow.
    fn advance(&mut self, purpose: Purpose, admit: Admit<'_>) -> Progress {
        loop {
            let wanted = match self.claim {
                None => HELLO_BYTES,
                Some(_) => PROOF_BYTES,
            };
            let mut buffer = [0; HELLO_BYTES];
            let room = &mut buffer[..wanted - self.received.len()];
            match self.socket.read(room) {
                Ok(0) => {
                    let why = "it left in the middle of the handshake";
                    return Progress::TurnedAway(why.into());
                }
                Ok(count) => self.received.extend_from_slice(&room[..count]),
                Err(error) if is_transient(&error) => return Progress::Waiting,
                Err(error) => return Progress::TurnedAway(error.to_string()),
            }
            if self.received.len() < wanted {
                continue;
            }
            let message = std::mem::take(&mut self.received);
            match self.claim {
                Some(claim) => return self.judge(&message, claim, admit),
                None => match self.challenge(&message, purpose) {
                    Ok(claim) => self.claim = Some(claim),
                    Err(why) => return Progress::TurnedAway(why),
                },
            }
        }
    }

    fn challenge(&mut self, message: &[u8], purpose: Purpose) -> Result<Claim, String> {
        let hello: &[u8; HELLO_BYTES] = message.try_into().map_err(|_| "a short hello")?;
        let nonce = random().map_err(|error| error.to_string())?;
        let (challenge, claim) = self.acceptor.challenge(hello, purpose, nonce);
        // A fresh socket's buffer has room for this.
        let sent = self.socket.write(&challenge);
        match claim {
            Ok(claim) if sent.is_ok_and(|count| count == CHALLENGE_BYTES) => Ok(claim),
            Ok(_) => Err("it does not read".into()),
            Err(refusal) => Err(refusal.to_string()),
        }
    }

    fn judge(&mut self, message: &[u8], claim: Claim, admit: Admit<'_>) -> Progress {
        let Ok(proof) = message.try_into() else {
            return Progress::TurnedAway("a short proof".into());
        };
        let refusal = self
            .acceptor
            .check(proof)
            .and_then(|()| admit(&claim))
            .err();
        let sent = self.socket.write(&self.acceptor.answer(refusal));
        match refusal {
            Some(refusal) => {
                Progress::TurnedAway(format!("claiming rank {}: {refusal}", claim.from))
            }
            None if sent.is_ok_and(|count| count == ANSWER_BYTES) => Progress::Admitted(claim),
            None => Progress::TurnedAway("it does not read".into()),
        }
    }
}
