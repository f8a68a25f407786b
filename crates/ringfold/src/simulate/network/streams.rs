//! The streams of the ranks' devices, in time: when each operation begins, and what follows it.

use super::device_links::Passed;
use super::devices::{Devices, Direction};
use super::lanes::RankDevice;
use super::record::{Lane, ORIGIN, PathKind, TraceEvent};
use super::world::{Event, World};
use crate::error::Result;
use crate::lane::program::Step;
use crate::simulate::scenario::{Disturbance, Scenario};

/// More slices than a call has, so that no copy waits for its slot or for the host.
const NEVER_DUE: u32 = u32::MAX / 2;

impl World {
    fn devices(&self) -> &Devices {
        self.scenario.devices.as_ref().expect("a rank's device")
    }

    /// Has all streams look at what is enqueued first.
    pub fn begin_streams(&mut self) {
        for rank in 0..self.lanes.ranks.len() as u32 {
            self.schedule(0, Event::Stream(rank, Direction::Out));
            self.schedule(0, Event::Stream(rank, Direction::In));
        }
    }

    /// Begins the next operation of a stream, if it is due.
    pub fn go_on_in_stream(&mut self, rank: u32, direction: Direction) {
        let (depth, copy_ps) = (self.devices().depth, self.devices().copy_ps);
        let is_direct = self.lanes.is_direct;
        let device = &mut self.lanes.ranks[rank as usize];
        let stream = &mut device.streams[direction as usize];
        let Some(&(step, enqueued_ps)) = stream.queue.front().filter(|_| !stream.is_copying) else {
            return;
        };
        if enqueued_ps > self.now {
            return self.schedule(enqueued_ps, Event::Stream(rank, direction));
        }
        let handled = match step {
            Step::Bring(slice) => (slice + 1).saturating_sub(depth),
            Step::Take(slice) => slice + 1,
        };
        let due = match step {
            Step::Bring(_) if is_direct => device.free,
            _ => device.released,
        };
        if due.value < handled {
            return;
        }
        stream.is_copying = true;
        let waited = match handled {
            0 => stream.part,
            _ => self.record.later(stream.part, due.part),
        };
        let kind = match waited {
            ORIGIN => PathKind::Start,
            _ => PathKind::Wait,
        };
        stream.part = self.record.extend(waited, kind, (rank, None), self.now);
        match device.bytes(step) {
            0 => self.copied(rank, direction, self.now),
            _ => self.schedule(self.now + copy_ps, Event::CopyReady(rank, direction)),
        }
    }

    /// A copy comes to its link.
    pub fn put_on_link(&mut self, rank: u32, direction: Direction) {
        let device = &self.lanes.ranks[rank as usize];
        let (step, _) = device.streams[direction as usize].queue[0];
        let link_ps = self.devices().link_ps(direction, device.bytes(step));
        let number = self.devices().device(rank as usize);
        self.lanes.links[number].put(self.now, rank, direction, link_ps);
        self.plan_next_copy(number);
    }

    fn plan_next_copy(&mut self, device: usize) {
        let links = &self.lanes.links[device];
        if let Some(due_ps) = links.next_ps() {
            let change = links.change;
            let device = device as u32;
            self.schedule(due_ps, Event::CopyPassed(device, change));
        }
    }

    /// The first copies on a device's links have passed.
    pub fn copy_passed(&mut self, device: u32, change: u64) {
        let links = &mut self.lanes.links[device as usize];
        if links.change != change {
            return;
        }
        for passed in links.take_passed(self.now) {
            let Passed {
                rank,
                direction,
                begin_ps,
            } = passed;
            self.copied(rank, direction, begin_ps);
        }
        self.plan_next_copy(device as usize);
    }

    /// A stream's copy, which had the link from `begin_ps` on, is done: the rank will see it.
    fn copied(&mut self, rank: u32, direction: Direction, begin_ps: u64) {
        let (now, signal_ps) = (self.now, self.devices().signal_ps);
        let device = &mut self.lanes.ranks[rank as usize];
        let stream = &mut device.streams[direction as usize];
        let Some((step, _)) = stream.queue.pop_front() else {
            return;
        };
        stream.is_copying = false;
        let (kind, lane) = match direction {
            Direction::Out => (PathKind::Bring, Lane::Bring),
            Direction::In => (PathKind::Take, Lane::Take),
        };
        stream.part = self.record.extend(stream.part, kind, (rank, None), now);
        let part = stream.part;
        self.record.note(TraceEvent {
            rank: rank as usize,
            lane,
            begin_ps,
            end_ps: now,
            peer: None,
            bytes: device.bytes(step),
            slice: slice(step),
        });
        self.lanes.copied.push((rank as usize, step));
        let seen = Event::Seen {
            rank,
            direction,
            part,
        };
        self.schedule(now + signal_ps, seen);
        self.touch(rank);
        self.schedule(now, Event::Stream(rank, direction));
    }

    /// A rank sees that its device has brought or taken the next slice.
    pub fn see_copy(&mut self, rank: u32, direction: Direction, part: u32) {
        self.lanes.ranks[rank as usize].seen[direction as usize].grow(part);
        self.touch(rank);
        if self.lanes.is_direct && direction == Direction::In {
            self.give_back(part);
        }
    }

    /// Lets all devices fill the slots again that all ranks have taken; `part` ends with the last.
    fn give_back(&mut self, part: u32) {
        let taken = |device: &RankDevice| device.seen[Direction::In as usize].value;
        let least = self.lanes.ranks.iter().map(taken).min().unwrap_or(0);
        let signal_ps = self.devices().signal_ps;
        while self.lanes.given_back < least {
            self.lanes.given_back += 1;
            for rank in 0..self.lanes.ranks.len() as u32 {
                self.schedule(self.now + signal_ps, Event::GivenBack(rank, part));
            }
        }
    }

    /// A device sees that all ranks have taken the next direct slice.
    pub fn see_slot(&mut self, rank: u32, part: u32) {
        self.lanes.ranks[rank as usize].free.grow(part);
        self.go_on_in_stream(rank, Direction::Out);
    }

    /// A rank's host has handled the next slice: its device will see that.
    pub fn release(&mut self, rank: usize) {
        let (part, signal_ps) = (self.ranks[rank].cause, self.devices().signal_ps);
        let rank = rank as u32;
        self.schedule(self.now + signal_ps, Event::Released { rank, part });
    }

    /// A device sees that its host has handled the next slice.
    pub fn see_release(&mut self, rank: u32, part: u32) {
        self.lanes.ranks[rank as usize].released.grow(part);
        self.go_on_in_stream(rank, Direction::Out);
        self.go_on_in_stream(rank, Direction::In);
    }

    /// Whether the host call for a rank's slice is due, or behind the last slice the end of the
    /// call. True without devices.
    pub fn is_due(&mut self, rank: usize, slice: u32) -> bool {
        let Some(device) = self.lanes.ranks.get(rank) else {
            return true;
        };
        let [brought, taken] = device.seen;
        let slices = device.cut.slices();
        let needed = match slice < slices {
            true if self.lanes.is_direct => [slice + 1, 0],
            true => [slice + 1, (slice + 1).saturating_sub(self.devices().depth)],
            false => [slices; 2],
        };
        let is_due = brought.value >= needed[0] && taken.value >= needed[1];
        if is_due {
            let seen = self.record.later(brought.part, taken.part);
            let state = &mut self.ranks[rank];
            state.cause = self.record.later(state.cause, seen);
        }
        is_due
    }
}

/// The slice of a step.
fn slice(step: Step) -> u32 {
    match step {
        Step::Bring(slice) | Step::Take(slice) => slice,
    }
}

/// How long the copies of a call take alone, with data on devices: none waits for another rank, the
/// host, or what its thread has to enqueue. With slices of this size no lane is faster whose links
/// have their whole rate both ways at once.
///
/// # Errors
/// As those of [`Scenario::check`].
pub fn copies_alone_ps(scenario: &Scenario) -> Result<u64> {
    let is_late = |disturbance: &Disturbance| matches!(disturbance, Disturbance::Late { .. });
    let mut scenario = scenario.clone();
    scenario
        .disturbances
        .retain(|disturbance| !is_late(disturbance));
    if let Some(devices) = &mut scenario.devices {
        (devices.signal_ps, devices.enqueue_ps) = (0, 0);
    }
    scenario.check()?;
    let mut world = World::new(&scenario);
    for device in &mut world.lanes.ranks {
        device.released.value = NEVER_DUE;
        device.free.value = NEVER_DUE;
    }
    while let Some(next_ps) = world.next_event_ps() {
        world.advance(next_ps);
    }
    Ok(world.now)
}
