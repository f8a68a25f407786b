//! A call under way: what the caller's thread and the lane's thread both know of it.

use super::cut::{Cut, Fetched, Part, goes_by_slots};
use super::one_shot::call::OneShotCall;
use super::policy::Carried;
use super::program::{Step, steps};
use super::request::{DeviceBuffer, DeviceRequest, Fetch, Transfer};
use super::staging::{BANKS, Bank};
use super::sum::Sum;
use crate::communicator::Request;
use crate::device::{DeviceRegion, Event};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::reduce::Parallel;
use crate::types::Collective;

/// Where the parts of the calls of a group begin in a slot: multiples of this.
const SHARE_ALIGN_BYTES: usize = 64;

/// Messages that share a slot, at most. Ranks have different numbers of messages in a group, so the
/// length of a message's slices cannot depend on the number.
const MESSAGES_MAX: usize = 4;

/// The bytes of a slot for each message.
pub fn message_share_bytes(slot_bytes: usize) -> usize {
    share_bytes(slot_bytes, MESSAGES_MAX)
}

fn share_bytes(slot_bytes: usize, sharers: usize) -> usize {
    slot_bytes / sharers / SHARE_ALIGN_BYTES * SHARE_ALIGN_BYTES
}

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
    /// The most helper threads that are worthwhile for sums in slots.
    pub helpers_max: usize,
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
    pub marks: Marks,
    /// The most helper threads that are worthwhile for sums in slots.
    pub helpers_max: usize,
    body: Body,
}

/// What it consists of.
#[derive(Debug)]
enum Body {
    /// The host carries out each slice.
    Parts(Group),
    /// One kernel of each device does it, as one slice.
    OneShot(Box<OneShotCall>),
}

/// Calls whose slices share slots: all collectives of a group, or all its messages.
///
/// Of more than [`MESSAGES_MAX`] messages, slice 0 of each is carried out, then slice 1 of each and
/// so on, always in the same order of messages. Two ranks with different other messages therefore
/// reach their common ones in the same order, and neither waits for one that the other has put
/// behind.
#[derive(Debug)]
struct Group {
    parts: Vec<CallPart>,
    /// Bytes of a slot for each of the calls.
    share_bytes: usize,
    /// Calls that share a slot, at most.
    sharers: usize,
    slices: u32,
}

impl Group {
    fn new(parts: Vec<CallPart>, share_bytes: usize, sharers: usize) -> Result<Group> {
        let most = parts.iter().map(|part| part.cut.slices()).max();
        let turns = parts.len().div_ceil(sharers) as u32;
        let slices = most.unwrap_or(0).checked_mul(turns).ok_or_else(|| {
            let text = "a group of calls of too many slices: use larger slots or smaller groups";
            Error::InvalidArgument(text.into())
        })?;
        Ok(Group {
            parts,
            share_bytes,
            sharers,
            slices,
        })
    }

    /// The calls that have a part in `slice`, each with its place in slots and its own slice.
    fn of_slice(&self, slice: u32) -> impl Iterator<Item = (usize, &CallPart, u32)> {
        let turns = (self.parts.len().div_ceil(self.sharers) as u32).max(1);
        let (own, turn) = (slice / turns, (slice % turns) as usize);
        let parts = self.parts.iter().skip(turn * self.sharers);
        let parts = parts.take(self.sharers).enumerate();
        let is_there = move |part: &CallPart| own < part.cut.slices() || !part.cut.is_agreed();
        parts
            .filter(move |(_, part)| is_there(part))
            .map(move |(index, part)| (index * self.share_bytes, part, own))
    }
}

/// One of the calls.
#[derive(Debug)]
struct CallPart {
    cut: Cut,
    input: DeviceBuffer,
    output: DeviceBuffer,
    /// Whether what this rank gives to itself is where it belongs.
    is_in_place: bool,
    /// With what its elements are combined, where they are in slots.
    sum: Option<Sum>,
}

impl CallPart {
    fn new((cut, request): (Cut, DeviceRequest), world_size: usize) -> Result<CallPart> {
        let sums = cut.bank() == Bank::Direct && request.collective.reduces();
        let sum = sums.then(|| Sum::new(request.op, request.dtype, world_size));
        Ok(CallPart {
            is_in_place: request.input.overlaps(&request.output),
            cut,
            input: request.input,
            output: request.output,
            sum: sum.transpose()?,
        })
    }
}

impl LaneCall {
    /// The calls `requests`, all collectives or all messages, made together on these `terms`,
    /// checked; `marks` are for them alone. `message_bytes` has the most bytes of a slice of a
    /// message, which depends on the message alone.
    pub fn new(
        mut requests: Vec<DeviceRequest>,
        terms: Terms,
        marks: Marks,
        message_bytes: impl Fn(&DeviceRequest) -> usize,
    ) -> Result<LaneCall> {
        let Terms {
            rank,
            world_size,
            slot_bytes,
            ..
        } = terms;
        let are_messages = requests.first().is_some_and(is_message);
        let sharers = match are_messages {
            true => MESSAGES_MAX,
            false => requests.len().max(1),
        };
        let share_bytes = share_bytes(slot_bytes, sharers);
        if are_messages {
            requests.sort_by_key(|request| turn(request, rank, world_size));
        }
        let by_slots = |request: &DeviceRequest| goes_by_slots(&request.on_host());
        let bank = bank(terms.is_direct && requests.iter().all(by_slots));
        let is_alone = requests.len() == 1;
        let cut = |request: &DeviceRequest| {
            let most = match are_messages {
                true => message_bytes(request),
                false => share_bytes,
            };
            let cut = Cut::new(request, rank, world_size, most, bank)?;
            request.check_overlap(cut.own_bytes(rank))?;
            Ok(if is_alone { cut } else { cut.among_others() })
        };
        let cuts = requests.iter().map(cut).collect::<Result<Vec<_>>>()?;
        if cuts.len() > 1 && cuts.iter().any(|cut| !cut.is_agreed()) {
            let text = "an all_to_all with a count for each pair, made together with other calls";
            return Err(Error::Unsupported(text.into()));
        }
        let parts = cuts.into_iter().zip(requests);
        let parts = parts.map(|part| CallPart::new(part, world_size));
        let group = Group::new(parts.collect::<Result<_>>()?, share_bytes, sharers)?;
        Ok(LaneCall {
            bank,
            first: terms.next[bank as usize],
            slices: group.slices,
            marks,
            helpers_max: terms.helpers_max,
            body: Body::Parts(group),
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
            marks,
            helpers_max: 0,
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
    pub fn steps(&self, depth: u32) -> impl Iterator<Item = Step> {
        steps(self.slices, depth)
    }

    /// By what it is carried out.
    pub fn carried(&self) -> Carried {
        match (&self.body, self.bank) {
            (Body::OneShot(_), _) => Carried::OneShot,
            (Body::Parts(_), Bank::Direct) => Carried::Direct,
            (Body::Parts(_), Bank::Host) => Carried::Host,
        }
    }

    /// The call that one kernel does, if one does.
    pub fn one_shot(&self) -> Option<&OneShotCall> {
        match &self.body {
            Body::OneShot(call) => Some(call),
            Body::Parts(_) => None,
        }
    }

    /// What `slice` brings from the device into its slot.
    pub fn brought(&self, slice: u32) -> Vec<Transfer> {
        match &self.body {
            Body::OneShot(_) => vec![],
            Body::Parts(_) => {
                self.transfers(slice, |part, slice| (part.cut.brought(slice), &part.input))
            }
        }
    }

    /// What `slice` takes to the device from its result.
    pub fn taken(&self, slice: u32) -> Vec<Transfer> {
        match &self.body {
            Body::OneShot(_) => vec![],
            Body::Parts(_) => {
                self.transfers(slice, |part, slice| (part.cut.taken(slice), &part.output))
            }
        }
    }

    /// What `slice`, a direct one, takes to the device from other ranks' slots.
    pub fn fetched(&self, slice: u32) -> Vec<Fetch> {
        let mut fetches = vec![];
        for (place, CallPart { cut, output, .. }, slice) in self.of_slice(slice) {
            for Fetched { rank, part } in cut.fetched(slice) {
                let transfers = output.transfers(part.of_buffer, place + part.at);
                fetches.extend(transfers.map(|transfer| Fetch { rank, transfer }));
            }
        }
        fetches
    }

    /// What `slice`, a direct one, takes to the device from this rank's place of sums.
    pub fn taken_sums(&self, slice: u32) -> Vec<Transfer> {
        self.transfers(slice, |part, slice| {
            (Vec::from_iter(part.cut.taken_sum(slice)), &part.output)
        })
    }

    /// What `slice`, a direct one, copies from this rank's input to its output.
    pub fn kept(&self, slice: u32) -> Vec<(DeviceRegion, DeviceRegion)> {
        let kept = |(_, part, slice): (usize, &CallPart, u32)| match part.cut.kept(slice) {
            Some([from, into]) if !part.is_in_place => part.input.paired(from, &part.output, into),
            _ => vec![],
        };
        self.of_slice(slice).flat_map(kept).collect()
    }

    /// Where its results stand on the device.
    pub fn outputs(&self) -> Vec<DeviceRegion> {
        match &self.body {
            Body::OneShot(call) => call.request.output.regions().to_vec(),
            Body::Parts(_) => {
                let regions = self.parts().map(|part| part.output.regions());
                regions.flatten().copied().collect()
            }
        }
    }

    /// The calls that the host carries out.
    fn parts(&self) -> impl Iterator<Item = &CallPart> {
        self.group().into_iter().flat_map(|group| &group.parts)
    }

    fn group(&self) -> Option<&Group> {
        match &self.body {
            Body::Parts(group) => Some(group),
            Body::OneShot(_) => None,
        }
    }

    /// The calls that have a part in `slice`, each with its place in slots and its own slice.
    fn of_slice(&self, slice: u32) -> impl Iterator<Item = (usize, &CallPart, u32)> {
        let group = self.group().into_iter();
        group.flat_map(move |group| group.of_slice(slice))
    }

    /// The copies of one side of all parts of `slice`.
    fn transfers<'a>(
        &'a self,
        slice: u32,
        side: impl Fn(&'a CallPart, u32) -> (Vec<Part>, &'a DeviceBuffer),
    ) -> Vec<Transfer> {
        let mut transfers = vec![];
        for (place, part, slice) in self.of_slice(slice) {
            let (moved, buffer) = side(part, slice);
            for Part { of_buffer, at } in moved {
                transfers.extend(buffer.transfers(of_buffer, place + at));
            }
        }
        transfers
    }

    /// The calls that ranks compare before they read each other's slots.
    pub fn compared(&self) -> Vec<Request> {
        match &self.body {
            Body::OneShot(call) => vec![call.request.on_host()],
            Body::Parts(_) => self
                .parts()
                .map(|part| part.cut.request().clone())
                .collect(),
        }
    }

    /// The most bytes of a slice of each of its calls.
    pub fn share_bytes(&self) -> usize {
        match &self.body {
            Body::OneShot(call) => call.bytes(),
            Body::Parts(group) => group.share_bytes,
        }
    }

    /// Whether each rank combines by itself what it gets.
    pub fn sums_alone(&self) -> bool {
        self.parts().any(|part| part.cut.sums_alone())
    }

    /// Whether devices take sums that other ranks have combined.
    pub fn shares_sums(&self) -> bool {
        self.parts()
            .any(|part| part.sum.is_some() && part.cut.shares_sums())
    }

    /// Combines this rank's shares of `slice`, a direct one, in the slots that `slot` finds by
    /// their ranks, or into `own`, its own place of sums. All ranks' data of the slice stands
    /// there.
    pub fn combine(
        &self,
        slice: u32,
        own: Region,
        slot: impl Fn(usize) -> Region,
        parallel: &mut Parallel,
    ) -> Result<()> {
        for (place, part, slice) in self.of_slice(slice) {
            if let (Some(sum), Some(share)) = (&part.sum, part.cut.share(slice)) {
                let within = |slot: Region| slot.part(place..slot.bytes());
                sum.combine(&share, own, |rank| within(slot(rank)), parallel)?;
            }
        }
        Ok(())
    }

    /// The bytes of the input or of the output, whichever is longer, of one of the calls that are
    /// made together.
    pub fn bytes(&self, index: usize) -> usize {
        let longer = |part: &CallPart| part.input.bytes().max(part.output.bytes());
        match &self.body {
            Body::OneShot(call) => call.bytes(),
            Body::Parts(group) => group.parts.get(index).map_or(0, longer),
        }
    }

    /// Whether all ranks have as many slices.
    pub fn is_agreed(&self) -> bool {
        self.parts().all(|part| part.cut.is_agreed())
    }

    /// What the host does for `slice`, from the slot to the result. Of several calls those that
    /// have such a slice.
    pub fn on_host(&self, slice: u32, slot: Region, result: Region) -> Vec<Request> {
        let request = |(place, part, slice): (usize, &CallPart, u32)| {
            let share = |region: Region| region.part(place..region.bytes());
            part.cut.on_host(slice, share(slot), share(result))
        };
        self.of_slice(slice).map(request).collect()
    }
}

/// The slots of a call, which devices of other ranks read if it is direct.
fn bank(is_direct: bool) -> Bank {
    match is_direct {
        true => Bank::Direct,
        false => Bank::Host,
    }
}

/// Whether a call is a message between two ranks.
pub fn is_message(request: &DeviceRequest) -> bool {
    matches!(request.collective, Collective::Send | Collective::Recv)
}

/// The place of a message of `rank` among the messages of a group: all ranks order them alike.
/// Pairs of ranks that have nothing in common come together.
fn turn(request: &DeviceRequest, rank: usize, world_size: usize) -> [usize; 5] {
    let is_send = request.collective == Collective::Send;
    let peer = request.root();
    let sender = if is_send { rank } else { peer };
    // A rank that sends to itself sends first.
    let is_second = usize::from(peer == rank && !is_send);
    [
        rank.wrapping_add(peer) % world_size,
        rank.min(peer),
        sender,
        request.tag as usize,
        is_second,
    ]
}
