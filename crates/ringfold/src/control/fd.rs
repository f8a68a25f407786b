//! Passing shared memory between the ranks of a host.
//!
//! The leader, who has the memory (the first rank of a host for what a communicator runs on, every rank in its turn for what
//! it registers), listens on a random name in the abstract namespace and hands its descriptor to each member, once. Both ends
//! check that the other is a process of the same user and knows the job's secret.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFd;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::auth::{Claim, Purpose, Refusal, Secret, initiate};
use super::door::{Door, HANDSHAKE};
use super::mesh::Cancelled;
use super::socket::{Address, Listener, Socket, random, remaining, wait_for};
use crate::error::{Error, Result};

/// How often waiting is interrupted to ask whether it still makes sense.
const GLANCE: Duration = Duration::from_millis(50);
/// The bytes that accompany a descriptor, because something must.
const TOKEN: [u8; 8] = *b"rf-shmem";

/// The leader's listener.
#[derive(Debug)]
pub struct FdListener {
    listener: Listener,
    name: String,
}

impl FdListener {
    /// Listens on a name that nobody can guess.
    pub fn bind() -> Result<FdListener> {
        let bytes: [u8; 16] = random()?;
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let listener = Listener::bind(&Address::Unix { name: name.clone() })
            .map_err(|error| Error::system("cannot listen on an abstract UNIX socket", error))?;
        Ok(FdListener { listener, name })
    }

    /// Its name: 32 hexadecimal digits, what the members need to know.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Who passes memory to whom.
#[derive(Clone, Copy, Debug)]
pub struct Handover<'a> {
    /// The communicator's number.
    pub communicator: u64,
    /// The number of ranks.
    pub world_size: usize,
    /// The rank that has the memory.
    pub leader: usize,
    /// The job's secret.
    pub secret: &'a Secret,
}

impl Handover<'_> {
    /// The leader's part: hands `fd` to each of `members` (without the leader) by `deadline`.
    pub fn serve(
        &self,
        listener: FdListener,
        fd: BorrowedFd<'_>,
        members: &[usize],
        deadline: Instant,
        cancelled: Cancelled<'_>,
    ) -> Result<()> {
        let mut door = Door::new(vec![listener.listener], self.secret, Purpose::Memory);
        let mut is_served: Vec<bool> = members.iter().map(|_| false).collect();
        let mut left = members.len();
        while left > 0 {
            if let Some(error) = cancelled() {
                return Err(error);
            }
            if remaining(deadline).is_zero() {
                let all = members.iter().zip(&is_served);
                let missing: Vec<_> = all.filter(|(_, done)| !**done).map(|(m, _)| m).collect();
                return Err(Error::Bootstrap(format!(
                    "ranks {missing:?} did not fetch the shared memory of rank {}",
                    self.leader
                )));
            }
            let mut fds: Vec<PollFd<'_>> = Vec::new();
            door.add_descriptors(&mut fds);
            let limit = deadline.min(Instant::now() + GLANCE);
            wait_for(&mut fds, Some(limit)).map_err(|e| Error::system("cannot poll", e))?;
            let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut judge = |claim: &Claim| self.judge(claim, members, &mut is_served);
            for (claim, socket) in door.serve(&is_ready, &mut judge) {
                send_fd(&socket, fd).map_err(|error| {
                    Error::system(format!("cannot pass memory to rank {}", claim.from), error)
                })?;
                left -= 1;
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

    /// A member's part: fetches the descriptor from the leader, who listens on `name`, by `deadline`.
    pub fn fetch(&self, name: &str, rank: usize, deadline: Instant) -> Result<OwnedFd> {
        let failed = |why: String| {
            Error::Bootstrap(format!(
                "rank {rank} cannot fetch the shared memory of rank {}: {why}",
                self.leader
            ))
        };
        let address: Address = format!("unix:@{name}").parse()?;
        let socket =
            Socket::connect(&address, deadline).map_err(|error| failed(error.to_string()))?;
        let claim = Claim {
            purpose: Purpose::Memory,
            channel: 0,
            communicator: self.communicator,
            from: rank as u32,
            to: self.leader as u32,
            world_size: self.world_size as u32,
        };
        let limit = deadline.min(Instant::now() + HANDSHAKE * 2);
        initiate(&socket, self.secret, claim, limit).map_err(|error| failed(error.to_string()))?;
        receive_fd(&socket, deadline).map_err(|error| failed(error.to_string()))
    }
}

fn send_fd(socket: &Socket, fd: BorrowedFd<'_>) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    // The space is made for exactly this.
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = sendmsg(socket, &[IoSlice::new(&TOKEN)], &mut control, flags)?;
    match sent == TOKEN.len() {
        true => Ok(()),
        false => Err(std::io::ErrorKind::WriteZero.into()),
    }
}

fn receive_fd(socket: &Socket, deadline: Instant) -> std::io::Result<OwnedFd> {
    socket.wait_readable(deadline)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
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
    let fd = fds.next().and_then(|mut fds| fds.next());
    match (fd, received.bytes == TOKEN.len() && token == TOKEN) {
        (Some(fd), true) => Ok(fd),
        _ => Err(std::io::Error::other("the leader sent no descriptor")),
    }
}
