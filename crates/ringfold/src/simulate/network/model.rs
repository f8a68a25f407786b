//! What the simulated network and the simulated processors are like: numbers, and what they mean.

use crate::error::{Error, Result};
use crate::transport::PIECE_ALIGN_BYTES;
use crate::types::DType;
use crate::wait::{CROWDED_SPIN_DIVISOR, YIELDS_ON_SOCKETS};

/// What a packet holds: TCP's payload in a frame of Ethernet's usual length.
pub const PACKET_BYTES: u64 = 1448;

/// What a call has in the caches for each byte of its size, on each rank: input, output, and what
/// is under way.
const FOOTPRINT: u64 = 3;

/// Which link is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkEnds {
    /// A rank's port, in both directions. What waits for it does not hold up others.
    Port(usize),
    /// The way from the first to the second.
    Pair(usize, usize),
}

/// The network between the ranks and the hosts that they are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// What messages between hosts cost.
    pub links: Links,
    /// The cost of messages between ranks of one host; `None`: as between hosts. They have ports of
    /// their own.
    pub local: Option<Links>,
    /// Whether a rank sends and receives at once.
    pub ports: Ports,
    /// When a message sets off.
    pub sending: Sending,
    /// Ranks on each host, in rank order.
    pub ranks_per_host: usize,
    /// Hosts that are namespaces or containers of one machine, and share its cores and memory, in
    /// order.
    pub hosts_per_machine: usize,
    /// The inverse of a machine's memory bandwidth, shared by its ranks one after the other: the
    /// time of a byte of a local message, a copy or a reduction, and of a byte that a processor
    /// moves for a message. `None`: unlimited memory bandwidth.
    pub memory_ps_per_byte: Option<u64>,
    /// Cores that the ranks of a machine share for reductions, copies and overheads. `None`: enough
    /// for all.
    pub cores_per_host: Option<usize>,
    /// What the last-level caches of a machine hold. `None`: everything.
    pub cache_bytes: Option<u64>,
    /// The pieces in which a message goes from stage to stage: cells of a ring, or what a socket
    /// takes at once. `None`: whole messages.
    pub segment_bytes: Option<u64>,
    /// Links inside the network that several ranks share.
    pub switches: Vec<Switch>,
}

/// What a message costs on a kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Links {
    /// The latency α: from the moment at which the first byte leaves until it is there.
    pub alpha_ps: u64,
    /// The inverse of the bandwidth, β. 100 Gbit/s are 80.
    pub ps_per_byte: u64,
    /// LogGP's o: what the sender's and the receiver's processor spend on a message, each.
    pub overhead_ps: u64,
    /// The same where ranks outnumber their machine's cores: a rank finds in the core's caches what
    /// another one left there. `None`: no other.
    pub crowded_ps: Option<u64>,
    /// What they spend on a message more, each, that does not fit one packet ([`PACKET_BYTES`]):
    /// packets beyond the first are acknowledged while they are received.
    pub packets_ps: u64,
    /// What they spend on each byte, each: the kernel's copies and its work on packets, or a copy
    /// into a cell and out of it.
    pub work_ps_per_byte: u64,
    /// LogGP's g: how long a port rests after a message.
    pub gap_ps: u64,
    /// What a stream holds before its receiver takes it: a ring's cells, a socket's buffers.
    /// `None`: everything.
    pub window_bytes: Option<u64>,
    /// Of what RDMA joins: how long messages wait for their grant. `None`: no message needs one.
    pub grants: Option<Grants>,
}

/// What a long message needs before it sets off: its receiver says where it goes.
///
/// The device writes it there, so what is combined needs no copy at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grants {
    /// Messages of more bytes need one.
    pub whole_bytes_max: u64,
    /// From the posting of a receive until the sender may write.
    pub grant_ps: u64,
}

/// Whether a rank's port works in both directions at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ports {
    /// It does.
    Full,
    /// It sends or receives.
    Half,
    /// It works on any number of messages at once, as papers assume that do not mention ports.
    /// Messages of a stream keep their order.
    Unlimited,
}

/// When a message sets off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sending {
    /// When it is posted. The send is complete when the port is free of it.
    Eager,
    /// When its receive was posted, too. The send is complete when the message has arrived. With a
    /// serial server ([`Server::Serial`]), a rank that reduces messages requests one at a time.
    Rendezvous,
}

/// A full-duplex link inside the network for messages between `ranks` and all others. Concurrent
/// messages share it max-min fairly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// For errors and reports.
    pub name: String,
    /// The inverse of its bandwidth in each direction.
    pub ps_per_byte: u64,
    /// The ranks on the near side.
    pub ranks: Vec<usize>,
}

/// What computing costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compute {
    /// What every reduction takes, whatever its length.
    pub reduce_ps: u64,
    /// γ: what a byte of the result takes in addition.
    pub reduce_ps_per_byte: u64,
    /// γ of some data types, instead.
    pub reduce_ps_per_byte_of: Vec<(DType, u64)>,
    /// What a byte of a local copy takes.
    pub copy_ps_per_byte: u64,
    /// What a byte that a processor reads takes more, for a message, a copy or a reduction, if it
    /// comes from memory and not from a cache.
    pub miss_ps_per_byte: u64,
    /// How many reductions a rank does at once.
    pub server: Server,
    /// How long a rank that waits keeps its core, polling, before it sleeps; where ranks outnumber
    /// cores they have learnt to poll for less (`wait::CROWDED_SPIN_DIVISOR`).
    pub spin_ps: u64,
    /// From the moment at which a rank that sleeps is to do something until it does: if a core was
    /// idle, which then sleeps, too, ...
    pub wake_ps: u64,
    /// ... and if another rank has just left the core.
    pub switch_ps: u64,
}

/// How many things a rank computes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    /// As many as there are; only a host's cores set a limit.
    Parallel,
    /// One after the other: a progress thread that reduces.
    Serial,
}

impl Default for Links {
    /// The slow-node paper's: 5 µs and 100 Gbit/s.
    fn default() -> Links {
        Links {
            alpha_ps: 5_000_000,
            ps_per_byte: 80,
            overhead_ps: 0,
            crowded_ps: None,
            packets_ps: 0,
            work_ps_per_byte: 0,
            gap_ps: 0,
            window_bytes: None,
            grants: None,
        }
    }
}

impl Default for Network {
    /// One rank a host, ports in both directions, eager sending, nothing shared.
    fn default() -> Network {
        Network {
            links: Links::default(),
            local: None,
            ports: Ports::Full,
            sending: Sending::Eager,
            ranks_per_host: 1,
            hosts_per_machine: 1,
            memory_ps_per_byte: None,
            cores_per_host: None,
            cache_bytes: None,
            segment_bytes: None,
            switches: Vec::new(),
        }
    }
}

impl Default for Compute {
    /// 20 GB/s for reductions, copies for nothing, one thing at a time.
    fn default() -> Compute {
        Compute {
            reduce_ps: 0,
            reduce_ps_per_byte: 50,
            reduce_ps_per_byte_of: Vec::new(),
            copy_ps_per_byte: 0,
            miss_ps_per_byte: 0,
            server: Server::Serial,
            spin_ps: 0,
            wake_ps: 0,
            switch_ps: 0,
        }
    }
}

impl Compute {
    /// Computing that costs nothing.
    pub const FREE: Compute = Compute {
        reduce_ps: 0,
        reduce_ps_per_byte: 0,
        reduce_ps_per_byte_of: Vec::new(),
        copy_ps_per_byte: 0,
        miss_ps_per_byte: 0,
        server: Server::Parallel,
        spin_ps: 0,
        wake_ps: 0,
        switch_ps: 0,
    };

    /// What combining `bytes` bytes of these elements with others takes.
    pub fn reduction_ps(&self, dtype: DType, bytes: u64) -> u64 {
        let mut own = self.reduce_ps_per_byte_of.iter();
        let ps_per_byte = own
            .find(|(of, _)| *of == dtype)
            .map_or(self.reduce_ps_per_byte, |(_, own)| *own);
        self.reduce_ps + ps_per_byte * bytes
    }

    /// Whether a rank keeps its core between jobs, and sleeps when it has waited for long.
    pub fn has_turns(&self) -> bool {
        self.spin_ps + self.wake_ps + self.switch_ps > 0
    }
}

impl Links {
    /// What the processor at one end spends on a message of so many bytes, beside each of them.
    pub fn message_ps(&self, bytes: u64) -> u64 {
        match bytes > PACKET_BYTES {
            true => self.overhead_ps + self.packets_ps,
            false => self.overhead_ps,
        }
    }

    /// How long after its receive was posted a message of so many bytes may leave; `None`: it waits
    /// for none.
    pub fn grant_ps(&self, bytes: u64) -> Option<u64> {
        let grants = self.grants.as_ref();
        let needed = grants.filter(|grants| bytes > grants.whole_bytes_max);
        needed.map(|grants| grants.grant_ps)
    }

    /// These where ranks outnumber their machine's cores.
    pub fn crowded(self) -> Links {
        Links {
            overhead_ps: self.crowded_ps.unwrap_or(self.overhead_ps),
            ..self
        }
    }

    /// Whether processors do nothing for messages.
    pub fn has_free_ends(&self) -> bool {
        self.overhead_ps + self.packets_ps + self.work_ps_per_byte == 0
    }
}

impl Network {
    /// Which host a rank is on.
    pub fn host(&self, rank: usize) -> usize {
        rank / self.ranks_per_host.max(1)
    }

    /// Which machine a rank is on.
    pub fn machine(&self, rank: usize) -> usize {
        self.host(rank) / self.hosts_per_machine.max(1)
    }

    /// Whether the ranks of a machine, of so many in all, outnumber its cores.
    pub fn is_crowded(&self, ranks: usize) -> bool {
        self.cores_per_host
            .is_some_and(|cores| self.sharers(ranks) > cores)
    }

    /// The same with the links that so many ranks find: see [`Links::crowded`].
    pub fn among(self, ranks: usize) -> Network {
        match self.is_crowded(ranks) {
            true => Network {
                links: self.links.crowded(),
                local: self.local.map(Links::crowded),
                ..self
            },
            false => self,
        }
    }

    /// The most ranks, of so many in all, on one machine.
    fn sharers(&self, ranks: usize) -> usize {
        let sharers = self.hosts_per_machine.saturating_mul(self.ranks_per_host);
        sharers.min(ranks)
    }

    /// Ranks, of so many in all, for each core of a machine, where that is more than one.
    pub fn load(&self, ranks: usize) -> f64 {
        let sharers = self.sharers(ranks);
        let cores = self.cores_per_host.unwrap_or(sharers);
        (sharers as f64 / cores.max(1) as f64).max(1.0)
    }

    /// What each byte that a processor reads takes more in a call of `bytes` bytes, on average,
    /// because some come from memory. Of ranks that share a core one counts, as they work on the
    /// same part of a call at a time. A cache that other data goes through, too, holds what is half
    /// its size; of what is as large as itself and read in turns nothing is left when it is due.
    pub fn miss_ps(&self, compute: &Compute, ranks: usize, bytes: u64) -> u64 {
        let Some(cache_bytes) = self.cache_bytes.map(u128::from) else {
            return 0;
        };
        let sharers = self.sharers(ranks);
        let running = self
            .cores_per_host
            .map_or(sharers, |cores| cores.min(sharers));
        let held_bytes = u128::from(FOOTPRINT * running as u64) * u128::from(bytes);
        let missing = (2 * held_bytes)
            .saturating_sub(cache_bytes)
            .min(cache_bytes);
        (u128::from(compute.miss_ps_per_byte) * missing / cache_bytes.max(1)) as u64
    }

    /// How long a rank that waits polls before it sleeps. Where ranks outnumber cores it makes
    /// fewer attempts, and between two of them the other ranks of its core have a turn each.
    pub fn polling_ps(&self, compute: &Compute, ranks: usize) -> u64 {
        if !self.is_crowded(ranks) {
            return compute.spin_ps;
        }
        let load = self.load(ranks).ceil() as u64;
        let yields = u64::from(YIELDS_ON_SOCKETS);
        (compute.spin_ps / CROWDED_SPIN_DIVISOR + yields * compute.switch_ps).saturating_mul(load)
    }

    /// What messages between two ranks cost, and whether they have the ports within a host.
    #[inline]
    pub fn links_between(&self, from: usize, to: usize) -> (&Links, bool) {
        match &self.local {
            Some(local) if self.host(from) == self.host(to) => (local, true),
            _ => (&self.links, false),
        }
    }

    /// The index of a port's direction.
    pub(super) fn direction(&self, receives: bool) -> usize {
        usize::from(receives && self.ports != Ports::Half)
    }

    /// Refuses parameters that are invalid for this many ranks.
    pub fn check(&self, ranks: usize) -> Result<()> {
        let invalid = |text: String| Err(Error::InvalidArgument(text));
        if self.ranks_per_host == 0 {
            return invalid("0 ranks on a host; at least 1".into());
        }
        if self.hosts_per_machine == 0 {
            return invalid("0 hosts on a machine; at least 1".into());
        }
        let is_whole = |bytes: u64| bytes > 0 && bytes.is_multiple_of(PIECE_ALIGN_BYTES as u64);
        if let Some(bytes) = self.segment_bytes.filter(|bytes| !is_whole(*bytes)) {
            let text = format!("segments of {bytes} bytes; a multiple of {PIECE_ALIGN_BYTES}");
            return invalid(text);
        }
        let links = [Some(&self.links), self.local.as_ref()];
        let has_window = links
            .iter()
            .flatten()
            .any(|links| links.window_bytes.is_some());
        if self.sending != Sending::Eager && (has_window || self.segment_bytes.is_some()) {
            let text = "segments or windows of messages that wait for their receives; send eagerly";
            return Err(Error::Unsupported(text.into()));
        }
        let has_grants = links.iter().flatten().any(|links| links.grants.is_some());
        if self.sending != Sending::Eager && has_grants {
            let text = "grants of messages that wait for their receives anyway; send eagerly";
            return Err(Error::Unsupported(text.into()));
        }
        if self.cores_per_host == Some(0) {
            return invalid("0 cores on a host; at least 1".into());
        }
        for switch in &self.switches {
            let name = &switch.name;
            if let Some(rank) = switch.ranks.iter().find(|rank| **rank >= ranks) {
                return invalid(format!("switch `{name}` has rank {rank} of {ranks} ranks"));
            }
            if switch.ps_per_byte == 0 {
                return invalid(format!("switch `{name}` has no bandwidth"));
            }
        }
        if !self.switches.is_empty() && self.ports != Ports::Full {
            let text = "declared switches with ports that are not full duplex; use full duplex";
            return Err(Error::Unsupported(text.into()));
        }
        Ok(())
    }
}
