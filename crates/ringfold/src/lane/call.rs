//! A call under way: what the caller's thread and the lane's thread both know of it.

use super::cut::{Cut, Fetched, Part, goes_by_slots};
use super::one_shot::call::OneShotCall;
use super::program::{Step, steps};
use super::request::{DeviceBuffer, DeviceRequest, Fetch, Transfer};
use super::staging::{BANKS, Bank};
use super::sum::Sum;
use crate::communicator::Request;
use crate::device::{DeviceRegion, Event};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::reduce::Parallel;
use crate::tune::devices::choice::Carried;
use crate::types::Collective;

/// Where the parts of messages begin in a slot: multiples of this.
const SHARE_ALIGN_BYTES: usize = 64;

/// Messages that share a slot, at most. Ranks have different numbers of messages in a group, so the
/// length of a message's slices cannot depend on the number.
const MESSAGES_MAX: usize = 4;

/// The bytes of a slot for each message.
fn message_share_bytes(slot_bytes: usize) -> usize {
    slot_bytes / MESSAGES_MAX / SHARE_ALIGN_BYTES * SHARE_ALIGN_BYTES
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
    /// Whether slices overlap where the host handles them.
    pub overlaps: bool,
}

impl Terms {
    /// The next call in `bank`.
    fn call(self, bank: Bank, slices: u32, marks: Marks, body: Body) -> LaneCall {
        LaneCall {
            bank,
            first: self.next[bank as usize],
            slices,
            marks,
            helpers_max: self.helpers_max,
            overlaps: self.overlaps,
            body,
        }
    }
}

/// One call, or the messages that are made together, numbered and cut into slices.
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
    /// Whether its slices overlap where the host handles them.
    pub overlaps: bool,
    body: Body,
}

/// The ways of a call.
#[derive(Debug)]
enum Body {
    /// A collective, which is carried out in slices.
    Collective(Box<CallPart>),
    /// Each slice has parts of several messages.
    Messages(Messages),
    /// One kernel of each device does it, as one slice.
    OneShot(Box<OneShotCall>),
}

/// Messages that share slots.
///
/// Of more than [`MESSAGES_MAX`] messages, slice 0 of each is carried out, then slice 1 of each and
/// so on, always in the same order of messages. Two ranks with different other messages therefore
/// reach their common ones in the same order, and neither waits for one that the other has put
/// behind.
#[derive(Debug)]
struct Messages {
    parts: Vec<CallPart>,
    /// Bytes of a slot for each of them.
    share_bytes: usize,
    slices: u32,
}

impl Messages {
    fn new(parts: Vec<CallPart>, share_bytes: usize) -> Result<Messages> {
        let most = parts.iter().map(|part| part.cut.slices()).max();
        let turns = parts.len().div_ceil(MESSAGES_MAX) as u32;
        let slices = most.unwrap_or(0).checked_mul(turns).ok_or_else(|| {
            let text = "messages of too many slices: use larger slots or smaller groups";
            Error::InvalidArgument(text.into())
        })?;
        Ok(Messages {
            parts,
            share_bytes,
            slices,
        })
    }

    /// The messages that have a part in `slice`, each with its place in slots and its own slice.
    fn of_slice(&self, slice: u32) -> impl Iterator<Item = (usize, &CallPart, u32)> {
        let turns = (self.parts.len().div_ceil(MESSAGES_MAX) as u32).max(1);
        let (own, turn) = (slice / turns, (slice % turns) as usize);
        let parts = self.parts.iter().skip(turn * MESSAGES_MAX);
        let parts = parts.take(MESSAGES_MAX).enumerate();
        parts
            .filter(move |(_, part)| own < part.cut.slices())
            .map(move |(index, part)| (index * self.share_bytes, part, own))
    }
}

/// A collective, or one of the messages.
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
    /// `request`, checked, in slices of `slice_bytes` at most in slots of `bank`.
    fn new(
        request: DeviceRequest,
        terms: &Terms,
        slice_bytes: usize,
        bank: Bank,
    ) -> Result<CallPart> {
        let cut = Cut::new(&request, terms.rank, terms.world_size, slice_bytes, bank)?;
        request.check_overlap(cut.own_bytes(terms.rank))?;
        let sums = bank == Bank::Direct && request.collective.reduces();
        let sum = sums.then(|| Sum::new(request.op, request.dtype, terms.world_size));
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
    /// The collective `request` on these `terms`, checked, in slices of `slice_bytes` at most;
    /// `marks` are for it alone.
    pub fn collective(
        request: DeviceRequest,
        terms: Terms,
        marks: Marks,
        slice_bytes: usize,
    ) -> Result<LaneCall> {
        let bank = match terms.is_direct && goes_by_slots(&request.on_host()) {
            true => Bank::Direct,
            false => Bank::Host,
        };
        let part = CallPart::new(request, &terms, slice_bytes, bank)?;
        let slices = part.cut.slices();
        Ok(terms.call(bank, slices, marks, Body::Collective(Box::new(part))))
    }

    /// The messages `requests`, made together on these `terms`, checked; `marks` are for them
    /// alone. The length of slices does not depend on their number, which differs from rank to
    /// rank.
    pub fn messages(
        mut requests: Vec<DeviceRequest>,
        terms: Terms,
        marks: Marks,
    ) -> Result<LaneCall> {
        requests.sort_by_key(|request| turn(request, terms.rank, terms.world_size));
        let share_bytes = message_share_bytes(terms.slot_bytes);
        let part = |request| CallPart::new(request, &terms, share_bytes, Bank::Host);
        let parts = requests.into_iter().map(part).collect::<Result<_>>()?;
        let messages = Messages::new(parts, share_bytes)?;
        let slices = messages.slices;
        Ok(terms.call(Bank::Host, slices, marks, Body::Messages(messages)))
    }

    /// The call `made` on these `terms`, checked; `marks` are for it alone.
    pub fn by_one_kernel(made: OneShotCall, terms: Terms, marks: Marks) -> Result<LaneCall> {
        let bank = Bank::Direct;
        let (rank, request) = (terms.rank, &made.request);
        let cut = Cut::new(request, rank, terms.world_size, terms.slot_bytes, bank)?;
        request.check_overlap(cut.own_bytes(rank))?;
        Ok(terms.call(bank, 1, marks, Body::OneShot(Box::new(made))))
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
            (_, Bank::Direct) => Carried::Direct,
            (_, Bank::Host) => Carried::Host,
        }
    }

    /// The call that one kernel does, if one does.
    pub fn one_shot(&self) -> Option<&OneShotCall> {
        match &self.body {
            Body::OneShot(call) => Some(call),
            Body::Collective(_) | Body::Messages(_) => None,
        }
    }

    /// What `slice` brings from the device into its slot.
    pub fn brought(&self, slice: u32) -> Vec<Transfer> {
        self.transfers(slice, |part, slice| (part.cut.brought(slice), &part.input))
    }

    /// What `slice` takes to the device from its result.
    pub fn taken(&self, slice: u32) -> Vec<Transfer> {
        self.transfers(slice, |part, slice| (part.cut.taken(slice), &part.output))
    }

    /// What `slice`, a direct one, takes to the device from other ranks' slots.
    pub fn fetched(&self, slice: u32) -> Vec<Fetch> {
        let fetches = |CallPart { cut, output, .. }: &CallPart| {
            let mut fetches = vec![];
            for Fetched { rank, part } in cut.fetched(slice) {
                let transfers = output.transfers(part.of_buffer, part.at);
                fetches.extend(transfers.map(|transfer| Fetch { rank, transfer }));
            }
            fetches
        };
        self.part().map(fetches).unwrap_or_default()
    }

    /// What `slice`, a direct one, takes to the device from this rank's place of sums.
    pub fn taken_sums(&self, slice: u32) -> Vec<Transfer> {
        self.transfers(slice, |part, slice| {
            (Vec::from_iter(part.cut.taken_sum(slice)), &part.output)
        })
    }

    /// What `slice`, a direct one, copies from this rank's input to its output.
    pub fn kept(&self, slice: u32) -> Vec<(DeviceRegion, DeviceRegion)> {
        let kept = |part: &CallPart| match part.cut.kept(slice) {
            Some([from, into]) if !part.is_in_place => part.input.paired(from, &part.output, into),
            _ => vec![],
        };
        self.part().map(kept).unwrap_or_default()
    }

    /// Where its results stand on the device, if it is no message.
    pub fn outputs(&self) -> &[DeviceRegion] {
        match &self.body {
            Body::OneShot(call) => call.request.output.regions(),
            Body::Collective(part) => part.output.regions(),
            Body::Messages(_) => &[],
        }
    }

    /// The collective, if it is one in slices.
    fn part(&self) -> Option<&CallPart> {
        match &self.body {
            Body::Collective(part) => Some(part),
            Body::Messages(_) | Body::OneShot(_) => None,
        }
    }

    /// The calls that have a part in `slice`, each with its place in slots and its own slice.
    fn of_slice(&self, slice: u32) -> impl Iterator<Item = (usize, &CallPart, u32)> {
        let messages = match &self.body {
            Body::Messages(messages) => Some(messages.of_slice(slice)),
            Body::Collective(_) | Body::OneShot(_) => None,
        };
        let collective = self.part().map(|part| (0, part, slice));
        collective.into_iter().chain(messages.into_iter().flatten())
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

    /// The collective that ranks compare, without memory, and the most bytes of its slices.
    pub fn compared(&self) -> Option<(Request, usize)> {
        match &self.body {
            Body::OneShot(call) => Some((call.request.on_host(), call.bytes())),
            Body::Collective(part) => Some((part.cut.request().clone(), part.cut.slice_bytes())),
            Body::Messages(_) => None,
        }
    }

    /// Elements of a slice of a collective's vector, or of each block.
    pub fn part_elements(&self) -> u64 {
        self.part().map_or(0, |part| part.cut.part_elements())
    }

    /// Whether each rank combines by itself what it gets.
    pub fn sums_alone(&self) -> bool {
        self.part().is_some_and(|part| part.cut.sums_alone())
    }

    /// Whether devices take sums that other ranks have combined.
    pub fn shares_sums(&self) -> bool {
        self.part()
            .is_some_and(|part| part.sum.is_some() && part.cut.shares_sums())
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
        match self.part().map(|part| (&part.sum, part.cut.share(slice))) {
            Some((Some(sum), Some(share))) => sum.combine(&share, own, slot, parallel),
            _ => Ok(()),
        }
    }

    /// The bytes of the input or of the output, whichever is longer, if it is no message.
    pub fn bytes(&self) -> usize {
        match &self.body {
            Body::OneShot(call) => call.bytes(),
            Body::Collective(part) => part.input.bytes().max(part.output.bytes()),
            Body::Messages(_) => 0,
        }
    }

    /// The host's messages of `slice`, from the slot to the result.
    pub fn messages_of(&self, slice: u32, slot: Region, result: Region) -> Vec<Request> {
        let request = |(place, part, slice): (usize, &CallPart, u32)| {
            let share = |region: Region| region.part(place..region.bytes());
            part.cut.on_host(slice, share(slot), share(result))
        };
        self.of_slice(slice).map(request).collect()
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
