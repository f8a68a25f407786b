//! Tells waiting ranks, on behalf of a launcher, that a rank whose process has ended will not join.
//!
//! For a rank other than 0, the launcher connects to rank 0, with retries, and reports the absence.
//! For rank 0, the launcher listens at the address and refuses connecting ranks. A rank that joined
//! before it ended is not reported: the address is closed by then, or refuses a second connection.

use std::time::{Duration, Instant};

use super::address::RendezvousAddress;
use super::auth::{self, Claim, HandshakeFailure, Purpose, Refusal, Secret};
use super::frame::Frame;
use super::handshake::{self, HandshakeListener};
use super::limit::Limit;
use super::rendezvous;
use super::socket::{Listener, Socket};
use crate::error::{Error, Result};
use crate::topology::interface_choice::InterfaceChoice;

/// The pause between attempts to reach rank 0, which may not listen yet.
const RETRY: Duration = Duration::from_millis(100);

/// Time during which a rank 0 that cannot serve refuses connecting ranks.
const DECLINE: Duration = Duration::from_secs(2);

/// Channel number in the claim of a launcher that connects in a rank's place.
const EXCUSE: u32 = u32::MAX;

/// A rank that will not join, because its process has ended.
#[derive(Clone, Debug)]
pub struct Absence {
    /// The absent rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Address of rank 0.
    pub address: RendezvousAddress,
    /// Interfaces to listen on.
    pub socket_ifname: Option<InterfaceChoice>,
    /// The job's secret.
    pub secret: Secret,
    /// The reason, as the other ranks' errors show it.
    pub reason: String,
}

/// Refuses up to `ranks` ranks that connect to rank 0 within `DECLINE`, because it cannot serve.
pub(super) fn decline(listeners: Vec<Listener>, secret: &Secret, ranks: usize) {
    let mut handshakes = HandshakeListener::new(listeners, secret, Purpose::Control);
    let limit = Limit::from(Instant::now() + DECLINE);
    let mut left = ranks;
    while left > 0 && !limit.is_over() {
        let told = handshakes.wait(None, limit.next_look(), &mut |_| {
            left = left.saturating_sub(1);
            Err(Refusal::GivenUp)
        });
        if told.is_err() {
            return;
        }
    }
}

impl Absence {
    /// Notifies rank 0, or, in place of rank 0, each rank that connects until `limit` ends. Calls
    /// `missed` before the first notice, once the rank is known not to have joined.
    pub fn announce(&self, limit: Limit<'_>, missed: impl FnOnce()) -> Result<()> {
        match self.rank {
            0 => self.stand_in(limit, missed),
            _ => self.excuse(limit, missed),
        }
    }

    /// Tells rank 0 that the rank will not join.
    fn excuse(&self, limit: Limit<'_>, missed: impl FnOnce()) -> Result<()> {
        let claim = Claim {
            channel: EXCUSE,
            ..Claim::control(self.rank, self.world_size)
        };
        let mut missed = Some(missed);
        while !limit.is_over() {
            if let Ok(socket) = Socket::connect(&self.address, limit) {
                let patience = handshake::patience(&socket, limit);
                match auth::initiate(&socket, &self.secret, claim, patience) {
                    Ok(()) => {
                        if let Some(missed) = missed.take() {
                            missed();
                        }
                        let frame = Frame::Cancelled {
                            ranks: vec![claim.from],
                            reason: self.reason.clone(),
                        };
                        let sent = socket.write_all(&frame.encode(), limit);
                        return sent.map_err(|error| Error::system("cannot notify rank 0", error));
                    }
                    // The rank had joined, or the job is another one.
                    Err(HandshakeFailure::Refused(_)) => return Ok(()),
                    Err(HandshakeFailure::Broken(_)) => {}
                }
            }
            limit.pause(RETRY)?;
        }
        Ok(())
    }

    /// Refuses ranks that connect to rank 0. Releases the address if a new rank 0 probes it.
    fn stand_in(&self, limit: Limit<'_>, missed: impl FnOnce()) -> Result<()> {
        let choice = self.socket_ifname.as_ref();
        let Ok(listeners) = rendezvous::try_to_bind(&self.address, choice, limit) else {
            // Another process listens at the address.
            return Ok(());
        };
        let mut handshakes = HandshakeListener::new(listeners, &self.secret, Purpose::Control);
        let mut missed = Some(missed);
        while !limit.is_over() && !handshakes.was_probed() {
            limit.check()?;
            handshakes.wait(None, limit.next_look(), &mut |claim| {
                // An excuse is for another rank that has ended, and does not wait.
                if let Some(missed) = missed.take_if(|_| claim.channel != EXCUSE) {
                    missed();
                }
                Err(Refusal::Ended)
            })?;
        }
        Ok(())
    }
}
