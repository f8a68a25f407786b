//! A call under way: what the caller's thread and the lane's thread both know of it.

use std::time::Duration;

use super::cut::{Cut, Fetched, Part, only_moves};
use super::fold::call::{FoldedCall, Rows};
use super::fold::shares::Shares;
use super::one_shot::call::OneShotCall;
use super::policy::Carried;
use super::program::{Step, steps};
use super::request::{DeviceBuffer, DeviceRequest, Fetch, Transfer};
use super::staging::{BANKS, Bank};
use crate::communicator::Request;
use crate::device::{DeviceRegion, Event};
use crate::error::{Error, Result};
use crate::memory::Region;

/// Where the parts of the calls of a group begin in a slot: multiples of this.
const SHARE_ALIGN_BYTES: usize = 64;

/// The events around a call.
#[derive(Debug)]
pub struct Marks {
    /// Behind what the program's stream held when the call was made.
    pub fork: Event,
    /// Behind all of the call's copies.
    pub joined: Event,
}

/// What a lane has for its next call; all but the rank is the same on all ranks, as far as that
/// call is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub rank: usize,
    pub world_size: usize,
    pub slot_bytes: usize,
    /// The next number of each bank.
    pub next: [u32; BANKS],
    /// Whether devices reach the slots of all ranks.
    pub is_direct: bool,
}

/// One call or several that are made together, numbered and cut into slices.
#[derive(Debug)]
pub struct LaneCall {
    /// Which slots, words and numbers it has.
    pub bank: Bank,
    /// The number of its first slice.
    pub first: u32,
    /// The numbers of its slices on this rank.
    pub slices: u32,
    /// Its deadline, if not the communicator's: that of the first of several calls.
    pub timeout: Option<Duration>,
    pub marks: Marks,
    body: Body,
}

/// What it consists of.
#[derive(Debug)]
enum Body {
    /// The host carries out each slice.
    Parts {
        parts: Vec<CallPart>,
        /// Bytes of a slot for each of the calls.
        share_bytes: usize,
    },
    /// Devices combine: each slice has two numbers.
    Folded(Box<FoldedCall>),
    /// One kernel of each device does it, as one slice.
    OneShot(Box<OneShotCall>),
}

/// One of the calls.
#[derive(Debug)]
struct CallPart {
    cut: Cut,
    input: DeviceBuffer,
    output: DeviceBuffer,
    /// Whether what this rank gives to itself is where it belongs.
    is_in_place: bool,
}

impl LaneCall {
    /// The calls `requests`, made together on these `terms`, checked; `marks` are for them alone.
    /// Devices combine one whose `rows` are given.
    pub fn new(
        mut requests: Vec<DeviceRequest>,
        terms: Terms,
        marks: Marks,
        rows: Option<Rows>,
    ) -> Result<LaneCall> {
        let Terms {
            rank,
            world_size,
            slot_bytes,
            ..
        } = terms;
        let share_bytes = slot_bytes / requests.len().max(1) / SHARE_ALIGN_BYTES;
        let share_bytes = share_bytes * SHARE_ALIGN_BYTES;
        let bank = match terms.is_direct
            && requests
                .iter()
                .all(|request| only_moves(&request.on_host()))
        {
            true => Bank::Direct,
            false => Bank::Host,
        };
        let cut = |request: &DeviceRequest| {
            let cut = Cut::new(request, rank, world_size, share_bytes, bank)?;
            request.check_overlap(cut.own_bytes(rank))?;
            Ok(cut)
        };
        let timeout = requests.first().and_then(|request| request.timeout);
        let cuts = requests.iter().map(cut).collect::<Result<Vec<_>>>()?;
        if let Some(rows) = rows
            && let Some(shares) = shares(&requests, [rank, world_size], slot_bytes)
        {
            let folded = FoldedCall::new(requests.remove(0), shares, rows);
            let bank = match terms.is_direct {
                true => Bank::Direct,
                false => Bank::Host,
            };
            return Ok(LaneCall {
                bank,
                first: terms.next[bank as usize],
                timeout,
                marks,
                slices: folded.halves.count(),
                body: Body::Folded(Box::new(folded)),
            });
        }
        if cuts.len() > 1 && cuts.iter().any(|cut| !cut.is_agreed()) {
            let text = "an all_to_all with a count for each pair, made together with other calls";
            return Err(Error::Unsupported(text.into()));
        }
        let part = |(cut, request): (Cut, DeviceRequest)| CallPart {
            is_in_place: request.input.overlaps(&request.output),
            cut,
            input: request.input,
            output: request.output,
        };
        let parts: Vec<CallPart> = cuts.into_iter().zip(requests).map(part).collect();
        let slices = parts.iter().map(|part| part.cut.slices()).max();
        Ok(LaneCall {
            bank,
            first: terms.next[bank as usize],
            slices: slices.unwrap_or(0),
            timeout,
            marks,
            body: Body::Parts { parts, share_bytes },
        })
    }

    /// The call `made` on these `terms`, checked; `marks` are for it alone.
    pub fn by_one_kernel(made: OneShotCall, terms: Terms, marks: Marks) -> Result<LaneCall> {
        let bank = Bank::Direct;
        let (rank, request) = (terms.rank, &made.request);
        let cut = Cut::new(request, rank, terms.world_size, terms.slot_bytes, bank)?;
        request.check_overlap(cut.own_bytes(rank))?;
        Ok(LaneCall {
            bank,
            first: terms.next[bank as usize],
            slices: 1,
            timeout: request.timeout,
            marks,
            body: Body::OneShot(Box::new(made)),
        })
    }

    /// The number of `slice`.
    pub fn number(&self, slice: u32) -> u32 {
        self.first.wrapping_add(slice)
    }

    /// The slice that has this number, if it is one of this call.
    pub fn slice_of(&self, number: u32) -> Option<u32> {
        let slice = number.wrapping_sub(self.first);
        (slice < self.slices).then_some(slice)
    }

    /// The number behind its last slice.
    pub fn end(&self) -> u32 {
        self.number(self.slices)
    }

    /// The order in which its slices are enqueued.
    pub fn steps(&self, depth: u32) -> impl Iterator<Item = Step> + '_ {
        steps(self.slices, depth, |slice| {
            self.folded().and_then(|call| call.halves.needed(slice))
        })
    }

    /// By what it is carried out.
    pub fn carried(&self) -> Carried {
        match (&self.body, self.bank) {
            (Body::OneShot(_), _) => Carried::OneShot,
            (Body::Folded(_), _) => Carried::Folded,
            (Body::Parts { .. }, Bank::Direct) => Carried::Direct,
            (Body::Parts { .. }, Bank::Host) => Carried::Host,
        }
    }

    /// The call that devices combine, if they do.
    pub fn folded(&self) -> Option<&FoldedCall> {
        match &self.body {
            Body::Folded(call) => Some(call),
            Body::Parts { .. } | Body::OneShot(_) => None,
        }
    }

    /// The call that one kernel does, if one does.
    pub fn one_shot(&self) -> Option<&OneShotCall> {
        match &self.body {
            Body::OneShot(call) => Some(call),
            Body::Parts { .. } | Body::Folded(_) => None,
        }
    }

    /// What `slice` brings from the device into its slot.
    pub fn brought(&self, slice: u32) -> Vec<Transfer> {
        match &self.body {
            Body::Folded(call) => call.brought(slice),
            Body::OneShot(_) => vec![],
            Body::Parts { .. } => self.transfers(|part| (part.cut.brought(slice), &part.input)),
        }
    }

    /// What `slice` takes to the device from its result.
    pub fn taken(&self, slice: u32) -> Vec<Transfer> {
        match &self.body {
            Body::Folded(call) => call.taken(slice),
            Body::OneShot(_) => vec![],
            Body::Parts { .. } => self.transfers(|part| (part.cut.taken(slice), &part.output)),
        }
    }

    /// What `slice`, a direct one, takes to the device from other ranks' slots.
    pub fn fetched(&self, slice: u32) -> Vec<Fetch> {
        if let Body::Folded(call) = &self.body {
            return call.fetched(slice);
        }
        let mut fetches = vec![];
        for (place, CallPart { cut, output, .. }) in self.parts() {
            for Fetched { rank, part } in cut.fetched(slice) {
                let transfers = output.transfers(part.of_buffer, place + part.at);
                fetches.extend(transfers.map(|transfer| Fetch { rank, transfer }));
            }
        }
        fetches
    }

    /// What `slice`, a direct one, copies from this rank's input to its output.
    pub fn kept(&self, slice: u32) -> Vec<(DeviceRegion, DeviceRegion)> {
        let kept = |(_, part): (usize, &CallPart)| match part.cut.kept(slice) {
            Some([from, into]) if !part.is_in_place => part.input.paired(from, &part.output, into),
            _ => vec![],
        };
        self.parts().flat_map(kept).collect()
    }

    /// Where its results stand on the device.
    pub fn outputs(&self) -> Vec<DeviceRegion> {
        match &self.body {
            Body::Folded(call) => call.output().regions().to_vec(),
            Body::OneShot(call) => call.request.output.regions().to_vec(),
            Body::Parts { parts, .. } => {
                let regions = parts.iter().map(|part| part.output.regions());
                regions.flatten().copied().collect()
            }
        }
    }

    /// The calls that the host carries out, each with its place in slots.
    fn parts(&self) -> impl Iterator<Item = (usize, &CallPart)> {
        let (parts, share_bytes): (&[CallPart], usize) = match &self.body {
            Body::Parts { parts, share_bytes } => (parts, *share_bytes),
            Body::Folded(_) | Body::OneShot(_) => (&[], 0),
        };
        let parts = parts.iter().enumerate();
        parts.map(move |(index, part)| (index * share_bytes, part))
    }

    /// The copies of one side of all parts.
    fn transfers<'a>(
        &'a self,
        side: impl Fn(&'a CallPart) -> (Vec<Part>, &'a DeviceBuffer),
    ) -> Vec<Transfer> {
        let mut transfers = vec![];
        for (place, part) in self.parts() {
            let (moved, buffer) = side(part);
            for Part { of_buffer, at } in moved {
                transfers.extend(buffer.transfers(of_buffer, place + at));
            }
        }
        transfers
    }

    /// The calls that ranks compare for `slice`, a direct one, before any reads of it.
    pub fn by_devices(&self, slice: u32) -> Vec<Request> {
        match &self.body {
            Body::Folded(call) => return vec![call.by_devices(slice)],
            Body::OneShot(call) => return vec![call.by_devices()],
            Body::Parts { .. } => {}
        }
        let parts = self.parts().map(|(_, part)| &part.cut);
        let parts = parts.filter(|cut| slice < cut.slices());
        parts.map(|cut| cut.by_devices(slice)).collect()
    }

    /// Whether all ranks have as many slices.
    pub fn is_agreed(&self) -> bool {
        self.parts().all(|(_, part)| part.cut.is_agreed())
    }

    /// What the host does for `slice`, from the slot to the result. Of several calls those that
    /// have such a slice.
    pub fn on_host(&self, slice: u32, slot: Region, result: Region) -> Vec<Request> {
        let share_bytes = match &self.body {
            Body::Folded(call) => return vec![call.on_host(slice, slot, result)],
            Body::OneShot(call) => return vec![call.by_devices()],
            Body::Parts { share_bytes, .. } => *share_bytes,
        };
        let is_there = |part: &CallPart| slice < part.cut.slices() || !part.cut.is_agreed();
        let parts = self.parts().filter(|(_, part)| is_there(part));
        let request = |(place, part): (usize, &CallPart)| {
            let share = |region: Region| region.part(place..place + share_bytes);
            part.cut.on_host(slice, share(slot), share(result))
        };
        parts.map(request).collect()
    }
}

/// The cut of a call that devices combine; nothing if it does not fit.
fn shares(
    requests: &[DeviceRequest],
    [rank, world_size]: [usize; 2],
    slot_bytes: usize,
) -> Option<Shares> {
    let [request] = requests else {
        return None;
    };
    let element_bytes = request.dtype.size_bytes();
    let count = (request.input.bytes() / element_bytes) as u64;
    Shares::new(count, element_bytes, rank, world_size, slot_bytes)
}
