//! The ranks' devices, as far as the product's lanes are concerned: two streams a rank, in which
//! slices are brought and taken in the order of a [`Program`], behind words that rank and device
//! write.
//!
//! ```text
//! out   enqueued · host has handled slice n-K · copy out of slice n · the rank sees it
//! in    enqueued · host has handled slice n   · copy in of slice n  · the rank sees it
//! ```
//!
//! The rank's host call for slice n is due when slice n was brought and slice n-K taken. Of a
//! direct call it is due when slice n was brought, and slice n-K was taken by all ranks before
//! slice n is copied out; of a sum, the rank then combines its share, and a second call is due.
//!
//! A small all-reduce that one kernel does is a copy out, which waits for nothing and raises a
//! flag, and a copy in, which waits for the flags of all ranks. No call of the host's stands
//! between them.

use std::collections::VecDeque;

use super::device_links::DeviceLinks;
use super::record::ORIGIN;
use crate::lane::program::Step;
use crate::lane::staging::Bank;
use crate::simulate::devices::{Devices, Direction};
use crate::simulate::program::Program;
use crate::simulate::scenario::Scenario;

/// A number that only grows, and the end of the chain behind its last change.
#[derive(Clone, Copy)]
pub(super) struct Count {
    pub value: u32,
    pub part: u32,
}

/// A stream of a rank's device.
pub(super) struct DeviceStream {
    /// What is still to be done, and when it is enqueued.
    pub queue: VecDeque<(Step, u64)>,
    pub is_copying: bool,
    /// The end of the chain behind its last operation.
    pub part: u32,
}

/// One rank's device, as far as its lane is concerned.
pub(super) struct RankDevice {
    /// By direction.
    pub streams: [DeviceStream; 2],
    /// Slices that the rank sees brought, and those that it sees taken.
    pub seen: [Count; 2],
    /// Slices that the device sees handled by the host.
    pub released: Count,
    /// Direct slices that the device sees taken by all ranks.
    pub free: Count,
    /// Whether the rank combines its share of a slice.
    pub is_combining: bool,
    pub program: Program,
}

/// All ranks' devices.
#[derive(Default)]
pub(in crate::simulate) struct Lanes {
    pub(super) ranks: Vec<RankDevice>,
    pub(super) links: Vec<DeviceLinks>,
    /// Copies that are done since this was last taken, in order.
    pub copied: Vec<(usize, Step)>,
    /// Whether devices read the slots of all ranks.
    pub is_direct: bool,
    /// Direct slices that all ranks have been seen to have taken.
    pub given_back: u32,
    /// Flags that kernels see, and the end of the chain behind the last.
    pub(super) flags: Count,
    /// Whether nothing but copies takes time.
    pub is_alone: bool,
}

impl Default for Count {
    fn default() -> Count {
        Count::NONE
    }
}

impl Count {
    const NONE: Count = Count {
        value: 0,
        part: ORIGIN,
    };

    pub fn grow(&mut self, part: u32) {
        self.value += 1;
        self.part = part;
    }
}

impl Lanes {
    /// The devices of a scenario, which was checked.
    pub fn new(scenario: &Scenario) -> Lanes {
        let Some(devices) = &scenario.devices else {
            return Lanes::default();
        };
        let rank = |(rank, begins_ps)| {
            let program = scenario.program(rank);
            let program = program.expect("a scenario that was checked");
            RankDevice::new(program, devices, begins_ps)
        };
        let last = devices.device(scenario.ranks - 1);
        Lanes {
            ranks: scenario
                .begins_ps()
                .into_iter()
                .enumerate()
                .map(rank)
                .collect(),
            links: (0..=last)
                .map(|_| DeviceLinks::new(devices.duplex))
                .collect(),
            copied: Vec::new(),
            is_direct: scenario.bank() == Bank::Direct,
            given_back: 0,
            flags: Count::NONE,
            is_alone: false,
        }
    }
}

impl RankDevice {
    fn new(program: Program, devices: &Devices, begins_ps: u64) -> RankDevice {
        let stream = || DeviceStream {
            queue: VecDeque::new(),
            is_copying: false,
            part: ORIGIN,
        };
        let mut streams = [stream(), stream()];
        let mut at_ps = begins_ps;
        for step in program.steps(devices.depth) {
            at_ps += program.calls(step, devices.depth) * devices.enqueue_ps;
            streams[direction(step) as usize]
                .queue
                .push_back((step, at_ps));
        }
        RankDevice {
            streams,
            seen: [Count::NONE; 2],
            released: Count::NONE,
            free: Count::NONE,
            is_combining: false,
            program,
        }
    }

    /// The bytes that a step moves over the link.
    pub fn bytes(&self, step: Step) -> u64 {
        self.program.moved(step).bytes
    }
}

/// The direction, and so the stream, of a step.
fn direction(step: Step) -> Direction {
    match step {
        Step::Bring(_) => Direction::Out,
        Step::Take(_) => Direction::In,
    }
}
