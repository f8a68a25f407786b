//! The control plane in virtual time: the product's own hub.
//!
//! It starts with the first fault. Its messages take a link's latency and its server is never
//! frozen.

use std::time::{Duration, Instant};

use crate::control::fault::Fault;
use crate::control::frame::{Frame, Presence};
use crate::control::hub::Hub;
use crate::topology::HostId;

/// The one communicator.
pub(super) const COMMUNICATOR: u64 = 1;

/// Far enough behind the end of every simulation.
const JOINING: Duration = Duration::from_secs(1 << 40);

/// The hub, and what it has said.
pub(super) struct Control {
    pub hub: Hub,
    /// What the hub takes for the beginning; nothing depends on it.
    pub origin: Instant,
    /// The verdicts on their way; what is planned names them by number.
    pub verdicts: Vec<Fault>,
}

impl Control {
    /// A hub that all ranks have joined.
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
                taken.expect("ranks that join once and open what has them");
            }
        }
        hub.take_output();
        Control {
            hub,
            origin,
            verdicts: Vec::new(),
        }
    }

    /// A point of virtual time for the hub, which does not look at fractions of nanoseconds.
    pub fn instant(&self, at_ps: u64) -> Instant {
        self.origin + Duration::from_nanos(at_ps / 1000)
    }
}
