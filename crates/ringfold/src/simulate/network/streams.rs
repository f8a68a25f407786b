//! The streams of the ranks' devices, in time: when each operation begins, and what follows it.

use super::device_links::Passed;
use super::event::ScheduledEvent;
use super::job::{JobKind, ProcessorJob, Then};
use super::lanes::{Count, RankDevice};
use super::record::{ORIGIN, PathKind, TimelineLane, TraceEvent};
use super::world::World;
use crate::error::Result;
use crate::lane::program::Step;
use crate::simulate::devices::{Devices, Direction};
use crate::simulate::program::{Moved, Program};
use crate::simulate::scenario::{Disturbance, Scenario};

/// More slices than a call has, so that no copy waits for its slot or for the host.
const NEVER_DUE: u32 = u32::MAX / 2;

impl World {
    /// The devices of a scenario that has such.
    pub fn devices(&self) -> &Devices {
        self.scenario.devices.as_ref().expect("a rank's device")
    }

    /// Has all streams look at what is enqueued first.
    pub fn begin_streams(&mut self) {
        for rank in 0..self.lanes.ranks.len() as u32 {
            self.schedule(0, ScheduledEvent::Stream(rank, Direction::Out));
            self.schedule(0, ScheduledEvent::Stream(rank, Direction::In));
        }
    }

    /// Begins the next operation of a stream, if it is due.
    pub fn go_on_in_stream(&mut self, rank: u32, direction: Direction) {
        let device = &self.lanes.ranks[rank as usize];
        let stream = &device.streams[direction as usize];
        let Some(&(step, enqueued_ps)) = stream.queue.front().filter(|_| !stream.is_copying) else {
            return;
        };
        if enqueued_ps > self.now {
            return self.schedule(enqueued_ps, ScheduledEvent::Stream(rank, direction));
        }
        let Some(waited) = self.waited(rank, step) else {
            return;
        };
        let kind = match waited {
            ORIGIN => PathKind::Start,
            _ => PathKind::Wait,
        };
        let part = self.record.extend(waited, kind, (rank, None), self.now);
        let stream = &mut self.lanes.ranks[rank as usize].streams[direction as usize];
        (stream.is_copying, stream.part) = (true, part);
        if let Program::OneShot { .. } = self.lanes.ranks[rank as usize].program {
            return self.run_kernel(rank, step);
        }
        let Moved { bytes, copies } = self.lanes.ranks[rank as usize].program.moved(step);
        let chain_ps = match self.lanes.is_alone {
            true => 0,
            false => self.devices().chain_ps,
        };
        let ready_ps = self.now + chain_ps + copies * self.devices().before_link_ps();
        match bytes {
            0 => self.copied(rank, direction, self.now),
            _ => self.schedule(ready_ps, ScheduledEvent::CopyReady(rank, direction)),
        }
    }

    /// The end of the chain that `step`, the next of its stream, has waited for; nothing if it is
    /// not due.
    fn waited(&self, rank: u32, step: Step) -> Option<u32> {
        let device = &self.lanes.ranks[rank as usize];
        let depth = self.devices().depth;
        let is_one_shot = matches!(device.program, Program::OneShot { .. });
        let (direction, (count, due)) = match step {
            Step::Bring(_) if is_one_shot => (Direction::Out, (Count::default(), 0)),
            Step::Take(_) if is_one_shot => {
                let all = self.lanes.ranks.len() as u32;
                (Direction::In, (self.lanes.flags, all))
            }
            Step::Bring(place) => {
                let due = match self.lanes.is_direct {
                    true => device.free,
                    false => device.released,
                };
                (Direction::Out, (due, (place + 1).saturating_sub(depth)))
            }
            Step::Take(place) => (Direction::In, (device.released, place + 1)),
        };
        if count.value < due {
            return None;
        }
        let part = device.streams[direction as usize].part;
        let part = match due {
            0 => part,
            _ => self.record.later(part, count.part),
        };
        Some(part)
    }

    /// The part of the kernel that does a whole call: it stores its row, or reads those of others.
    fn run_kernel(&mut self, rank: u32, step: Step) {
        let devices = self.devices();
        let (direction, begin_ps) = match step {
            Step::Bring(_) => (Direction::Out, self.now + devices.launch_ps),
            Step::Take(_) => (Direction::In, self.now),
        };
        let bytes = self.lanes.ranks[rank as usize].bytes(step);
        let ps_per_byte = match direction {
            Direction::Out => devices.out_ps_per_byte,
            Direction::In => devices.read_ps_per_byte,
        };
        let end_ps = begin_ps + bytes.saturating_mul(ps_per_byte);
        self.schedule(
            end_ps,
            ScheduledEvent::KernelPassed(rank, direction, begin_ps),
        );
    }

    /// A kernel has stored its row, which raises its flag, or has read those of others.
    pub fn kernel_passed(&mut self, rank: u32, direction: Direction, begin_ps: u64) {
        self.copied(rank, direction, begin_ps);
        if direction == Direction::Out {
            let device = &self.lanes.ranks[rank as usize];
            let part = device.streams[direction as usize].part;
            let flag_ps = if self.lanes.is_alone {
                0
            } else {
                self.devices().flag_ps
            };
            self.schedule(self.now + flag_ps, ScheduledEvent::Flag(part));
        }
    }

    /// All kernels see a flag.
    pub fn see_flag(&mut self, part: u32) {
        self.lanes.flags.grow(part);
        for rank in 0..self.lanes.ranks.len() as u32 {
            self.go_on_in_stream(rank, Direction::In);
        }
    }

    /// A copy comes to its link.
    pub fn put_on_link(&mut self, rank: u32, direction: Direction) {
        let device = &self.lanes.ranks[rank as usize];
        let (step, _) = device.streams[direction as usize].queue[0];
        let Moved { bytes, copies } = device.program.moved(step);
        let link_ps = self.devices().link_ps(direction, bytes, copies);
        let number = self.devices().device(rank as usize);
        self.lanes.links[number].put(self.now, rank, direction, link_ps);
        self.plan_next_copy(number);
    }

    fn plan_next_copy(&mut self, device: usize) {
        let links = &self.lanes.links[device];
        if let Some(due_ps) = links.next_ps() {
            let change = links.change;
            let device = device as u32;
            self.schedule(due_ps, ScheduledEvent::CopyPassed(device, change));
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
            Direction::Out => (PathKind::Bring, TimelineLane::Bring),
            Direction::In => (PathKind::Take, TimelineLane::Take),
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
        let seen = ScheduledEvent::Seen {
            rank,
            direction,
            part,
        };
        self.schedule(now + signal_ps, seen);
        self.touch(rank);
        self.schedule(now, ScheduledEvent::Stream(rank, direction));
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
                self.schedule(self.now + signal_ps, ScheduledEvent::GivenBack(rank, part));
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
        self.schedule(self.now + signal_ps, ScheduledEvent::Released(rank, part));
    }

    /// Has a rank combine its share of a slice, so many bytes, in slots. `releases`: the
    /// device passes its wait after that.
    pub fn combine_share(&mut self, rank: u32, (slice, bytes): (u32, u64), releases: bool) {
        let slow_ps = self.count_reduction(rank);
        let part = self.ranks[rank as usize].cause;
        let share_ps = self.scenario.share_ps(bytes);
        let mut job = ProcessorJob::new(
            rank,
            JobKind::Reduce,
            share_ps,
            part,
            Then::Combined(releases),
        );
        (job.bytes, job.slow_ps, job.slice) = (bytes, slow_ps, slice);
        self.lanes.ranks[rank as usize].is_combining = true;
        self.submit(job);
    }

    /// A rank has combined its share.
    pub fn share_combined(&mut self, rank: u32, part: u32, releases: bool) {
        self.lanes.ranks[rank as usize].is_combining = false;
        self.ranks[rank as usize].cause = part;
        if releases {
            self.release(rank as usize);
        }
        self.touch(rank);
    }

    /// A device sees that its host has handled the next slice.
    pub fn see_release(&mut self, rank: u32, part: u32) {
        self.lanes.ranks[rank as usize].released.grow(part);
        self.go_on_in_stream(rank, Direction::Out);
        self.go_on_in_stream(rank, Direction::In);
    }

    /// Whether a rank's host call number `call` is due, or behind the last one the end of the
    /// device call. True without devices.
    pub fn is_due(&mut self, rank: usize, call: u32) -> bool {
        let Some(device) = self.lanes.ranks.get(rank) else {
            return true;
        };
        let [brought, taken] = device.seen;
        let slice = call / device.program.calls_of_slice();
        let needed = match call < device.program.host_calls() {
            true if self.lanes.is_direct => [slice + 1, 0],
            true => [slice + 1, (slice + 1).saturating_sub(self.devices().depth)],
            false => [device.program.places(); 2],
        };
        let is_seen = brought.value >= needed[0] && taken.value >= needed[1];
        let is_due = is_seen && !device.is_combining;
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
    world.lanes.is_alone = true;
    world.lanes.flags.value = NEVER_DUE;
    for device in &mut world.lanes.ranks {
        device.released.value = NEVER_DUE;
        device.free.value = NEVER_DUE;
    }
    while let Some(next_ps) = world.next_event_ps() {
        world.advance(next_ps);
    }
    Ok(world.now)
}
