//! An all-reduce whose elements devices combine.
//!
//! Of each slice a rank brings the blocks of the others and takes what they have for its own, by an
//! `all_to_all` of the host; its device combines the rows in the order of ranks; and an
//! `all_gather` of the host brings the combined blocks to all. Its own block never leaves the
//! device before it is combined.

#![forbid(unsafe_code)]

use std::ops::Range;

use super::shares::Shares;
use crate::communicator::Request;
use crate::device::DeviceRegion;
use crate::lane::meeting::meeting;
use crate::lane::program::{Half, Halves};
use crate::lane::request::{DeviceBuffer, DeviceRequest, Fetch, Transfer};
use crate::memory::Region;
use crate::types::{DType, Op};

/// Where devices combine: a set of rows for each slot.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub region: DeviceRegion,
    pub sets: u32,
}

impl Rows {
    /// The rows of `slice`.
    pub fn of(self, slice: u32) -> DeviceRegion {
        let bytes = self.region.bytes() / self.sets as usize;
        let begin = self.set(slice) * bytes;
        self.region.part(begin..begin + bytes)
    }

    /// Which set `slice` has.
    pub fn set(self, slice: u32) -> usize {
        (slice % self.sets) as usize
    }
}

/// The call, on this rank.
#[derive(Debug)]
pub struct FoldedCall {
    shares: Shares,
    pub halves: Halves,
    rows: Rows,
    request: DeviceRequest,
}

/// What a device combines.
#[derive(Debug)]
pub struct Fold {
    pub op: Op,
    pub dtype: DType,
    /// Which set of rows: which events, too.
    pub set: usize,
    pub rows: DeviceRegion,
    /// How many rows, and the bytes of each.
    pub count: usize,
    pub row_bytes: usize,
    /// This rank's own row, as far as it is of the vector.
    pub own: DeviceRegion,
    /// Copies to it, and from it.
    pub input: Vec<(DeviceRegion, DeviceRegion)>,
    pub output: Vec<(DeviceRegion, DeviceRegion)>,
}

impl FoldedCall {
    /// `request`, which is checked, of an all-reduce that is cut like this.
    pub fn new(request: DeviceRequest, shares: Shares, rows: Rows) -> FoldedCall {
        FoldedCall {
            shares,
            halves: Halves::new(shares.slices(), rows.sets),
            rows,
            request,
        }
    }

    /// What the half at `place` brings.
    pub fn brought(&self, place: u32) -> Vec<Transfer> {
        match self.halves.at(place) {
            Half::Scatter(slice) => self.foreign(&self.request.input, slice),
            Half::Gather(slice) => {
                let own = self.own_row(slice);
                let transfer = Transfer {
                    at: 0..own.bytes(),
                    device: own,
                };
                Vec::from_iter((own.bytes() > 0).then_some(transfer))
            }
        }
    }

    /// What the half at `place` takes.
    pub fn taken(&self, place: u32) -> Vec<Transfer> {
        match self.halves.at(place) {
            Half::Scatter(slice) if self.own_row(slice).bytes() == 0 => vec![],
            Half::Scatter(slice) => {
                let own = self.row(slice);
                let all = self.shares.block_bytes(slice) * self.shares.world_size;
                let around = [0..own.start, own.end..all];
                let transfer = |at: Range<usize>| Transfer {
                    device: self.rows.of(slice).part(at.clone()),
                    at,
                };
                let around = around.into_iter().filter(|at| !at.is_empty());
                around.map(transfer).collect()
            }
            Half::Gather(slice) => self.foreign(&self.request.output, slice),
        }
    }

    /// What the half at `place` takes from the slots of other ranks, where it is direct: that of
    /// the next rank first.
    pub fn fetched(&self, place: u32) -> Vec<Fetch> {
        let Shares {
            rank, world_size, ..
        } = self.shares;
        let others = (rank + 1..world_size).chain(0..rank);
        let half = self.halves.at(place);
        let (Half::Scatter(slice) | Half::Gather(slice)) = half;
        let (rows, own, block) = (
            self.rows.of(slice),
            self.shares.own(slice).len(),
            self.shares.block_bytes(slice),
        );
        let mut fetches = vec![];
        for rank in others {
            let transfers: Vec<Transfer> = match half {
                Half::Scatter(_) if own == 0 => vec![],
                Half::Scatter(_) => {
                    let row = rank * block;
                    let at = self.row(slice).start;
                    vec![Transfer {
                        device: rows.part(row..row + own),
                        at: at..at + own,
                    }]
                }
                Half::Gather(_) => {
                    let range = self.shares.of_rank(rank).own(slice);
                    self.request.output.transfers(range, 0).collect()
                }
            };
            fetches.extend(
                transfers
                    .into_iter()
                    .map(|transfer| Fetch { rank, transfer }),
            );
        }
        fetches
    }

    /// Where the result stands.
    pub fn output(&self) -> &DeviceBuffer {
        &self.request.output
    }

    /// The call that ranks compare for the half at `place`, where it is direct.
    pub fn by_devices(&self, place: u32) -> Request {
        let (request, _) = self.of_half(place);
        meeting(&request)
    }

    /// The call on the host for the half at `place`.
    pub fn on_host(&self, place: u32, slot: Region, result: Region) -> Request {
        let (request, [given, got]) = self.of_half(place);
        Request {
            input: slot.part(0..given),
            output: result.part(0..got),
            ..request
        }
    }

    /// The call for the half at `place`, without memory, and the bytes of its input and output.
    fn of_half(&self, place: u32) -> (Request, [usize; 2]) {
        self.shares.of_half(self.halves.at(place), &self.request)
    }

    /// What the device combines for the gather half of `slice`.
    pub fn fold(&self, slice: u32) -> Fold {
        let (own, range) = (self.own_row(slice), self.shares.own(slice));
        let pieces = |buffer: &DeviceBuffer| -> Vec<(DeviceRegion, DeviceRegion)> {
            let pieces = buffer.pieces(range.clone());
            let with_row =
                |(at, piece): (usize, DeviceRegion)| (piece, own.part(at..at + piece.bytes()));
            pieces.map(with_row).collect()
        };
        let to_output = |(piece, row)| (row, piece);
        Fold {
            op: self.request.op,
            dtype: self.request.dtype,
            set: self.rows.set(slice),
            rows: self.rows.of(slice),
            count: self.shares.world_size,
            row_bytes: self.shares.block_bytes(slice),
            own,
            input: pieces(&self.request.input),
            output: pieces(&self.request.output)
                .into_iter()
                .map(to_output)
                .collect(),
        }
    }

    /// The set of rows that the half at `place` uses.
    pub fn set(&self, place: u32) -> (Half, usize) {
        let half = self.halves.at(place);
        let (Half::Scatter(slice) | Half::Gather(slice)) = half;
        (half, self.rows.set(slice))
    }

    /// Where this rank's own row is, among the rows of `slice`.
    fn row(&self, slice: u32) -> Range<usize> {
        let bytes = self.shares.block_bytes(slice);
        let begin = self.shares.rank * bytes;
        begin..begin + bytes
    }

    fn own_row(&self, slice: u32) -> DeviceRegion {
        let row = self.rows.of(slice).part(self.row(slice));
        row.part(0..self.shares.own(slice).len())
    }

    /// The pieces of `buffer` in `slice` that belong to other ranks' blocks.
    fn foreign(&self, buffer: &DeviceBuffer, slice: u32) -> Vec<Transfer> {
        let begin = self.shares.bytes(slice).start;
        let of_range = |range: Range<usize>| {
            let place = range.start - begin;
            buffer.transfers(range, place)
        };
        self.shares.foreign(slice).flat_map(of_range).collect()
    }
}
