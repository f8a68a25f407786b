//! Passing shared memory between the ranks of a host.
//!
//! The leader owns the memory: the first rank of a host for a communicator's own memory, each rank
//! in turn for memory that it registers. The leader listens on a random name in the abstract
//! namespace and passes the descriptor to each member once, with the bells of all ranks if ranks
//! sleep on descriptors. Both ends check that the other is a process of the same user and knows the
//! job's secret.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::address::RendezvousAddress;
use super::auth::{self, Claim, Purpose, Refusal, Secret, initiate};
use super::handshake::HandshakeListener;
use super::limit::{GLANCE, Limit};
use super::socket::{Listener, Socket, random};
use crate::error::{Error, Ranks, Result};
use crate::transport::bell::Bells;

/// Payload of the message that passes the descriptors: an empty message cannot.
const TOKEN: [u8; 8] = *b"rf-shmem";

/// The random name of a leader's listener.
pub type ListenerName = [u8; 16];

/// Returns the abstract UNIX name of a listener.
fn unix_name(name: &ListenerName) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The leader's listener.
#[derive(Debug)]
pub struct FdListener {
    listener: Listener,
    name: ListenerName,
}

impl FdListener {
    /// Listens on a name that cannot be guessed.
    pub fn bind() -> Result<FdListener> {
        let name = random()?;
        let listener = Listener::bind_name(&unix_name(&name))
            .map_err(|error| Error::system("cannot listen on an abstract UNIX socket", error))?;
        Ok(FdListener { listener, name })
    }

    /// Accepts one connection and drops it, as a [`HandshakeListener`] does with a slow stranger.
    #[cfg(test)]
    pub fn turn_one_away(&self) {
        while self.listener.accept().is_err() {
            std::thread::yield_now();
        }
    }

    /// Returns the listener's name, which the members need.
    pub fn name(&self) -> ListenerName {
        self.name
    }
}

/// Maximum number of descriptors passed at once: the memory and the bells.
const FDS_MAX: usize = 1 + Bells::RANKS_MAX;

/// The descriptors that a member received.
#[derive(Debug)]
pub struct ReceivedDescriptors {
    /// Descriptor of the memory.
    pub memory: OwnedFd,
    /// Bells of the ranks that share the memory, if any.
    pub bells: Vec<OwnedFd>,
}

/// The passing of a leader's memory to the members.
#[derive(Clone, Copy, Debug)]
pub struct Handover<'a> {
    /// The communicator's number.
    pub communicator: u64,
    /// The number of ranks.
    pub world_size: usize,
    /// The rank that owns the memory.
    pub leader: usize,
    /// The job's secret.
    pub secret: &'a Secret,
}

impl Handover<'_> {
    /// Passes `fds`, the memory and then the bells, to each of `members` (without the leader)
    /// within `limit`. Members that connect while `listener` exists wait, also after a failure, so
    /// that this rank can report its error before they see it gone.
    pub fn serve(
        &self,
        listener: &FdListener,
        fds: &[BorrowedFd<'_>],
        members: &[usize],
        limit: Limit<'_>,
    ) -> Result<(), HandoverFailure> {
        let listener = listener.listener.try_clone();
        let listener = listener
            .map_err(|error| HandoverFailure::Local(Error::system("cannot listen", error)))?;
        let mut handshakes = HandshakeListener::new(vec![listener], self.secret, Purpose::Memory);
        let mut is_served: Vec<bool> = members.iter().map(|_| false).collect();
        let mut left = members.len();
        while left > 0 {
            limit.check().map_err(HandoverFailure::Cancelled)?;
            if limit.is_over() {
                let all = members.iter().zip(&is_served);
                let missing = all.filter(|(_, done)| !**done).map(|(m, _)| *m);
                return Err(HandoverFailure::Late(missing.collect()));
            }
            let mut judge = |claim: &Claim| self.judge(claim, members, &mut is_served);
            let admitted = handshakes.wait(None, limit.next_look(), &mut judge);
            for (claim, socket) in admitted.map_err(HandoverFailure::Local)? {
                let rank = claim.from as usize;
                send_fds(&socket, fds)
                    .map_err(|error| HandoverFailure::of(rank, "cannot pass memory on", error))?;
                left -= 1;
            }
            if let Some(want) = handshakes.want() {
                let text = format!(
                    "rank {} cannot take connections for shared memory: {want}",
                    self.leader
                );
                return Err(HandoverFailure::Local(Error::Bootstrap(text)));
            }
        }
        Ok(())
    }

    fn judge(&self, claim: &Claim, members: &[usize], served: &mut [bool]) -> Result<(), Refusal> {
        if claim.communicator != self.communicator {
            return Err(Refusal::Communicator);
        }
        let place = members
            .iter()
            .position(|member| *member == claim.from as usize);
        let Some(place) = place.filter(|_| claim.to as usize == self.leader) else {
            return Err(Refusal::Rank);
        };
        match std::mem::replace(&mut served[place], true) {
            true => Err(Refusal::Duplicate),
            false => Ok(()),
        }
    }

    /// Fetches the descriptors, as a member, from the leader that listens on `name`, within
    /// `limit`.
    ///
    /// Waits for a leader that does not answer. If the leader dropped this rank for being too slow,
    /// retries as long as the leader listens.
    pub fn fetch(
        &self,
        name: &ListenerName,
        rank: usize,
        limit: Limit<'_>,
    ) -> Result<ReceivedDescriptors, HandoverFailure> {
        let name = unix_name(name);
        let address = RendezvousAddress::Unix { name };
        loop {
            let failure = match self.attempt(&address, rank, limit) {
                Ok(handed) => return Ok(handed),
                Err(failure) => failure,
            };
            limit.check().map_err(HandoverFailure::Cancelled)?;
            match failure {
                _ if limit.is_over() => return Err(HandoverFailure::Late(vec![self.leader])),
                // While the leader listens, a retry makes sense.
                HandoverFailure::Broken { error, .. }
                    if error.kind() != ErrorKind::ConnectionRefused => {}
                other => return Err(other),
            }
            limit.pause(GLANCE).map_err(HandoverFailure::Cancelled)?;
        }
    }

    fn attempt(
        &self,
        address: &RendezvousAddress,
        rank: usize,
        limit: Limit<'_>,
    ) -> Result<ReceivedDescriptors, HandoverFailure> {
        let broken = |error| HandoverFailure::of(self.leader, "cannot fetch memory", error);
        let socket = Socket::connect(address, limit).map_err(broken)?;
        let claim = Claim {
            purpose: Purpose::Memory,
            channel: 0,
            communicator: self.communicator,
            from: rank as u32,
            to: self.leader as u32,
            world_size: self.world_size as u32,
            socket: 0,
        };
        initiate(&socket, self.secret, claim, limit).map_err(|failure| match failure {
            auth::HandshakeFailure::Broken(Error::System { kind, .. }) => broken(kind.into()),
            other => HandoverFailure::Local(Error::Bootstrap(format!(
                "rank {rank} cannot fetch the shared memory of rank {}: {other}",
                self.leader
            ))),
        })?;
        receive_fds(&socket, limit).map_err(broken)
    }
}

/// Cause of a failure to pass memory.
#[derive(Debug)]
pub enum HandoverFailure {
    /// The error that made the operation pointless.
    Cancelled(Error),
    /// The ranks that were not served, or did not serve, in time.
    Late(Vec<usize>),
    /// The connection with a rank broke: the rank has ended, or reports its own error.
    Broken {
        /// Rank at the other end.
        rank: usize,
        /// Error of the connection.
        error: std::io::Error,
    },
    /// A failure of this rank.
    Local(Error),
}

impl HandoverFailure {
    /// Classifies the error of a connection with `rank`.
    fn of(rank: usize, what: &str, error: std::io::Error) -> HandoverFailure {
        match error.kind() {
            ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
            | ErrorKind::TimedOut => HandoverFailure::Broken { rank, error },
            _ => HandoverFailure::Local(Error::system(format!("{what} (rank {rank})"), error)),
        }
    }

    /// Converts to the error of a rank that is setting up a communicator.
    pub fn into_error(self) -> Error {
        match self {
            HandoverFailure::Cancelled(error) | HandoverFailure::Local(error) => error,
            HandoverFailure::Late(ranks) => Error::Bootstrap(format!(
                "shared memory was not passed on in time; waiting for {}",
                Ranks(&ranks)
            )),
            HandoverFailure::Broken { rank, error } => Error::Bootstrap(format!(
                "shared memory was not passed on: the connection with rank {rank} broke: {error}"
            )),
        }
    }
}

fn send_fds(socket: &Socket, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = sendmsg(socket, &[IoSlice::new(&TOKEN)], &mut control, flags)?;
    match sent == TOKEN.len() {
        true => Ok(()),
        false => Err(std::io::ErrorKind::WriteZero.into()),
    }
}

fn receive_fds(socket: &Socket, limit: Limit<'_>) -> std::io::Result<ReceivedDescriptors> {
    socket.wait_readable(limit)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut token = [0; TOKEN.len()];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut token)],
        &mut control,
        flags,
    )?;
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut fds = fds.next().into_iter().flatten();
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(rustix::io::Errno::MFILE.into());
    }
    let is_whole = received.bytes == TOKEN.len() && token == TOKEN;
    match fds.next().filter(|_| is_whole) {
        Some(memory) => Ok(ReceivedDescriptors {
            memory,
            bells: fds.collect(),
        }),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}
