//! The collectives on slices.
//!
//! # Common properties
//!
//! * *Blocking*: a method returns when the call is complete on this rank: its output is complete
//!   and its input may be changed.
//! * *Order*: every rank makes the same calls in the same order on a communicator.
//! * *Aliasing*: slices cannot overlap, except where one slice is both input and output.
//! * *Errors*: `InvalidArgument` and `Unsupported` leave the communicator usable; other errors end
//!   it, see [`Error`].
//! * *Threads*: any thread may call; calls run one after the other.

use super::{Communicator, Counts, Request};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::Collective::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Recv, Reduce, ReduceScatter,
    Scatter, Send, SendRecv,
};
use crate::types::Op;

fn readable<T: Element>(slice: &[T]) -> Region {
    // SAFETY: borrowed until the blocking call that uses the region returns, which only reads it.
    unsafe { Region::new(slice.as_ptr().cast_mut().cast(), size_of_val(slice)) }
}

fn writable<T: Element>(slice: &mut [T]) -> Region {
    // SAFETY: borrowed exclusively until the blocking call that uses the region returns.
    unsafe { Region::new(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

impl Communicator {
    /// Replaces `buffer` on every rank by the reduction of all ranks' buffers, which have one
    /// length.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: Op) -> Result<()> {
        self.in_place(AllReduce, buffer, (op, 0))
    }

    /// Sets `output` on every rank to the reduction of all ranks' `input`s, all of one length.
    pub fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T], op: Op) -> Result<()> {
        self.reducing(AllReduce, input.len(), input, output, (op, 0))
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
        self.reducing(Reduce, input.len(), input, output, (op, root))
    }

    /// Sets `output` to this rank's block of the reduction of all ranks' `input`s, which have
    /// `world_size` blocks.
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: Op) -> Result<()> {
        self.reducing(ReduceScatter, output.len(), input, output, (op, 0))
    }

    /// Replaces `buffer` on every rank by `root`'s buffer, of the same length.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        self.in_place(Broadcast, buffer, (Op::Sum, root))
    }

    /// Sets `output` on every rank to all ranks' `input`s in rank order. `output` is
    /// `world_size` times as long.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.moving(AllGather, input.len(), input, output, 0)
    }

    /// Sets `output` on `root` to all ranks' `input`s in rank order; elsewhere `output` may be
    /// empty.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.moving(Gather, input.len(), input, output, root)
    }

    /// Sets `output` to this rank's block of `root`'s `input`, which has `world_size` blocks;
    /// elsewhere `input` may be empty.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.moving(Scatter, output.len(), input, output, root)
    }

    /// Sets block `i` of `output` to block `rank` of rank `i`'s `input`. Input and output have
    /// `world_size` blocks of one length.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let block = input.len() / self.world_size();
        if block * self.world_size() != input.len() {
            let (len, ranks) = (input.len(), self.world_size());
            return Err(Error::InvalidArgument(format!(
                "{len} elements do not divide into {ranks} blocks"
            )));
        }
        self.moving(AllToAll, block, input, output, 0)
    }

    /// Sends to the next rank and receives from the previous one, around the ring of all ranks.
    pub fn sendrecv<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.moving(SendRecv, input.len(), input, output, 0)
    }

    /// Returns when all ranks have called `barrier`.
    pub fn barrier(&self) -> Result<()> {
        self.moving::<u8>(Barrier, 0, &[], &mut [], 0)
    }

    /// Sends `input` to `peer`, which receives as many elements of the same type under the same
    /// `tag`. Messages and collectives do not wait for each other. May wait until the peer
    /// receives.
    ///
    /// `peer` may be this rank. Such a message waits for its receive in the library's memory, at
    /// most 256 MiB together with those of other ranks. Beyond that the send waits, and fails at
    /// its deadline.
    pub fn send<T: Element>(&self, input: &[T], peer: usize, tag: u32) -> Result<()> {
        let mut request = request::<T>(Send, input.len(), readable(input), Region::EMPTY);
        (request.root, request.tag) = (peer, tag);
        // SAFETY: `input` is borrowed until this returns.
        unsafe { self.run(&request, &mut || Ok(())) }.map(|_| ())
    }

    /// Fills `output` with the oldest message of `peer` to this rank that has this `tag`,
    /// regardless of earlier messages under other tags. `Mismatch` if the message has another
    /// length or type.
    pub fn recv<T: Element>(&self, output: &mut [T], peer: usize, tag: u32) -> Result<()> {
        self.receive(output, peer, tag).map(|_| ())
    }

    /// Fills `output` with the oldest message of any rank to this rank that has this `tag`. Returns
    /// the sender, perhaps this rank. No sender is starved. Reports a failed peer if all other
    /// ranks have left.
    pub fn recv_any<T: Element>(&self, output: &mut [T], tag: u32) -> Result<usize> {
        let source = self.receive(output, Request::ANY_SOURCE, tag)?;
        Ok(source.expect("a successful receive has a source"))
    }

    /// Receives a message, and returns its sender.
    fn receive<T: Element>(
        &self,
        output: &mut [T],
        peer: usize,
        tag: u32,
    ) -> Result<Option<usize>> {
        let mut request = request::<T>(Recv, output.len(), Region::EMPTY, writable(output));
        (request.root, request.tag) = (peer, tag);
        // SAFETY: `output` is borrowed exclusively until this returns.
        unsafe { self.run(&request, &mut || Ok(())) }
    }

    fn moving<T: Element>(
        &self,
        collective: Collective,
        count: usize,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<()> {
        self.reducing(collective, count, input, output, (Op::Sum, root))
    }

    fn reducing<T: Element>(
        &self,
        collective: Collective,
        count: usize,
        input: &[T],
        output: &mut [T],
        (op, root): (Op, usize),
    ) -> Result<()> {
        let mut request = request::<T>(collective, count, readable(input), writable(output));
        (request.op, request.root) = (op, root);
        // SAFETY: both slices are borrowed until this returns, `output` exclusively.
        unsafe { self.run(&request, &mut || Ok(())) }.map(|_| ())
    }

    fn in_place<T: Element>(
        &self,
        collective: Collective,
        buffer: &mut [T],
        (op, root): (Op, usize),
    ) -> Result<()> {
        let region = writable(buffer);
        let mut request = request::<T>(collective, buffer.len(), region, region);
        (request.op, request.root) = (op, root);
        // SAFETY: `buffer` is borrowed exclusively until this returns.
        unsafe { self.run(&request, &mut || Ok(())) }.map(|_| ())
    }
}

fn request<T: Element>(
    collective: Collective,
    count: usize,
    input: Region,
    output: Region,
) -> Request {
    let counts = Counts::Even(count as u64);
    Request::new(collective, T::DTYPE, counts, input, output)
}
