//! Events of the simulated world, which its queue keeps by time.

use crate::simulate::devices::Direction;

/// A scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::simulate) enum ScheduledEvent {
    /// A message has left the sender's port.
    Sent(u32),
    /// The first byte of a message has arrived.
    FirstByte(u32),
    /// A message has passed the receiver's port.
    Arrived(u32),
    /// A grant has arrived at this rank.
    Granted(u32),
    /// A job is done.
    JobDone(u32),
    /// A rank sleeps if it has had nothing to do since this turn.
    Sleep {
        /// The rank.
        rank: u32,
        /// Number of jobs that the rank had begun.
        turn: u32,
    },
    /// A rank polls if it has had nothing to do since this turn: others may take its core.
    Poll {
        /// The rank.
        rank: u32,
        /// Number of jobs that the rank had begun.
        turn: u32,
    },
    /// A message on a shared link has left, unless bandwidth was shared out again since.
    Drained(u64),
    /// A stream of a rank's device looks at its next operation.
    Stream(u32, Direction),
    /// A copy of a rank's device comes to the link.
    CopyReady(u32, Direction),
    /// The first copies on a device's links have passed, unless there was another change since.
    CopyPassed(u32, u64),
    /// A rank sees that its device has brought or taken a slice.
    Seen {
        /// Which rank.
        rank: u32,
        /// Whether it was brought or taken.
        direction: Direction,
        /// The end of the chain behind it.
        part: u32,
    },
    /// A rank's device sees that its host has handled a slice, behind this chain.
    Released(u32, u32),
    /// A rank's device sees that all have taken a slice from their slots, behind this chain.
    GivenBack(u32, u32),
    /// The part of a kernel in this direction is done, which began at this time.
    KernelPassed(u32, Direction, u64),
    /// All kernels see the flag of another one, behind this chain.
    Flag(u32),
    /// A port may send its next message.
    PortRested {
        /// The port's rank.
        rank: u32,
        /// Whether the port is the one within a host.
        is_local: bool,
    },
}
