//! A process' place in its job, as the control plane needs it.

use super::address::Address;
use super::auth::Secret;
use crate::silence::Silence;

/// Bytes of a name that follows from a secret.
const NAME_BYTES: usize = 16;

/// A process' place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// This process' rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This process' number on its host, if the launcher says so.
    pub local_rank: Option<usize>,
    /// The number of ranks on this host, if the launcher says so.
    pub local_world_size: Option<usize>,
    /// Where rank 0 listens, in the order in which the others try; empty for a job of one rank, and
    /// for a rank 0 that has a [`RendezvousListener`](super::RendezvousListener).
    pub addresses: Vec<Address>,
    /// The name that follows from the address alone, where a secret hides the one that is used.
    /// Rank 0 listens there too, if no other user does, so that ranks with another secret, or
    /// without one, get an error.
    pub public_name: Option<Address>,
    /// The interfaces at which rank 0 listens, too, where the host's own name means its loopback.
    pub socket_ifname: Option<String>,
    /// How long another host may be silent; rank 0's holds.
    pub silence: Silence,
    /// What determined all this.
    pub origin: &'static str,
    /// A warning: variables that speak of a larger job than this one.
    pub remark: Option<String>,
}

impl Launch {
    /// A place of which only rank and world size are known.
    pub fn new(rank: usize, world_size: usize, origin: &'static str) -> Launch {
        Launch {
            rank,
            world_size,
            local_rank: None,
            local_world_size: None,
            addresses: Vec::new(),
            public_name: None,
            socket_ifname: None,
            silence: Silence::default(),
            origin,
            remark: None,
        }
    }
}

impl Address {
    /// The abstract name `ringfold-UID-NAME`.
    pub fn local(uid: u32, name: &str) -> Address {
        Address::Unix {
            name: format!("ringfold-{uid}-{name}"),
        }
    }
}

/// The name that replaces `public` where there is a secret: other users cannot predict it, so they
/// cannot occupy it.
pub fn hidden_name(public: &Address, secret: &Secret) -> String {
    let key = secret.derive("name", public.to_string().as_bytes());
    let digits = key[..NAME_BYTES].iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}
