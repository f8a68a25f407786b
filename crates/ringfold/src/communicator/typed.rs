//! The collectives on slices.
//!
//! # Common properties
//!
//! * *Blocking*: they return when the call is complete on this rank: its output is complete and its
//!   input may be changed.
//! * *Order*: every rank makes the same calls in the same order on a communicator.
//! * *Aliasing*: slices cannot overlap, except where one slice is both input and output.
//! * *Errors*: `InvalidArgument` and `Unsupported` leave the communicator usable; the others end
//!   it, see [`Error`].
//! * *Threads*: any thread may call; calls run one after the other.

use super::{Communicator, Counts, Request};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::{Collective, Op};

fn readable<T: Element>(slice: &[T]) -> Region {
    // SAFETY: borrowed until the blocking call that uses the region returns, which only reads it.
    unsafe { Region::new(slice.as_ptr().cast_mut().cast(), size_of_val(slice)) }
}

fn writable<T: Element>(slice: &mut [T]) -> Region {
    // SAFETY: borrowed exclusively until the blocking call that uses the region returns.
    unsafe { Region::new(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

impl Communicator {
    /// Replaces `buffer` on every rank by the reduction of all ranks' buffers. The same length on
    /// all ranks.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: Op) -> Result<()> {
        let region = writable(buffer);
        self.reducing::<T>(Collective::AllReduce, buffer.len(), region, region, op, 0)
    }

    /// Sets `output` on every rank to the reduction of all ranks' `input`s. All of one length.
    pub fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T], op: Op) -> Result<()> {
        self.reducing::<T>(
            Collective::AllReduce,
            input.len(),
            readable(input),
            writable(output),
            op,
            0,
        )
    }

    /// Sets `output` on `root` to the reduction of all ranks' `input`s; elsewhere `output` is
    /// unchanged and may be empty.
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: Op,
        root: usize,
    ) -> Result<()> {
        self.reducing::<T>(
            Collective::Reduce,
            input.len(),
            readable(input),
            writable(output),
            op,
            root,
        )
    }

    /// Sets `output` to this rank's block of the reduction of all ranks' `input`s, which have
    /// `world_size` blocks.
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: Op) -> Result<()> {
        self.reducing::<T>(
            Collective::ReduceScatter,
            output.len(),
            readable(input),
            writable(output),
            op,
            0,
        )
    }

    /// Replaces `buffer` on every rank by `root`'s. The same length everywhere.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let region = writable(buffer);
        self.moving::<T>(Collective::Broadcast, buffer.len(), region, region, root)
    }

    /// Sets `output` on every rank to all ranks' `input`s in rank order: `world_size` times as
    /// long.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.moving::<T>(
            Collective::AllGather,
            input.len(),
            readable(input),
            writable(output),
            0,
        )
    }

    /// Sets `output` on `root` to all ranks' `input`s in rank order; elsewhere `output` may be
    /// empty.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.moving::<T>(
            Collective::Gather,
            input.len(),
            readable(input),
            writable(output),
            root,
        )
    }

    /// Sets `output` to this rank's block of `root`'s `input`, which has `world_size` blocks;
    /// elsewhere `input` may be empty.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.moving::<T>(
            Collective::Scatter,
            output.len(),
            readable(input),
            writable(output),
            root,
        )
    }

    /// Sets block `i` of `output` to block `rank` of rank `i`'s `input`. Both have `world_size`
    /// blocks of one length.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let block = input.len() / self.world_size();
        if block * self.world_size() != input.len() {
            let (len, ranks) = (input.len(), self.world_size());
            return Err(Error::InvalidArgument(format!(
                "{len} elements do not divide into {ranks} blocks"
            )));
        }
        self.moving::<T>(
            Collective::AllToAll,
            block,
            readable(input),
            writable(output),
            0,
        )
    }

    /// Sends to the next rank and receives from the previous one, around the ring of all ranks.
    pub fn sendrecv<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.moving::<T>(
            Collective::SendRecv,
            input.len(),
            readable(input),
            writable(output),
            0,
        )
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<()> {
        self.moving::<u8>(Collective::Barrier, 0, Region::EMPTY, Region::EMPTY, 0)
    }

    /// Sends `input` to `peer`, which receives as many elements of the same type under the same
    /// `tag`. Runs alongside the collectives and neither waits for the other. May wait until the
    /// peer receives.
    pub fn send<T: Element>(&self, input: &[T], peer: usize, tag: u32) -> Result<()> {
        let counts = Counts::Even(input.len() as u64);
        let mut request = Request::new(
            Collective::Send,
            T::DTYPE,
            counts,
            readable(input),
            Region::EMPTY,
        );
        (request.root, request.tag) = (peer, tag);
        // SAFETY: `input` is borrowed until this returns.
        unsafe { self.run(&request, &mut || Ok(())) }.map(|_| ())
    }

    /// Fills `output` with the oldest message of `peer` to this rank that has this `tag`,
    /// regardless of messages sent before it under other tags. `Mismatch` if it has another length
    /// or type.
    pub fn recv<T: Element>(&self, output: &mut [T], peer: usize, tag: u32) -> Result<()> {
        self.receive(output, peer, tag).map(|_| ())
    }

    /// Fills `output` with the oldest message of any rank to this one that has this `tag`, and
    /// returns the rank that sent it. No sender is starved. If all other ranks have left, it is a
    /// failed peer.
    pub fn recv_any<T: Element>(&self, output: &mut [T], tag: u32) -> Result<usize> {
        let source = self.receive(output, Request::ANY_SOURCE, tag)?;
        Ok(source.expect("a receive that ended well got a message from somebody"))
    }

    /// Receives, and returns the sender.
    fn receive<T: Element>(
        &self,
        output: &mut [T],
        peer: usize,
        tag: u32,
    ) -> Result<Option<usize>> {
        let counts = Counts::Even(output.len() as u64);
        let mut request = Request::new(
            Collective::Recv,
            T::DTYPE,
            counts,
            Region::EMPTY,
            writable(output),
        );
        (request.root, request.tag) = (peer, tag);
        // SAFETY: `output` is borrowed exclusively until this returns.
        unsafe { self.run(&request, &mut || Ok(())) }
    }

    fn moving<T: Element>(
        &self,
        collective: Collective,
        count: usize,
        input: Region,
        output: Region,
        root: usize,
    ) -> Result<()> {
        self.reducing::<T>(collective, count, input, output, Op::Sum, root)
    }

    fn reducing<T: Element>(
        &self,
        collective: Collective,
        count: usize,
        input: Region,
        output: Region,
        op: Op,
        root: usize,
    ) -> Result<()> {
        let mut request = Request::new(
            collective,
            T::DTYPE,
            Counts::Even(count as u64),
            input,
            output,
        );
        (request.op, request.root) = (op, root);
        // SAFETY: the public methods above hold the borrows behind both regions until this returns.
        unsafe { self.run(&request, &mut || Ok(())) }.map(|_| ())
    }
}
