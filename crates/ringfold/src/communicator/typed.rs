//! The collectives on slices: of a [`Communicator`], of [`Calls`] with options of their own, and of
//! a [`Scope`](super::Scope), in which calls are under way beside each other.
//!
//! # Common properties
//!
//! * *Order*: every rank makes the same calls in the same order on a communicator.
//! * *Aliasing*: slices cannot overlap, except where one slice is both input and output.
//! * *Errors*: `InvalidArgument` and `Unsupported` leave the communicator usable; other errors end
//!   it, see [`Error`](crate::Error).
//! * *Threads*: any thread may call; calls run one after the other.

use super::Communicator;
use super::request::{CallOptions, Counts, Request, Target};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::{Collective, Op};

/// The calls of a communicator with options that differ from the communicator's settings: see
/// [`Communicator::with`].
///
/// A call blocks until it is complete on this rank: its output is complete, and its input may be
/// changed.
#[derive(Clone, Copy, Debug)]
pub struct Calls<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) options: CallOptions,
}

/// Defines the collectives on slices, which the caller borrows for `$data`, if it is given, and
/// otherwise for the call. Each makes a request and passes it to `call`.
macro_rules! collectives {
    ($output:ty $(, $data:lifetime)?) => {
        /// Replaces `buffer` on every rank by the reduction of all ranks' buffers, which have one
        /// length.
        pub fn all_reduce<T: Element>(
            &self,
            buffer: &$($data)? mut [T],
            op: Op,
        ) -> Result<$output> {
            self.call(Request { op, ..in_place(Collective::AllReduce, buffer) })
        }

        /// Sets `output` on every rank to the reduction of all ranks' `input`s, all of one length.
        pub fn all_reduce_into<T: Element>(
            &self,
            input: &$($data)? [T],
            output: &$($data)? mut [T],
            op: Op,
        ) -> Result<$output> {
            let request = request(Collective::AllReduce, input.len(), input, output);
            self.call(Request { op, ..request })
        }

        /// Sets `output` on `root` to the reduction of all ranks' `input`s; elsewhere `output` is
        /// unchanged and may be empty.
        pub fn reduce<T: Element>(
            &self,
            input: &$($data)? [T],
            output: &$($data)? mut [T],
            op: Op,
            root: usize,
        ) -> Result<$output> {
            let target = Target::Root(root);
            let request = request(Collective::Reduce, input.len(), input, output);
            self.call(Request { op, target, ..request })
        }

        /// Sets `output` to this rank's block of the reduction of all ranks' `input`s, which have
        /// `world_size` blocks.
        pub fn reduce_scatter<T: Element>(
            &self,
            input: &$($data)? [T],
            output: &$($data)? mut [T],
            op: Op,
        ) -> Result<$output> {
            let request = request(Collective::ReduceScatter, output.len(), input, output);
            self.call(Request { op, ..request })
        }

        /// Replaces `buffer` on every rank by `root`'s buffer, of the same length.
        pub fn broadcast<T: Element>(
            &self,
            buffer: &$($data)? mut [T],
            root: usize,
        ) -> Result<$output> {
            let target = Target::Root(root);
            self.call(Request { target, ..in_place(Collective::Broadcast, buffer) })
        }

        /// Sets `output` on every rank to all ranks' `input`s in rank order. `output` is
        /// `world_size` times as long.
        pub fn all_gather<T: Element>(
            &self,
            input: &$($data)? [T],
            output: &$($data)? mut [T],
        ) -> Result<$output> {
            self.call(request(Collective::AllGather, input.len(), input, output))
        }

        /// Sets `output` on `root` to all ranks' `input`s in rank order; elsewhere `output` may be
        /// empty.
        pub fn gather<T: Element>(
            &self,
            input: &$($data)? [T],
            output: &$($data)? mut [T],
            root: usize,
        ) -> Result<$output> {
            let target = Target::Root(root);
            let request = request(Collective::Gather, input.len(), input, output);
            self.call(Request { target, ..request })
        }

        /// Sets `output` to this rank's block of `root`'s `input`, which has `world_size` blocks;
        /// elsewhere `input` may be empty.
        pub fn scatter<T: Element>(
            &self,
            input: &$($data)? [T],
            output: &$($data)? mut [T],
            root: usize,
        ) -> Result<$output> {
            let target = Target::Root(root);
            let request = request(Collective::Scatter, output.len(), input, output);
            self.call(Request { target, ..request })
        }

        /// Sets block `i` of `output` to block `rank` of rank `i`'s `input`. Input and output have
        /// `world_size` blocks of one length.
        pub fn all_to_all<T: Element>(
            &self,
            input: &$($data)? [T],
            output: &$($data)? mut [T],
        ) -> Result<$output> {
            let block = block(input.len(), self.ranks())?;
            self.call(request(Collective::AllToAll, block, input, output))
        }

        /// Sends to the next rank and receives from the previous one, around the ring of all ranks.
        pub fn sendrecv<T: Element>(
            &self,
            input: &$($data)? [T],
            output: &$($data)? mut [T],
        ) -> Result<$output> {
            self.call(request(Collective::SendRecv, input.len(), input, output))
        }

        /// Is complete when all ranks have called `barrier`.
        pub fn barrier(&self) -> Result<$output> {
            self.call(request::<u8>(Collective::Barrier, 0, &[], &mut []))
        }

        /// Sends `input` to `peer`, which receives as many elements of the same type under the same
        /// `tag`. Messages and collectives do not wait for each other. May wait until the peer
        /// receives.
        ///
        /// `peer` may be this rank. Such a message waits for its receive in the library's memory,
        /// at most 256 MiB together with those of other ranks. Beyond that the send waits, and
        /// fails at its deadline.
        pub fn send<T: Element>(
            &self,
            input: &$($data)? [T],
            peer: usize,
            tag: u32,
        ) -> Result<$output> {
            let target = Target::Peer(peer);
            let request = request(Collective::Send, input.len(), input, &mut []);
            self.call(Request { target, tag, ..request })
        }

        /// Fills `output` with the oldest message of `peer` to this rank that has this `tag`,
        /// regardless of earlier messages under other tags. `Mismatch` if the message has another
        /// length or type.
        pub fn recv<T: Element>(
            &self,
            output: &$($data)? mut [T],
            peer: usize,
            tag: u32,
        ) -> Result<$output> {
            self.call(receive(output, Target::Peer(peer), tag))
        }
    };
}

pub(super) use collectives;

/// Collectives and messages on slices. Each blocks until it is complete on this rank: its output is
/// complete, and its input may be changed.
impl Communicator {
    collectives!(());

    /// Fills `output` with the oldest message of any rank to this rank that has this `tag`. Returns
    /// the sender, perhaps this rank. No sender is starved. Reports a failed peer if all other
    /// ranks have left.
    pub fn recv_any<T: Element>(&self, output: &mut [T], tag: u32) -> Result<usize> {
        self.with(CallOptions::default()).recv_any(output, tag)
    }

    /// Returns the calls of this communicator with `options` instead of its settings.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ringfold::{CallOptions, Communicator, Op};
    ///
    /// let comm = Communicator::init()?;
    /// let mut patient = CallOptions::default();
    /// patient.timeout = Some(Duration::from_secs(3600));
    /// comm.with(patient).all_reduce(&mut [1f32; 1000], Op::Sum)?;
    /// # Ok::<(), ringfold::Error>(())
    /// ```
    pub fn with(&self, options: CallOptions) -> Calls<'_> {
        Calls {
            communicator: self,
            options,
        }
    }

    fn ranks(&self) -> usize {
        self.world_size()
    }

    /// Runs a call on slices that are borrowed until this returns. Inlined, so that a small call
    /// does not copy its request.
    #[inline(always)]
    fn call(&self, request: Request) -> Result<()> {
        // SAFETY: the slices are borrowed until this returns, the output exclusively.
        unsafe { self.run(&request, &mut || Ok(())) }.map(|_| ())
    }
}

impl Calls<'_> {
    collectives!(());

    /// Fills `output` with the oldest message of any rank that has this `tag`, and returns the
    /// sender; as [`Communicator::recv_any`].
    pub fn recv_any<T: Element>(&self, output: &mut [T], tag: u32) -> Result<usize> {
        let source = self.run(receive(output, Target::AnySource, tag))?;
        Ok(source.expect("a successful receive has a source"))
    }

    fn ranks(&self) -> usize {
        self.communicator.world_size()
    }

    fn call(&self, request: Request) -> Result<()> {
        self.run(request).map(|_| ())
    }

    /// Runs a call on slices that are borrowed until this returns; returns the source of a receive.
    fn run(&self, request: Request) -> Result<Option<usize>> {
        let options = self.options;
        let request = Request { options, ..request };
        // SAFETY: the slices are borrowed until this returns, the output exclusively.
        unsafe { self.communicator.run(&request, &mut || Ok(())) }
    }
}

/// Returns the request of a collective from one slice to another.
#[inline(always)]
pub(super) fn request<T: Element>(
    collective: Collective,
    count: usize,
    input: &[T],
    output: &mut [T],
) -> Request {
    let counts = Counts::Even(count as u64);
    Request::new(
        collective,
        T::DTYPE,
        counts,
        readable(input),
        writable(output),
    )
}

/// Returns the request of a collective whose input and output are one slice.
#[inline(always)]
pub(super) fn in_place<T: Element>(collective: Collective, buffer: &mut [T]) -> Request {
    let (count, region) = (Counts::Even(buffer.len() as u64), writable(buffer));
    Request::new(collective, T::DTYPE, count, region, region)
}

/// Returns the request of a receive.
pub(super) fn receive<T: Element>(output: &mut [T], target: Target, tag: u32) -> Request {
    let request = request(Collective::Recv, output.len(), &[], output);
    Request {
        target,
        tag,
        ..request
    }
}

/// Returns the elements of a block of an `all_to_all`.
pub(super) fn block(elements: usize, ranks: usize) -> Result<usize> {
    match elements.is_multiple_of(ranks) {
        true => Ok(elements / ranks),
        false => Err(Error::InvalidArgument(format!(
            "{elements} elements do not divide into {ranks} blocks"
        ))),
    }
}

pub(super) fn readable<T: Element>(slice: &[T]) -> Region {
    // SAFETY: borrowed for as long as the call that uses the region, which only reads it.
    unsafe { Region::new(slice.as_ptr().cast_mut().cast(), size_of_val(slice)) }
}

pub(super) fn writable<T: Element>(slice: &mut [T]) -> Region {
    // SAFETY: borrowed exclusively for as long as the call that uses the region.
    unsafe { Region::new(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}
