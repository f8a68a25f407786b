//! Asynchronous events of the devices, and the faults that raise them.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// `IBV_EVENT_CQ_ERR` and so on.
pub const QUEUE_ERROR: u32 = 0;
pub const DEVICE_FATAL: u32 = 8;
pub const PORT_ACTIVE: u32 = 9;
pub const PORT_ERROR: u32 = 10;

/// Time that a flapping port is down.
const FLAP: Duration = Duration::from_millis(50);

/// Pending events of an opened device.
#[derive(Debug)]
struct Context {
    events: VecDeque<u32>,
    /// Event counter, readable while events are pending.
    descriptor: i32,
}

/// The opened devices by the addresses of their contexts.
#[derive(Debug, Default)]
pub struct Contexts {
    by_address: HashMap<usize, Context>,
    /// Whether the devices have failed permanently.
    is_dead: bool,
    /// End of the ports' down time.
    down_until: Option<Instant>,
}

impl Contexts {
    pub fn add(&mut self, address: usize, descriptor: i32) {
        let events = VecDeque::new();
        let context = Context { events, descriptor };
        self.by_address.insert(address, context);
    }

    pub fn remove(&mut self, address: usize) {
        self.by_address.remove(&address);
    }

    pub fn count(&self) -> usize {
        self.by_address.len()
    }

    /// Reports `event` on all devices.
    pub fn tell(&mut self, event: u32) {
        for context in self.by_address.values_mut() {
            context.events.push_back(event);
            let one = 1u64.to_ne_bytes();
            // SAFETY: the context's own descriptor, and eight bytes.
            unsafe { libc::write(context.descriptor, one.as_ptr().cast(), one.len()) };
        }
    }

    /// Returns a device's next event.
    pub fn take(&mut self, address: usize) -> Option<u32> {
        let context = self.by_address.get_mut(&address)?;
        let event = context.events.pop_front()?;
        if context.events.is_empty() {
            let mut count = [0; 8];
            // SAFETY: the context's own descriptor, which is readable, and room for eight bytes.
            unsafe { libc::read(context.descriptor, count.as_mut_ptr().cast(), count.len()) };
        }
        Some(event)
    }

    /// Makes the devices fail.
    pub fn die(&mut self) {
        self.is_dead = true;
        self.tell(DEVICE_FATAL);
    }

    /// Takes the ports down for a moment.
    pub fn flap(&mut self, now: Instant) {
        self.down_until = Some(now + FLAP);
        self.tell(PORT_ERROR);
    }

    /// Ends an elapsed down time, and returns for how long the devices execute no requests.
    pub fn idle_until(&mut self, now: Instant) -> Idle {
        if self.down_until.is_some_and(|until| until <= now) {
            self.down_until = None;
            self.tell(PORT_ACTIVE);
        }
        match (self.is_dead, self.down_until) {
            (true, _) => Idle::Forever,
            (_, Some(until)) => Idle::Until(until),
            (_, None) => Idle::No,
        }
    }
}

/// Time during which the devices execute no requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    No,
    Until(Instant),
    Forever,
}
