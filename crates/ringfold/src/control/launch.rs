//! A process' place in its job, as the control plane needs it.

use super::address::RendezvousAddress;
use super::auth::Secret;
use crate::silence::Silence;
use crate::topology::interface_choice::InterfaceChoice;

/// Bytes of a name that is derived from a secret.
const NAME_BYTES: usize = 16;

/// A process' place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// This process' rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This process' number on its host, if the launcher reports it.
    pub local_rank: Option<usize>,
    /// The number of ranks on this host, if the launcher reports it.
    pub local_world_size: Option<usize>,
    /// Addresses of rank 0, in the order in which the others try them; empty for a job of one rank,
    /// and for a rank 0 with a [`RendezvousListener`](super::RendezvousListener).
    pub addresses: Vec<RendezvousAddress>,
    /// The name derived from the address alone, if a secret hides the name in use. Rank 0 listens
    /// there too, unless another user does, so that ranks with another secret, or without one, get
    /// an error.
    pub public_name: Option<RendezvousAddress>,
    /// Interfaces at which rank 0 also listens if the host's own name means its loopback.
    pub socket_ifname: Option<InterfaceChoice>,
    /// Peer timeout: how long another host may be silent; rank 0's applies.
    pub silence: Silence,
    /// The source of these settings.
    pub origin: &'static str,
    /// A warning about variables that describe a larger job than this one.
    pub remark: Option<String>,
}

impl Launch {
    /// Creates a place of which only rank and world size are known.
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

impl RendezvousAddress {
    /// Returns the abstract name `ringfold-UID-NAME`.
    pub fn local(uid: u32, name: &str) -> RendezvousAddress {
        RendezvousAddress::Unix {
            name: format!("ringfold-{uid}-{name}"),
        }
    }
}

/// Returns the name that replaces `public` if there is a secret: other users cannot predict the
/// name, so they cannot occupy it.
pub fn hidden_name(public: &RendezvousAddress, secret: &Secret) -> String {
    let key = secret.derive("name", public.to_string().as_bytes());
    let digits = key[..NAME_BYTES].iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}
