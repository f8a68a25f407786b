//! The control plane in virtual time: the product's own hub.
//!
//! The control plane starts with the first fault. Its messages take a link's latency, and its
//! server never stalls.

use std::time::{Duration, Instant};

use crate::control::fault::Fault;
use crate::control::frame::{Frame, Presence};
use crate::control::hub::Hub;
use crate::topology::HostId;

/// Id of the only communicator.
pub(super) const COMMUNICATOR: u64 = 1;

/// Time limit for joining, far beyond the end of every simulation.
const JOINING: Duration = Duration::from_secs(1 << 40);

/// The hub and the verdicts it has issued.
pub(super) struct Control {
    pub hub: Hub,
    /// Start time of the hub's clock; nothing depends on the value.
    pub origin: Instant,
    /// Verdicts issued so far; planned items refer to a verdict by its index.
    pub verdicts: Vec<Fault>,
}

impl Control {
    /// Returns a hub that all ranks have joined.
    pub fn new(ranks: usize) -> Control {
        let origin = Instant::now();
        let mut hub = Hub::new(1, [0; 32], ranks as u32, origin + JOINING);
        let host = HostId::from_bytes([0; _]);
        let members: Vec<u32> = (0..ranks as u32).collect();
        let presence = Presence { host, pid: 1 };
        let join = Frame::Join { presence };
        let open = Frame::Open {
            communicator: COMMUNICATOR,
            members: members.clone(),
        };
        for frame in [join, open] {
            for rank in &members {
                let taken = hub.receive(*rank, frame.clone(), origin);
                taken.expect("each rank joins once and opens its own communicator");
            }
        }
        hub.take_output();
        Control {
            hub,
            origin,
            verdicts: Vec::new(),
        }
    }

    /// Converts virtual time to the hub's clock, without fractions of nanoseconds.
    pub fn instant(&self, at_ps: u64) -> Instant {
        self.origin + Duration::from_nanos(at_ps / 1000)
    }
}
