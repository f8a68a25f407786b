//! Registration of memory: all ranks allocate their parts, exchange them with the ranks of their
//! host, and map those ranks' parts.
//!
//! ```text
//! allocate ─► records (an all-gather) ─► pass descriptors, rank by rank ─► map
//!     ─► outcomes (an all-gather)
//! ```
//!
//! The two all-gathers are ordinary calls of all ranks, including those of other hosts, so death,
//! deadlines and different calls are detected as in any call. A failure on one rank only (no
//! memory) is reported in its record or outcome: then no rank has registered anything, and the
//! communicator stays usable. A failure between the two all-gathers ends the communicator, because
//! the other ranks wait for descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::Communicator;
use super::driver::TIMEOUT_GRACE;
use super::group::RankGroup;
use super::lifecycle::ABORT_GRACE;
use super::registration::{RegisteredMut, Registration};
use super::{Counts, Request};
use crate::config::TransportChoice;
use crate::control::fd::{FdListener, Handover, HandoverFailure, ListenerName};
use crate::control::limit::Limit;
use crate::control::wire::{self, wire_struct};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::{Own, Region, Registered, Registry, Remapped, SharedMemory, private_memory};
use crate::types::{Collective, DType};

/// A rank's record of its part, which is a claim: the mapped memory is checked against the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PartRecord {
    /// Bytes requested.
    bytes: u64,
    /// Bytes of the file.
    file_bytes: u64,
    /// Whether the part exists.
    is_good: bool,
    /// Name of the listener that passes the file on; zeros for none.
    name: ListenerName,
}

wire_struct!(PartRecord {
    bytes,
    file_bytes,
    is_good,
    name
});

/// The ranks of this rank's host.
struct HostRanks<'a> {
    group: &'a RankGroup,
    /// All ranks of the host but this one.
    others: Vec<usize>,
}

/// This rank's part, before the other ranks have it.
struct OfferedPart {
    own: Own,
    fd: OwnedFd,
    listener: FdListener,
}

impl OfferedPart {
    /// Creates a part from the memory of `region`, which keeps its pages for now.
    ///
    /// # Safety
    /// As for [`Remapped::copy_of`].
    unsafe fn of(region: Region) -> Result<OfferedPart> {
        // SAFETY: the caller's promise, passed on.
        let (remapped, file, fd) = unsafe { Remapped::copy_of(region) }?;
        Ok(OfferedPart {
            own: Own::new(file, Some(remapped)),
            fd,
            listener: FdListener::bind()?,
        })
    }

    /// Creates a part of `bytes` zeros, from memory node `node` if one is given.
    fn new(bytes: usize, node: Option<usize>) -> Result<OfferedPart> {
        let (file, fd) = SharedMemory::create(bytes)?;
        if let Some(node) = node {
            file.prefer_node(node);
        }
        file.populate()?;
        Ok(OfferedPart {
            own: Own::new(file, None),
            fd,
            listener: FdListener::bind()?,
        })
    }
}

impl Communicator {
    /// Allocates `bytes` bytes of zeroed memory that the calls of this host's ranks access
    /// directly, see [`Registered`].
    ///
    /// Collective: every rank calls `alloc`, at the same place in its order of calls, and makes no
    /// other calls on this communicator from other threads meanwhile. Sizes may differ. The ranks
    /// of a host share the memory if they may use shared memory. Otherwise (`tcp`, one rank on a
    /// host, threads) a rank gets private memory, which works as well and is no faster than other
    /// memory. RDMA is the exception: messages are read and written there without a copy. The
    /// memory belongs to this communicator: for others, including parts made by `split`, it is
    /// ordinary memory.
    ///
    /// Blocks until all ranks have called `alloc` and mapped each other's memory. If a rank cannot
    /// allocate its part, all ranks get `Error::System`, no memory is registered, and the
    /// communicator stays usable.
    pub fn alloc(&self, bytes: usize) -> Result<Registered> {
        self.alloc_on_node(bytes, None)
    }

    /// Like [`alloc`](Communicator::alloc), with this rank's part on memory node `node` if one is
    /// given and the system allows it. Ranks may pass different nodes.
    pub(crate) fn alloc_on_node(&self, bytes: usize, node: Option<usize>) -> Result<Registered> {
        self.check_open()?;
        let mut registered = match self.sharing() {
            None => self.alloc_private(bytes, node)?,
            Some(host) => {
                let made = OfferedPart::new(bytes, node);
                let (own, sizes) = self.enlist(&host, bytes, made)?;
                Registered::shared(own, bytes, sizes)
            }
        };
        let region = registered.region();
        registered.keep(self.driver.with_engine(|engine| engine.hold(region)));
        Ok(registered)
    }

    /// Registers `buffer`, which keeps its address: its pages become memory that the calls of this
    /// host's ranks access directly. Dropping the returned value ends the registration, see
    /// [`RegisteredMut`] and [`Registration`].
    ///
    /// Registration costs about as much as 6 to 12 calls on the buffer save, so it is for memory
    /// that is used repeatedly and cannot come from [`alloc`](Communicator::alloc), which is
    /// cheaper. The buffer may begin and end anywhere. Memory of a file, shared with other
    /// processes, on the stack, or already registered (by any communicator) is
    /// `Error::InvalidArgument`. Memory that a device has pinned must not be registered: the device
    /// would keep using the old pages.
    ///
    /// Collective, with the same errors as `alloc`; each rank may call either. In a forked child
    /// the memory is like that of `alloc`: see [`Registered`].
    pub fn register<'a, T: Element>(&self, buffer: &'a mut [T]) -> Result<RegisteredMut<'a, T>> {
        // SAFETY: borrowed exclusively while the registration lives, which the returned value
        // holds.
        let region = unsafe { Region::new(buffer.as_mut_ptr().cast(), size_of_val(buffer)) };
        // SAFETY: as above. (A leaked registration outlives the borrow; calls then find that the
        // memory is gone.)
        let registration = unsafe { self.register_region(region) }?;
        Ok(RegisteredMut::new(buffer, registration))
    }

    /// Like [`register`](Communicator::register), for bindings.
    ///
    /// # Safety
    /// Until the registration is dropped, the memory of `region` must exist and its mapping must
    /// not change. No other code uses the memory while this runs, nor during the drop.
    pub unsafe fn register_region(&self, region: Region) -> Result<Registration> {
        self.check_open()?;
        let bytes = region.bytes();
        // Called last: the network registers moved pages after they were moved.
        let hold = || self.driver.with_engine(|engine| engine.hold(region));
        let Some(host) = self.sharing() else {
            let sizes = self.enlist_private(bytes, true)?;
            return Ok(Registration::new(None, sizes, &self.driver, hold()));
        };
        // SAFETY: the caller's promise, passed on.
        let made = unsafe { OfferedPart::of(region) };
        let (own, sizes) = self.enlist(&host, bytes, made)?;
        Ok(Registration::new(Some(own), sizes, &self.driver, hold()))
    }

    /// Returns the other ranks' parts of the registration of `memory` that this process has mapped,
    /// by rank. A part stays mapped while it is held.
    pub(crate) fn peers_of(&self, memory: &Registered) -> Vec<Option<Arc<SharedMemory>>> {
        let region = memory.region();
        self.driver
            .with_engine(|engine| engine.registry().peers_of(region))
    }

    /// Makes all ranks of a host map each other's parts and register them. Returns this rank's part
    /// and the sizes of all ranks of the communicator.
    fn enlist(
        &self,
        host: &HostRanks<'_>,
        bytes: usize,
        made: Result<OfferedPart>,
    ) -> Result<(Arc<Own>, Vec<usize>)> {
        let mut record = PartRecord {
            bytes: bytes as u64,
            ..PartRecord::default()
        };
        if let Ok(part) = &made {
            record.is_good = true;
            record.file_bytes = part.own.file().bytes() as u64;
            record.name = part.listener.name();
        }
        let records = self.exchange_records(&record)?;
        let mut part = made?;
        check_all(&records)?;
        let begin = Instant::now();
        let fds = self
            .pass_descriptors(host, &part.listener, &part.fd, &records)
            .map_err(|failure| self.condemn(failure, begin))?;
        let mapped =
            map_peers(fds, &records).and_then(|peers| part.own.take_place(part.fd).map(|()| peers));
        record.is_good = mapped.is_ok();
        let mapped = match mapped {
            // A peer that misreports its memory counts as failed.
            Err(error) if error.is_fatal() => {
                return Err(self.end(error, self.driver.watch().crash_grace()));
            }
            other => other,
        };
        let outcomes = self.exchange_records(&record)?;
        let peers = mapped?;
        check_all(&outcomes)?;
        let own = Arc::new(part.own);
        self.change_registry(|registry| {
            registry.add_shared(&own, peers);
        });
        Ok((own, sizes(&records)))
    }

    /// Returns the ranks that share memory with this rank, if any.
    fn sharing(&self) -> Option<HostRanks<'_>> {
        let group = self.membership.group()?;
        let shares = |rank: &usize| *rank != group.rank && group.shares_memory(*rank);
        let others: Vec<usize> = (0..group.world_ranks.len()).filter(shares).collect();
        (!others.is_empty()).then_some(HostRanks { group, others })
    }

    /// Allocates memory that only this rank has, and exchanges sizes with the other ranks.
    fn alloc_private(&self, bytes: usize, node: Option<usize>) -> Result<Registered> {
        let made = private_memory(bytes, node);
        let sizes = self.enlist_private(bytes, made.is_ok());
        let private = made?;
        Ok(Registered::private(private, bytes, sizes?))
    }

    /// Takes part in a registration as a rank that shares memory with no other rank; other ranks
    /// may share memory. Returns all ranks' sizes.
    fn enlist_private(&self, bytes: usize, is_good: bool) -> Result<Vec<usize>> {
        let record = PartRecord {
            bytes: bytes as u64,
            is_good,
            ..PartRecord::default()
        };
        let records = self.exchange_records(&record)?;
        check_all(&records)?;
        if self.is_somewhere_shared() {
            check_all(&self.exchange_records(&record)?)?;
            self.change_registry(Registry::count_private);
        }
        Ok(sizes(&records))
    }

    /// Whether some ranks share memory, on this host or another: the same on all ranks.
    fn is_somewhere_shared(&self) -> bool {
        let group = self.membership.group();
        let may_share = |group: &RankGroup| {
            use TransportChoice::{Rdma, Tcp};
            !matches!(group.settings.transport, Tcp | Rdma)
        };
        self.place.hosts < self.place.world_size && group.is_some_and(may_share)
    }

    fn change_registry(&self, change: impl FnOnce(&mut Registry)) {
        let is_first = self.driver.with_engine(|engine| {
            let is_first = !engine.registry().is_used();
            engine.change_registry(change);
            is_first
        });
        if is_first {
            // Between hosts, costs depend on registered memory.
            self.choices.forget();
        }
    }

    /// Exchanges records with all ranks; returns them by rank.
    fn exchange_records(&self, record: &PartRecord) -> Result<Vec<PartRecord>> {
        let mut own = wire::encode(record);
        let mut all = vec![0; own.len() * self.place.world_size];
        // SAFETY: `own` is not touched until the call below has returned.
        let input = unsafe { Region::new(own.as_mut_ptr(), own.len()) };
        // SAFETY: `all` is not touched until the call below has returned.
        let output = unsafe { Region::new(all.as_mut_ptr(), all.len()) };
        let counts = Counts::Even(own.len() as u64);
        let request = Request::new(Collective::AllGather, DType::U8, counts, input, output);
        let mut job = self.job(&request)?;
        job.registers = true;
        self.driver.run(job, &mut || Ok(()))?;
        let records = wire::decode_all("record of registered memory", all.chunks(own.len()));
        records.map_err(|error| self.end(error, self.driver.watch().crash_grace()))
    }

    /// Sends this rank's descriptor to the other ranks of its host and receives theirs, by rank.
    /// The ranks serve one after the other, in rank order, so that there is no cyclic wait.
    fn pass_descriptors(
        &self,
        HostRanks { group, others }: &HostRanks<'_>,
        listener: &FdListener,
        fd: &OwnedFd,
        records: &[PartRecord],
    ) -> Result<Vec<Option<OwnedFd>>, HandoverFailure> {
        let deadline = Instant::now() + group.settings.connect_timeout;
        let rank = self.place.rank;
        let cancelled = || self.driver.watch().fault();
        let limit = Limit::new(deadline, &cancelled);
        let handover = |leader| Handover {
            communicator: group.id,
            world_size: records.len(),
            leader,
            secret: group.session.secret(),
        };
        let pass = |leader: usize| match leader == rank {
            true => {
                handover(leader).serve(listener, &[fd.as_fd()], others, limit)?;
                Ok(None)
            }
            false if !others.contains(&leader) => Ok(None),
            false => {
                let name = &records[leader].name;
                let fetched = handover(leader).fetch(name, rank, limit)?.memory;
                Ok(Some(fetched))
            }
        };
        (0..records.len()).map(pass).collect()
    }

    /// Ends the communicator on all ranks, because they wait for a descriptor that this rank cannot
    /// send or receive. Returns the verdict, which may differ from this rank's failure, as in a
    /// call.
    fn condemn(&self, failure: HandoverFailure, begin: Instant) -> Error {
        let crash_grace = self.driver.watch().crash_grace();
        let (suspicion, grace) = match failure {
            HandoverFailure::Cancelled(verdict) => (verdict, crash_grace),
            HandoverFailure::Late(waiting_for) => {
                let after_ms = begin.elapsed().as_millis() as u64;
                let site = None;
                let late = Error::Timeout {
                    waiting_for,
                    after_ms,
                    site,
                };
                (late, TIMEOUT_GRACE)
            }
            HandoverFailure::Broken { rank, error } => {
                let reason = format!("connection closed: {error}");
                let site = None;
                (Error::PeerFailed { rank, reason, site }, crash_grace)
            }
            HandoverFailure::Local(error) => {
                let rank = self.place.rank;
                let reason = format!("cannot pass on registered memory: {error}");
                (Error::Aborted { rank, reason }, ABORT_GRACE)
            }
        };
        self.end(suspicion, grace)
    }
}

/// Maps the peers' files.
fn map_peers(
    fds: Vec<Option<OwnedFd>>,
    records: &[PartRecord],
) -> Result<Vec<Option<SharedMemory>>> {
    let map = |(peer, fd): (usize, Option<OwnedFd>)| {
        let Some(fd) = fd else { return Ok(None) };
        let file_bytes = usize::try_from(records[peer].file_bytes).unwrap_or(usize::MAX);
        let shared = SharedMemory::open(fd, peer, file_bytes)?;
        shared.populate()?;
        Ok(Some(shared))
    };
    fds.into_iter().enumerate().map(map).collect()
}

/// Fails if some rank reports a failure.
fn check_all(records: &[PartRecord]) -> Result<()> {
    match records.iter().position(|record| !record.is_good) {
        None => Ok(()),
        Some(rank) => Err(Error::System {
            what: format!(
                "rank {rank} failed to allocate its registered memory, so no rank has any; see \
                 rank {rank}'s error"
            ),
            kind: std::io::ErrorKind::Other,
        }),
    }
}

fn sizes(records: &[PartRecord]) -> Vec<usize> {
    let size = |record: &PartRecord| usize::try_from(record.bytes).unwrap_or(usize::MAX);
    records.iter().map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Op;

    #[test]
    fn all_records_have_the_same_length() {
        let record = PartRecord {
            bytes: 5000,
            file_bytes: 8192,
            is_good: true,
            name: [7; 16],
        };
        let (one, none) = (wire::encode(&record), wire::encode(&PartRecord::default()));
        assert_eq!(one.len(), none.len());
        assert_eq!(wire::decode(&one), Some(record));
    }

    #[test]
    fn threads_get_memory_of_their_own() {
        std::thread::scope(|scope| {
            for communicator in Communicator::threads(3) {
                scope.spawn(move || {
                    let rank = communicator.rank();
                    let mut memory = communicator.alloc(400 * (rank + 1)).expect("memory");
                    assert_eq!(memory.sizes(), [400, 800, 1200]);
                    assert!(!memory.is_shared());
                    let data = &mut memory.as_mut_slice::<f32>()[..100];
                    assert_eq!(data, [0.0; 100]);
                    data.fill(rank as f32);
                    communicator.all_reduce(data, Op::Sum).expect("a sum");
                    assert_eq!(memory.as_slice::<f32>()[..100], [3.0; 100]);
                });
            }
        });
    }
}
