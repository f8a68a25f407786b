//! Parameters of the simulated network and the simulated processors.

use crate::error::{Error, Result};
use crate::transport::PIECE_ALIGN_BYTES;
use crate::types::DType;
use crate::wait::{CROWDED_SPIN_DIVISOR, YIELDS_ON_SOCKETS};

/// Payload of a packet: TCP's, in a frame of Ethernet's usual length.
pub const PACKET_BYTES: u64 = 1448;

/// Bytes in the caches per byte of a call's size, on each rank: input, output, and data under way.
const FOOTPRINT: u64 = 3;

/// The ends of a slow link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkEnds {
    /// A rank's port, in both directions. Messages that wait for the port do not delay those at
    /// other ports.
    Port(usize),
    /// The path from the first rank to the second.
    Pair(usize, usize),
}

/// The network between the ranks, and their hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Cost of messages between hosts.
    pub links: Links,
    /// Cost of messages within a host, which have ports of their own; `None`: as between hosts.
    pub local: Option<Links>,
    /// Whether a rank's port works in both directions at once.
    pub ports: Ports,
    /// Departure time of messages.
    pub sending: Sending,
    /// Ranks on each host, in rank order.
    pub ranks_per_host: usize,
    /// Number of consecutive hosts on each machine: namespaces or containers that share its cores
    /// and memory.
    pub hosts_per_machine: usize,
    /// Inverse of a machine's memory bandwidth, which its ranks use one after the other: the time
    /// per byte of a local message, a copy or a reduction, and per byte that a processor moves for
    /// a message. `None`: unlimited bandwidth.
    pub memory_ps_per_byte: Option<u64>,
    /// Cores that the ranks of a machine share for reductions, copies and overheads. `None`: enough
    /// for all.
    pub cores_per_host: Option<usize>,
    /// Capacity of a machine's last-level caches. `None`: unlimited.
    pub cache_bytes: Option<u64>,
    /// Size of the pieces in which a message passes from stage to stage: a ring's cells, or a
    /// socket's writes. `None`: whole messages.
    pub segment_bytes: Option<u64>,
    /// Links inside the network that several ranks share.
    pub switches: Vec<Switch>,
}

/// Cost of a message on a kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Links {
    /// The latency α: from the departure of the first byte to its arrival.
    pub alpha_ps: u64,
    /// The inverse of the bandwidth, β: 80 for 100 Gbit/s.
    pub ps_per_byte: u64,
    /// LogGP's o: the time that the sender's and the receiver's processor each spend on a message.
    pub overhead_ps: u64,
    /// Overhead if ranks outnumber their machine's cores: other ranks have replaced the contents of
    /// the core's caches. `None`: the same.
    pub crowded_ps: Option<u64>,
    /// Additional time of each processor for a message of several packets ([`PACKET_BYTES`]):
    /// packets beyond the first are acknowledged while they are received.
    pub packets_ps: u64,
    /// Time per byte of each processor: the kernel's copies and its work on packets, or a copy into
    /// a cell and out of it.
    pub work_ps_per_byte: u64,
    /// LogGP's g: pause of a port after a message.
    pub gap_ps: u64,
    /// Bytes that a stream holds until its receiver consumes them: a ring's cells, a socket's
    /// buffers. `None`: unlimited.
    pub window_bytes: Option<u64>,
    /// Grants that messages wait for over RDMA. `None`: no message needs a grant.
    pub grants: Option<Grants>,
}

/// Permission that a long message needs to depart: its receiver announces the destination.
///
/// The RDMA device writes the message there, so a reduction needs no copy at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grants {
    /// Length of the longest message that needs no grant.
    pub whole_bytes_max: u64,
    /// Time from the posting of a receive until the sender may write.
    pub grant_ps: u64,
}

/// Whether a rank's port works in both directions at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ports {
    /// Sends and receives at once.
    Full,
    /// Sends or receives.
    Half,
    /// Handles any number of messages at once, as in papers that do not mention ports. Messages of
    /// a stream keep their order.
    Unlimited,
}

/// Departure time of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sending {
    /// The message departs as soon as its send is posted. The send is complete when the message has
    /// left the port.
    Eager,
    /// The message departs once its receive is posted, too. The send is complete when the message
    /// has arrived. With a serial server ([`Server::Serial`]), a rank that reduces messages
    /// requests one at a time.
    Rendezvous,
}

/// A full-duplex link inside the network for messages between `ranks` and all others. Concurrent
/// messages share it max-min fairly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Name for errors and reports.
    pub name: String,
    /// Inverse of the bandwidth in each direction.
    pub ps_per_byte: u64,
    /// The ranks on the near side.
    pub ranks: Vec<usize>,
}

/// Cost of computing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Fixed time per reduction, whatever its length.
    pub reduce_ps: u64,
    /// γ: additional time per byte of the result.
    pub reduce_ps_per_byte: u64,
    /// γ of particular data types, instead of `reduce_ps_per_byte`.
    pub reduce_ps_per_byte_of: Vec<(DType, u64)>,
    /// Time per byte of a local copy.
    pub copy_ps_per_byte: u64,
    /// Additional time per byte that a processor reads for a message, a copy or a reduction, if the
    /// byte comes from memory and not from a cache.
    pub miss_ps_per_byte: u64,
    /// Number of reductions and copies that a rank does at once.
    pub server: Server,
    /// Time that a waiting rank polls on its core before it sleeps; ranks that outnumber cores make
    /// fewer attempts (`wait::CROWDED_SPIN_DIVISOR`).
    pub spin_ps: u64,
    /// Time until a sleeping rank runs on an idle core, which sleeps, too.
    pub wake_ps: u64,
    /// Time until a rank runs on a core that another rank has just left.
    pub switch_ps: u64,
}

/// Number of reductions and copies that a rank does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    /// Any number, limited only by the machine's cores.
    Parallel,
    /// One job at a time, overheads included: a progress thread that reduces.
    Serial,
}

impl Default for Links {
    /// Returns the slow-node paper's links: 5 µs and 100 Gbit/s.
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
    /// Returns a network of one rank per host, full-duplex ports, eager sending, nothing shared.
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
    /// Returns reductions at 20 GB/s and free copies, one at a time.
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

    /// Returns the time to reduce `bytes` bytes of `dtype` with others.
    pub fn reduction_ps(&self, dtype: DType, bytes: u64) -> u64 {
        let mut own = self.reduce_ps_per_byte_of.iter();
        let ps_per_byte = own
            .find(|(of, _)| *of == dtype)
            .map_or(self.reduce_ps_per_byte, |(_, own)| *own);
        self.reduce_ps + ps_per_byte * bytes
    }

    /// Whether a rank keeps its core between jobs, and sleeps after a long wait.
    pub fn has_turns(&self) -> bool {
        self.spin_ps + self.wake_ps + self.switch_ps > 0
    }
}

impl Links {
    /// Returns the time that the processor at one end spends on a message, apart from its bytes.
    pub fn message_ps(&self, bytes: u64) -> u64 {
        match bytes > PACKET_BYTES {
            true => self.overhead_ps + self.packets_ps,
            false => self.overhead_ps,
        }
    }

    /// Returns the time from the posting of a receive until its message may leave; `None`: no grant
    /// needed.
    pub fn grant_ps(&self, bytes: u64) -> Option<u64> {
        let grants = self.grants.as_ref();
        let needed = grants.filter(|grants| bytes > grants.whole_bytes_max);
        needed.map(|grants| grants.grant_ps)
    }

    /// Returns the links as they are if ranks outnumber their machine's cores.
    pub fn crowded(self) -> Links {
        Links {
            overhead_ps: self.crowded_ps.unwrap_or(self.overhead_ps),
            ..self
        }
    }

    /// Whether messages cost the processors nothing.
    pub fn has_free_ends(&self) -> bool {
        self.overhead_ps + self.packets_ps + self.work_ps_per_byte == 0
    }
}

impl Network {
    /// Returns the host of a rank.
    pub fn host(&self, rank: usize) -> usize {
        rank / self.ranks_per_host.max(1)
    }

    /// Returns the machine of a rank.
    pub fn machine(&self, rank: usize) -> usize {
        self.host(rank) / self.hosts_per_machine.max(1)
    }

    /// Whether a machine has more ranks than cores, with `ranks` ranks in all.
    pub fn is_crowded(&self, ranks: usize) -> bool {
        self.cores_per_host
            .is_some_and(|cores| self.sharers(ranks) > cores)
    }

    /// Returns the network with the links that `ranks` ranks use: see [`Links::crowded`].
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

    /// Returns the most ranks on one machine, with `ranks` ranks in all.
    fn sharers(&self, ranks: usize) -> usize {
        let sharers = self.hosts_per_machine.saturating_mul(self.ranks_per_host);
        sharers.min(ranks)
    }

    /// Returns the number of ranks per core of a machine, at least 1, with `ranks` ranks in all.
    pub fn load(&self, ranks: usize) -> f64 {
        let sharers = self.sharers(ranks);
        let cores = self.cores_per_host.unwrap_or(sharers);
        (sharers as f64 / cores.max(1) as f64).max(1.0)
    }

    /// Returns the additional time per byte that a processor reads in a call of `bytes` bytes, on
    /// average, because some bytes come from memory. Of ranks that share a core one counts: they
    /// work on the same part of a call at a time. A cache that other data uses, too, holds data of
    /// half its size. Data as large as the cache, read in turn, is evicted before it is due.
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

    /// Returns how long a waiting rank polls before it sleeps. If ranks outnumber cores, the rank
    /// makes fewer attempts, and between two attempts the other ranks of its core have a turn each.
    pub fn polling_ps(&self, compute: &Compute, ranks: usize) -> u64 {
        if !self.is_crowded(ranks) {
            return compute.spin_ps;
        }
        let load = self.load(ranks).ceil() as u64;
        let yields = u64::from(YIELDS_ON_SOCKETS);
        (compute.spin_ps / CROWDED_SPIN_DIVISOR + yields * compute.switch_ps).saturating_mul(load)
    }

    /// Returns the links between two ranks, and whether they use the ports within a host.
    #[inline]
    pub fn links_between(&self, from: usize, to: usize) -> (&Links, bool) {
        match &self.local {
            Some(local) if self.host(from) == self.host(to) => (local, true),
            _ => (&self.links, false),
        }
    }

    /// Returns the index of a port's direction.
    pub(super) fn direction(&self, receives: bool) -> usize {
        usize::from(receives && self.ports != Ports::Half)
    }

    /// Rejects parameters that are invalid for this many ranks.
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
            let text = "segments or windows with rendezvous messages; send eagerly";
            return Err(Error::Unsupported(text.into()));
        }
        let has_grants = links.iter().flatten().any(|links| links.grants.is_some());
        if self.sending != Sending::Eager && has_grants {
            let text = "grants for rendezvous messages, which need none; send eagerly";
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
