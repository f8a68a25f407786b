//! Costs of memory for a device of this machine, measured when ranks join by RDMA: registrations of
//! ordinary pages, and copies into pieces.
//!
//! The measurement takes about a millisecond, once in a process for each device. The results are
//! local: which memory a rank registers changes nothing for its peers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::memory::Region;
use crate::memory::mapping::Mapping;
use crate::sys::fork::with_locked;
use crate::tune::MemoryCosts;
use crate::verbs::{Domain, MemoryAccess};

/// Sizes of the registrations and copies, in bytes.
const BYTES: [usize; 3] = [16 << 10, 256 << 10, 1 << 20];

/// Number of measurements; the fastest counts, because disturbances only add time.
const ROUNDS: usize = 5;

/// Returns the costs of `domain`'s device, as they were first measured in this process.
///
/// # Errors
/// `System` if memory cannot be registered.
pub(super) fn memory_costs(domain: &Arc<Domain>) -> Result<MemoryCosts> {
    static KNOWN: Mutex<Option<HashMap<String, MemoryCosts>>> = Mutex::new(None);
    let name = domain.device().name().to_owned();
    let known = with_locked(&KNOWN, |known| known.as_ref()?.get(&name).copied());
    if let Some(costs) = known {
        return Ok(costs);
    }
    let costs = measure(domain)?;
    with_locked(&KNOWN, |known| {
        known.get_or_insert_default().insert(name, costs)
    });
    Ok(costs)
}

fn measure(domain: &Arc<Domain>) -> Result<MemoryCosts> {
    let [.., most] = BYTES;
    let refused = |error| Error::system("cannot get memory to measure its registration", error);
    // One part is the source, the other one the target; both are populated, as in calls.
    let memory = Mapping::anonymous(2 * most).map_err(refused)?;
    memory.populate(memory.region()).map_err(refused)?;
    let (from, to) = (
        memory.region().part(0..most),
        memory.region().part(most..2 * most),
    );
    let mut registered = Vec::with_capacity(BYTES.len());
    let mut staged = Vec::with_capacity(BYTES.len());
    for bytes in BYTES {
        registered.push((
            bytes,
            quickest_us(|| register(domain, from.part(0..bytes)))?,
        ));
        let copy = || {
            to.part(0..bytes).copy_from(from.part(0..bytes));
            Ok(())
        };
        staged.push((bytes, quickest_us(copy)?));
    }
    Ok(MemoryCosts::fit(&registered, &staged).unwrap_or_default())
}

fn register(domain: &Arc<Domain>, part: Region) -> Result<()> {
    domain.register(part, MemoryAccess::PeersWrite).map(drop)
}

fn quickest_us(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut quickest = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        work()?;
        quickest = quickest.min(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(quickest)
}
