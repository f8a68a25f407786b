//! What a launcher does for the ranks that wait for one whose process has ended: it tells them that
//! it will not come.
//!
//! For a rank other than 0 it goes to rank 0 in its place, as often as needed, and says so. For
//! rank 0 it listens where rank 0 would, and turns those away who come. A rank that had joined
//! before it ended is not missed: the address is closed then, or refuses a second connection.

use std::time::{Duration, Instant};

use super::address::Address;
use super::auth::{self, Claim, Failure, Purpose, Refusal, Secret};
use super::frame::Frame;
use super::handshake::{self, HandshakeListener};
use super::limit::Limit;
use super::rendezvous;
use super::socket::{Listener, Socket};
use crate::error::{Error, Result};

/// The pause between attempts to reach rank 0, which may not listen yet.
const RETRY: Duration = Duration::from_millis(100);

/// How long a rank 0 that cannot serve says so to ranks that come.
const DECLINE: Duration = Duration::from_secs(2);

/// What stands for the channel in the claim of a launcher that comes in a rank's place.
const EXCUSE: u32 = u32::MAX;

/// A rank that will not come.
#[derive(Clone, Debug)]
pub struct Absence {
    /// Which.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Where rank 0 is met.
    pub address: Address,
    /// The interfaces to be met at, as ranks have them in `RINGFOLD_SOCKET_IFNAME`.
    pub socket_ifname: Option<String>,
    /// The job's secret.
    pub secret: Secret,
    /// Why, as the others read it.
    pub reason: String,
}

/// Turns away `ranks` ranks that come to rank 0, which cannot serve them, as far as they come soon.
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
    /// Tells the ranks that wait, until none is left or the limit comes. Calls `missed`
    /// before that, when it turns out that the rank has not joined.
    pub fn announce(&self, limit: Limit<'_>, missed: impl FnOnce()) -> Result<()> {
        match self.rank {
            0 => self.stand_in(limit, missed),
            _ => self.excuse(limit, missed),
        }
    }

    /// Tells rank 0.
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
                        return sent.map_err(|error| Error::system("cannot tell rank 0", error));
                    }
                    // It had joined, or the job is another one.
                    Err(Failure::Refused(_)) => return Ok(()),
                    Err(Failure::Broken(_)) => {}
                }
            }
            limit.pause(RETRY)?;
        }
        Ok(())
    }

    /// Turns those away who come to rank 0. A new rank 0 that wants the address gets it.
    fn stand_in(&self, limit: Limit<'_>, missed: impl FnOnce()) -> Result<()> {
        let choice = self.socket_ifname.as_deref();
        let Ok(listeners) = rendezvous::try_to_bind(&self.address, choice, limit) else {
            // Another process serves there.
            return Ok(());
        };
        let mut handshakes = HandshakeListener::new(listeners, &self.secret, Purpose::Control);
        let mut missed = Some(missed);
        while !limit.is_over() && !handshakes.was_probed() {
            limit.check()?;
            handshakes.wait(None, limit.next_look(), &mut |claim| {
                // A rank that has ended, too, does not wait.
                if let Some(missed) = missed.take_if(|_| claim.channel != EXCUSE) {
                    missed();
                }
                Err(Refusal::Ended)
            })?;
        }
        Ok(())
    }
}
